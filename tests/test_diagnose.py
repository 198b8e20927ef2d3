"""``weince diagnose``: all kinds of sources, what is written, one clear line for what is not."""

import contextlib
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from cases import few
from checkpoint_files import AuthorsSimCLR, LightlySimCLR, resnet, save_with_trainer
from diagnoses import few_draws
from torch import nn
from torchvision.transforms.functional import normalize, resize

from weince_lightning import ContrastiveModule, InfoNCELoss
from weince_lightning.cli import main
from weince_lightning.data import VisionData
from weince_lightning.diagnostics import diagnose_checkpoint, encoders, write_report
from weince_lightning.diagnostics.embedding_files import holds_embeddings, read_embeddings
from weince_lightning.diagnostics.encoders import embed, read_checkpoint_encoder
from weince_lightning.diagnostics.figures import drawing
from weince_lightning.diagnostics.report import default_folder
from weince_lightning.diagnostics.untrained import as_untrained

__all__ = ["few_draws"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def few_figures(monkeypatch):
    """Draw two of eight: drawing takes seconds, and diagnostics/test_figures.py looks at all."""
    topics = {name: drawing.TOPICS[name] for name in ("link", "stability")}
    monkeypatch.setattr(drawing, "TOPICS", topics)


@pytest.fixture
def rows():
    return np.random.default_rng(0).standard_normal((300, 6)).astype(np.float32)


def run(*arguments):
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        main(["diagnose", *map(str, arguments)])
    return output.getvalue()


def refusal(capsys, *arguments, status=2):
    """Return the one line that a command ends with."""
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    assert ended.value.code == status
    lines = capsys.readouterr().err.splitlines()
    found = [line for line in lines if "error:" in line]
    assert len(found) == 1
    assert not any("Traceback" in line for line in lines)
    return found[0]


def numbers(folder):
    with open(f"{folder}/diagnosis.json") as file:
        return json.load(file)


def names(path):
    return sorted(file.name for file in path.iterdir())


def test_a_file_gives_a_page_figures_and_numbers_and_a_second_run_replaces_them(folder, rows):
    np.savez("two.npz", z0=rows, z1=rows + 0.8 * rows[::-1])
    printed = run("two.npz", "--temperature", "0.2")
    report = folder / "two.npz.diagnosis"
    assert names(report) == ["diagnosis.json", "figures", "report.html"]
    first = numbers(report)
    assert first["source"] == "two.npz"
    assert (first["samples"], first["dimension"], first["layout"]) == (300, 6, "views")
    assert first["link"]["temperature"] == 0.2
    verdict = first["verdict"]
    assert printed.split("\n")[1:3] == [
        f"two.npz: {verdict['answer'].capitalize()}: {verdict['why']}",
        f"Next: {verdict['next']}  ({verdict['purpose']})",
    ]
    assert "two.npz.diagnosis/report.html" in printed
    assert "link.svg" in names(report / "figures")

    (report / "notes.txt").write_text("mine")
    np.savez("two.npz", z0=rows)
    run(folder / "two.npz")  # by another name
    second = numbers(report)
    assert second["link"]["lambda_hat"] is None
    assert second["layout"] is None
    figures = names(report / "figures")
    assert "link.svg" not in figures
    assert "stability.png" in figures
    assert not any(name.endswith(".part") for name in figures)
    assert (report / "notes.txt").read_text() == "mine"


def test_the_report_of_another_file_is_not_overwritten(folder, rows, capsys):
    """In a folder that is named, too; those beside the files are apart by their names."""
    np.save("a.npy", rows)
    np.savez("a.npz", rows)
    run("a.npy", "--output", "here")
    line = refusal(capsys, "a.npz", "--output", "here")
    assert "--output must not be the folder of another diagnosis" in line
    assert "which holds that of a.npy" in line
    assert numbers("here")["source"] == "a.npy"
    assert default_folder("a.npy") != default_folder("a.npz")
    assert default_folder("timm:resnet10t") == Path("timm-resnet10t.diagnosis")
    assert default_folder(str(folder / "a.npy")).parent == folder


def test_a_second_encoder_stands_beside_the_first(rows, capsys):
    rows = np.pad(rows, ((0, 0), (0, 10)))
    others = np.random.default_rng(1).standard_normal(rows.shape)
    np.savez("trained.npz", features=rows, labels=np.r_[np.zeros(2, int), -np.ones(298, int)])
    np.save("untrained.npy", others)
    printed = run("trained.npz", "--against", "untrained.npy")
    found = numbers("trained.npz.diagnosis")["against"]
    assert found["threshold"]["xi"] is not None
    # The same pairs of samples: the two that show one thing are left out of both.
    pairs = found["pooled"]["similarities"]
    assert pairs == numbers("trained.npz.diagnosis")["pooled"]["similarities"] == 150 * 299 - 1
    assert f"For the second encoder it is ξ = {found['threshold']['xi']:.3f}" in printed
    assert not Path("untrained.npy.diagnosis").exists()
    np.save("fewer.npy", others[:9])
    others[3] = np.nan
    np.save("nan.npy", others)
    for name, message in {
        "fewer.npy": "--against must hold the same samples, 300 rows, got 9.",
        "nan.npy": "--against must hold rows that are finite, got 1 of 300 that are not, such as",
        "untrained": "--against must be a file with the same rows where SOURCE holds embeddings",
        "nothing.npy": "nothing.npy is not there",
    }.items():
        assert message in refusal(capsys, "trained.npz", "--against", name)


def test_one_of_several_arrays_is_chosen_by_its_name(rows, capsys):
    np.savez("splits.npz", train=rows, test=rows[:9])
    assert "Choose by --key test" in refusal(capsys, "splits.npz", status=1)
    line = refusal(capsys, "splits.npz", "--key", "tests", status=1)
    assert "must hold tests, got train, test." in line
    run("splits.npz", "--key", "test")
    assert numbers("splits.npz.diagnosis")["samples"] == 9


def test_an_untrained_encoder_is_the_same_with_other_weights():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(784, 5))
    nn.init.constant_(module[1].running_mean, 3.0)
    encoder = encoders.Encoder(module.eval(), "features", 0.2, "pairs")
    fresh, again, other = (as_untrained(encoder, seed) for seed in (0, 0, 1))
    assert fresh[1:] == encoder[1:]
    assert not fresh.module.training
    assert torch.equal(fresh.module[1].running_mean, torch.zeros(4))
    assert torch.equal(module[1].running_mean, torch.full((4,), 3.0))
    for name, weight in fresh.module.state_dict().items():
        assert torch.equal(weight, again.module.state_dict()[name])
    for unlike in (module, other.module):
        assert not torch.equal(fresh.module[3].weight, unlike[3].weight)
    module.token = nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match=r"against must not be untrained .*, got token\."):
        as_untrained(encoder)


