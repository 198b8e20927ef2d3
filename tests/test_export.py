"""``weince export``: what it writes loads by the lines that it prints."""

import contextlib
import io
import re

import pytest
import torch
import torchvision
from cases import few
from checkpoint_files import (
    AuthorsSimCLR,
    LightlySimCLR,
    features,
    quiet_trainer,
    resnet,
    save_with_trainer,
    scramble,
)
from torch import nn
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from weince_lightning import ContrastiveModule
from weince_lightning.checkpoints import load_encoder, open_checkpoint
from weince_lightning.cli import main
from weince_lightning.data import VisionData
from weince_lightning.evaluation.saved_run import build_saved_data, warn_of_normalization


def export(*arguments):
    """Run the command and return what it printed."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        main(["export", *map(str, arguments)])
    return output.getvalue()


def printed_model(text, **names):
    """Build and load the model by the lines that were printed."""
    lines = "\n".join(line[2:] for line in text.splitlines() if line.startswith("  "))
    exec(lines, names)
    return names["model"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


OURS = {
    # backbone, channels, pixels, options, what the command must say
    "stem for small images": ("resnet18", 1, 32, {}, "its stem is that for small images and it"),
    "torchvision": ("resnet18", 3, 96, {}, "load into its model without the classifier"),
    "torchvision's channels aside": ("resnet18", 1, 96, {}, "resnet18: it takes 1 channels."),
    "slim": ("resnet18_slim", 3, 96, {}, "resnet18_slim: it has fewer channels."),
    "stride of the paper": ("resnet50", 3, 32, {}, "its stride stands on the 1x1 convolutions"),
    "transformer": ("vit_small", 3, 32, {}, "Names and shapes are torchvision's"),
    "transformer that pads": ("vit_small", 3, 30, {}, "vit_small: it pads the images."),
    "torchvision by name": ("torchvision:mobilenet_v3_small", 3, 32, {}, "without the last layer"),
    "convnet": ("convnet", 1, 16, {}, "torchvision has no such model"),
    "timm": ("timm:resnet18", 3, 32, {}, "The names are timm's"),
    "timm's transformer": ("timm:vit_tiny_patch16_224", 1, 32, {"patch_size": 8}, "timm's"),
}


@pytest.mark.parametrize("case", few(OURS, 3, -1))
def test_the_printed_lines_load_our_encoder(folder, case):
    backbone, in_channels, size, options, sentence = OURS[case]
    module = ContrastiveModule(
        backbone, in_channels=in_channels, image_size=size, backbone_options=options
    )
    scramble(module.backbone)
    text = export(save_with_trainer(module, folder / "ours.ckpt"), "--to", "backbone.pt")
    assert sentence in text
    images = {"size": size, "in_channels": in_channels}
    assert torch.equal(features(printed_model(text), **images), features(module.backbone, **images))
    assert "weince_lightning" in text or torch.load("backbone.pt", weights_only=True)
    assert "Left out: projection head (2 tensors)." in text


@pytest.mark.slow
def test_torchvisions_own_resnet50_takes_the_weights_strictly(folder):
    module = ContrastiveModule("resnet50", image_size=96)
    export(save_with_trainer(module, folder / "ours.ckpt"), "--to", "backbone.pt")
    network = torchvision.models.resnet50()
    network.fc = nn.Identity()
    network.load_state_dict(torch.load("backbone.pt", weights_only=True))
    assert torch.equal(features(network, 96), features(module.backbone, 96))


@pytest.mark.slow
def test_safetensors_are_written_where_the_name_says_so(folder):
    module = ContrastiveModule("resnet18", image_size=96)
    text = export(save_with_trainer(module, folder / "ours.ckpt"), "--to", "backbone.safetensors")
    assert 'load_file("backbone.safetensors")' in text
    assert torch.equal(features(printed_model(text)), features(module.backbone))
    assert torch.equal(features(load_encoder("backbone.safetensors")), features(module.backbone))


def test_normalization_travels_with_checkpoint_and_export(folder, caplog):
    mean, std = [0.3], [0.25]
    module = ContrastiveModule("convnet", in_channels=1, image_size=16)
    trainer = quiet_trainer(folder, limit_train_batches=1, limit_val_batches=0)
    trainer.fit(module, VisionData("digits", mean=mean, std=std, batch_size=32))
    trainer.save_checkpoint("ours.ckpt")
    data, _ = build_saved_data(open_checkpoint("ours.ckpt"))
    assert data.normalization == (mean, std)
    text = export("ours.ckpt", "--to", "backbone.safetensors")
    own = nn.Sequential(v2.Normalize(mean, std), module.backbone)
    assert torch.equal(features(printed_model(text), 16, 1), features(own, 16, 1))
    saved = open_checkpoint("backbone.safetensors")
    assert saved.normalization == {"mean": mean, "std": std}
    with caplog.at_level("WARNING", logger="weince_lightning"):
        warn_of_normalization(saved, VisionData("digits", mean=mean, std=std))
        assert "learnt from" not in caplog.text
        warn_of_normalization(saved, VisionData("digits"))
    assert "learnt from images with mean [0.3] and std [0.25]" in caplog.text


def test_the_authors_checkpoint_becomes_an_encoder(folder):
    encoder = resnet()
    torch.save(AuthorsSimCLR(encoder).state_dict(), "checkpoint_100.tar")
    text = export("checkpoint_100.tar", "--to", "backbone.pth")
    assert "its stem is that for small images" in text
    assert torch.equal(features(printed_model(text)), features(encoder))


def test_an_unknown_stride_is_said(folder):
    encoder = resnet("resnet50", v1_stride=True)
    torch.save(AuthorsSimCLR(encoder, 2048).state_dict(), "checkpoint_100.tar")
    text = export("checkpoint_100.tar", "--to", "backbone.pt")
    assert "Where the stride stands cannot be seen" in text
    assert torch.equal(features(printed_model(text)), features(encoder))


def test_lightlys_checkpoint_becomes_torchvisions_model(folder):
    module = LightlySimCLR()
    trainer = quiet_trainer(folder)
    trainer.fit(module)
    trainer.save_checkpoint("lightly.ckpt")
    text = export("lightly.ckpt", "--to", "backbone.pt")
    assert torch.equal(features(printed_model(text)), features(module.backbone))
    assert "torchvision.models.resnet18()" in text


class Replaced(ContrastiveModule):
    """A module that sets another backbone than its arguments say, and a loss with weights."""

    def __init__(self):
        super().__init__("convnet", in_channels=1, image_size=16, loss=nn.PairwiseDistance())
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(256, 512))
        self.loss = nn.Bilinear(64, 64, 1)


class ForeignBackbone(ContrastiveModule):
    def __init__(self):
        super().__init__(nn.Sequential(nn.Flatten(), nn.Linear(256, 8)), None, 1, 16)


@pytest.mark.parametrize("kind", [Replaced, ForeignBackbone])
def test_a_foreign_backbone_keeps_its_own_names_and_is_told_so(folder, kind):
    module = kind()
    text = export(save_with_trainer(module, folder / "foreign.ckpt"), "--to", "backbone.pt")
    assert "keep their own names" in text
    assert ("loss (2 tensors)" in text) == (kind is Replaced)
    module.backbone.load_state_dict(torch.load("backbone.pt", weights_only=True))


def test_a_trained_module_is_exported_with_what_it_learnt(folder):
    class Trained(ContrastiveModule):
        def train_dataloader(self):
            images = torch.rand(8, 1, 16, 16, generator=torch.Generator().manual_seed(0))
            pairs = [((image, image.flip(-1)), -1) for image in images]
            return DataLoader(pairs, 4)

    module = Trained("convnet", in_channels=1, image_size=16)
    before = features(module.backbone, in_channels=1)
    trainer = quiet_trainer(folder)
    trainer.fit(module)
    trainer.save_checkpoint("trained.ckpt")
    exported = printed_model(export("trained.ckpt", "--to", "backbone.pt"))
    after = features(exported, in_channels=1)
    assert torch.equal(after, features(module.backbone, in_channels=1))
    assert not torch.equal(after, before)


def test_weights_of_timm_need_the_name_of_their_model(folder):
    encoder = scramble(load_timm("resnet26"))
    torch.save(encoder.state_dict(), "timm.pth")
    text = export("timm.pth", "--to", "backbone.pt", "--backbone", "timm:resnet26")
    assert 'timm.create_model("resnet26"' in text
    assert "Left out: fc (2 tensors)." in text
    encoder.reset_classifier(0)
    assert torch.equal(features(printed_model(text), 32), features(encoder, 32))


def load_timm(name):
    import timm

    return timm.create_model(name)


@pytest.fixture
def small(folder):
    module = ContrastiveModule("convnet", in_channels=1, image_size=16)
    return save_with_trainer(module, folder / "small.ckpt")


def refusal(status, capsys, *arguments):
    """Run the command, which must refuse in one line, and return it."""
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    error = capsys.readouterr().err
    assert ended.value.code == status
    assert re.fullmatch(r"weince: error: [^\n]+\n", error), error
    return error


def test_a_file_is_replaced_only_by_force(small, capsys):
    export(small, "--to", "backbone.pt")
    before = torch.load("backbone.pt", weights_only=True)
    error = refusal(2, capsys, "export", small, "--to", "backbone.pt")
    assert "--force" in error
    export(small, "--to", "backbone.pt", "--force")
    assert before.keys() == torch.load("backbone.pt", weights_only=True).keys()


def test_the_checkpoint_itself_is_never_replaced(small, capsys):
    small = small.rename(small.with_suffix(".pt"))
    content = small.read_bytes()
    refusal(2, capsys, "export", small, "--to", small, "--force")
    assert small.read_bytes() == content


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["small.ckpt"], 2, "--to"),
        (["small.ckpt", "--to", "backbone.onnx"], 2, "must end in .pt, .pth, .safetensors"),
        (["small.ckpt", "--to", "nowhere/backbone.pt"], 1, "in a folder that exists"),
        (["nowhere.ckpt", "--to", "backbone.pt"], 1, "there is no checkpoint nowhere.ckpt"),
        (["small.ckpt", "--to", "b.pt", "--backbone", "resnet19"], 2, 'Did you mean "resnet18"?'),
        (["small.ckpt", "--to", "b.pt", "--backbone", "resnet18"], 1, "weights of 'resnet18'"),
    ],
)
def test_a_command_without_sense_is_refused_in_one_line(small, capsys, arguments, status, message):
    assert message in refusal(status, capsys, "export", *arguments)
    assert [path.name for path in small.parent.iterdir()] == ["small.ckpt"]


@pytest.mark.parametrize(
    ("command", "damage"),
    [
        *((command, "half") for command in ("export", "validate", "test", "predict", "fit")),
        *(("export", damage) for damage in ("flipped", "empty", "folder", "missing")),
        *(("validate", damage) for damage in ("flipped", "folder", "missing")),
    ],
)
def test_every_command_refuses_a_damaged_checkpoint_in_one_line(small, capsys, command, damage):
    data = small.read_bytes()
    bad = small.with_name("bad.ckpt")
    if damage == "folder":
        bad.mkdir()
    elif damage != "missing":
        middle = len(data) // 2
        flipped = data[:middle] + b"\xa5\x5a" + data[middle + 2 :]
        bad.write_bytes({"half": data[:middle], "flipped": flipped, "empty": b""}[damage])
    arguments = ["-c", "digits", "--ckpt_path", bad]
    if command == "export":
        arguments = [bad, "--to", "backbone.pt"]
    assert "bad.ckpt" in refusal(1, capsys, command, *arguments)
    assert {path.name for path in small.parent.iterdir()} <= {"small.ckpt", "bad.ckpt"}


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["export", "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(word in text for word in ("CHECKPOINT", "--to", "--backbone", "--force", "example"))
    main(["--help"])
    assert "\n  export " in capsys.readouterr().out
