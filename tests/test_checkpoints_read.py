"""Checkpoints of anyone are read, and files that are none are refused in one line."""

import random

import numpy as np
import pytest
import timm
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
from safetensors.torch import save_file
from torch import nn
from torch.serialization import set_crc32_options

from weince_lightning import ContrastiveModule
from weince_lightning.checkpoints import (
    CheckpointError,
    check_checkpoint,
    load_encoder,
    read_checkpoint,
    read_encoder,
)
from weince_lightning.checkpoints.files import whole_file
from weince_lightning.networks import build_encoder, projection_head


class Surprise:
    """An object of a class that a safe checkpoint cannot hold."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A checkpoint of a small module, as Lightning writes it."""
    path = tmp_path_factory.mktemp("whole") / "whole.ckpt"
    return save_with_trainer(ContrastiveModule("convnet", in_channels=1, image_size=16), path)


def assert_same_features(encoder, expected, **images):
    assert not encoder.training
    assert torch.equal(features(encoder, **images), features(expected, **images))


WRAPPERS = {
    "model": lambda state: {"model": state, "epoch": 3},
    "state_dict": lambda state: {"state_dict": state},
    "processes": lambda state: {f"module.{name}": value for name, value in state.items()},
    "both": lambda state: {"model": {f"module.{name}": value for name, value in state.items()}},
    "compiled": lambda state: {f"_orig_mod.{name}": value for name, value in state.items()},
}


@pytest.fixture(scope="module")
def authors():
    return AuthorsSimCLR(resnet())


def test_the_authors_file_gives_their_encoder_and_projector(tmp_path, authors):
    torch.save(authors.state_dict(), tmp_path / "checkpoint_100.tar")
    assert_same_features(load_encoder(tmp_path / "checkpoint_100.tar"), authors.encoder)
    read = read_encoder(tmp_path / "checkpoint_100.tar")
    head = projection_head(512, 64)
    head.load_state_dict(read.projection_head)
    inputs = torch.ones(1, 512)
    assert torch.equal(head(inputs), authors.projector(inputs))
    assert read.layout == "authors"
    assert read.left_out == []


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_weights_are_found_in_what_programs_wrap_around_them(tmp_path, authors, wrapper):
    torch.save(WRAPPERS[wrapper](authors.state_dict()), tmp_path / "wrapped.pt")
    read = read_encoder(tmp_path / "wrapped.pt").encoder
    expected = authors.encoder.state_dict()
    assert read.keys() == expected.keys()
    assert all(torch.equal(read[name], expected[name]) for name in expected)


@pytest.fixture(scope="module")
def v1_resnet50():
    return resnet("resnet50", v1_stride=True)


@pytest.mark.parametrize(
    "wrap", few([lambda encoder: AuthorsSimCLR(encoder, 2048), lambda same: same])
)
def test_the_stride_of_a_resnet50_for_small_images_must_be_given(tmp_path, v1_resnet50, wrap):
    torch.save(wrap(v1_resnet50).state_dict(), tmp_path / "resnet50.tar")
    with pytest.raises(ValueError, match=r"v1_stride must be given for .*resnet50\.tar"):
        load_encoder(tmp_path / "resnet50.tar", image_size=32)
    assert_same_features(load_encoder(tmp_path / "resnet50.tar", v1_stride=True), v1_resnet50)


@pytest.mark.parametrize("stem", few(["torchvision", "small without max-pool"], -1))
def test_lightlys_simclr_gives_its_encoder_and_head(tmp_path, stem):
    network = torchvision.models.resnet18() if stem == "torchvision" else resnet()
    if stem == "small without max-pool":
        del network.maxpool
    module = LightlySimCLR(network)
    if stem == "torchvision":
        trainer = quiet_trainer(tmp_path)
        trainer.fit(module)
        trainer.save_checkpoint(tmp_path / "lightly.ckpt")
    else:
        save_with_trainer(module, tmp_path / "lightly.ckpt")
    assert_same_features(load_encoder(tmp_path / "lightly.ckpt"), module.backbone)
    read = read_encoder(tmp_path / "lightly.ckpt")
    module.projection_head.load_state_dict(read.projection_head)
    assert read.layout == "lightly"
    assert read.projection_head["layers.0.weight"].shape == (512, 512)


@pytest.mark.slow
def test_weights_of_torchvisions_resnet50_load_without_an_argument(tmp_path):
    network = scramble(torchvision.models.resnet50())
    torch.save(network.state_dict(), tmp_path / "resnet50.pth")
    assert read_encoder(tmp_path / "resnet50.pth").left_out == ["fc.weight", "fc.bias"]
    network.fc = nn.Identity()
    assert_same_features(load_encoder(tmp_path / "resnet50.pth"), network)