def test_a_folder_of_other_files_is_left_alone(folder, rows, capsys):
    np.save("one.npy", rows)
    assert "--output must be a new folder" in refusal(capsys, "one.npy", "--output", ".")
    assert names(folder) == ["one.npy"]
    assert "one.npy is no folder" in refusal(capsys, "one.npy", "--output", "one.npy")


def test_every_kind_of_file_gives_the_same_rows(rows):
    safetensors = pytest.importorskip("safetensors.torch")
    tensor = torch.from_numpy(rows)
    np.save("a.npy", rows)
    np.savez("a.npz", anything=rows)
    torch.save(tensor, "a.pt")
    torch.save({"features": tensor, "labels": torch.arange(300)}, "b.pt")
    safetensors.save_file({"embeddings": tensor}, "a.safetensors")
    for name in ("a.npy", "a.npz", "a.pt", "b.pt", "a.safetensors"):
        path = Path(name)
        assert holds_embeddings(path)
        found = read_embeddings(path, "views")
        assert np.array_equal(np.asarray(found.first), rows)
        assert found.second is None
        assert (found.ids is not None) == (name == "b.pt")
    # Mapped, not read.
    assert isinstance(read_embeddings(Path("a.npy"), "views").first, np.memmap)


def test_positives_ids_and_pairs_come_from_the_file_or_from_others(rows):
    ids = np.arange(300) // 2
    index = np.array([[0, 1], [2, 3], [4, 5]])
    np.savez("all.npz", embeddings=rows, positives=rows[::-1], ids=ids)
    np.savez("pairs.npz", embeddings=rows, pairs=index)
    for name, array in [("x.npy", rows), ("y.npy", rows[::-1]), ("ids.npy", ids), ("p.npy", index)]:
        np.save(name, array)
    x, y, i, p = (Path(name) for name in ("x.npy", "y.npy", "ids.npy", "p.npy"))
    for found in (
        read_embeddings(Path("all.npz"), "pairs"),
        read_embeddings(x, "pairs", positives=y, ids=i),
    ):
        assert np.array_equal(found.second, rows[::-1])
        assert np.array_equal(found.ids, ids)
        assert found.layout == "pairs"
    np.savez("unnamed.npz", rows, rows[::-1], c=ids)
    torch.save([torch.from_numpy(rows), torch.from_numpy(rows[::-1].copy())], "list.pt")
    assert holds_embeddings(Path("list.pt"))
    assert read_embeddings(Path("all.npz"), "pairs", ids=Path("none")).ids is None
    for name, has_ids in (("unnamed.npz", True), ("list.pt", False)):
        found = read_embeddings(Path(name), "views")
        assert np.array_equal(np.asarray(found.second), rows[::-1])
        assert (found.ids is not None) == has_ids
    np.savez("unnamed_index.npz", a=rows, b=index)
    for found in (
        read_embeddings(Path("pairs.npz"), "views"),
        read_embeddings(Path("unnamed_index.npz"), "views"),
        read_embeddings(x, "views", pairs=p),
    ):
        assert np.array_equal(found.first.numpy(), rows[[0, 2, 4]])
        assert np.array_equal(found.second.numpy(), rows[[1, 3, 5]])


