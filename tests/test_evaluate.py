"""``weince evaluate`` as a person types it: real checkpoints, real files, a real kill."""

import contextlib
import io
import json
import shutil
import signal
import sys
import time

import pytest
import torch
from cases import few
from checkpoint_files import AuthorsSimCLR, LightlySimCLR, resnet, save_with_trainer
from evaluating_process import OwnData, OwnEncoder
from lightning.pytorch import Trainer, seed_everything
from PIL import Image
from processes import TESTS, Python
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from weince_lightning import ContrastiveModule
from weince_lightning.callbacks import KNNMonitor
from weince_lightning.checkpoints import load_encoder
from weince_lightning.cli import main
from weince_lightning.data import VisionData
from weince_lightning.evaluation import (
    KNNSettings,
    LinearSettings,
    evaluate,
    evaluate_checkpoint,
)
from weince_lightning.evaluation.cache import data_digest
from weince_lightning.evaluation.features import extract_features
from weince_lightning.functional.splits import stratified_split
from weince_lightning.networks import resnet18_slim

QUICK = ("--linear.epochs=2", "--linear.seeds=[1,2]", "--knn.seeds=[1]")
QUICK_SETTINGS = LinearSettings(epochs=2, seeds=(1, 2)), KNNSettings(seeds=(1,))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A checkpoint on the digits, and what a monitor logged for a split of all training images."""
    folder = tmp_path_factory.mktemp("trained")
    seed_everything(7, verbose=False)
    everything = (
        VisionData("digits", image_size=8, val_fraction=0).evaluation_dataloader("train").dataset
    )
    rest, val = stratified_split(everything.labels, 0.2, 1)
    # In one batch each: the limits of the trainer hold for these too, and leave none out then.
    bank, queries = (DataLoader(Subset(everything, part), 2048) for part in (rest, val))
    trainer = Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, max_epochs=1, limit_train_batches=3, limit_val_batches=1,
        callbacks=[KNNMonitor((50,), bank=bank, queries=queries)], default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(
        ContrastiveModule("convnet", in_channels=1, image_size=8),
        VisionData("digits", batch_size=64, image_size=8),
    )
    trainer.save_checkpoint(folder / "last.ckpt")
    return folder / "last.ckpt", trainer.callback_metrics


@pytest.fixture
def checkpoint(trained, tmp_path):
    """A copy, in a folder without anything else."""
    return shutil.copy(trained[0], tmp_path / "last.ckpt")


@pytest.fixture(scope="module")
def first(trained, tmp_path_factory):
    """The same with its evaluation beside it, made once; and what the command printed."""
    path = shutil.copy(trained[0], tmp_path_factory.mktemp("first") / "last.ckpt")
    return path, run(path, *QUICK)


@pytest.fixture
def evaluated(first, tmp_path):
    """A copy of both, for a second evaluation."""
    shutil.copytree(first[0].parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "last.ckpt"


@pytest.fixture
def own_checkpoint(tmp_path):
    """A module whose encoder was built in Python, saved without data."""
    torch.manual_seed(0)
    module = ContrastiveModule(OwnEncoder(8), in_channels=1, image_size=4)
    return save_with_trainer(module, tmp_path / "own.ckpt")


OWN = (
    "--backbone=evaluating_process.OwnEncoder",
    "--backbone.size=8",
    "--data=evaluating_process.OwnData",
)


def run(*arguments):
    """Run the command; give what it wrote to standard output."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        main(["evaluate", *map(str, arguments)])
    return output.getvalue()


def refusal(capsys, *arguments):
    """The status and the last line of a command that ends with an error, without a traceback."""
    with pytest.raises(SystemExit) as caught:
        run(*arguments)
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return caught.value.code, said


def results(checkpoint):
    return json.loads((checkpoint.with_suffix("") / "evaluation.json").read_text())


def numbers(found):
    return {part: found[part] for part in ("linear", "knn") if part in found}


def test_an_evaluation_is_that_of_the_encoders_features(first):
    checkpoint, output = first
    module = ContrastiveModule.load_from_checkpoint(checkpoint)
    data = VisionData("digits", image_size=8, val_fraction=0)
    train, test = (
        extract_features(module, data.evaluation_dataloader(split)) for split in ("train", "test")
    )
    found = results(checkpoint)
    assert numbers(found) == evaluate(*train, *test, *QUICK_SETTINGS)
    assert found["checkpoint"] == "last.ckpt"
    assert len(found["weights"]) == 64
    assert found["settings"]["linear"]["seeds"] == [1, 2]
    assert found["settings"]["data"]["init_args"]["dataset"] == "digits"
    assert f"{found['linear']['test_top1']['mean']:.4f}" in output
    assert "stop well short of" in output
    assert "evaluation.json" in output


