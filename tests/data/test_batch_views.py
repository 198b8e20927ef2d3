import random

import numpy as np
import pytest
import torch
from cases import few
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from PIL import Image
from scipy.stats import ks_2samp, kstest
from torch.testing import assert_close
from torch.utils.data import DataLoader, Subset
from torchvision import transforms as v1
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from weince_lightning.data import VisionData
from weince_lightning.data.batch_views import BatchViews, Streams, draw_crops, hashed
from weince_lightning.data.images import StoredImages
from weince_lightning.data.pixel_operations import (
    ADJUSTMENTS,
    Crops,
    resize_crops,
    to_grey,
    to_grey_pixels,
    turn_images,
)
from weince_lightning.data.table import DATASETS
from weince_lightning.data.views import (
    TwoViews,
    colour_augmentation,
    digits_augmentation,
    grey_augmentation,
)

DRAWS = 1500
SUSPICIOUS = 1e-3
"""p-value below which two samples count as from different laws; the seeds are fixed."""


@pytest.fixture
def pixels(rng):
    """Ten colour images, every one with all shades."""
    return rng.integers(0, 256, (10, 24, 30, 3), dtype=np.uint8)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def to_images(pixels):
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255


def one_by_one(pixels, operation, *parameters):
    """What torchvision's operation makes of each PIL image with its own parameters, in 0-255."""
    results = [
        operation(Image.fromarray(image), *(each.item() for each in own))
        for image, *own in zip(pixels, *parameters, strict=True)
    ]
    return torch.stack([functional.pil_to_tensor(result) for result in results]).float()


def per_image(factor):
    return torch.from_numpy(factor).float()[:, None, None, None]


# Random numbers


def test_numbers_are_those_of_splitmix64():
    found = hashed(np.array([1234567], dtype=np.uint64), np.arange(3, dtype=np.uint64))
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert found.tolist() == published


def test_numbers_are_uniform_within_an_image_and_between_images_of_neighbouring_seeds():
    numbers = Streams(np.arange(200, dtype=np.uint64)).uniform(100)
    assert kstest(numbers.ravel(), "uniform").pvalue > SUSPICIOUS
    assert len(np.unique(numbers)) == numbers.size
    for shifted in (numbers[1:, :] * numbers[:-1, :], numbers[:, 1:] * numbers[:, :-1]):
        # The product of two independent uniform numbers has mean 1/4, variance 7/144.
        assert abs(shifted.mean() - 0.25) < 4 * np.sqrt(7 / 144 / shifted.size)


def test_numbers_lie_in_their_range_and_go_on_where_the_last_ended():
    keys = np.arange(500, dtype=np.uint64)
    streams = Streams(keys)
    parts = [streams.uniform(2, -3, 5), streams.uniform(1, -3, 5)]
    assert np.array_equal(np.hstack(parts), Streams(keys).uniform(3, -3, 5))
    assert parts[0].min() >= -3
    assert parts[0].max() < 5


# Each operation against torchvision's on the PIL image


@pytest.mark.parametrize("size", [(24, 30), (9, 11), (60, 50)], ids=["same", "down", "up"])
def test_a_resized_crop_is_pillows_up_to_its_rounding(rng, pixels, size):
    height, width = rng.integers(1, 13, 10), rng.integers(1, 16, 10)
    height[0], width[0] = 24, 30
    top, left = rng.integers(0, 25 - height), rng.integers(0, 31 - width)
    found = resize_crops(to_images(pixels), Crops(top, left, height, width), size)

    def crop(image, top, left, height, width):
        return functional.resized_crop(image, top, left, height, width, list(size))

    expected = one_by_one(pixels, crop, top, left, height, width)
    assert_close(found * 255, expected, rtol=0, atol=1.01)  # Pillow rounds after each direction


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_a_colour_operation_is_pillows_up_to_its_rounding(rng, pixels, name):
    factor = rng.uniform(0, 2, 10)
    found = ADJUSTMENTS[name](to_images(pixels), per_image(factor))
    expected = one_by_one(pixels, getattr(functional, f"adjust_{name}"), factor)
    # Pillow cuts the result off (1), and rounds the grey value, which counts once at most (0.5).
    assert_close(found * 255, expected, rtol=0, atol=1.51)


