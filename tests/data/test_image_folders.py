"""Entries of a folder: images, classes, and the split that each image belongs to."""

import os
import shutil

import pytest
import torch
from PIL import Image
from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

from weince_lightning import ContrastiveModule, InfoNCELoss
from weince_lightning.data import VisionData, sources
from weince_lightning.data.images import MissingDataError


def save(root, *names):
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), number).save(path, "PNG")


def contents(root, split="train"):
    images = sources.read_image_folder(root, split)
    names = [os.path.relpath(os.fsdecode(path), root) for path in images._paths]
    return dict(zip(names, images.labels.tolist(), strict=True))


# What is left out


def test_hidden_entries_are_neither_classes_nor_images(tmp_path):
    kept = ["train/cat/0.png", "train/cat/summer/0.png", "train/dog/0.png"]
    hidden = [
        "train/.ipynb_checkpoints/0-checkpoint.png",
        "train/.thumbnail.png",
        "train/cat/.thumbs/0.png",
        "train/dog/._0.png",
    ]
    save(tmp_path, *kept, *hidden)
    (tmp_path / "test" / ".cache").mkdir(parents=True)
    save(tmp_path, "test/dog/0.png")
    with pytest.warns(UserWarning, match=r"train holds entries that are not used: 4 hidden\."):
        assert contents(tmp_path) == dict(zip(kept, [0, 0, 1], strict=True))
    with pytest.warns(UserWarning, match=r"test holds entries that are not used: 1 hidden\."):
        assert contents(tmp_path, "test") == {"test/dog/0.png": 1}
    assert VisionData("image_folder", tmp_path).num_classes == 2


def test_hidden_folders_leave_a_folder_without_classes_as_it_is(tmp_path):
    save(tmp_path, "train/0.png", "train/1.png", "train/.trash/2.png")
    with pytest.warns(UserWarning, match="1 hidden"):
        assert contents(tmp_path) == {"train/0.png": -1, "train/1.png": -1}


def test_a_hidden_folder_may_hold_the_data(tmp_path):
    save(tmp_path, ".cache/photos/train/cat/0.png")
    assert contents(tmp_path / ".cache" / "photos") == {"train/cat/0.png": 0}


def test_files_that_are_no_images_are_counted_by_suffix_and_images_without_a_class_too(tmp_path):
    kept = ["train/cat/0.png", "train/cat/1.JPG"]
    save(tmp_path, *kept, "train/cat/2.gif", "train/cat/old/3.GIF", "train/4.png")
    counts = r"2 \.gif, 1 beside the class folders\. Images are files of \.jpg, "
    with pytest.warns(UserWarning, match=rf"{tmp_path}/train holds .* not used: {counts}") as said:
        assert contents(tmp_path) == dict.fromkeys(kept, 0)
    assert len(said) == 1


def test_links_that_lead_back_repeat_no_image(tmp_path):
    kept = ["train/cat/0.png", "train/cat/a/1.png", "train/cat/b/2.png", "train/dog/3.png"]
    save(tmp_path, *kept)
    train = tmp_path / "train"
    for name, target in {
        "everything": train,  # a class of all classes
        "cat/again": train / "cat",
        "cat/up": tmp_path,
        "cat/a/b": train / "cat" / "b",
        "cat/b/a": train / "cat" / "a",
    }.items():
        (train / name).symlink_to(target)
    with pytest.warns(UserWarning, match="5 links to folders met before"):
        found = contents(tmp_path)
    assert found == dict(zip(kept, [0, 0, 0, 1], strict=True))
    assert sources.image_folder_classes(tmp_path) == ["cat", "dog"]


def test_links_to_folders_elsewhere_are_followed(tmp_path):
    save(tmp_path, "disk/cats/0.png", "photos/train/dog/0.png")
    (tmp_path / "photos" / "train" / "cat").symlink_to(tmp_path / "disk" / "cats")
    assert contents(tmp_path / "photos") == {"train/cat/0.png": 0, "train/dog/0.png": 1}


def test_a_folder_with_splits_keeps_the_order_of_torchvision(tmp_path):
    places = ["cat/b/10", "cat/b-c/9", "cat/b/c/8", "cat/a", "cat/B", "dog-1/1", "dog/1"]
    save(tmp_path / "train", *(f"{place}.png" for place in places))
    (tmp_path / "train" / "empty").mkdir()
    classes = {"cat": 0, "dog": 1, "dog-1": 2, "empty": 3}
    expected = make_dataset(
        tmp_path / "train",
        {name: label for label, name in enumerate(sorted(classes))},
        IMG_EXTENSIONS,
        allow_empty=True,
    )
    images = sources.read_image_folder(tmp_path, "train")
    found = [os.fsdecode(path) for path in images._paths]
    assert list(zip(found, images.labels.tolist(), strict=True)) == expected


# Without folders named train and test


@pytest.fixture
def photos(tmp_path):
    """Two classes of 50 images, one of them in folders below."""
    save(tmp_path / "photos", *(f"cat/{number}.png" for number in range(50)))
    save(tmp_path / "photos", *(f"dog/{number % 3}/{number}.png" for number in range(50)))
    return tmp_path / "photos"