def write_bad_files(rows):
    np.save("objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.savez("objects.npz", embeddings=np.array([{"a": 1}], dtype=object))
    np.save("whole.npy", rows)
    np.savez("whole.npz", rows)
    torch.save(torch.from_numpy(rows), "whole.pt")
    for name in ("whole.npy", "whole.npz", "whole.pt"):
        with open(name, "rb") as file, open(name.replace("whole", "cut"), "wb") as part:
            part.write(file.read()[:3000])
    for name in ("empty.npy", "empty.npz", "empty.pt"):
        open(name, "wb").close()
    with open("text.npy", "w") as file:
        file.write("no array")
    for value in (np.nan, 0.0):
        bad = rows.copy()
        bad[7] = value
        np.save(f"{value}.npy", bad)
    np.save("one_row.npy", rows[:1])
    np.save("same.npy", np.ones((5, 3)))
    np.save("flat.npy", rows[0])
    np.save("integers.npy", np.eye(4, dtype=int))
    np.savez("three.npz", rows, rows, rows)
    np.savez("splits.npz", train=rows, test=rows)
    np.save("scalar.npy", np.float64(1.0))
    np.savez("no_rows.npz", a=np.arange(4), pairs=np.zeros((3, 2), int))
    np.savez("shapes.npz", z0=rows, z1=rows[:9])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("objects.npy", "must hold numbers, got Python objects, which are never unpickled"),
        ("objects.npz", "must hold numbers, got Python objects, which are never unpickled"),
        ("cut.npy", "cut off or damaged"),
        ("cut.npz", "cut off or damaged"),
        ("cut.pt", "cut off or damaged"),
        ("empty.npy", "cut off or damaged"),
        ("empty.npz", "cut off or damaged"),
        ("empty.pt", "is empty"),
        ("text.npy", "text.npy"),
        ("nan.npy", "must hold rows that are finite, got 1 of 300 that are not, such as row 7"),
        ("0.0.npy", "must hold rows that are other than 0, got 1 of 300 that are not, such as row"),
        ("one_row.npy", "must have at least 2 rows, got 1"),
        ("same.npy", "must hold at least 2 distinct rows, got 5 times the same"),
        ("flat.npy", "must have shape (samples, features), got (6,)"),
        ("integers.npy", "must hold floating point numbers, got int64"),
        ("three.npz", "must hold one array of embeddings, or two whose rows are positives"),
        ("splits.npz", "named embeddings and positives or in order without names, got train, test"),
        ("no_rows.npz", "must hold an array of embeddings, best named embeddings, got a, pairs."),
        ("scalar.npy", "embeddings must have shape (samples, features), got ()"),
        ("shapes.npz", "positives must have the shape of embeddings, (300, 6)"),
        ("nothing.npy", "is not there"),
        (".", "is a folder"),
    ],
)
def test_a_bad_file_is_one_line_and_nothing_is_written(folder, rows, capsys, name, message):
    write_bad_files(rows)
    before = names(folder)
    line = refusal(capsys, name, status=1 if Path(name).is_file() else 2)
    assert message in line
    assert name in line
    assert names(folder) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one SOURCE"),
        (["a.npy", "b.npy"], "give one SOURCE, a file of embeddings"),
        (["x.npy", "--quantile", "0.5"], "quantile must lie in [0.98, 0.9999], got 0.5"),
        (["x.npy", "--temperature", "0"], "temperature must be a number above 0, got 0.0"),
        (["x.npy", "--layout", "all"], "layout"),
        (["x.npy", "--temprature", "1"], "temprature"),
        (["x.npy", "--positives", "nothing.npy"], "nothing.npy is not there"),
        (
            ["torchvision:nonsense", "-c", "data/digits"],
            "must be a classification model of torchvision",
        ),
        (["timm:nonsense", "-c", "data/digits"], "must be a model of timm"),
        (["x.npy", "-c", "data/digits"], "-c and --data must not be given for x.npy"),
        (["x.npy", "--layout", "pairs"], "--layout must not be given where no positives"),
        (["x.npy", "--output", "x.npy/sub"], "x.npy is no folder"),
        (["x.npy", "--output", "broken"], "broken is no folder"),
        (["x.npy", "--seed", "-1"], "seed must lie in"),
        (["torchvision:fcn_resnet50", "-c", "data/digits"], "must be a classification model"),
        (["torchvision:resnet18"], "must hold the settings of its data, got none"),
    ],
)
def test_a_wrong_argument_is_named(rows, capsys, arguments, message):
    np.save("x.npy", rows)
    Path("broken").symlink_to("nowhere")
    assert message in refusal(capsys, *arguments)


