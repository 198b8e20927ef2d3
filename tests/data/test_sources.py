import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest

from weince_lightning.data import sources
from weince_lightning.data.images import MissingDataError
from weince_lightning.data.table import DATASETS

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


def test_digits_are_the_1797_of_scikit_learn():
    digits = sources.read_digits(Path("nowhere"), "train")
    assert len(digits) == 1797
    assert digits[0].size == (8, 8)
    assert np.asarray(digits[0]).max() == 239  # 15 of 16 grey levels
    assert digits.labels[:5].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "split", "count", "first", "label_of_11"),
    [
        ("cifar10", "train", 100, 0, 1),
        ("cifar10", "test", 100, 100, 1),
        ("cifar100", "train", 100, 0, 11),
        ("cifar100", "test", 100, 100, 11),
        ("stl10", "train", 40, 0, 1),
        ("stl10", "unlabeled", 30, 0, -1),
        ("stl10", "test", 20, 0, 1),
        ("imagenet32", "train", 40, 0, 999),
    ],
)
def test_colour_images_keep_order_orientation_and_label(
    write, pattern, name, split, count, first, label_of_11
):
    images = DATASETS[name].read(write(name), split)
    assert len(images) == len(images.labels) == count
    expected = pattern(first + 11, images[11].size[0])
    np.testing.assert_array_equal(np.asarray(images[11]), expected)
    assert images.labels[11] == label_of_11


def test_labels_of_imagenet32_count_from_zero(write):
    images = sources.read_imagenet32(write("imagenet32"), "test")
    assert images.labels.tolist() == [40 * 37 % 1000, 41 * 37 % 1000, 42 * 37 % 1000, 999]


def test_imagenet32_may_lie_in_data_dir_itself(write):
    assert len(sources.read_imagenet32(write("imagenet32", folder="."), "train")) == 40


@pytest.mark.parametrize("folder", ["FashionMNIST/raw", "."])
@pytest.mark.parametrize(("compress", "suffix"), [(gzip.compress, ".gz"), (bytes, "")])
def test_fashion_mnist_reads_plain_and_zipped_files_from_both_folders(
    write, pattern, folder, compress, suffix
):
    root = write("fashion_mnist", folder=folder, compress=compress, suffix=suffix)
    train, test = (sources.read_fashion_mnist(root, split) for split in ("train", "test"))
    assert (len(train), len(test)) == (40, 20)
    np.testing.assert_array_equal(np.asarray(train[13]), pattern(13, 28)[..., 0])
    assert train.labels[13] == 3


@pytest.mark.skipif(
    not DEBIAN_FASHION_MNIST.is_dir(), reason="Debian's dataset-fashion-mnist is not installed"
)
def test_debians_fashion_mnist_is_read_where_it_lies():
    images = sources.read_fashion_mnist(DEBIAN_FASHION_MNIST, "test")
    assert np.bincount(images.labels).tolist() == [1000] * 10
    assert images[0].size == (28, 28)


def test_classes_of_tiny_imagenet_follow_wnids_and_its_val_folder_is_the_test_set(write):
    root = write("tiny_imagenet")
    for split, counts in {"train": [4, 4, 4], "test": [1, 1, 1]}.items():
        images = sources.read_tiny_imagenet(root, split)
        assert np.bincount(images.labels).tolist() == counts
        for i, label in enumerate(images.labels):
            # An image's grey level is 80 times its class, plus its number within the class.
            assert np.asarray(images[i]).mean() // 78 == label


@pytest.mark.parametrize("test", ["test", "val"])
def test_an_image_folder_is_read_class_by_class(write, test):
    root = write("image_folder", test=test)
    train, held_out = (sources.read_image_folder(root, split) for split in ("train", "test"))
    assert train.labels.tolist() == [0] * 20 + [1] * 20
    assert held_out.labels.tolist() == [0] * 3 + [1] * 3
    assert np.asarray(train[25]).mean() == 105
    assert sources.image_folder_classes(root) == ["cat", "dog"]


def test_an_image_folder_without_classes_has_unknown_labels(write):
    root = write("image_folder", classes=())
    images = sources.read_image_folder(root, "train")
    assert images.labels.tolist() == [-1] * 20
    assert sources.image_folder_classes(root) == []


def test_a_test_folder_lacking_a_class_keeps_the_numbers_of_the_others(write):
    root = write("image_folder")
    for path in [*(root / "test" / "cat").iterdir(), root / "test" / "cat"]:
        path.rmdir() if path.is_dir() else path.unlink()
    assert sources.read_image_folder(root, "test").labels.tolist() == [1] * 3