def test_of_class_folders_a_fifth_is_held_out(photos):
    train, test = contents(photos), contents(photos, "test")
    assert not train.keys() & test.keys()
    labels = {**train, **test}
    assert len(labels) == 100
    assert labels["cat/3.png"] == 0
    assert labels["dog/0/3.png"] == 1
    # Each image is held out with probability 0.2: 20 of 100 within four deviations of 4.
    assert abs(len(test) - 20) < 16
    assert VisionData("image_folder", photos).num_classes == 2


def test_images_stay_in_their_part_where_others_are_added_and_the_folder_moves(photos, tmp_path):
    test = contents(photos, "test")
    save(photos, *(f"cat/more/{number}.png" for number in range(20)), "ant/0.png")
    shutil.move(photos, tmp_path / "elsewhere")
    later = contents(tmp_path / "elsewhere", "test")
    assert [name for name in later if "more" not in name and "ant" not in name] == list(test)


def test_a_flat_folder_has_no_labels_and_a_test_part(photos):
    data = VisionData("image_folder", photos / "cat", image_size=4, val_fraction=0.2)
    sizes = [len(data.evaluation_dataloader(part).dataset) for part in ("train", "val", "test")]
    assert sum(sizes) == 50
    assert min(sizes) > 0
    assert data.num_classes == 0
    assert set(contents(photos / "cat", "test").values()) == {-1}


def test_every_class_is_in_both_parts_whatever_the_others_are(tmp_path):
    names = [f"{name}/{number}.png" for name in "abcdefghij" for number in range(5)]
    save(tmp_path, *names)
    train, test = contents(tmp_path), contents(tmp_path, "test")
    assert set(train.values()) == set(test.values()) == set(range(10))
    for name in "bcdefghij":
        shutil.rmtree(tmp_path / name)
    assert set(contents(tmp_path, "test")) == {each for each in test if each.startswith("a/")}


def test_one_image_of_a_class_stays_for_training(photos):
    lowest = next(iter(contents(photos / "cat", "test")))
    save(photos, lowest_of_its_class := f"owl/{lowest}")
    for number in range(100):  # the hash holds out one in five of these classes of one image
        save(photos, f"class {number}/0.png")
    assert lowest_of_its_class in contents(photos)
    assert {f"class {number}/0.png" for number in range(100)} <= contents(photos).keys()


# Near-duplicates

PATTERN = r"(\d+)_(left|right)"


@pytest.fixture
def pairs(tmp_path):
    """Thirty scenes from two sides, of two classes, and an image without a scene."""
    names = [f"{'ab'[i % 2]}/{i}_{side}.png" for i in range(30) for side in ("left", "right")]
    save(tmp_path / "pairs", *names, "a/map.png")
    return tmp_path / "pairs"


def test_near_duplicates_stay_in_one_part(pairs):
    data = VisionData("image_folder", pairs, image_size=4, id_pattern=PATTERN, val_fraction=0.25)
    scenes = []
    for part in ("train", "val", "test"):
        found = data.evaluation_dataloader(part).dataset
        names = [os.path.basename(found.images.paths[position]) for position in found.positions]
        scenes.append({name.partition("_")[0] for name in names})
    assert len(set.union(*scenes)) == sum(map(len, scenes)) == 31
    assert all(scenes)


def test_near_duplicates_are_no_negatives_of_each_other(pairs):
    options = {"image_size": 4, "batch_size": 64, "val_fraction": 0}
    data = VisionData("image_folder", pairs, id_pattern=PATTERN, **options)
    batch = next(iter(data.train_dataloader()))
    module = ContrastiveModule("convnet", InfoNCELoss(), in_channels=3, image_size=4)
    outputs = module.step(batch)
    # Of two views each image sees all others but the other side, whose id is the same.
    other_sides = torch.unique(batch.ids, return_counts=True)[1][
        torch.unique(batch.ids, return_inverse=True)[1]
    ]
    expected = 2 * (len(batch.ids) - other_sides)
    assert outputs["terms"].num_negatives.tolist() == expected.repeat(2).tolist()
    plain = next(iter(VisionData("image_folder", pairs, **options).train_dataloader()))
    assert len(plain) == 2


@pytest.mark.parametrize("given", ["(", "nothing"])
def test_a_pattern_that_tells_nothing_is_refused(pairs, given):
    with pytest.raises(ValueError, match=r"id_pattern must .*, got '(\(|nothing)'"):
        VisionData("image_folder", pairs, id_pattern=given).train_dataloader()


def test_folders_without_images_are_no_classes_of_a_folder_without_splits(photos):
    (photos / "notes").mkdir()
    (photos / "notes" / "read.txt").touch()
    assert sources.image_folder_classes(photos) == ["cat", "dog"]


@pytest.mark.parametrize("name", ["test", "Training"])
def test_a_test_set_is_no_class_where_train_is_absent(photos, name):
    (photos / "cat").rename(photos / name)
    with pytest.raises(MissingDataError, match=r"photos must hold train, got no such file"):
        sources.read_image_folder(photos, "train")


def test_train_alone_is_not_divided(tmp_path):
    save(tmp_path, *(f"train/{number}.png" for number in range(30)))
    assert len(contents(tmp_path)) == 30
    with pytest.raises(MissingDataError, match="must hold test, got no such file"):
        sources.read_image_folder(tmp_path, "test")


def test_too_few_images_for_a_test_part_are_refused(tmp_path):
    save(tmp_path, "1.png")
    assert contents(tmp_path) == {"1.png": -1}
    with pytest.raises(MissingDataError, match="a fifth, for test, got none for test of 1"):
        sources.read_image_folder(tmp_path, "test")
