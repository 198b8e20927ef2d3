"""``weince embed`` and ``predict``: features of photographs with their paths; encoders by name."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_files import quiet_trainer, scramble
from lightning.pytorch import LightningDataModule
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.datasets import ImageFolder

from weince_lightning import ContrastiveModule
from weince_lightning.cli import main
from weince_lightning.data import VisionData
from weince_lightning.data.views import EvaluationView
from weince_lightning.diagnostics.embedding_files import read_embeddings
from weince_lightning.evaluation import KNNSettings, embed_images, evaluate_checkpoint
from weince_lightning.evaluation.embedding import paths_of
from weince_lightning.evaluation.encoders import find_encoder, resolve_encoder
from weince_lightning.networks import build_encoder


class Flat(nn.Sequential):
    """An encoder of one's own, by its class path."""

    def __init__(self):
        super().__init__(nn.Flatten())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with photographs of several shapes in nested class folders, and weights."""
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 255, (9, 12, 15, 3), dtype=np.uint8)
    names = [f"{kind}/{i % 2}/{i}.png" for i in range(4) for kind in ("cats", "cats-and-dogs")]
    for name, image in zip([*names, 'a "b", c.jpg'], pixels, strict=True):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[: 12 - len(name) % 3]).save(path)
    encoder = scramble(build_encoder("convnet", in_channels=3, image_size=8))
    torch.save(encoder.state_dict(), "convnet.pt")
    return tmp_path


def expected(paths):
    """The features by hand, an image at a time."""
    encoder = build_encoder("convnet", in_channels=3, image_size=8).eval()
    encoder.load_state_dict(torch.load("convnet.pt"))
    view = EvaluationView(8, "RGB")
    with torch.no_grad():
        return torch.cat([encoder(view(Image.open(f"photos/{path}"))[None]) for path in paths])


def read(file):
    """Paths, labels and features of a file, by other means than ours."""
    if file.endswith(".npz"):
        content = np.load(file)
        return content["paths"].tolist(), content["labels"].tolist(), content["features"]
    if file.endswith(".csv"):
        header, *rows = csv.reader(Path(file).read_text("utf-8").splitlines())
        assert header == ["path", "label", *map(str, range(512))]
        features = np.array([row[2:] for row in rows], dtype=np.float32)
        return [row[0] for row in rows], [int(row[1]) for row in rows], features
    table = pytest.importorskip("pyarrow.parquet").read_table(file)
    assert str(table.schema.field("features").type) == "fixed_size_list<element: float>[512]"
    features = np.array(table["features"].to_pylist(), dtype=np.float32)
    return table["path"].to_pylist(), table["label"].to_pylist(), features


@pytest.mark.parametrize("file", ["a.npz", "a.csv", "a.parquet"])
def test_every_image_is_embedded_once_in_the_order_of_its_path(folder, capsys, file):
    if file.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    call = ["embed", "convnet.pt", "photos", "--to", file, "--image-size=8", "--batch-size=4"]
    main([*call, "--backbone=convnet"])
    paths, labels, features = read(file)
    assert paths == sorted(p.relative_to("photos").as_posix() for p in Path("photos").rglob("*.*g"))
    assert labels == [{"cats": 0, "cats-and-dogs": 1}.get(p.split("/")[0], -1) for p in paths]
    assert np.allclose(features, expected(paths), atol=1e-5)
    assert "(9, 512), paths and labels (2 class folders)" in capsys.readouterr().out
    if file.endswith(".npz"):
        found = read_embeddings(Path(file), "views")
        assert np.array_equal(found.first, features)
        assert np.array_equal(found.ids, labels)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["convnet.pt", "photos", "--to=kept.npz"], 2, "--to must not exist yet, got kept.npz."),
        (["convnet.pt", "photos", "--to=kept.npz"], 2, "set --force to replace it"),
        (["convnet.pt", "photos", "--to=a.txt"], 2, "--to must end in .parquet, .npz, .csv"),
        (["convnet.pt", "photos", "--to=b/a.npz"], 1, "--to must lie in a folder that exists"),
        (["convnet.pt", "nowhere", "--to=a.npz"], 1, "PHOTOS must be a folder of images"),
        (["convnet.pt", "empty", "--to=a.npz"], 1, "PHOTOS must hold images (.jpg"),
        (["none.pt", "photos", "--to=a.npz"], 1, "there is no checkpoint none.pt"),
        (["restnet18", "photos", "--to=a.npz"], 1, 'Did you mean "resnet18"?'),
        (["convnet.pt", "photos", "--to=a.npz"], 2, "--backbone must be given for convnet.pt"),
        (
            ["convnet.pt", "photos", "--to=a.npz", "--backbone=convnet"], 2,
            "--image-size must be given for convnet.pt",
        ),
        (["convnet", "photos", "--to=a.npz", "--image-size=8", "--std", "1"], 2, "--mean must"),
        (["convnet", "photos", "--to=a.npz", "--batch-size=0"], 2, "--batch-size must be at"),
        (["convnet", "broken", "--to=a.npz", "--image-size=8"], 1, "broken/3.png must hold"),
    ],
)  # fmt: skip
def test_what_cannot_be_embedded_is_one_line_and_nothing_is_written(
    folder, capsys, arguments, status, message
):
    Path("empty").mkdir()
    Path("broken").mkdir()
    Path("broken/3.png").write_bytes(b"")
    Path("kept.npz").write_bytes(b"earlier")
    before = sorted(folder.rglob("*"))
    with pytest.raises(SystemExit) as refused:
        main(["embed", *arguments])
    lines = capsys.readouterr().err.splitlines()
    assert refused.value.code == status
    assert lines[-1].startswith("weince: error: ")
    assert message in lines[-1]
    assert sorted(folder.rglob("*")) == before
    assert Path("kept.npz").read_bytes() == b"earlier"


def test_classes_are_those_of_image_folder(folder):
    for name in ("train", "test"):
        Path("photos", name).mkdir()
    Path("photos/cats").rename("photos/train/cats")
    Path("photos/cats-and-dogs/0").rename("photos/test/cats")
    Path("photos/cats-and-dogs").rename("photos/train/dogs")
    found = embed_images(f"{__name__}.Flat", "photos", image_size=2)
    classes = {"train/cats": 0, "test/cats": 0, "train/dogs": 1}
    wanted = [classes.get("/".join(path.split("/")[:2]), -1) for path in found.paths]
    assert found.labels.tolist() == wanted
    assert {*wanted} == {-1, 0, 1}
    assert embed_images(f"{__name__}.Flat", "photos/test", image_size=2).labels is None


def test_parquet_without_its_library_names_the_extra_before_anything_is_read(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install weince-lightning\[parquet\]"):
        embed_images("nowhere.pt", "nowhere", "a.parquet")


def test_normalized_images_are_given_where_mean_and_std_are(folder):
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.6, 0.7])
    flat = f"{__name__}.Flat"
    plain = embed_images(flat, "photos", image_size=8).features.reshape(-1, 3, 8, 8)
    found = embed_images(flat, "photos", image_size=8, mean=mean.tolist(), std=std.tolist())
    by_hand = (plain - mean[:, None, None]) / std[:, None, None]
    assert torch.allclose(found.features.reshape(-1, 3, 8, 8), by_hand, atol=1e-6)


@pytest.fixture
def trained(folder):
    """A trainer that has written last.ckpt, the module and the data, whose test images are few."""
    Path('photos/a "b", c.jpg').unlink()  # beside the class folders, where no data set looks
    module = ContrastiveModule("convnet", image_size=8)
    data = VisionData("image_folder", data_dir="photos", image_size=8, val_fraction=0, batch_size=3)
    trainer = quiet_trainer(folder, max_steps=1)
    trainer.fit(module, data)
    trainer.save_checkpoint("last.ckpt")
    return trainer, module, data


def check_predicted(paths, features, labels):
    embedded = embed_images("last.ckpt", "photos")
    rows = [embedded.paths.index(path) for path in paths]
    assert 0 < len(rows) < len(embedded.paths)
    assert np.allclose(features, embedded.features[rows], atol=1e-6)
    assert np.array_equal(labels, embedded.labels[rows])


def test_prediction_and_embedding_give_the_same_features_and_paths(trained):
    trainer, module, data = trained
    features, labels = map(torch.cat, zip(*trainer.predict(module, data), strict=True))
    check_predicted(paths_of(trainer.predict_dataloaders, data.data_dir), features, labels)
    assert paths_of(data.train_dataloader()) is None  # shuffled
    its = paths_of(DataLoader(ImageFolder("photos")), Path("photos"))
    assert sorted(its) == embed_images("last.ckpt", "photos").paths
    assert paths_of(VisionData("digits").predict_dataloader()) is None  # in memory


@pytest.mark.slow
def test_the_command_predict_writes_paths(trained):
    main(["predict", "--ckpt_path=last.ckpt", "--trainer.enable_progress_bar=false"])
    found = np.load("last.features.npz")
    check_predicted(found["paths"], found["features"], found["labels"])


def test_a_name_stands_for_the_same_encoder_everywhere(folder, caplog):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint nowhere\.Flat, and no encoder of"):
        find_encoder("nowhere.Flat")
    own = resolve_encoder(f"{__name__}.Flat").module
    images = torch.rand(2, 3, 8, 8)
    assert torch.equal(own(images), images.flatten(1))
    first, second = (resolve_encoder("convnet", image_size=8).module for _ in range(2))
    assert torch.equal(first(images), second(images))
    assert "convnet has random weights" in caplog.text
    Path("convnet").write_bytes(Path("convnet.pt").read_bytes())
    assert not isinstance(find_encoder("convnet"), str)  # a file takes precedence


class Halves(LightningDataModule):
    """Images with a bright upper or lower half, by their class."""

    def evaluation_dataloader(self, split):
        labels = torch.arange(20) % 2
        halves = torch.stack([1 - labels, labels], dim=1).repeat_interleave(4, dim=1)
        images = halves[:, None, :, None] + 0.1 * torch.rand(20, 3, 8, 8)
        return DataLoader(TensorDataset(images, labels), batch_size=5)


def test_an_encoder_is_evaluated_by_its_name(folder):
    settings = KNNSettings(k=3, seeds=(0,))
    name = f"{__name__}.Flat"
    found = evaluate_checkpoint(name, Halves(), linear=None, knn=settings, cache=False)
    assert found["checkpoint"] == name
    assert found["knn"]["test_top1_k3"]["mean"] == 1.0
    assert Path(f"{name}.evaluation/evaluation.json").is_file()
    with pytest.raises(ValueError, match="data must be given: timm:resnet10t is a name"):
        evaluate_checkpoint("timm:resnet10t")
