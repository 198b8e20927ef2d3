"""The table of data sets. A new set is one more entry; its reader goes into ``sources.py``."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torchvision import datasets

from weince_lightning.data import sources, views
from weince_lightning.data.images import Images


class DataSet(NamedTuple):
    """What the data module has to know about a data set."""

    read: Callable[..., Images]
    """Reader ``(data_dir, split) -> images`` for the splits ``train`` and ``test``."""

    image_size: int
    """Side of the square images that the network sees, in pixels."""

    num_classes: int | None
    """Number of classes; None: the class folders are counted."""

    how_to_get: str
    """What a person does whose files are missing."""

    in_channels: int = 3
    """1 for grey images, 3 for colour."""

    augmentation: Callable[[int], list[views.Transform]] = views.colour_augmentation
    """Default transforms of a view, for an image size."""

    torchvision_class: Any = None
    """The class of torchvision that fetches the files into the data folder."""

    pretraining_split: str = "train"
    """The split of the reader that the encoder is trained on."""

    test_fraction: float = 0.0
    """Share of ``train`` that is held out as the test set where the publisher gives none."""

    in_memory: bool = True
    """Whether the reader returns images of one size in memory, not in files."""


DATASETS = {
    "digits": DataSet(
        read=sources.read_digits,
        image_size=16,
        in_channels=1,
        num_classes=10,
        augmentation=views.digits_augmentation,
        how_to_get="The digits come with scikit-learn.",
        test_fraction=0.2,
    ),
    "fashion_mnist": DataSet(
        read=sources.read_fashion_mnist,
        image_size=28,
        in_channels=1,
        num_classes=10,
        augmentation=views.grey_augmentation,
        how_to_get="Set download=True, or point data_dir at a folder with the four idx .gz files "
        "(Debian's package dataset-fashion-mnist puts them into "
        "/usr/share/datasets/fashion-mnist).",
        torchvision_class=datasets.FashionMNIST,
    ),
    "cifar10": DataSet(
        read=partial(sources.read_cifar, datasets.CIFAR10),
        image_size=32,
        num_classes=10,
        how_to_get="Set download=True, or unpack cifar-10-python.tar.gz into data_dir.",
        torchvision_class=datasets.CIFAR10,
    ),
    "cifar100": DataSet(
        read=partial(sources.read_cifar, datasets.CIFAR100),
        image_size=32,
        num_classes=100,
        how_to_get="Set download=True, or unpack cifar-100-python.tar.gz into data_dir.",
        torchvision_class=datasets.CIFAR100,
    ),
    "stl10": DataSet(
        read=sources.read_stl10,
        image_size=96,
        num_classes=10,
        how_to_get="Set download=True, or unpack stl10_binary.tar.gz into data_dir.",
        torchvision_class=datasets.STL10,
        pretraining_split="unlabeled",
    ),
    "imagenet32": DataSet(
        read=sources.read_imagenet32,
        image_size=32,
        num_classes=1000,
        how_to_get="Get the 32x32 'downsampled image data' in Python form from image-net.org (an "
        "account is needed) and unpack both archives into data_dir or data_dir/imagenet32.",
    ),
    "tiny_imagenet": DataSet(
        read=sources.read_tiny_imagenet,
        image_size=64,
        num_classes=200,
        how_to_get="Unpack tiny-imagenet-200.zip (Stanford CS231n) into data_dir.",
        in_memory=False,
    ),
    "image_folder": DataSet(
        read=sources.read_image_folder,
        image_size=224,
        num_classes=None,
        how_to_get="Put the images into data_dir/train/<class>/ and those of the test set into "
        "data_dir/test/<class>/, or all into data_dir/<class>/, of which a fifth becomes the test "
        "set; without class folders the labels are unknown.",
        in_memory=False,
    ),
}