def test_a_test_folder_with_a_class_unknown_to_train_is_refused(write):
    root = write("image_folder")
    (root / "test" / "bird").mkdir()
    with pytest.raises(MissingDataError, match=r"class folders of train only, got .*bird"):
        sources.read_image_folder(root, "test")


@pytest.mark.parametrize(
    ("name", "looked_for"),
    [
        ("fashion_mnist", "train-images-idx3-ubyte.gz"),
        ("cifar10", "data_batch_1, data_batch_2, data_batch_3 and 3 more"),
        ("cifar100", "train, test"),
        ("stl10", "train_X.bin"),
        ("imagenet32", "train_data_batch_1"),
        ("tiny_imagenet", "wnids.txt"),
        ("image_folder", "train"),
    ],
)
def test_missing_files_are_named_with_their_folder(tmp_path, name, looked_for):
    with pytest.raises(MissingDataError, match=rf"{tmp_path}.* must hold {looked_for}.*, got no"):
        DATASETS[name].read(tmp_path, "train")


@pytest.mark.parametrize(
    ("name", "folder", "lost"),
    [
        ("fashion_mnist", "FashionMNIST/raw", "train-labels-idx1-ubyte.gz"),
        ("cifar10", "cifar-10-batches-py", "data_batch_4"),
        ("stl10", "stl10_binary", "unlabeled_X.bin"),
        ("imagenet32", "imagenet32", "train_data_batch_10"),
        ("tiny_imagenet", "tiny-imagenet-200", "train/n01/images"),
    ],
)
def test_a_half_present_set_names_what_it_lacks(write, name, folder, lost):
    root = write(name)
    (root / folder / lost).rename(root / "elsewhere")
    with pytest.raises(MissingDataError, match=f"{folder} must hold {lost}, got no such file"):
        DATASETS[name].read(root, "train")


def test_a_lost_image_of_tiny_imagenets_val_folder_is_named(write):
    root = write("tiny_imagenet")
    (root / "tiny-imagenet-200" / "val" / "images" / "val_1.JPEG").unlink()
    with pytest.raises(MissingDataError, match=r"must hold val_1\.JPEG, got no such file"):
        sources.read_tiny_imagenet(root, "test")


def test_hidden_files_of_tiny_imagenet_are_no_images(write):
    root = write("tiny_imagenet")
    images = root / "tiny-imagenet-200" / "train" / "n01" / "images"
    (images / "._n01_0.JPEG").write_bytes(b"metadata of a copying computer")
    assert len(sources.read_tiny_imagenet(root, "train")) == 12


def test_an_empty_class_of_tiny_imagenet_is_named(write):
    root = write("tiny_imagenet")
    for path in (root / "tiny-imagenet-200" / "train" / "n01" / "images").iterdir():
        path.unlink()
    with pytest.raises(MissingDataError, match=r"must hold n01/images/\*.JPEG, got no such file"):
        sources.read_tiny_imagenet(root, "train")


@pytest.mark.parametrize(
    ("name", "file", "complaint"),
    [
        ("fashion_mnist", "FashionMNIST/raw/train-images-idx3-ubyte.gz", "be a whole gzip file"),
        ("cifar100", "cifar-100-python/train", "hold the files as published"),
        ("stl10", "stl10_binary/train_X.bin", "hold the files as published"),
        ("imagenet32", "imagenet32/train_data_batch_3", "hold a whole batch"),
    ],
)
def test_a_cut_off_file_is_recognised(write, name, file, complaint):
    root = write(name)
    content = (root / file).read_bytes()
    (root / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(MissingDataError, match=f"{Path(file).parts[0]}.* must {complaint}, got"):
        DATASETS[name].read(root, "train")


@pytest.mark.parametrize("kept", [0, 3, 1000])
def test_a_cut_off_plain_idx_file_is_recognised(write, kept):
    root = write("fashion_mnist", compress=bytes, suffix="")
    path = root / "FashionMNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(MissingDataError, match="be an idx file of 3 axes and of the length"):
        sources.read_fashion_mnist(root, "train")


def test_labels_outside_those_of_imagenet_are_refused(write):
    root = write("imagenet32")
    batch = {"data": np.zeros((2, 3072), dtype=np.uint8), "labels": [0, 1]}
    (root / "imagenet32" / "val_data").write_bytes(pickle.dumps(batch))
    with pytest.raises(MissingDataError, match="val_data must hold one label in 1-1000 per image"):
        sources.read_imagenet32(root, "test")
