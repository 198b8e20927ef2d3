import random
import re
from itertools import product

import numpy as np
import pytest
import torch
from cases import few
from lightly.transforms import SimCLRTransform
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.cli import LightningCLI
from torchvision.transforms import v2

from weince_lightning.data import VisionData
from weince_lightning.data.images import MissingDataError
from weince_lightning.data.table import DATASETS

ON_DISK = [name for name in DATASETS if name != "digits"]


class Encoder(LightningModule):
    """The smallest module that trains on pairs of views and logs what it saw."""

    def __init__(self, in_channels: int = 3, image_size: int = 32):
        super().__init__()
        self.layer = torch.nn.Linear(in_channels * image_size**2, 4)

    def training_step(self, batch):
        (first, second), labels = batch
        self.log("trained", float(len(labels)), on_epoch=True, reduce_fx="sum", sync_dist=True)
        return (self.layer(first.flatten(1)) - self.layer(second.flatten(1))).square().mean()

    def validation_step(self, batch):
        views, labels = batch
        self.log("pixels", sum(view.sum() for view in views), reduce_fx="sum", sync_dist=True)
        self.log("images", float(len(labels)), reduce_fx="sum", sync_dist=True)

    def predict_step(self, batch):
        return batch

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(**options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(accelerator="cpu", enable_checkpointing=False, **quiet, **options)


def collect(loader):
    """Concatenate the batches of a loader: the images or both views, and the labels."""
    batches = list(loader)
    images = [torch.cat(list(b[0])) if isinstance(b[0], list) else b[0] for b in batches]
    return torch.cat(images), torch.cat([labels for _, labels in batches])


def views_and_labels(loader):
    batches = list(loader)
    views = [torch.cat([batch[0][i] for batch in batches]) for i in (0, 1)]
    return (*views, torch.cat([labels for _, labels in batches]))


@pytest.fixture(scope="module")
def digits():
    return VisionData("digits")


# What a data set is


@pytest.mark.parametrize(
    ("name", "in_channels", "image_size", "num_classes"),
    [
        ("digits", 1, 16, 10),
        ("fashion_mnist", 1, 28, 10),
        ("cifar10", 3, 32, 10),
        ("cifar100", 3, 32, 100),
        ("stl10", 3, 96, 10),
        ("imagenet32", 3, 32, 1000),
        ("tiny_imagenet", 3, 64, 200),
    ],
)
def test_shape_and_classes_are_known_without_the_files(name, in_channels, image_size, num_classes):
    data = VisionData(name, data_dir="nowhere")
    assert (data.in_channels, data.image_size) == (in_channels, image_size)
    assert data.num_classes == num_classes


def test_an_image_folder_counts_its_class_folders(write):
    assert VisionData("image_folder", write("image_folder")).num_classes == 2


@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_gives_pairs_of_views_and_evaluation_images(write, name):
    data = VisionData(
        name, "nowhere" if name == "digits" else write(name), batch_size=2, val_fraction=0.3
    )
    shape = (2, data.in_channels, data.image_size, data.image_size)
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
        (first, second), labels = next(iter(loader))
        assert first.shape == second.shape == shape
        assert first.dtype == second.dtype == torch.float32
        assert labels.shape == (2,)
        assert labels.dtype == torch.int64
    for split in ("train", "val", "test"):
        images, labels = next(iter(data.evaluation_dataloader(split)))
        assert images.shape == shape
        assert 0 <= images.min() <= images.max() <= 1
        assert labels.dtype == torch.int64
        assert labels.min() >= 0


def test_grey_images_become_three_channels_on_request():
    data = VisionData("digits", in_channels=3, batch_size=4)
    assert data.in_channels == 3
    (first, _), _ = next(iter(data.train_dataloader()))
    images, _ = next(iter(data.evaluation_dataloader("train")))
    assert first.shape == images.shape == (4, 3, 16, 16)
    assert torch.equal(images[:, 0], images[:, 2])


def test_image_size_sets_the_size_of_views_and_evaluation_images():
    data = VisionData("digits", image_size=20, batch_size=4)
    (first, _), _ = next(iter(data.train_dataloader()))
    images, _ = next(iter(data.evaluation_dataloader("train")))
    assert first.shape == images.shape == (4, 1, 20, 20)
    assert data.image_size == 20


def test_own_transforms_replace_the_default(digits):
    data = VisionData("digits", transforms=[v2.Resize(16), v2.RandomVerticalFlip(p=1.0)])
    (first, second), _ = next(iter(data.val_dataloader()))
    images, _ = next(iter(digits.evaluation_dataloader("val")))
    assert torch.equal(first, images.flip(2))
    assert torch.equal(first, second)


def test_lightlys_transform_makes_the_views_of_a_batch():
    transform = SimCLRTransform(20, normalize=None)
    data = VisionData("digits", in_channels=3, transforms=transform, batch_size=4)
    (first, second), _ = next(iter(data.train_dataloader()))
    assert first.shape == second.shape == (4, 3, 20, 20)


# Normalization

IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


@pytest.mark.parametrize("batch_augmentation", [False, True])
@pytest.mark.parametrize("image_size", [16, 20])
def test_views_and_evaluation_images_are_normalized(batch_augmentation, image_size):
    def batches(**options):
        data = VisionData(
            "digits", in_channels=3, batch_size=4, image_size=image_size,
            batch_augmentation=batch_augmentation, **options,
        )  # fmt: skip
        (first, second), _ = next(iter(data.test_dataloader()))
        return torch.stack([first, second, next(iter(data.evaluation_dataloader("test")))[0]])

    mean, std = (torch.tensor(IMAGENET[name])[:, None, None] for name in ("mean", "std"))
    torch.testing.assert_close(batches(**IMAGENET), (batches() - mean) / std)


def test_what_lightly_normalized_is_not_normalized_again():
    (first, _), _ = next(iter(lightlys(**IMAGENET).val_dataloader()))
    with pytest.warns(UserWarning, match="must be those of transforms, mean=.0.485, .* got None"):
        plain = lightlys()
    assert torch.equal(first, next(iter(plain.val_dataloader()))[0][0])
    images, _ = next(iter(lightlys(**IMAGENET).evaluation_dataloader("val")))
    assert images.min() < -1 < 0 <= next(iter(plain.evaluation_dataloader("val")))[0].min()


def lightlys(**options):
    return VisionData(
        "digits", in_channels=3, batch_size=4, transforms=SimCLRTransform(16), **options
    )


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"mean": [0.5]}, ValueError, r"std must hold one number per channel \(1\), got None\."),
        ({"mean": [0.5] * 3, "std": [1.0] * 3}, ValueError, r"mean must hold .* \(1\), got \["),
        ({"mean": [0.5], "std": [0.0]}, ValueError, "std must be above 0, got 0"),
        ({"mean": 0.5, "std": [1.0]}, TypeError, "mean must be a list of numbers, got 0.5"),
    ],
)
def test_normalization_that_makes_no_sense_is_refused(given, kind, text):
    with pytest.raises(kind, match=text):
        VisionData("digits", **given)