@pytest.mark.parametrize(
    ("name", "size"), few([("vit_tiny_patch16_224", 224), ("convnext_atto", 32)], -1)
)
def test_weights_of_timms_models_load_by_name(tmp_path, name, size):
    network = scramble(timm.create_model(name, num_classes=7))
    torch.save(network.state_dict(), tmp_path / "timm.pth")
    with pytest.raises(ValueError, match="backbone must be given"):
        load_encoder(tmp_path / "timm.pth")
    encoder = load_encoder(tmp_path / "timm.pth", backbone=f"timm:{name}")
    network.reset_classifier(0)
    assert_same_features(encoder, network, size=size)


@pytest.mark.parametrize("name", ["resnet18", "resnet18_slim"])
def test_a_resnet_is_known_by_its_shapes(tmp_path, name):
    encoder = build_encoder(name, in_channels=1, image_size=28)
    save_file(encoder.state_dict(), tmp_path / "resnet.safetensors")
    assert_same_features(
        load_encoder(tmp_path / "resnet.safetensors"), encoder, size=28, in_channels=1
    )


def test_a_resnet_of_another_width_is_not_taken_for_a_known_one(tmp_path):
    network = torchvision.models.resnet18()
    network.conv1 = nn.Conv2d(3, 32, 7)
    torch.save(network.state_dict(), tmp_path / "other.pth")
    with pytest.raises(ValueError, match="backbone must be given"):
        load_encoder(tmp_path / "other.pth")


def test_a_vision_transformer_is_known_by_its_shapes(tmp_path):
    encoder = build_encoder("vit_small", in_channels=1, image_size=28)
    save_file(encoder.state_dict(), tmp_path / "vit.safetensors")
    read = load_encoder(tmp_path / "vit.safetensors")
    assert_same_features(read, encoder, size=28, in_channels=1)


@pytest.mark.parametrize(
    ("backbone", "size", "options"),
    few(
        [
            ("convnet", 16, None),
            ("resnet18", 32, {"small_image_stem": False}),
            ("resnet18_slim", 28, None),
            ("vit_small", 30, {"patch_size": 8}),
            ("timm:vit_tiny_patch16_224", 32, {"patch_size": 8}),
        ],
        0,
        2,
        -1,
    ),
)
def test_our_checkpoint_says_all_that_is_needed(tmp_path, backbone, size, options):
    module = ContrastiveModule(
        backbone, in_channels=1, image_size=size, backbone_options=options, learning_rate=0.1
    )
    path = save_with_trainer(module, tmp_path / "ours.ckpt")
    assert_same_features(load_encoder(path), module.backbone, size=size, in_channels=1)
    module.projection_head.load_state_dict(read_encoder(path).projection_head)


def test_pretrained_weights_are_not_fetched_for_a_trained_encoder(tmp_path):
    module = ContrastiveModule("timm:resnet18", backbone_options={"pretrained": False})
    path = save_with_trainer(module, tmp_path / "ours.ckpt")
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["hyper_parameters"]["backbone_options"] = {"pretrained": True}
    torch.save(checkpoint, path)
    assert "pretrained" not in read_encoder(path).arguments
    assert_same_features(load_encoder(path), module.backbone)


def test_a_module_takes_the_weights_of_a_backbone_of_its_class(tmp_path):
    def backbone():
        return nn.Sequential(nn.Flatten(), nn.Linear(256, 8))

    module = ContrastiveModule(backbone(), in_channels=1, image_size=16)
    path = save_with_trainer(module, tmp_path / "foreign.ckpt")
    with pytest.raises(ValueError, match=r"backbone must be given for .*foreign\.ckpt"):
        load_encoder(path)
    encoder = load_encoder(path, backbone=backbone())
    assert_same_features(encoder, module.backbone, size=16, in_channels=1)


def test_weights_of_another_backbone_are_refused(whole):
    with pytest.raises(CheckpointError, match="weights of 'resnet18', got others: Missing") as got:
        load_encoder(whole, backbone="resnet18")
    assert "\n" not in str(got.value)


@pytest.mark.parametrize("content", [{"loss": torch.ones(())}, {"a": 1}, [1, 2], 3.0])
def test_a_file_without_an_encoder_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"other\.pt"):
        load_encoder(tmp_path / "other.pt")