def test_the_command_is_the_function(first, checkpoint, tmp_path):
    copy = checkpoint.rename(tmp_path / "copy.ckpt")
    found = evaluate_checkpoint(copy, linear=QUICK_SETTINGS[0], knn=QUICK_SETTINGS[1])
    written = json.loads((tmp_path / "copy" / "evaluation.json").read_text())
    assert json.loads(json.dumps(found)) == written
    # The command's data module is built by its parser, the function's from the settings alone.
    assert written == {**results(first[0]), "checkpoint": "copy.ckpt"}


def test_a_data_module_built_in_python_gives_the_same_numbers(first, checkpoint):
    data = VisionData("digits", batch_size=32, image_size=8)
    found = evaluate_checkpoint(checkpoint, data, linear=None, knn=QUICK_SETTINGS[1])
    assert numbers(found) == {"knn": results(first[0])["knn"]}
    assert found["settings"]["data"]["init_args"]["batch_size"] == 32


def test_the_function_says_what_must_be_given(checkpoint, own_checkpoint):
    with pytest.raises(ValueError, match="linear and knn must not both be None"):
        evaluate_checkpoint(checkpoint, linear=None, knn=None)
    with pytest.raises(ValueError, match=r"data must be given: .*own\.ckpt holds no settings"):
        evaluate_checkpoint(own_checkpoint)


def test_loaders_stand_in_for_a_data_module(own_checkpoint):
    images = torch.rand(60, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    samples = TensorDataset(images, torch.arange(60) % 3)
    loaders = {
        "train": DataLoader(Subset(samples, range(40)), 8),
        "test": DataLoader(Subset(samples, range(40, 60)), 8),
    }
    given = {"backbone": OwnEncoder(8), "linear": None, "knn": KNNSettings(k=3, seeds=(1,))}
    found = evaluate_checkpoint(own_checkpoint, loaders, **given)
    encoder = load_encoder(own_checkpoint, OwnEncoder(8))
    features = [part for loader in loaders.values() for part in extract_features(encoder, loader)]
    assert numbers(found) == evaluate(*features, None, given["knn"])
    shuffled = {**loaders, "train": DataLoader(samples, 8, shuffle=True)}
    with pytest.raises(ValueError, match=r"data\['train'\] must give images in a fixed order"):
        evaluate_checkpoint(own_checkpoint, shuffled, **given)
    with pytest.raises(ValueError, match='"train" and "test", and may for "val", got \'test\''):
        evaluate_checkpoint(own_checkpoint, {"test": loaders["test"]}, **given)
    views = {**loaders, "test": [((images, images), torch.zeros(60))]}
    with pytest.raises(TypeError, match="one tensor of images, got a tuple"):
        evaluate_checkpoint(own_checkpoint, views, **given)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"device": "gpu"}, ValueError, 'device must be one of "auto", "cpu", "cuda"'),
        ({"data": "digits"}, TypeError, "data must have a method evaluation_dataloader"),
        ({"data": VisionData}, TypeError, "got the class VisionData"),
        ({"knn": {"k": 20}}, TypeError, r"knn must be KNNSettings\(...\) or None, got {'k': 20}"),
        ({"checkpoint": None}, TypeError, "a checkpoint must be a path or an open file, got None"),
    ],
)
def test_what_the_function_cannot_take_is_refused_in_its_words(
    checkpoint, arguments, kind, message
):
    with pytest.raises(kind, match=message):
        evaluate_checkpoint(**{"checkpoint": checkpoint, **arguments})


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_gpu_that_is_not_there_is_refused(checkpoint):
    with pytest.raises(ValueError, match="device must be one that torch finds, got cuda"):
        evaluate_checkpoint(checkpoint, device="cuda")


def test_the_old_spelling_of_a_flag_is_accepted_with_a_notice(capsys, tmp_path):
    status, said = refusal(capsys, tmp_path / "missing.ckpt", "--v1_stride=true")
    assert "weince: --v1_stride is now spelled --v1-stride.\n" in said
    assert (status, "there is no checkpoint" in said) == (1, True)