class Few:
    """Two views of six images."""

    def __init__(self, channels=3, size=16):
        generator = torch.Generator().manual_seed(0)
        self.views = torch.rand(2, 6, channels, size, size, generator=generator)

    def prepare_data(self):
        pass

    def setup(self, stage):
        assert stage == "test"

    def test_dataloader(self):
        return [((self.views[0, i : i + 3], self.views[1, i : i + 3]), None) for i in (0, 3)]


def projections(model, images):
    with torch.no_grad():
        return model(images)


def check(encoder, model, data):
    """Compare what an encoder embeds with what a model gives in evaluation mode."""
    found = embed(encoder, data, "cpu", None, 0)
    for side, views in zip(found.sides, data.views, strict=True):
        assert torch.allclose(side, projections(model.eval(), views), atol=1e-5)
    return found


def test_a_checkpoint_of_the_papers_code_is_read_with_its_projector(folder):
    model = AuthorsSimCLR(resnet())
    torch.save(model.state_dict(), "released.pt")
    assert not holds_embeddings(folder / "released.pt")
    encoder = read_checkpoint_encoder(folder / "released.pt", None, None)
    assert (encoder.what, encoder.temperature) == ("projections", None)
    check(encoder, nn.Sequential(model.encoder, model.projector), Few())


def test_a_checkpoint_of_lightlys_simclr_is_read_with_its_head(folder):
    model = LightlySimCLR()
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
    torch.save({"state_dict": model.state_dict(), "pytorch-lightning_version": "2.5.0"}, "l.ckpt")
    encoder = read_checkpoint_encoder(folder / "l.ckpt", None, None)
    assert encoder.what == "projections"
    check(encoder, model, Few(size=32))


def test_our_checkpoint_brings_temperature_and_layout_of_its_loss(folder):
    module = ContrastiveModule(
        "convnet", InfoNCELoss(0.07, layout="queries"), in_channels=1, image_size=16
    )
    encoder = read_checkpoint_encoder(save_with_trainer(module, folder / "ours.ckpt"), None, None)
    assert encoder.temperature == pytest.approx(0.07)
    whole = nn.Sequential(module.backbone, module.projection_head)
    found = check(encoder, whole, Few(channels=1))
    assert found.layout == "queries"
    assert embed(encoder, Few(channels=1), "cpu", "views", 0).layout == "views"


def test_weights_alone_give_features(folder):
    model = torchvision.models.resnet18()
    torch.save(model.state_dict(), "plain.pt")
    encoder = read_checkpoint_encoder(folder / "plain.pt", None, None)
    model.fc = nn.Identity()
    assert encoder.what == "features"
    check(encoder, model, Few(size=32))


