"""Image files are read as a viewer shows them, or the error names the file."""

import struct

import numpy as np
import pytest
from cases import few
from PIL import ExifTags, Image

from weince_lightning.data import VisionData
from weince_lightning.data.images import ImageFiles, MissingDataError


def read(path):
    return ImageFiles([str(path)], [0])[0]


def pixels(image):
    return np.asarray(image).tolist()


@pytest.fixture
def picture():
    """An image without symmetry, twice as wide as high, of values that survive a palette."""
    grey = np.random.default_rng(0).integers(0, 256, (8, 16), dtype=np.uint8)
    return Image.fromarray(grey)


# Metadata

AS_STORED = {
    1: lambda shown: shown,
    2: lambda shown: shown[:, ::-1],
    3: lambda shown: shown[::-1, ::-1],
    4: lambda shown: shown[::-1],
    5: lambda shown: shown.T,
    6: lambda shown: np.rot90(shown),  # shown after a quarter turn clockwise
    7: lambda shown: shown[::-1, ::-1].T,
    8: lambda shown: np.rot90(shown, -1),
}


@pytest.mark.parametrize("orientation", AS_STORED)
@pytest.mark.parametrize("suffix", ["png", "tif", "webp"])
def test_photographs_are_upright(tmp_path, picture, orientation, suffix):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    path = tmp_path / f"photo.{suffix}"
    stored = Image.fromarray(np.ascontiguousarray(AS_STORED[orientation](np.asarray(picture))))
    stored.save(path, exif=exif, **({"lossless": True} if suffix == "webp" else {}))
    assert pixels(read(path).convert("L")) == pixels(picture)


def test_photographs_reach_the_encoder_upright(tmp_path):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    stored = np.zeros((16, 16), dtype=np.uint8)
    stored[:, :8] = 255  # white on the left, which is shown at the top
    (tmp_path / "train").mkdir()
    Image.fromarray(stored).save(tmp_path / "train" / "0.jpg", exif=exif)
    data = VisionData("image_folder", tmp_path, image_size=16, val_fraction=0)
    image, _ = data.evaluation_dataloader("train").dataset[0]
    assert image[:, :8].mean() > 0.95
    assert image[:, 8:].mean() < 0.05


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("exif", [b"Exif\0\0nonsense", b"Exif\0\0II*\0\xff\xff\xff\xff", b""])
def test_damaged_metadata_do_not_spoil_whole_pixels(tmp_path, picture, exif):
    picture.save(tmp_path / "photo.png", exif=exif)
    assert pixels(read(tmp_path / "photo.png")) == pixels(picture)


# Kinds of pixels