DAMAGES = {
    "empty": lambda data: b"",
    "text": lambda data: b"epoch: 3\n" * 100,
    "noise": lambda data: random.Random(0).randbytes(1000),
    "half": lambda data: data[: len(data) // 2],
    "all but the end": lambda data: data[:-10],
    "first bytes": lambda data: data[:3],
    "flipped": lambda data: data[: len(data) // 2] + b"\xa5\x5a" + data[len(data) // 2 + 2 :],
    "pickle": lambda data: b"\x80\x02" + data[:500],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_refused_in_one_line(whole, tmp_path, damage):
    (tmp_path / "bad.ckpt").write_bytes(DAMAGES[damage](whole.read_bytes()))
    for reading in (read_checkpoint, check_checkpoint, load_encoder):
        with pytest.raises(CheckpointError, match=r"bad\.ckpt.* is ") as error:
            reading(tmp_path / "bad.ckpt")
        assert "\n" not in str(error.value)


def test_a_flipped_weight_is_found_that_torch_would_load(whole, tmp_path):
    (tmp_path / "bad.ckpt").write_bytes(DAMAGES["flipped"](whole.read_bytes()))
    torch.load(tmp_path / "bad.ckpt", weights_only=True)
    with pytest.raises(CheckpointError, match="is not what was saved"):
        read_checkpoint(tmp_path / "bad.ckpt")


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch wonders at what it reads
@pytest.mark.parametrize("zipped", [True, False])
def test_any_damage_is_refused_or_harmless(tmp_path, zipped):
    content = {"state_dict": {"weight": torch.arange(50.0)}, "name": "x", "numbers": [1, 2.5]}
    path = tmp_path / "small.ckpt"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    data, source = path.read_bytes(), random.Random(0)
    refused = 0
    for _ in range(300):
        bad, place = bytearray(data), source.randrange(len(data))
        if source.random() < 0.5:
            bad[place] ^= 1 << source.randrange(8)
        else:
            del bad[place:]
        path.write_bytes(bad)
        try:
            read = read_checkpoint(path)
        except CheckpointError:
            refused += 1
        else:
            # The old format has no checksums.
            assert not zipped or str(read) == str(content)
    assert refused > 150


def test_files_that_are_no_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        read_checkpoint(tmp_path / "nowhere.ckpt")
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        check_checkpoint(str(tmp_path / "nowhere.ckpt"))
    with pytest.raises(CheckpointError, match="is a folder"):
        read_checkpoint(tmp_path)


def test_archives_of_others_are_refused(tmp_path):
    np.savez(tmp_path / "features.npz", features=np.ones(3))
    with pytest.raises(CheckpointError, match="is no checkpoint of torch"):
        read_checkpoint(tmp_path / "features.npz")


def test_a_damaged_safetensors_file_is_refused(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file({"weight": torch.ones(100)}, path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match="cut off or damaged") as error:
        read_checkpoint(path)
    assert "\n" not in str(error.value)


def test_a_pickled_class_is_named_and_never_loaded(tmp_path):
    torch.save({"state_dict": {}, "model": Surprise()}, tmp_path / "class.ckpt")
    with pytest.raises(CheckpointError, match=r"the class \S*Surprise, which could") as error:
        check_checkpoint(tmp_path / "class.ckpt")
    assert "\n" not in str(error.value)
    check_checkpoint(tmp_path / "class.ckpt", weights_only=False)


def test_files_saved_without_checksums_or_in_the_old_format_are_read(tmp_path):
    set_crc32_options(False)
    try:
        torch.save({"weight": torch.arange(3)}, tmp_path / "unchecked.pt")
    finally:
        set_crc32_options(True)
    torch.save(
        {"weight": torch.arange(3)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False
    )
    for name in ("unchecked.pt", "old.pt"):
        assert read_checkpoint(tmp_path / name)["weight"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("given", [None, "last", "best", "s3://bucket/a.ckpt", "registry:model"])
def test_what_lies_elsewhere_is_not_checked(given):
    check_checkpoint(given)


def write_half(path):
    with whole_file(path) as file:
        file.write(b"aft")
        raise OSError("disk full")


def test_a_failed_write_leaves_the_file_before_and_nothing_else(tmp_path):
    (tmp_path / "weights.pt").write_bytes(b"before")
    with pytest.raises(OSError, match="disk full"):
        write_half(tmp_path / "weights.pt")
    assert (tmp_path / "weights.pt").read_bytes() == b"before"
    assert len(list(tmp_path.iterdir())) == 1