# Splits


def test_digits_are_split_into_stratified_parts_that_share_no_image(digits):
    loaders = [digits.evaluation_dataloader(split) for split in ("train", "val", "test")]
    positions = [loader.dataset.positions for loader in loaders]
    assert [len(part) for part in positions] == [1294, 144, 359]
    assert len(np.unique(np.concatenate(positions))) == 1797
    for loader in loaders:
        shares = torch.bincount(collect(loader)[1], minlength=10) / len(loader.dataset)
        assert (shares - 0.1).abs().max() < 0.012  # a class has 174 to 183 of 1797 images


def test_split_seed_chooses_the_validation_images_and_loader_settings_do_not(digits):
    def chosen(**options):
        return VisionData("digits", **options).evaluation_dataloader("val").dataset.positions

    expected = digits.evaluation_dataloader("val").dataset.positions
    assert np.array_equal(chosen(batch_size=7, num_workers=1, image_size=8), expected)
    assert not np.array_equal(chosen(split_seed=1), expected)


def test_stl10_trains_on_unlabelled_images_and_evaluates_on_labelled_ones(write):
    data = VisionData("stl10", write("stl10"), batch_size=30, val_fraction=0.25)
    (_, labels), *rest = list(data.train_dataloader())
    assert labels.tolist() == [-1] * 30
    assert rest == []
    bank, val, test = (collect(data.evaluation_dataloader(s))[1] for s in ("train", "val", "test"))
    assert torch.bincount(bank).tolist() == [3] * 10
    assert torch.bincount(val).tolist() == [1] * 10
    assert torch.bincount(test).tolist() == [2] * 10


