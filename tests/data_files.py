"""Small data sets in the format that their publishers use, written into a temporary folder."""

import gzip
import hashlib
import pickle
from functools import partial

import numpy as np
from PIL import Image
from torchvision import datasets


def pattern(index, size):
    """An image that tells which one it is (first pixel) and which way up (one red pixel)."""
    image = np.zeros((size, size, 3), dtype=np.uint8)
    image[0, 0] = index
    image[1, 2, 0] = 200
    return image


def planes(indices, size):
    """Colour planes one after the other, ``(n, 3, size, size)``, as CIFAR stores its images."""
    return np.stack([pattern(index, size) for index in indices]).transpose(0, 3, 1, 2)


def write_fashion_mnist(root, folder="FashionMNIST/raw", compress=gzip.compress, suffix=".gz"):
    folder = root / folder
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, count in {"train": 40, "t10k": 20}.items():
        grey = np.stack([pattern(index, 28)[..., 0] for index in range(count)])
        labels = (np.arange(count) % 10).astype(np.uint8)
        header = np.array([0x803, count, 28, 28], dtype=">u4").tobytes()
        images = compress(header + grey.tobytes())
        (folder / f"{prefix}-images-idx3-ubyte{suffix}").write_bytes(images)
        header = np.array([0x801, count], dtype=">u4").tobytes()
        (folder / f"{prefix}-labels-idx1-ubyte{suffix}").write_bytes(
            compress(header + labels.tobytes())
        )


def write_cifar(root, kind, monkeypatch):
    folder = root / kind.base_folder
    folder.mkdir(parents=True)
    key = "labels" if kind is datasets.CIFAR10 else "fine_labels"
    num_classes = 10 if kind is datasets.CIFAR10 else 100

    def batch(start, count):
        indices = np.arange(start, start + count)
        data = planes(indices, 32).reshape(count, 3072)
        return {"data": data, key: (indices % num_classes).tolist()}

    def pickled(files, start):
        listed = []
        for name, _ in files:
            content = pickle.dumps(batch(start, 100 // len(files)), protocol=2)
            start += 100 // len(files)
            (folder / name).write_bytes(content)
            listed.append([name, hashlib.md5(content).hexdigest()])
        return listed

    # torchvision compares with the published checksums; its reading code stays as it is.
    monkeypatch.setattr(kind, "train_list", pickled(kind.train_list, 0))
    monkeypatch.setattr(kind, "test_list", pickled(kind.test_list, 100))
    names = pickle.dumps({kind.meta["key"]: [str(i) for i in range(num_classes)]})
    (folder / kind.meta["filename"]).write_bytes(names)
    meta = {**kind.meta, "md5": hashlib.md5(names).hexdigest()}
    monkeypatch.setattr(kind, "meta", meta)


def write_stl10(root, monkeypatch):
    folder = root / "stl10_binary"
    folder.mkdir(parents=True)
    counts = {"train": 40, "unlabeled": 30, "test": 20}
    for split, count in counts.items():
        columns_first = planes(range(count), 96).transpose(0, 1, 3, 2)
        (folder / f"{split}_X.bin").write_bytes(columns_first.tobytes())
        if split != "unlabeled":
            labels = (np.arange(count) % 10 + 1).astype(np.uint8)
            (folder / f"{split}_y.bin").write_bytes(labels.tobytes())
    for listing in ("train_list", "test_list"):
        files = [
            [name, hashlib.md5((folder / name).read_bytes()).hexdigest()]
            for name, _ in getattr(datasets.STL10, listing)
        ]
        monkeypatch.setattr(datasets.STL10, listing, files)


def write_imagenet32(root, folder="imagenet32"):
    folder = root / folder
    folder.mkdir(exist_ok=True)
    names = [f"train_data_batch_{i}" for i in range(1, 11)] + ["val_data"]
    for block, name in enumerate(names):
        indices = np.arange(4 * block, 4 * block + 4)
        labels = (indices * 37 % 1000 + 1).tolist()  # the publisher counts from 1
        labels[3] = 1000
        batch = {"data": planes(indices, 32).reshape(4, 3072), "labels": labels}
        (folder / name).write_bytes(pickle.dumps(batch))


def write_tiny_imagenet(root):
    folder = root / "tiny-imagenet-200"
    wnids = ["n03", "n01", "n02"]
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(wnids) + "\n")
    lines = []
    for label, wnid in enumerate(wnids):
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        for i in range(4):
            flat = np.full((64, 64, 3), 80 * label + i, dtype=np.uint8)
            Image.fromarray(flat).save(images / f"{wnid}_{i}.JPEG", quality=100)
        name = f"val_{label}.JPEG"
        Image.fromarray(np.full((64, 64), 80 * label, dtype=np.uint8)).save(
            folder / "val" / "images" / name, quality=100
        )
        lines.append(f"{name}\t{wnid}\t0\t0\t62\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))


def write_image_folder(folder, test="test", classes=("cat", "dog")):
    """With ``classes`` empty the images lie in the split's folder itself."""
    for split, count in {"train": 20, test: 3}.items():
        for label, name in enumerate(classes or [""]):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                image = Image.fromarray(np.full((40, 60, 3), 100 * label + i, dtype=np.uint8))
                image.save(folder / split / name / f"{i:02}.png")


def write(name, root, monkeypatch, **options):
    """Write the named data set below ``root``, which becomes its ``data_dir``."""
    writers = {
        "fashion_mnist": write_fashion_mnist,
        "cifar10": partial(write_cifar, kind=datasets.CIFAR10, monkeypatch=monkeypatch),
        "cifar100": partial(write_cifar, kind=datasets.CIFAR100, monkeypatch=monkeypatch),
        "stl10": partial(write_stl10, monkeypatch=monkeypatch),
        "imagenet32": write_imagenet32,
        "tiny_imagenet": write_tiny_imagenet,
        "image_folder": write_image_folder,
    }
    writers[name](root, **options)