def test_an_evaluation_opens_the_file_at_most_twice(checkpoint, monkeypatch):
    """Once for its checksums and once for its content: settings, encoder and loss share it."""
    opened, loaded, load = [], [], torch.load

    def count_open(event, arguments):
        if event == "open" and str(arguments[0]) == str(checkpoint):
            opened.append(event)

    def count_load(file, *arguments, **options):
        loaded.append(str(file))
        return load(file, *arguments, **options)

    monkeypatch.setattr(torch, "load", count_load)
    sys.addaudithook(count_open)
    run(checkpoint, *QUICK)
    assert results(checkpoint)["loss"]
    assert loaded.count(str(checkpoint)) == 1
    assert 1 <= len(opened) <= 2


def test_the_online_number_is_that_of_the_reloaded_checkpoint(trained, first):
    found = results(first[0])["knn"]
    for r in (1, 2, 5, 10, 20, 50):
        online = trained[1][f"knn/recall_at_{r}"].item()
        # The monitor logs in float32.
        assert torch.tensor(found[f"val_recall_at_{r}"]["values"]).tolist() == [online]
    online = trained[1]["knn/top1"].item()
    assert torch.tensor(found["val_top1_k50"]["values"]).tolist() == [online]
    assert 0.3 < found["val_top1_k50"]["mean"] < 1.0


@pytest.mark.slow
def test_batch_size_and_where_the_data_lie_do_not_matter(checkpoint):
    run(checkpoint, *QUICK)
    first = results(checkpoint)
    shutil.rmtree(checkpoint.with_suffix(""))
    run(checkpoint, *QUICK, "--data.batch_size=50", "--data.data_dir=elsewhere")
    assert numbers(results(checkpoint)) == numbers(first)
    assert results(checkpoint)["features"] == first["features"]


def test_a_complete_evaluation_is_not_computed_again(own_checkpoint):
    first = run(own_checkpoint, *OWN, *QUICK)
    file = own_checkpoint.with_suffix("") / "evaluation.json"
    before = file.stat().st_mtime_ns
    again = run(own_checkpoint, *OWN, *QUICK)
    assert "has these numbers already" in again
    assert first.splitlines()[-12:] == again.splitlines()[-12:]
    assert file.stat().st_mtime_ns == before


def test_other_settings_are_computed_from_kept_features(evaluated, monkeypatch):
    checkpoint, first = evaluated, results(evaluated)
    monkeypatch.setattr(nn.Conv2d, "forward", None)  # nothing is encoded any more
    run(checkpoint, *QUICK, "--linear.epochs=1")
    assert results(checkpoint)["knn"] == first["knn"]
    assert results(checkpoint)["linear"] != first["linear"]
    run(checkpoint, *QUICK, "--knn=null")
    assert results(checkpoint)["knn"] == first["knn"]


@pytest.mark.slow
def test_a_part_that_is_not_asked_for_stays(checkpoint):
    run(checkpoint, *QUICK)
    first = results(checkpoint)
    run(checkpoint, "--linear=null", "--knn.seeds=[1]", "--knn.k=5")
    second = results(checkpoint)
    assert second["linear"] == first["linear"]
    assert second["settings"]["linear"] == first["settings"]["linear"]
    assert "test_top1_k5" in second["knn"]


def test_numbers_that_are_replaced_are_put_aside(evaluated, tmp_path, capsys):
    checkpoint, first = evaluated, results(evaluated)
    run(checkpoint, *QUICK, "--knn.k=5")
    assert "evaluation.previous.json now" in capsys.readouterr().err
    aside = json.loads((tmp_path / "last" / "evaluation.previous.json").read_text())
    assert aside == first


@pytest.mark.slow
def test_checkpoints_with_one_place_for_their_results_are_refused(checkpoint, tmp_path, capsys):
    other = shutil.copy(checkpoint, tmp_path / "last.pt")
    status, said = refusal(capsys, checkpoint, other, *QUICK)
    assert status == 2
    assert "names of their own without the suffix" in said
    run(checkpoint, *QUICK)
    first = results(checkpoint)
    run(other, *QUICK)  # one after the other: named by the file
    assert results(checkpoint)["checkpoint"] == "last.pt"
    assert numbers(results(checkpoint)) == numbers(first)