def test_images_without_labels_are_split_at_random(write):
    data = VisionData("image_folder", write("image_folder", classes=()), val_fraction=0.25)
    assert data.num_classes == 0
    assert len(data.train_dataloader().dataset) == 15
    _, labels = collect(data.evaluation_dataloader("val"))
    assert labels.tolist() == [-1] * 5


def test_val_fraction_0_trains_on_everything_and_validates_on_nothing():
    data = VisionData("digits", val_fraction=0)
    assert len(data.train_dataloader().dataset) == 1438
    model = Encoder(1, 16)
    trainer(max_epochs=1).fit(model, data)
    with pytest.raises(ValueError, match="split must be 'train' or 'test', got 'val'"):
        data.evaluation_dataloader("val")


def test_a_validation_part_that_would_be_empty_is_refused(write):
    data = VisionData("image_folder", write("image_folder"), val_fraction=0.01)
    with pytest.raises(
        ValueError, match=r"val_fraction must leave images .* got 0.01 of 40 images"
    ):
        data.val_dataloader()


# Loaders


def test_training_drops_an_incomplete_last_batch_and_evaluation_keeps_it(digits):
    views = VisionData("digits", transforms=noise).train_dataloader()
    assert [len(labels) for _, labels in views] == [256] * 5
    assert len(collect(digits.evaluation_dataloader("train"))[1]) == 1294
    assert len(collect(digits.predict_dataloader())[1]) == 359


def test_a_training_set_smaller_than_a_batch_is_kept():
    ((_, labels),) = VisionData("digits", batch_size=2000, transforms=noise).train_dataloader()
    assert len(labels) == 1294


def test_training_shuffles_and_evaluation_never_does(digits):
    views = VisionData("digits", transforms=noise)
    epochs = [collect(views.train_dataloader())[1] for _ in range(2)]
    assert not torch.equal(*epochs)
    banks = [collect(digits.evaluation_dataloader("train")) for _ in range(2)]
    assert torch.equal(banks[0][0], banks[1][0])
    assert torch.equal(banks[0][1], banks[1][1])


def test_prediction_is_over_the_evaluation_images_of_the_test_set(digits):
    (images, labels), (expected, expected_labels) = (
        collect(loader)
        for loader in (
            trainer().predict(Encoder(1, 16), digits),
            digits.evaluation_dataloader("test"),
        )
    )
    assert torch.equal(images, expected)
    assert torch.equal(labels, expected_labels)


# Random numbers


@pytest.mark.parametrize("options", [{"batch_size": 7}, {"num_workers": 2, "batch_size": 50}])
def test_validation_views_depend_on_seed_and_image_alone(digits, options):
    expected = views_and_labels(digits.val_dataloader())
    seed_everything(99, verbose=False)
    found = views_and_labels(VisionData("digits", **options).val_dataloader())
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_an_image_keeps_its_validation_views_when_the_split_changes(digits):
    other = VisionData("digits", val_fraction=0.5).val_dataloader().dataset
    mine = digits.val_dataloader().dataset
    both = np.intersect1d(mine.positions, other.positions)
    assert len(both) > 20
    for position in both:
        (a, b), _ = mine[int(np.searchsorted(mine.positions, position))]
        (c, d), _ = other[int(np.searchsorted(other.positions, position))]
        assert torch.equal(a, c)
        assert torch.equal(b, d)


def noise(image):
    """An augmentation that returns nothing but random numbers: torch's, NumPy's and Python's."""
    return torch.tensor([torch.rand(1).item(), np.random.rand(), random.random()])


def test_fixed_views_differ_between_views_images_and_seeds():
    numbers = []
    for seed in (0, 1):
        data = VisionData("digits", transforms=noise, split_seed=seed)
        numbers += views_and_labels(data.val_dataloader())[:2]
    numbers = torch.cat(numbers)
    assert numbers.shape == (2 * 2 * 144, 3)
    for column in numbers.T:
        assert len(column.unique()) > 0.99 * len(column)


