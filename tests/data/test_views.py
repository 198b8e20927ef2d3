import random
from contextlib import suppress

import numpy as np
import pytest
import torch
from lightly.transforms import SimCLRTransform
from PIL import Image
from torch.testing import assert_close
from torchvision import tv_tensors
from torchvision.transforms import v2

from weince_lightning.data import VisionData
from weince_lightning.data.table import DATASETS
from weince_lightning.data.views import (
    EvaluationView,
    TwoViews,
    colour_augmentation,
    digits_augmentation,
    kept_random_numbers,
    seed_random_numbers,
    to_float,
)


@pytest.fixture
def photo():
    pixels = np.random.default_rng(0).integers(0, 256, (40, 48, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
def test_every_default_augmentation_gives_two_float_views_of_the_size(photo, name, mode, channels):
    row = DATASETS[name]
    views = TwoViews(row.augmentation(row.image_size), mode)(photo)
    assert len(views) == 2
    for view in views:
        assert view.shape == (channels, row.image_size, row.image_size)
        assert view.dtype == torch.float32
        assert view.min() >= 0
        assert view.max() <= 1
    assert not torch.equal(*views)


def test_colour_augmentation_is_the_papers():
    crop, flip, jitter, grey = colour_augmentation(32)
    assert (crop.size, tuple(crop.scale)) == ((32, 32), (0.08, 1.0))
    assert flip.p == 0.5
    assert jitter.p == 0.8
    (colour,) = jitter.transforms
    for strength in (colour.brightness, colour.contrast, colour.saturation):
        assert strength == pytest.approx((0.2, 1.8))
    assert colour.hue == (-0.2, 0.2)
    assert grey.p == 0.2


def test_digits_are_never_mirrored():
    # A bar in the left third stays on the left under every small shift, turn and scaling.
    bar = np.zeros((8, 8), dtype=np.uint8)
    bar[2:6, 1] = 255
    two_views = TwoViews(digits_augmentation(16), "L")
    with kept_random_numbers():
        seed_random_numbers(0)
        views = [view for _ in range(100) for view in two_views(Image.fromarray(bar))]
    assert all(view[..., :8].sum() > view[..., 8:].sum() for view in views)


def test_two_views_come_from_one_list_of_transforms_called_twice(photo):
    calls = []
    views = TwoViews([lambda image: calls.append(image) or image], "RGB")(photo)
    assert len(calls) == 2
    assert torch.equal(*views)


def test_lightlys_multi_view_transform_is_called_once(photo):
    transform = SimCLRTransform(input_size=24, normalize=None)
    with kept_random_numbers():
        seed_random_numbers(1)
        expected = transform(photo)
        seed_random_numbers(1)
        views = TwoViews(transform, "RGB")(photo)
    assert_close(views, expected, rtol=0, atol=0)


def test_a_transform_of_three_views_is_refused(photo):
    with pytest.raises(ValueError, match="transforms must return one view or two, got 3"):
        TwoViews(lambda image: [image] * 3, "RGB")(photo)


def test_a_transform_that_returns_no_image_is_refused(photo):
    with pytest.raises(
        TypeError, match="transforms must return a PIL image or a tensor, got ndarr"
    ):
        TwoViews(np.asarray, "RGB")(photo)


@pytest.mark.parametrize("transforms", ["flip", [v2.Identity(), "flip"], 3])
def test_transforms_that_cannot_be_called_are_refused(transforms):
    with pytest.raises(TypeError, match="transforms must be callable or a list of callables, got"):
        TwoViews(transforms, "RGB")


def test_an_empty_list_of_transforms_is_refused():
    with pytest.raises(ValueError, match="transforms must hold at least one transform"):
        TwoViews([], "RGB")


@pytest.mark.parametrize(
    "view",
    [
        Image.fromarray(np.full((2, 2), 51, dtype=np.uint8)),
        torch.full((1, 2, 2), 51, dtype=torch.uint8),
        tv_tensors.Image(torch.full((1, 2, 2), 0.2, dtype=torch.float64)),
    ],
)
def test_images_and_tensors_become_plain_float32_in_the_unit_interval(view):
    result = to_float(view)
    assert type(result) is torch.Tensor
    assert_close(result, torch.full((1, 2, 2), 0.2))


@pytest.mark.parametrize("size", [(32, 32), (40, 48), (20, 64)])
def test_evaluation_view_has_the_size_whatever_the_image_had(size):
    image = Image.fromarray(np.zeros((*size, 3), dtype=np.uint8))
    assert EvaluationView(32, "RGB")(image).shape == (3, 32, 32)


def test_evaluation_view_cuts_out_the_middle():
    pixels = np.zeros((32, 64), dtype=np.uint8)
    pixels[:, 16:48] = 255
    assert EvaluationView(32, "L")(Image.fromarray(pixels)).min() == 1


def test_evaluation_view_leaves_an_image_of_the_right_size_as_it_is(photo):
    image = photo.crop((0, 0, 32, 32))
    expected = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1) / 255
    assert_close(EvaluationView(32, "RGB")(image), expected)


def draw():
    return torch.rand(1).item(), float(np.random.rand()), random.random()


def test_random_numbers_depend_on_every_bit_of_the_seed_alone():
    draws = []
    with kept_random_numbers():
        for seed in (7, 7, 7 + 2**32, 8):
            draw()
            seed_random_numbers(seed)
            draws.append(draw())
    assert draws[0] == draws[1]
    assert len(set(draws)) == 3
    assert len({number for numbers in draws for number in numbers}) == 7  # halves repeat 7 and 0


def test_kept_random_numbers_are_restored_even_after_an_error():
    with kept_random_numbers():
        seed_random_numbers(7)
        expected = [draw(), draw()]
    with kept_random_numbers():
        seed_random_numbers(7)
        found = [draw()]
        with suppress(RuntimeError), kept_random_numbers():
            seed_random_numbers(3)
            draw()
            raise RuntimeError
        found.append(draw())
    assert found == expected


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("digits", {"image_size": 8}),
        ("digits", {}),
        ("fashion_mnist", {}),
        ("cifar10", {}),
        ("cifar10", {"in_channels": 1}),
    ],
)
def test_evaluation_images_of_a_batch_are_those_of_one_at_a_time(write, name, options):
    folder = "unused" if name == "digits" else write(name)
    data = VisionData(name, folder, batch_size=7, val_fraction=0.0, **options)
    images, labels = map(torch.cat, zip(*data.evaluation_dataloader("test"), strict=True))
    loader = data.evaluation_dataloader("test").dataset
    view = EvaluationView(data.image_size, "L" if data.in_channels == 1 else "RGB")
    for i in range(0, len(labels), 5):
        position = loader.positions[i]
        assert torch.equal(images[i], view(loader.images[position]))
        assert labels[i] == loader.images.labels[position]