def test_a_misspelt_option_is_not_taken_for_the_one_that_begins_so(checkpoint, capsys):
    status, said = refusal(capsys, checkpoint, "--data.batch_siz=7")
    assert status == 2
    assert "batch_siz" in said


def test_other_weights_meet_no_old_features(own_checkpoint):
    run(own_checkpoint, *OWN, *QUICK)
    first = results(own_checkpoint)
    content = torch.load(own_checkpoint, weights_only=True)
    for name, tensor in content["state_dict"].items():
        if name.startswith("backbone") and tensor.is_floating_point():
            tensor.copy_(torch.randn(tensor.shape).abs())
    torch.save(content, own_checkpoint)
    run(own_checkpoint, *OWN, *QUICK)
    assert results(own_checkpoint)["weights"] != first["weights"]
    assert numbers(results(own_checkpoint)) != numbers(first)
    assert not {*results(own_checkpoint)["features"].values()} & {*first["features"].values()}


def test_a_damaged_cache_is_computed_anew(own_checkpoint):
    run(own_checkpoint, *OWN, *QUICK)
    folder = own_checkpoint.with_suffix("")
    first = numbers(results(own_checkpoint))
    features = sorted(folder.glob("features-*.pt"))
    assert len(features) == 3
    cut, flipped, _ = features
    cut.write_bytes(cut.read_bytes()[:1000])
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 255
    flipped.write_bytes(content)
    (folder / "evaluation.json").write_text("{")
    run(own_checkpoint, *OWN, *QUICK)
    assert numbers(results(own_checkpoint)) == first
    assert torch.load(cut, weights_only=True)["labels"].shape == (40,)


def test_without_cache_no_features_are_left(own_checkpoint):
    run(own_checkpoint, *OWN, *QUICK, "--cache=false")
    names = [path.name for path in own_checkpoint.with_suffix("").iterdir()]
    assert names == ["evaluation.json"]


@pytest.mark.slow
def test_a_killed_evaluation_goes_on_to_the_same_numbers(own_checkpoint, tmp_path):
    options = (*OWN, "--linear.epochs=500", "--linear.seeds=[1,2]", "--knn.seeds=[1]")
    other = tmp_path / "whole" / "own.ckpt"
    other.parent.mkdir()
    shutil.copy(own_checkpoint, other)
    whole = Python(TESTS / "evaluating_process.py", other, *options)
    process = Python(TESTS / "evaluating_process.py", own_checkpoint, *options)
    unfinished = own_checkpoint.with_suffix("") / "unfinished.pt"
    deadline = time.monotonic() + 300
    while not unfinished.exists() and process.returncode is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    process.send(signal.SIGKILL)
    process.finish(60)
    assert process.returncode == -signal.SIGKILL
    (state,) = torch.load(unfinished, weights_only=True)["parts"].values()
    assert 0 < state["step"] < 500
    assert not (unfinished.with_name("evaluation.json")).exists()
    again = Python(TESTS / "evaluating_process.py", own_checkpoint, *options)
    again.finish(300)
    whole.finish(300)
    assert (again.returncode, whole.returncode) == (0, 0)
    assert numbers(results(own_checkpoint)) == numbers(results(other))
    assert not unfinished.exists()


def test_a_failing_checkpoint_is_named_and_the_others_are_evaluated(checkpoint, tmp_path, capsys):
    (tmp_path / "torn.ckpt").write_bytes(checkpoint.read_bytes()[:5000])
    missing, torn = tmp_path / "missing.ckpt", tmp_path / "torn.ckpt"
    status, said = refusal(capsys, missing, torn, checkpoint, *QUICK)
    assert status == 1
    assert f"weince: error: there is no checkpoint {missing}." in said
    assert f"weince: error: {torn}" in said
    assert said.splitlines()[-1] == f"weince: not evaluated: {missing}, {torn}"
    assert results(checkpoint)["knn"]