@pytest.mark.parametrize(
    ("num_workers", "kind"), few(product((0, 2), ("val", "test", "bank")), 1, 2, 3)
)
def test_fixed_loaders_leave_the_global_random_numbers_untouched(num_workers, kind):
    data = VisionData("digits", num_workers=num_workers)
    loader = {
        "val": data.val_dataloader,
        "test": data.test_dataloader,
        "bank": lambda: data.evaluation_dataloader("train"),
    }[kind]()
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    next(iter(loader))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]


@pytest.mark.parametrize("num_workers", few([0, 2], 1))
def test_training_views_repeat_after_seed_everything(num_workers):
    data = VisionData("digits", transforms=noise, num_workers=num_workers)
    epochs = []
    for seed in (3, 3, 4):
        seed_everything(seed, workers=True, verbose=False)
        epochs.append(torch.cat(views_and_labels(data.train_dataloader())[:2]))
    assert torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[0], epochs[2])


def test_workers_draw_different_random_numbers_from_every_generator():
    data = VisionData("digits", transforms=noise, num_workers=2)
    numbers = torch.cat(views_and_labels(data.train_dataloader())[:2])
    for column in numbers.T:
        assert len(column.unique()) > 0.99 * len(column)


@pytest.mark.parametrize("num_workers", few([0, 2]))
def test_training_with_a_trainer_repeats_bit_for_bit(num_workers):
    weights = []
    for _ in range(2):
        seed_everything(5, workers=True, verbose=False)
        model = Encoder(1, 16)
        data = VisionData("digits", batch_size=32, num_workers=num_workers)
        trainer(max_epochs=2, limit_train_batches=2, limit_val_batches=0).fit(model, data)
        weights.append(model.layer.weight.detach().clone())
    assert torch.equal(*weights)


def test_two_processes_see_the_validation_views_of_one(digits):
    found = []
    for devices, strategy in [(1, "auto"), (2, "ddp_fork")]:
        run = trainer(devices=devices, strategy=strategy)
        run.validate(Encoder(1, 16), VisionData("digits", batch_size=13), verbose=False)
        found.append({name: value.item() for name, value in run.callback_metrics.items()})
    assert found[1]["images"] == found[0]["images"] == 144
    assert found[1]["pixels"] == pytest.approx(found[0]["pixels"], rel=1e-5)


def test_a_share_of_a_process_smaller_than_a_batch_is_not_dropped():
    run = trainer(devices=2, strategy="ddp_fork", max_epochs=1, limit_val_batches=0)
    run.fit(Encoder(1, 16), VisionData("digits", batch_size=1000))
    assert run.callback_metrics["trained"] == 1294


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "stl10"])
def test_download_fetches_nothing_where_the_files_are_there(write, name):
    data = VisionData(name, write(name), download=True, batch_size=10)
    data.prepare_data()  # an attempt to fetch would fail here, or replace the small files
    assert len(data.test_dataloader().dataset) <= 100


# Errors


@pytest.mark.parametrize("name", ON_DISK)
def test_missing_data_say_what_was_looked_for_where_and_how_to_get_it(tmp_path, name):
    data = VisionData(name, tmp_path / "absent")
    with pytest.raises(MissingDataError, match="absent") as caught:
        data.train_dataloader()
    assert str(caught.value).startswith(f"{name}: {tmp_path / 'absent'}")
    assert " must hold " in str(caught.value)
    assert str(caught.value).endswith(DATASETS[name].how_to_get)


def test_absent_images_are_told_before_a_training_begins(tmp_path):
    with pytest.raises(MissingDataError, match="must hold data_batch_1"):
        VisionData("cifar10", tmp_path).setup("fit")


def test_classes_of_an_absent_image_folder_cannot_be_counted(tmp_path):
    data = VisionData("image_folder", tmp_path)
    with pytest.raises(MissingDataError, match="must hold train, got no such file"):
        _ = data.num_classes