def test_deep_grey_values_are_scaled_not_clipped(tmp_path):
    deep = np.array([[0, 255, 256, 32768, 65535]], dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    Image.fromarray(deep).save(tmp_path / "deep.tif")
    Image.fromarray(deep.astype(np.int32)).save(tmp_path / "deep.pgm")
    header = b"MM\0*" + struct.pack(">I", 18) + deep.astype(">u2").tobytes()
    tags = ((256, 5), (257, 1), (258, 16), (259, 1), (262, 1), (273, 8), (278, 1), (279, 10))
    entries = b"".join(struct.pack(">HHIHH", tag, 3, 1, value, 0) for tag, value in tags)
    (tmp_path / "big_endian.tif").write_bytes(header + struct.pack(">H", 8) + entries + bytes(4))
    for name in ("deep.png", "deep.tif", "deep.pgm", "big_endian.tif"):
        image = read(tmp_path / name)
        assert (name, image.mode, pixels(image)) == (name, "L", [[0, 0, 1, 128, 255]])


def test_palettes_give_their_colors(tmp_path, picture):
    colors = np.random.default_rng(1).integers(0, 256, (256, 3), dtype=np.uint8)
    palette = picture.copy()
    palette.putpalette(colors.tobytes())
    palette.save(tmp_path / "palette.png")
    assert pixels(read(tmp_path / "palette.png")) == colors[np.asarray(picture)].tolist()


TRANSPARENT = {
    "alpha": ("RGBA", (10, 20, 30, 0), (10, 20, 30, 255), {}),
    "grey and alpha": ("LA", (20, 0), (20, 255), {}),
    "a transparent color": ("RGB", (1, 2, 3), (10, 20, 30), {"transparency": (1, 2, 3)}),
    "a transparent grey": ("L", 7, 20, {"transparency": 7}),
    "a transparent entry of a palette": ("P", 0, 1, {"transparency": b"\0\xff"}),
}


@pytest.mark.parametrize("case", TRANSPARENT)
def test_transparent_images_lie_on_white(tmp_path, case):
    mode, clear, solid, options = TRANSPARENT[case]
    image = Image.new(mode, (2, 1), clear)
    image.putpixel((1, 0), solid)
    if mode == "P":
        image.putpalette([1, 2, 3, 10, 20, 30])
    image.save(tmp_path / "icon.png", **options)
    color = [20] * 3 if mode in ("L", "LA") else [10, 20, 30]
    assert pixels(read(tmp_path / "icon.png")) == [[[255] * 3, color]]


def test_half_transparent_pixels_are_mixed_with_white(tmp_path):
    Image.new("RGBA", (1, 1), (0, 100, 255, 51)).save(tmp_path / "icon.webp", lossless=True)
    # A fifth of the color and four fifths of white.
    assert pixels(read(tmp_path / "icon.webp")) == [[[204, 224, 255]]]


def test_inks_become_colors(tmp_path):
    for suffix in ("tif", "jpg"):
        Image.new("CMYK", (1, 1), (255, 0, 0, 0)).save(tmp_path / f"print.{suffix}", quality=100)
        found = np.asarray(read(tmp_path / f"print.{suffix}"), dtype=int)
        np.testing.assert_allclose(found, [[[0, 255, 255]]], atol=3)


def test_black_and_white_files_are_grey(tmp_path):
    Image.fromarray(np.array([[True, False]])).save(tmp_path / "scan.png")
    assert pixels(read(tmp_path / "scan.png")) == [[255, 0]]


# Errors


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_values_of_unknown_range_are_refused_instead_of_clipped(tmp_path, kind):
    Image.fromarray(np.full((4, 4), 1000, dtype=kind)).save(tmp_path / "measured.tif")
    with pytest.raises(
        OSError, match=r"measured.tif must .* 8 or 16 bits .* range of values is un"
    ):
        read(tmp_path / "measured.tif")


def damaged(content):
    """Files that stop Pillow at different places, by errors of different classes."""
    size = struct.pack("<ii", 300_000, 300_000)
    png, bmp = content["png"], content["bmp"]
    return {
        "short.png": png[:-30],
        "empty.png": b"",
        "text.jpg": b"not found",
        "header.png": png[:8] + struct.pack(">I", 9) + png[12:],
        "bomb.bmp": bmp[:18] + size + bmp[26:],
        "number.ppm": b"P6\n3\x07 20\n255\n" + bytes(60),
        "short.tif": content["tif"][:-40],
        "short.webp": content["webp"][:-20],
    }


@pytest.mark.parametrize(
    "name", few(["short.png", "empty.png", "text.jpg", "header.png", "bomb.bmp", "number.ppm",
                 "short.tif", "short.webp"], 0, 1, 3, 4, 5)
)  # fmt: skip
def test_a_damaged_file_is_named(tmp_path, name):
    noise = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    content = {}
    for suffix in ("png", "bmp", "tif", "webp"):
        Image.fromarray(noise).save(tmp_path / f"whole.{suffix}")
        content[suffix] = (tmp_path / f"whole.{suffix}").read_bytes()
    (tmp_path / name).write_bytes(damaged(content)[name])
    with pytest.raises(
        MissingDataError, match=rf"{tmp_path / name} must hold a whole image"
    ) as caught:
        read(tmp_path / name)
    assert len(str(caught.value).splitlines()) == 1


def test_a_damaged_file_is_named_by_a_worker_process_too(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "0.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    data = VisionData(
        "image_folder", tmp_path, image_size=8, batch_size=1, num_workers=1, val_fraction=0
    )
    with pytest.raises(MissingDataError) as caught:
        next(iter(data.evaluation_dataloader("train")))
    assert str(caught.value).startswith(f"{tmp_path}/train/0.png must hold a whole image")
    assert len(str(caught.value).splitlines()) == 1