def test_torchvisions_weights_are_found_where_it_keeps_them_and_get_their_images(
    folder, monkeypatch
):
    """The published file's name and format, in the cache of torch.hub."""
    monkeypatch.setenv("TORCH_HOME", str(folder))
    model = torchvision.models.resnet18()
    weights = torchvision.models.ResNet18_Weights.DEFAULT
    cache = folder / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    torch.save(model.state_dict(), cache / weights.url.rpartition("/")[2])
    encoder = read_checkpoint_encoder("torchvision:resnet18", pretrained=True)
    model.fc = nn.Identity()
    images = Few(channels=1).views[0, :2]
    preset = weights.transforms()
    with torch.no_grad():
        large = resize(
            images, [224, 224], torchvision.transforms.InterpolationMode.BICUBIC, antialias=True
        )
        expected = model.eval()(normalize(large.expand(-1, 3, -1, -1), preset.mean, preset.std))
        assert torch.allclose(encoder.module(images), expected, atol=1e-4)


def test_timms_models_get_images_of_their_size():
    timm = pytest.importorskip("timm")
    encoder = read_checkpoint_encoder("timm:resnet10t", pretrained=False)
    model = encoder.module[1]
    size = timm.data.resolve_model_data_config(model)["input_size"][-2:]
    assert encoder.module[0].transforms[0].size == [*size]
    with torch.no_grad():
        assert encoder.module(torch.rand(2, 1, 16, 16)).shape == (2, model.num_features)


@pytest.mark.parametrize(
    ("name", "features"),
    few(
        [("squeezenet1_1", 512), ("vgg11", 4096), ("mobilenet_v3_small", 1024), ("vit_b_32", 768)],
        0,
        2,
    ),
)
def test_features_are_what_the_last_layer_gets(name, features):
    encoder = read_checkpoint_encoder(f"torchvision:{name}", pretrained=False)
    with torch.no_grad():
        assert encoder.module(torch.rand(1, 1, 16, 16)).flatten(1).shape == (1, features)


def test_images_of_the_wrong_kind_are_named(folder):
    torch.save(AuthorsSimCLR(resnet()).state_dict(), "released.pt")
    encoder = read_checkpoint_encoder(folder / "released.pt", None, None)
    with pytest.raises(ValueError, match=r"got \(1, 16, 16\) .* See --data.in_channels"):
        embed(encoder, Few(channels=1), "cpu", None, 0)


def test_what_is_beside_named_embeddings_is_passed_over(rows):
    np.savez("extra.npz", embeddings=rows, mean=rows[0], step=3)
    found = read_embeddings(Path("extra.npz"), "views")
    assert np.array_equal(found.first, rows)
    assert found.second is found.ids is None


def test_of_many_images_a_part_is_embedded():
    encoder = encoders.Encoder(nn.Flatten(), "features", None, None)
    data = VisionData("digits", batch_size=16)
    found = [embed(encoder, data, "cpu", None, seed, 50).first for seed in (0, 0, 1)]
    assert len(found[0]) == 50
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_a_checkpoint_is_diagnosed_by_its_own_data(folder):
    main(["fit", "-c", "digits", "--trainer.max_epochs=1", "--trainer.limit_train_batches=2",
          "--data.batch_size=32", "--trainer.logger.save_dir=runs",
          "--trainer.enable_progress_bar=false", "--trainer.callbacks=null"])  # fmt: skip
    (checkpoint,) = folder.glob("runs/**/*.ckpt")
    printed = run(checkpoint, "--against", "untrained")
    found = numbers(f"{checkpoint}.diagnosis")
    diagnosis = diagnose_checkpoint(checkpoint, against="untrained")
    page = write_report(diagnosis, folder / "python", str(checkpoint))
    assert numbers(page.parent) == found
    assert found["against"]["samples"] == 359
    assert found["against"]["threshold"]["xi"] != found["threshold"]["xi"]
    assert found["embeddings"] == "projections"
    assert (found["samples"], found["dimension"], found["layout"]) == (359, 64, "views")
    assert found["link"]["lambda_hat"] is not None
    assert re.search(r"Report: runs/.*\.ckpt\.diagnosis/report\.html", printed)
