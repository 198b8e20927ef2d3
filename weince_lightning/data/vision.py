"""One Lightning data module for every data set of the table."""

from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from weince_lightning.checks import check_flag, check_integer, check_number, did_you_mean
from weince_lightning.data.batch_views import BatchViews
from weince_lightning.data.hold_out import check_pattern, split_ids
from weince_lightning.data.images import ImageFiles, Images, MissingDataError
from weince_lightning.data.seeded import SeededData
from weince_lightning.data.selections import EvaluationImages, TwoViewsOfImages
from weince_lightning.data.sources import image_folder_classes
from weince_lightning.data.table import DATASETS
from weince_lightning.data.unreadable import UnreadableFiles, check_headers
from weince_lightning.data.views import (
    EvaluationView,
    Normalization,
    Transform,
    TwoViews,
    normalization_in,
)
from weince_lightning.functional.splits import stratified_split

Part = Literal["train", "val", "test"]


class VisionData(SeededData):
    """Images for contrastive pretraining and for the evaluation of what it learnt.

    Training, validation and test batches are ``(views, labels)``: two float32 tensors
    ``(batch, channels, height, width)``, in [0, 1] unless ``mean`` and ``std`` are given, and int64
    labels, -1 where unknown. The batches of :meth:`evaluation_dataloader` and prediction are
    ``(images, labels)``, without augmentation.

    Args:
        dataset: Name of a data set: digits, fashion_mnist, cifar10, cifar100, stl10, imagenet32,
            tiny_imagenet or image_folder.
        data_dir: Folder with the files of the data set, or with the data set's own folder; for
            image_folder see :func:`~weince_lightning.data.sources.read_image_folder`.
        batch_size: Images per batch and process, at least 1; a training batch should hold 2.
        num_workers: Processes that load images beside the main one.
        image_size: Side of the images in pixels; None is the data set's own.
        in_channels: 1 makes images grey, 3 makes them RGB; None is the data set's own.
        transforms: Augmentation of a PIL image: a list of transforms, applied twice, or one
            transform; lightly's multi-view transforms, which return two views, fit as they are.
            None is the data set's own. With transforms of your own, ``image_size`` concerns the
            evaluation images only.
        val_fraction: Share of the labelled training images kept for validation, in [0, 1), the
            same share of each class; 0 trains on all of them and leaves no validation set.
        split_seed: Fixes which images are kept, and the random views of validation and test.
        download: Whether to fetch missing files, for the data sets that torchvision can fetch.
        batch_augmentation: Whether to make the views of a whole batch at once by tensor operations,
            many times faster and with the same distribution, for images held in memory: not for
            tiny_imagenet and image_folder, nor with ``transforms`` of your own. See
            :class:`~weince_lightning.data.batch_views.BatchViews`.
        mean: Mean of each channel, on the scale [0, 1], for encoders of normalized images: it is
            subtracted from all images, views and evaluation images alike. Views that ``transforms``
            of your own return as floating-point tensors stay as they are, as those of lightly,
            which normalize by default. None leaves images in [0, 1].
        std: Standard deviation of each channel, by which the difference is divided; given with
            ``mean``.
        skip_unreadable: Of image_folder: whether to decode all files once, before the training, and
            leave out those that cannot be read. A checkpoint keeps the list, so that a training
            that is resumed has the same images. False refuses files that are no images as soon as
            the folder is read, and damaged pixels as they are met.
        id_pattern: Of image_folder: a regular expression that tells near-duplicates by their paths,
            see :func:`~weince_lightning.data.sources.read_image_folder`. They stay in one part, and
            batches of views have a third field ``ids``, by which our losses know that they are no
            negatives of each other.

    Attributes:
        in_channels: Channels of the images, 1 or 3.
        normalization: ``mean`` and ``std``, None without.
        image_size: Side of the evaluation images in pixels.

    Example:
        >>> data = VisionData("digits", batch_size=32)
        >>> (first, second), labels = next(iter(data.train_dataloader()))
        >>> first.shape, labels.shape, data.num_classes
        (torch.Size([32, 1, 16, 16]), torch.Size([32]), 10)
    """

    def __init__(
        self,
        dataset: str = "digits",
        data_dir: str | Path = "data",
        batch_size: int = 256,
        num_workers: int = 0,
        image_size: int | None = None,
        in_channels: Literal[1, 3] | None = None,
        transforms: list[Transform] | Transform | None = None,
        val_fraction: float = 0.1,
        split_seed: int = 0,
        download: bool = False,
        batch_augmentation: bool = False,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        skip_unreadable: bool = False,
        id_pattern: str | None = None,
    ):
        super().__init__(batch_size, num_workers)
        if dataset not in DATASETS:
            hint = did_you_mean(dataset, DATASETS, quote="'")
            known = ", ".join(DATASETS)
            raise ValueError(f"dataset must be one of {known}, got {dataset!r}.{hint}")
        check_integer("split_seed", split_seed, at_least=0, at_most=2**32 - 1)
        if image_size is not None:
            check_integer("image_size", image_size, at_least=1)
        if in_channels not in (None, 1, 3):
            raise ValueError(f"in_channels must be 1, 3 or None, got {in_channels!r}.")
        check_flag("skip_unreadable", skip_unreadable)
        for name, given in (("skip_unreadable", skip_unreadable), ("id_pattern", id_pattern)):
            if given and dataset != "image_folder":
                raise ValueError(
                    f"{name} must not be given except for dataset 'image_folder', got {given!r} "
                    f"with {dataset!r}."
                )
        check_number("val_fraction", val_fraction, at_least=0, below=1, condition="lie in [0, 1)")
        # For checkpoints: plain values alone, and of objects that cannot be kept the class's name.
        self.hparams.update(
            dataset=dataset,
            data_dir=str(data_dir),
            batch_size=batch_size,
            num_workers=num_workers,
            image_size=image_size,
            in_channels=in_channels,
            transforms=transforms and {"built_in_python": type(transforms).__name__},
            val_fraction=val_fraction,
            split_seed=split_seed,
            download=download,
            batch_augmentation=batch_augmentation,
            skip_unreadable=skip_unreadable,
            id_pattern=id_pattern,
        )
        self.dataset = dataset
        self.data_dir = Path(data_dir).expanduser()
        self.val_fraction = val_fraction
        self.split_seed = split_seed
        self.download = download
        self.skip_unreadable = skip_unreadable
        self._table_row = DATASETS[dataset]
        self.image_size = image_size or self._table_row.image_size
        self.in_channels = in_channels or self._table_row.in_channels
        mode = "L" if self.in_channels == 1 else "RGB"
        self.normalization = Normalization.checked(mean, std, self.in_channels)
        self.hparams.update(mean=mean, std=std)
        if self.normalization is not None:
            self.hparams.update(self.normalization._asdict())
        elif its := normalization_in(transforms):
            rank_zero_warn(
                f"mean and std must be those of transforms, mean={its.mean} and std={its.std}, "
                "got None: the encoder would learn from normalized views and be evaluated on "
                "images in [0, 1]. Give them, or transforms that do not normalize."
            )
        check_flag("batch_augmentation", batch_augmentation)
        if batch_augmentation and (transforms is not None or not self._table_row.in_memory):
            found = f"dataset {dataset!r}" if transforms is None else "transforms of your own"
            raise ValueError(
                "batch_augmentation must be False except for images held in memory and their "
                f"default augmentation, got True with {found}."
            )
        default = self._table_row.augmentation(self.image_size)
        self._two_views = (
            BatchViews(default, mode, self.normalization)
            if batch_augmentation
            else TwoViews(default if transforms is None else transforms, mode, self.normalization)
        )
        self._evaluation_view = EvaluationView(self.image_size, mode, self.normalization)
        self._listed: dict[str, Images] = {}
        self._loaded: dict[str, Images] = {}
        self._unreadable = UnreadableFiles(self.data_dir)
        self._reading = {"id_pattern": check_pattern(id_pattern)} if id_pattern is not None else {}

    @property
    def num_classes(self) -> int:
        """Number of classes; of an image folder 0 without class folders (labels unknown)."""
        if self._table_row.num_classes is not None:
            return self._table_row.num_classes
        try:
            return len(image_folder_classes(self.data_dir))
        except MissingDataError as error:
            raise self._explained(error) from error

    def prepare_data(self) -> None:
        """Fetch missing files when ``download`` is set; called in one process per machine."""
        if self.download and self._table_row.torchvision_class is not None:
            self._table_row.torchvision_class(self.data_dir, download=True)

    def setup(self, stage: str) -> None:
        """Draw the seed of a training run; find missing data, and files that cannot be read."""
        super().setup(stage)
        # An evaluation calls this too, and needs neither the unlabelled images of stl10, which are
        # gigabytes, nor a check of the test images twice.
        is_training = stage == "fit" and self.trainer is not None
        if self.dataset != "image_folder":
            pretraining_split = self._table_row.pretraining_split
            if is_training or (stage == "fit" and pretraining_split == "train"):
                self._read(pretraining_split)
            return
        # Here all processes come by; whoever asks for a loader later may be alone.
        splits = ["train"] if stage in ("fit", "validate") else ["test"]
        if is_training and not self.skip_unreadable:
            with suppress(MissingDataError):  # not every training has a test set
                self._list("test")
                splits.append("test")
        for split in splits:
            images = cast(ImageFiles, self._list(split))
            if self.skip_unreadable:
                self._unreadable.find(images, split, self.trainer)
            else:
                check_headers(images, self.data_dir)

    def state_dict(self) -> dict[str, Any]:
        """The seed of the training run, and the files that are left out."""
        left_out = self._unreadable.names
        return super().state_dict() | ({"left_out": left_out} if left_out else {})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the samples and views of the run that was saved."""
        super().load_state_dict(state_dict)
        if self.skip_unreadable and "left_out" in state_dict:
            self._unreadable.names = state_dict["left_out"]
            self._loaded.clear()

    def train_dataloader(self) -> DataLoader[Any]:
        """Random pairs of views in random order.

        The order depends on a seed and the epoch alone, the two views of an image on the seed, the
        epoch and the image, whatever the number of processes and workers: a training that is
        resumed in the middle of an epoch sees what it would have seen. The seed is drawn from
        torch's global random numbers, which ``seed_everything`` repeats: once for each training
        run, with which it is saved, and outside of one for each loader, whose iterations count as
        epochs. A last incomplete batch is dropped, unless it is the only one.
        """
        split = self._table_row.pretraining_split
        if split == "train":
            images, positions = self._part("train")
        else:
            images = self._read(split)
            positions = np.arange(len(images))
        return self._seeded_loader(
            lambda seed: TwoViewsOfImages(images, positions, self._two_views, seed), len(positions)
        )

    def val_dataloader(self) -> DataLoader[Any] | list[DataLoader[Any]]:
        """Fixed pairs of views of the validation images; an empty list if ``val_fraction`` is 0."""
        return self._fixed_views("val") if self.val_fraction else []

    def test_dataloader(self) -> DataLoader[Any]:
        """Fixed pairs of views of the test images."""
        return self._fixed_views("test")

    def predict_dataloader(self) -> DataLoader[Any]:
        """The test images without augmentation."""
        return self.evaluation_dataloader("test")

    def evaluation_dataloader(self, split: Part) -> DataLoader[Any]:
        """Images without augmentation, each once, in an order that never changes.

        Args:
            split: ``"train"`` (labelled images, the bank of a kNN), ``"val"`` or ``"test"``.

        Returns:
            Loader of ``(images, labels)``.

        Raises:
            ValueError: If there is no such split.
        """
        return self._fixed_loader(EvaluationImages(*self._part(split), self._evaluation_view))

    def _fixed_views(self, split: Part) -> DataLoader[Any]:
        images, positions = self._part(split)
        return self._fixed_loader(
            TwoViewsOfImages(images, positions, self._two_views, self.split_seed)
        )

    def _part(self, split: Part) -> tuple[Images, NDArray[np.int64]]:
        """Find the images of a split and their positions."""
        if split not in ("train", "val", "test"):
            raise ValueError(f"split must be 'train', 'val' or 'test', got {split!r}.")
        if split == "val" and not self.val_fraction:
            raise ValueError(
                "split must be 'train' or 'test', got 'val', but val_fraction=0 keeps no images."
            )
        test_fraction = self._table_row.test_fraction
        if split == "test" and not test_fraction:
            images = self._read("test")
            return images, np.arange(len(images))
        images = self._read("train")
        rest, test = stratified_split(images.labels, test_fraction, self.split_seed)
        ids = (
            images.ids[rest] if isinstance(images, ImageFiles) and images.ids is not None else None
        )
        train, val = split_ids(images.labels[rest], ids, self.val_fraction, self.split_seed)
        parts = {"train": rest[train], "val": rest[val], "test": test}
        if not len(parts[split]):
            raise ValueError(
                f"val_fraction must leave images to every split, got {self.val_fraction} of "
                f"{len(rest)} images."
            )
        return images, parts[split]

    def _read(self, split: str) -> Images:
        if not self.skip_unreadable:
            return self._list(split)
        if split not in self._loaded:
            self._loaded[split] = self._unreadable.without(
                cast(ImageFiles, self._list(split)), split
            )
        return self._loaded[split]

    def _list(self, split: str) -> Images:
        """Read a split; of files their names alone."""
        if split not in self._listed:
            try:
                self._listed[split] = self._table_row.read(self.data_dir, split, **self._reading)
            except MissingDataError as error:
                raise self._explained(error) from error
        return self._listed[split]

    def _explained(self, error: MissingDataError) -> MissingDataError:
        return MissingDataError(f"{self.dataset}: {error} {self._table_row.how_to_get}")