def test_a_turned_hue_is_torchvisions(rng, pixels):
    pixels[:, 0] = pixels[:, 0, :, :1]  # some grey pixels
    pixels[:, 1] = 255 * (pixels[:, 1] > 127)  # and corners of the cube, with equal channels
    shift = rng.uniform(-0.5, 0.5, 10)
    found = ADJUSTMENTS["hue"](to_images(pixels), per_image(shift))
    exact = [
        functional.adjust_hue(image, by.item())
        for image, by in zip(to_images(pixels), shift, strict=True)
    ]
    assert_close(found, torch.stack(exact), rtol=0, atol=1e-5)
    rounded = one_by_one(pixels, functional.adjust_hue, shift)
    # Pillow has 256 hues and saturations, so single pixels differ by up to 20 of 255.
    assert (found * 255 - rounded).abs().mean() < 2


def test_grey_is_pillows(pixels):
    expected = one_by_one(pixels, functional.to_grayscale)
    assert_close(to_grey(to_images(pixels)) * 255, expected, rtol=0, atol=0.51)
    assert np.array_equal(to_grey_pixels(pixels), expected[:, 0].numpy())


def test_turned_and_shifted_images_are_pillows_up_to_its_rounding(rng, pixels):
    angle, scale = rng.uniform(-10, 10, 10), rng.uniform(0.9, 1.1, 10)
    right, down = rng.integers(-3, 4, 10), rng.integers(-3, 4, 10)
    angle[0], scale[0] = 0, 1

    def turn(image, angle, right, down, scale):
        bilinear = v2.InterpolationMode.BILINEAR
        return functional.affine(image, angle, [right, down], scale, [0, 0], bilinear)

    found = turn_images(to_images(pixels), np.deg2rad(angle), right, down, scale)
    expected = one_by_one(pixels, turn, angle, right, down, scale)
    assert_close(found * 255, expected, rtol=0, atol=1.01)


# The law of the views


def p_value(sample, other):
    """Of two samples from one law, by Kolmogorov and Smirnov; exact values would take minutes."""
    return ks_2samp(sample, other, method="asymp").pvalue


@pytest.mark.parametrize("size", [(32, 32), (20, 60), (61, 23)], ids=str)
def test_crops_have_torchvisions_law(size):
    transform = v2.RandomResizedCrop(8, scale=(0.08, 1.0))
    found = draw_crops(Streams(np.arange(DRAWS, dtype=np.uint64)), *size, transform)
    image = torch.empty(1, *size)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = [
            v1.RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
            for _ in range(DRAWS)
        ]
    for one, other in zip(found, zip(*drawn, strict=True), strict=True):
        assert p_value(one, other) > SUSPICIOUS
    assert (found.top + found.height <= size[0]).all()
    assert (found.left + found.width <= size[1]).all()


def picture(size, colour):
    """An image brighter on the right and below, with fine structure, and tinted if in colour."""
    ramp = np.linspace(40, 180, size)
    image = ramp + ramp[:, None] / 4 + np.random.default_rng(1).uniform(0, 30, (size, size))
    if colour:
        image = np.stack([image, 0.6 * image, 0.3 * image + 40], axis=-1)
    return image.astype(np.uint8)