def test_the_released_format_is_evaluated_with_data_of_the_command_line(tmp_path, small_images):
    torch.manual_seed(0)
    model = AuthorsSimCLR(resnet())
    torch.save(model.state_dict(), tmp_path / "released.pt")
    layer = tmp_path / "small.yaml"
    layer.write_text(
        "trainer: {max_epochs: 3}\n"
        f"data: {{class_path: VisionData, init_args: {{dataset: image_folder, image_size: 8, "
        f"data_dir: {small_images}}}}}\n"
    )
    run(tmp_path / "released.pt", "-c", layer, *QUICK, "--knn.k=3")
    data = VisionData("image_folder", small_images, image_size=8, val_fraction=0)
    features = [
        part
        for split in ("train", "test")
        for part in extract_features(model.encoder, data.evaluation_dataloader(split))
    ]
    knn = KNNSettings(k=3, seeds=(1,))
    found = results(tmp_path / "released.pt")
    assert numbers(found) == evaluate(*features, QUICK_SETTINGS[0], knn)


@pytest.mark.slow
def test_a_foreign_module_is_evaluated_too(tmp_path):
    torch.manual_seed(0)
    checkpoint = save_with_trainer(LightlySimCLR(), tmp_path / "lightly.ckpt")
    run(checkpoint, "--data.in_channels=3", "--data.dataset=digits", *QUICK)
    assert results(checkpoint)["settings"]["data"]["init_args"]["in_channels"] == 3


@pytest.fixture
def small_images(tmp_path):
    """Three classes of images, some for training and some for the test."""
    generator = torch.Generator().manual_seed(0)
    folder = tmp_path / "images"
    for split, count in (("train", 10), ("test", 4)):
        for label in range(3):
            place = folder / split / f"class_{label}"
            place.mkdir(parents=True)
            for number in range(count):
                pixels = torch.randint(256, (8, 8, 3), generator=generator, dtype=torch.uint8)
                pixels[..., label] = 255
                Image.fromarray(pixels.numpy()).save(place / f"{number}.png")
    return folder


def test_images_without_labels_are_refused_before_they_are_encoded(tmp_path, small_images, capsys):
    flat = tmp_path / "flat"
    for split in ("train", "test"):
        (flat / split).mkdir(parents=True)
        for number, path in enumerate((small_images / split).rglob("*.png")):
            shutil.copy(path, flat / split / f"{number}.png")
    torch.save(resnet().state_dict(), tmp_path / "plain.pt")
    data = ("--data.dataset=image_folder", f"--data.data_dir={flat}", "--data.image_size=8")
    status, said = refusal(capsys, tmp_path / "plain.pt", *data)
    assert status == 1
    assert "the train images must have labels, got 30 without" in said
    assert len(said.splitlines()) == 1


def test_an_encoder_of_normalized_images_is_given_them(tmp_path, small_images, capsys):
    encoder = resnet18_slim()
    state = {f"backbone.{name}": value for name, value in encoder.state_dict().items()}
    checkpoint = tmp_path / "lightlys.ckpt"
    torch.save({"state_dict": state}, checkpoint)
    data = {"data_dir": small_images, "image_size": 8}
    options = ["--data.dataset=image_folder", *(f"--data.{k}={v}" for k, v in data.items())]
    quick = ("--linear=null", "--knn.seeds=[1]", "--knn.k=3")
    run(checkpoint, *options, *quick)
    assert capsys.readouterr().err.count("lightly's transforms normalize images by default") == 1
    channels = {"mean": [0.2, 0.3, 0.4], "std": [0.1, 0.2, 0.05]}
    run(checkpoint, *options, *quick, *(f"--data.{k}={v}" for k, v in channels.items()))
    assert "lightly's transforms" not in capsys.readouterr().err
    images = VisionData("image_folder", val_fraction=0, **data, **channels)
    parts = [extract_features(encoder, images.evaluation_dataloader(s)) for s in ("train", "test")]
    expected = evaluate(*parts[0], *parts[1], linear=None, knn=KNNSettings(k=3, seeds=(1,)))
    assert results(checkpoint)["knn"] == expected["knn"]


def own_features(checkpoint, splits, **options):
    encoder = load_encoder(checkpoint, OwnEncoder(8))
    parts = [
        extract_features(encoder, OwnData(**options).evaluation_dataloader(split))
        for split in splits
    ]
    return [torch.cat(part) for part in zip(*parts, strict=True)]


@pytest.mark.parametrize("has_val", [True, False])
def test_own_data_and_encoder_are_evaluated(own_checkpoint, has_val):
    run(own_checkpoint, *OWN, f"--data.has_val={str(has_val).lower()}", *QUICK)
    train = own_features(own_checkpoint, ("train", "val") if has_val else ("train",))
    test = own_features(own_checkpoint, ("test",))
    assert numbers(results(own_checkpoint)) == evaluate(*train, *test, *QUICK_SETTINGS)