@pytest.mark.parametrize("given", ["cifar_10", "CIFAR10", "cifar1"])
def test_an_unknown_data_set_names_the_nearest_known_one(given):
    with pytest.raises(
        ValueError, match=rf"dataset must be one of digits, .*, got '{given}'\..*mean 'cifar10'\?"
    ):
        VisionData(given)


@pytest.mark.parametrize(
    ("argument", "value", "kind", "condition"),
    [
        ("batch_size", 0, ValueError, "be at least 1, got 0"),
        ("batch_size", 2.5, TypeError, "be an integer, got 2.5"),
        ("num_workers", -1, ValueError, "be at least 0, got -1"),
        ("num_workers", True, TypeError, "be an integer, got True"),
        ("image_size", 0, ValueError, "be at least 1, got 0"),
        ("in_channels", 2, ValueError, "be 1, 3 or None, got 2"),
        ("val_fraction", 1.0, ValueError, "lie in [0, 1), got 1.0"),
        ("val_fraction", -0.1, ValueError, "lie in [0, 1), got -0.1"),
        ("val_fraction", float("nan"), ValueError, "lie in [0, 1), got nan"),
        ("val_fraction", "a", TypeError, "be a number, got 'a'"),
        ("split_seed", -1, ValueError, "be at least 0 and at most 4294967295, got -1"),
        ("split_seed", 2**32, ValueError, "be at least 0 and at most 4294967295, got 4294967296"),
        ("transforms", [], ValueError, "hold at least one transform, got an empty list"),
        ("batch_augmentation", "False", TypeError, "be True or False, got 'False'"),
        ("transforms", "flip", TypeError, "be callable or a list of callables, got 'flip'"),
    ],
)
def test_a_bad_argument_is_refused_at_construction(argument, value, kind, condition):
    with pytest.raises(kind, match=re.escape(f"{argument} must {condition}")):
        VisionData("digits", **{argument: value})


@pytest.mark.parametrize("split", ["valid", "unlabeled", None])
def test_an_unknown_split_is_refused(digits, split):
    with pytest.raises(ValueError, match="split must be 'train', 'val' or 'test', got"):
        digits.evaluation_dataloader(split)


# Settings in files

SETTINGS = """
data:
  class_path: weince_lightning.data.VisionData
  init_args:
    dataset: digits
    transforms: {transforms}
"""


def read_settings(folder, *texts):
    """Build the data module as the command does, from files laid one over the other."""
    arguments = []
    for i, text in enumerate(texts):
        (folder / f"{i}.yaml").write_text(text)
        arguments += ["--config", str(folder / f"{i}.yaml")]
    cli = LightningCLI(
        Encoder,
        VisionData,
        subclass_mode_data=True,
        run=False,
        args=arguments,
        save_config_callback=None,
        seed_everything_default=False,
        trainer_defaults={"logger": False, "accelerator": "cpu"},
    )
    return cli.datamodule


TORCHVISION = """
      - class_path: torchvision.transforms.v2.RandomResizedCrop
        init_args: {size: 16, scale: [0.2, 1.0]}
      - class_path: torchvision.transforms.v2.RandomApply
        init_args:
          transforms:
            - class_path: torchvision.transforms.v2.ColorJitter
              init_args: {brightness: 0.4}
          p: 0.5
      - torchvision.transforms.v2.RandomHorizontalFlip
"""
LIGHTLY = """
      class_path: lightly.transforms.SimCLRTransform
      init_args: {input_size: 16, normalize: null}
"""


@pytest.mark.parametrize("transforms", [TORCHVISION, LIGHTLY], ids=["torchvision", "lightly"])
def test_transforms_can_be_written_in_a_settings_file(tmp_path, transforms):
    data = read_settings(tmp_path, SETTINGS.replace("{transforms}", transforms))
    (first, second), _ = next(iter(data.train_dataloader()))
    assert first.shape == second.shape == (256, 1, 16, 16)
    assert not torch.equal(first, second)


def test_a_later_file_takes_transforms_back_to_the_default(tmp_path, digits):
    texts = [SETTINGS.replace("{transforms}", text) for text in (LIGHTLY, "null")]
    (first, _), _ = next(iter(read_settings(tmp_path, *texts).val_dataloader()))
    assert torch.equal(first, next(iter(digits.val_dataloader()))[0][0])