def draw_one_by_one(transforms, mode, image):
    """Views by the one-image path, as many as draws."""
    images = StoredImages([image[None]], [0])
    pairs = TwoViews(transforms, mode).of_images(images, [0] * (DRAWS // 2), range(DRAWS // 2))
    return torch.stack([view for pair in pairs for view in pair])


def draw_at_once(transforms, mode, image, count=4 * DRAWS, first=0):
    """Views by the path for batches, of seeds from ``first`` on."""
    views = BatchViews(transforms, mode)
    batch = np.stack([image] * (DRAWS // 10))
    starts = range(first, first + count // 2, len(batch))
    seeds = [np.arange(start, start + len(batch), dtype=np.uint64) for start in starts]
    return torch.cat([view for own in seeds for view in views(batch, own)])


def statistics(views):
    """Numbers by which to compare the law of views, one of each view."""
    size = views.shape[-1]
    grey = views.mean(1)
    columns, rows = grey.mean(1), grey.mean(2)
    measured = {
        "mean": grey.mean((1, 2)),
        "deviation": grey.std((1, 2)),
        "corner": grey[:, : size // 4, : size // 4].mean((1, 2)),
        "middle": grey[:, size // 3 : 2 * size // 3, size // 3 : 2 * size // 3].mean((1, 2)),
        "from left to right": columns[:, -1] - columns[:, 0],
        "from top to bottom": rows[:, -1] - rows[:, 0],
        "is mirrored": (columns[:, -1] < columns[:, 0]).float(),
        "roughness": (grey[..., 1:] - grey[..., :-1]).abs().mean((1, 2)),
        "smallest": grey.amin((1, 2)),
        "largest": grey.amax((1, 2)),
        "relative deviation": grey.std((1, 2)) / grey.mean((1, 2)),
    }
    if views.shape[1] == 3:
        red, green, blue = views.mean((2, 3)).T
        spread = (views.amax(1) - views.amin(1)).mean((1, 2))
        measured |= {"red - green": red - green, "green - blue": green - blue, "spread": spread}
        measured["relative spread"] = spread / measured["mean"]
        measured["is grey"] = (spread < 1e-6).float()
    return {name: each.numpy() for name, each in measured.items()}


def suspicious(views, others):
    """Names of the statistics that a Kolmogorov-Smirnov test finds to differ in law.

    The one-image path cuts off what 8 bits do not hold, after most of its steps: up to one level of
    255 lower is the same, and values that lie closer together than that are spread a little.
    """
    rng = np.random.default_rng(0)
    found, expected = (
        {
            name: each + rng.normal(0, 1 / 255, len(each))
            for name, each in statistics(sample).items()
        }
        for sample in (views, others)
    )
    lower = (0, 0.5 / 255, 1 / 255)
    return {
        name
        for name in found
        if max(p_value(found[name] - by, expected[name]) for by in lower) < SUSPICIOUS
    }


PLAIN = np.full((32, 32, 3), (190, 90, 40), dtype=np.uint8)
"""Every crop of it is the same: only the colours vary."""

CASES = {
    "colour": (colour_augmentation, "RGB", picture(32, True), 32),
    "plain colour": (colour_augmentation, "RGB", PLAIN, 32),
    "colour, larger": (colour_augmentation, "RGB", picture(20, True), 29),
    "colour to grey": (colour_augmentation, "L", picture(32, True), 32),
    "grey": (grey_augmentation, "L", picture(28, False), 28),
    "grey to colour": (grey_augmentation, "RGB", picture(28, False), 28),
    "digits": (digits_augmentation, "L", picture(8, False), 16),
}


@pytest.mark.parametrize("case", few(CASES))
def test_views_of_a_batch_have_the_law_of_views_one_by_one(case):
    augmentation, mode, image, out_size = CASES[case]
    transforms = augmentation(out_size)
    found = draw_at_once(transforms, mode, image)
    assert found.dtype == torch.float32
    assert found.min() >= 0
    assert found.max() <= 1
    assert suspicious(found, draw_one_by_one(transforms, mode, image)) == set()


def colours(scale=(0.08, 1.0), flip=0.5, ranges=(0.8, 0.8, 0.8, 0.2), jitter=0.8, grey=0.2):
    return [
        v2.RandomResizedCrop(32, scale=scale),
        v2.RandomHorizontalFlip(flip),
        v2.RandomApply([v2.ColorJitter(*ranges)], p=jitter),
        v2.RandomGrayscale(grey),
    ]


@pytest.mark.parametrize(
    ("wrong", "image", "differs"),
    few(
        [
            ({"scale": (0.2, 1.0)}, picture(32, True), "relative deviation"),
            ({"flip": 0.4}, picture(32, True), "is mirrored"),
            ({"ranges": (0.5, 0.8, 0.8, 0.2)}, picture(32, True), "mean"),
            ({"ranges": (0.8, 0.5, 0.8, 0.2)}, picture(32, True), "relative deviation"),
            ({"ranges": (0.8, 0.8, 0.3, 0.2)}, PLAIN, "relative spread"),
            ({"ranges": (0.8, 0.8, 0.8, 0.1)}, PLAIN, "green - blue"),
            ({"jitter": 0.6}, PLAIN, "relative spread"),
            ({"grey": 0.3}, PLAIN, "is grey"),
        ],
        1,
    ),
    ids=["scale", "flip", "brightness", "contrast", "saturation", "hue", "jitter", "grey"],
)
def test_another_law_would_be_found(wrong, image, differs):
    right = draw_at_once(colours(), "RGB", image)
    found = draw_at_once(colours(**wrong), "RGB", image, DRAWS, first=10**6)
    assert differs in suspicious(found, right)


def test_the_order_of_the_colour_operations_varies():
    # Saturation 0 after a hue turned by half gives another grey than before it.
    image = np.full((1, 4, 4, 3), (250, 20, 20), dtype=np.uint8)
    fixed = v2.ColorJitter(saturation=(0, 0), hue=(0.5, 0.5))
    views = BatchViews([v2.RandomApply([fixed], p=1.0)], "RGB")
    seeds = np.arange(1000, dtype=np.uint64)
    shades = torch.cat(views(image.repeat(1000, 0), seeds))[:, 0, 0, 0]
    values, counts = shades.unique(return_counts=True)
    assert len(values) == 2
    assert (counts / 2000 - 0.5).abs().max() < 4 * np.sqrt(0.25 / 2000)


def test_the_two_views_of_an_image_are_independent():
    views = draw_at_once(grey_augmentation(28), "L", picture(28, False))
    first, second = statistics(views)["mean"].reshape(-1, 2, DRAWS // 10).swapaxes(0, 1)
    assert abs(np.corrcoef(first.flat, second.flat)[0, 1]) < 4 / np.sqrt(first.size)


def test_transforms_without_a_form_for_batches_are_refused():
    with pytest.raises(
        ValueError, match=r"transforms must be of RandomResizedCrop.*, got Random.*"
    ):
        BatchViews([v2.RandomVerticalFlip()], "L")


# The data module


def make(name="digits", **options):
    return VisionData(name, batch_augmentation=True, **options)


def joined(loader, batches=None):
    """Both views and the labels of all batches, or of the first so many."""
    found = [batch for batch, _ in zip(loader, range(batches or len(loader)), strict=False)]
    views = [torch.cat([batch[0][i] for batch in found]) for i in (0, 1)]
    return [*views, torch.cat([labels for _, labels in found])]


def equal(found, expected):
    return all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", [name for name in DATASETS if DATASETS[name].in_memory])
@pytest.mark.parametrize(
    "options", [{}, {"image_size": 20}, {"in_channels": 1}, {"in_channels": 3}]
)
def test_batches_have_the_form_of_those_made_one_by_one(write, name, options):
    folder = "nowhere" if name == "digits" else write(name)
    found, expected = (
        next(
            iter(
                VisionData(name, folder, 4, **options, batch_augmentation=at_once).test_dataloader()
            )
        )
        for at_once in (True, False)
    )
    assert [type(part) for part in found] == [type(part) for part in expected]
    assert isinstance(found[0], list)
    for one, other in zip([*found[0], found[1]], [*expected[0], expected[1]], strict=True):
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("name", DATASETS)
def test_the_table_says_which_images_lie_in_memory(write, name):
    row = DATASETS[name]
    images = row.read(None if name == "digits" else write(name), "train")
    assert isinstance(images, StoredImages) == row.in_memory
    if row.in_memory:
        assert len({block.shape[1:] for block in images.blocks}) == 1


def test_images_are_taken_from_their_blocks(rng):
    blocks = [rng.integers(0, 256, (count, 3, 3), dtype=np.uint8) for count in (2, 5, 1)]
    images = StoredImages(blocks, range(8))
    wanted = [7, 0, 3, 3, 6, 2, 1]
    expected = np.stack([np.asarray(images[i]) for i in wanted])
    assert np.array_equal(images.pixels(wanted), expected)


@pytest.mark.parametrize("options", [{"batch_size": 7}, {"batch_size": 50, "num_workers": 2}])
@pytest.mark.parametrize("part", ["train", "val"])
def test_views_do_not_depend_on_workers_or_the_size_of_batches(part, options):
    found = []
    for given in ({}, options):
        seed_everything(4, verbose=False)
        data = make(batch_size=144) if not given else make(**given)
        loader = data.train_dataloader() if part == "train" else data.val_dataloader()
        found.append([each[:140] for each in joined(loader, 144 // data.batch_size + 1)])
    assert equal(*found)


def test_training_views_change_with_epoch_and_seed():
    loader = make(batch_size=1294).train_dataloader()
    places = [(0, 0), (1, 0), (0, 0)]
    loader.place = lambda _: places.pop()
    epochs = [joined(loader) for _ in range(3)]
    assert equal(epochs[0], epochs[2])
    assert not equal(epochs[0], epochs[1])
    assert not equal(epochs[0], joined(make(batch_size=1294).train_dataloader()))


def test_the_batches_of_two_processes_make_up_those_of_one(monkeypatch):
    def first_batch(batch_size):
        seed_everything(4, verbose=False)
        return joined(make(batch_size=batch_size).train_dataloader(), 1)

    whole, shares = first_batch(64), []
    for rank in (0, 1):
        monkeypatch.setattr("weince_lightning.data.order.world_size", lambda: 2)
        monkeypatch.setattr("weince_lightning.data.order.rank", lambda rank=rank: rank)
        shares.append(first_batch(32))
    dealt = [torch.stack(pair, 1).flatten(0, 1) for pair in zip(*shares, strict=True)]
    assert equal(dealt, whole)


class Recorder(LightningModule):
    """Keeps what it is trained and validated on."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append([*batch[0], batch[1]])
        return self.layer.weight.sum()

    def validation_step(self, batch):
        pixels = sum(view.double().square().sum() for view in batch[0])
        self.log("pixels", pixels, reduce_fx="sum", sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(**options):
    return Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


@pytest.mark.parametrize("num_workers", few([0, 2]))
def test_a_run_resumed_within_an_epoch_sees_what_it_would_have_seen(tmp_path, num_workers):
    seed_everything(1, verbose=False)
    options = {"max_epochs": 2, "limit_train_batches": 3, "limit_val_batches": 0}
    keep = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=2, save_top_k=-1)
    whole, resumed = Recorder(), Recorder()
    trainer(**options, callbacks=[keep]).fit(whole, make(batch_size=16, num_workers=num_workers))
    seed_everything(2, verbose=False)
    trainer(**options, enable_checkpointing=False).fit(
        resumed, make(batch_size=16, num_workers=num_workers), ckpt_path=tmp_path / "step=2.ckpt"
    )
    assert len(resumed.seen) == 4
    assert all(map(equal, resumed.seen, whole.seen[2:]))
    saved = torch.load(tmp_path / "step=2.ckpt", weights_only=True)
    assert saved["datamodule_hyper_parameters"]["batch_augmentation"] is True


def test_two_processes_see_the_validation_views_of_one():
    found = []
    for devices, strategy in [(1, "auto"), (2, "ddp_fork")]:
        run = trainer(devices=devices, strategy=strategy, enable_checkpointing=False)
        run.validate(Recorder(), make(batch_size=13), verbose=False)
        found.append(run.callback_metrics["pixels"].item())
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.parametrize("part", ["train", "val", "test"])
def test_loaders_leave_the_global_random_numbers_untouched(part):
    loader = getattr(make(), f"{part}_dataloader")()
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    next(iter(loader))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]


def test_a_subset_in_a_loader_of_ones_own_has_the_same_views():
    dataset = make().val_dataloader().dataset
    found = joined(DataLoader(Subset(dataset, range(3, 9)), batch_size=4))
    assert equal(found, [each[3:9] for each in joined(make().val_dataloader())])
    (first, second), label = dataset[5]
    assert equal([first, second, torch.tensor(label)], [each[2] for each in found])


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"transforms": [v2.Resize(16)]}, "transforms of your own"),
        ({"dataset": "image_folder"}, "dataset 'image_folder'"),
        ({"dataset": "tiny_imagenet"}, "dataset 'tiny_imagenet'"),
    ],
)
def test_what_no_batch_can_be_made_of_is_refused_at_construction(options, found):
    with pytest.raises(
        ValueError, match=f"batch_augmentation must be False .*, got True with {found}"
    ):
        VisionData(**options, batch_augmentation=True)