def test_order_and_size_of_batches_do_not_matter(own_checkpoint):
    run(own_checkpoint, *OWN, *QUICK)
    first = results(own_checkpoint)
    shutil.rmtree(own_checkpoint.with_suffix(""))
    run(own_checkpoint, *OWN, "--data.shuffle=false", "--data.size=20", *QUICK)
    assert numbers(results(own_checkpoint)) == numbers(first)


def test_changed_images_or_labels_meet_no_old_features(own_checkpoint, monkeypatch):
    run(own_checkpoint, *OWN, *QUICK)
    first = results(own_checkpoint)["features"]
    assert run(own_checkpoint, *OWN, *QUICK).count("already") == 1
    monkeypatch.setattr(OwnData, "changed_image", 39)
    run(own_checkpoint, *OWN, *QUICK)
    image = results(own_checkpoint)["features"]
    monkeypatch.setattr(OwnData, "changed_label", 39)
    run(own_checkpoint, *OWN, *QUICK)
    label = results(own_checkpoint)["features"]
    # One of the training images.
    assert first["test"] == image["test"] == label["test"]
    assert len({first["train"], image["train"], label["train"]}) == 3


def test_a_changed_label_of_the_packaged_data_is_known():
    loader = VisionData("digits", val_fraction=0).evaluation_dataloader("train")
    before = data_digest(loader)
    assert (
        data_digest(VisionData("digits", val_fraction=0).evaluation_dataloader("train")) == before
    )
    assert data_digest(VisionData("digits").evaluation_dataloader("train")) != before
    assert data_digest(VisionData("digits", image_size=8, val_fraction=0)
                       .evaluation_dataloader("train")) != before  # fmt: skip
    loader.dataset.images.labels[loader.dataset.positions[700]] += 1
    assert data_digest(loader) != before


@pytest.mark.parametrize(
    ("arguments", "message"),
    few(
        [
            (("--linear.epochs=0",), "linear.epochs must be at least 1, got 0."),
            (("--linear.epoch=3",), "Did you mean 'epochs'?"),
            (("--knn.k=two",), "k must be int, got 'two'."),
            (("--data.dataset=digit",), "dataset must be one of digits"),
            (("--linear=null", "--knn=null"), "linear and knn must not both be null"),
            (("--device=tpu",), "device"),
            (("-c=no_such_layer",), "-c must name a YAML file or a packaged configuration"),
            (("--speed=3",), "speed"),
        ],
        0,
        1,
        3,
        4,
        6,
    ),
)
def test_arguments_that_make_no_sense_end_with_status_2(checkpoint, capsys, arguments, message):
    status, said = refusal(capsys, checkpoint, *arguments)
    assert status == 2
    assert message in said
    assert len(said.splitlines()) <= 3
    assert not checkpoint.with_suffix("").exists()


def test_what_must_be_given_is_asked_for(own_checkpoint, tmp_path, capsys):
    assert refusal(capsys)[0] == 2
    status, said = refusal(capsys, own_checkpoint)
    assert status == 2
    assert "must hold the settings of its data, got none" in said
    status, said = refusal(capsys, own_checkpoint, OWN[2])
    assert status == 1
    assert "backbone must be given" in said


def test_images_that_the_encoder_can_not_take_are_refused_in_one_line(tmp_path, capsys):
    torch.save(resnet().state_dict(), tmp_path / "colour.pt")
    status, said = refusal(capsys, tmp_path / "colour.pt", "--data.dataset=digits")
    assert status == 1
    assert "the encoder must be one for the train images" in said
    assert len(said.splitlines()) == 1


def test_help_names_the_protocol_and_the_options(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["evaluate", "--help"])
    said = capsys.readouterr().out
    assert caught.value.code == 0
    for words in (
        "by the protocol of the paper",
        "encoder counts",
        "--linear",
        "--knn",
        "--device",
    ):
        assert words in said
    with pytest.raises(SystemExit):
        main(["evaluate", "--linear.help"])
    assert "--linear.converge" in capsys.readouterr().out


def test_a_file_without_suffix_has_a_folder_of_its_own(own_checkpoint, tmp_path):
    bare = shutil.copy(own_checkpoint, tmp_path / "bare")
    run(bare, *OWN, *QUICK)
    assert (tmp_path / "bare.evaluation" / "evaluation.json").is_file()
