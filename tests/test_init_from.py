"""A backbone that starts from the weights of another encoder, and never opens their file again."""

from pathlib import Path

import pytest
import torch
import torchvision
from cases import few
from checkpoint_files import LightlySimCLR, quiet_trainer, save_with_trainer, scramble
from torch import nn

from weince_lightning import ContrastiveModule
from weince_lightning.checkpoints.export import export_encoder
from weince_lightning.cli import main
from weince_lightning.data import VisionData
from weince_lightning.networks import build_encoder

LARGE_STEM = {"small_image_stem": False}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def same(module, encoder):
    """Whether all weights and buffers are equal, whatever their names."""
    pairs = zip(module.backbone.state_dict().values(), encoder.state_dict().values(), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


def write_ours(folder):
    module = ContrastiveModule("resnet18", backbone_options=LARGE_STEM)
    scramble(module.backbone)
    return module.backbone, save_with_trainer(module, folder / "ours.ckpt")


def write_export(folder):
    encoder, path = write_ours(folder)
    export_encoder(path, "backbone.safetensors")
    return encoder, "backbone.safetensors"


def write_lightly(folder):
    module = LightlySimCLR(scramble(torchvision.models.resnet18()))
    torch.save({"state_dict": module.state_dict(), "pytorch-lightning_version": "2.5.0"}, "l.ckpt")
    return module.backbone, "l.ckpt"


def write_published(folder):
    """torchvision's file, where torch.hub keeps it; the classifier is left out."""
    model = scramble(torchvision.models.resnet18())
    cache = folder / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    url = torchvision.models.ResNet18_Weights.DEFAULT.url
    torch.save(model.state_dict(), cache / url.rpartition("/")[2])
    model.fc = nn.Identity()
    return model, "torchvision:resnet18"


@pytest.mark.parametrize(
    "write", few([write_export, write_ours, write_lightly, write_published], 3)
)
def test_weights_of_every_kind_of_file_are_taken(folder, monkeypatch, write):
    monkeypatch.setenv("TORCH_HOME", str(folder))
    encoder, source = write(folder)
    torch.manual_seed(0)
    module = ContrastiveModule("resnet18", backbone_options=LARGE_STEM, init_from=source)
    assert same(module, encoder)
    torch.manual_seed(0)
    plain = ContrastiveModule("resnet18", backbone_options=LARGE_STEM)
    head, same_head = (each.projection_head.state_dict() for each in (module, plain))
    assert all(torch.equal(head[name], same_head[name]) for name in head)


def test_the_file_is_not_opened_where_a_checkpoint_is_reloaded(folder):
    data = VisionData("digits", image_size=8, batch_size=8)
    module = ContrastiveModule("convnet", in_channels=1, image_size=8)
    torch.save(module.backbone.state_dict(), "start.pt")
    module = ContrastiveModule(
        "convnet", in_channels=1, image_size=8, init_from=Path("start.pt"), learning_rate=0.1
    )
    trainer = quiet_trainer(folder, max_steps=1)
    trainer.fit(module, data)
    trainer.save_checkpoint("last.ckpt")
    Path("start.pt").unlink()
    again = ContrastiveModule.load_from_checkpoint("last.ckpt")
    assert same(again, module.backbone)
    assert again.hparams["init_from"] == "start.pt"
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint start\.pt"):
        ContrastiveModule("convnet", init_from="start.pt")


@pytest.mark.slow
def test_a_training_from_weights_resumes_to_the_last_bit_without_their_file(folder):
    module = ContrastiveModule("convnet", in_channels=1, image_size=16)
    save_with_trainer(module, folder / "start.ckpt")
    call = ["fit", "-c=digits", "--trainer.enable_progress_bar=false", "--trainer.callbacks=null",
            "--data.batch_size=32", "--model.init_from=start.ckpt",
            "--trainer.limit_val_batches=0", "--model.schedule=constant",
            "--model.warmup_fraction=0"]  # fmt: skip
    main([*call, "--trainer.max_steps=4"])
    main([*call, "--trainer.max_steps=2"])
    (whole,), (stopped,) = (list(Path("runs").rglob(f"version_{i}/**/*.ckpt")) for i in (0, 1))
    Path("start.ckpt").unlink()
    main(["fit", f"--ckpt_path={stopped}", "--trainer.max_steps=4"])
    (resumed,) = Path("runs").rglob("version_1/**/*step=4*.ckpt")
    states = [torch.load(path)["state_dict"] for path in (whole, resumed)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("backbone", "change", "message"),
    [
        (
            "resnet18_slim", lambda state: state.update({"conv1.weight": torch.zeros(16, 3, 7, 7)}),
            "init_from must hold a 3x3 stem, that of a backbone for small images, got 7x7 in w.pt. "
            "Set backbone_options to {small_image_stem: false}.",
        ),
        (
            "convnet", lambda state: (state.pop("0.weight"), state.update(other=torch.zeros(1))),
            "got w.pt, which misses 0.weight, has besides other.",
        ),
        (
            "convnet", lambda state: state.update({"0.weight": torch.zeros(16, 1, 3, 3)}),
            "has in other shapes 0.weight (16, 1, 3, 3) for (16, 3, 3, 3).",
        ),
        (
            "convnet", lambda state: state["0.weight"].fill_(torch.nan),
            "init_from must hold finite weights, got w.pt: 0.weight.",
        ),
    ],
    ids=["stem", "names", "shapes", "not finite"],
)  # fmt: skip
def test_weights_that_do_not_fit_are_refused_in_one_line(folder, backbone, change, message):
    state = build_encoder(backbone, image_size=8).state_dict()
    change(state)
    torch.save(state, "w.pt")
    with pytest.raises(ValueError, match=r"^init_from must") as refused:
        ContrastiveModule(backbone, image_size=8, init_from="w.pt")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_strides_that_leave_no_trace_in_the_weights_are_compared(folder):
    torch.save(torchvision.models.resnet50().state_dict(), "w.pt")
    options = {"small_image_stem": False, "v1_stride": True}
    with pytest.raises(ValueError, match=r"layer2\.0\.conv1 has \(1, 1\).*v1_stride .* false\.$"):
        ContrastiveModule("resnet50", backbone_options=options, init_from="w.pt")
    options["v1_stride"] = False
    ContrastiveModule("resnet50", backbone_options=options, init_from="w.pt")
