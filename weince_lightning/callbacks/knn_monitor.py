"""How well nearest neighbours tell the label, while the encoder trains."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.seed import isolate_rng
from torch.utils.data import DataLoader

from weince_lightning.checks import check_integer, check_number
from weince_lightning.evaluation.features import RECALL_AT, knn_scores
from weince_lightning.functional.neighbours import NoLabelError


class KNNMonitor(Callback):
    r"""Log the accuracy of a nearest-neighbour vote over the encoder's features.

    At the end of a validation epoch the validation split asks, in a test run the test split; the
    training split answers. Both come from ``evaluation_dataloader`` of the data module, or are
    given by name or as loaders. Without either it logs nothing, as one warning says: the loaders of
    training are augmented, shuffled and in use. The encoder is in evaluation mode. Neighbours are
    the nearest by cosine similarity :math:`s` and vote with weight :math:`\exp(s / \tau)`, see
    :func:`~weince_lightning.functional.neighbours.neighbour_scores`. The sanity check is skipped,
    samples with label -1 are left out, and each sample counts once, whatever a loader's sampler
    (:func:`~weince_lightning.evaluation.features.extract_features`). Several processes share the
    batches and log what one would, with the BatchNorm statistics of the first.

    The trainer's ``limit_train_batches``, ``limit_val_batches`` and ``limit_test_batches`` hold for
    the splits' own batches, from the first: a loader given as ``bank`` has the limit of training,
    one given as ``queries`` that of the split that is being validated or tested. A limit of 0,
    which turns a stage off, is none here.

    It logs ``knn/top1_k{k}`` for each ``k``, ``knn/top1`` for the largest, and
    ``knn/recall_at_{r}`` for r in 1, 2, 5, 10, 20, 50: the part of the queries with their label
    among the r nearest. ``ModelCheckpoint(monitor="knn/top1", mode="max")`` keeps the best encoder;
    with ``every_n_epochs`` give it the same number.

    Args:
        k: Numbers of neighbours that vote, each at least 1; more than the bank holds means all.
        temperature: Temperature :math:`\tau` of the votes, positive, dimensionless.
        name: What stands before the slash in the metrics' names.
        every_n_epochs: Epochs of training between two looks, at least 1; ``validate`` and ``test``
            always look.
        bank: What answers: the name of a split for ``evaluation_dataloader``, or a loader of
            ``(images, labels)`` without augmentation, the same on all processes.
        queries: What asks, likewise; None is the split that is being validated or tested.

    Raises:
        ValueError: If a number is out of its range.
        TypeError: If ``bank`` or ``queries`` is neither a name nor a loader.
    """

    def __init__(
        self,
        k: Sequence[int] = (1, 5, 20, 50),
        temperature: float = 0.1,
        name: str = "knn",
        every_n_epochs: int = 1,
        bank: str | DataLoader = "train",  # type: ignore[type-arg]  # YAML knows no DataLoader[Any]
        queries: str | DataLoader | None = None,  # type: ignore[type-arg]
    ) -> None:
        if not isinstance(k, Sequence):
            raise TypeError(f"k must be a sequence of numbers, got {k!r}.")
        if not k or min(k) < 1:
            raise ValueError(f"k must hold numbers of at least 1, got {tuple(k)}.")
        check_number("temperature", temperature, above=0.0, condition="be positive")
        check_integer("every_n_epochs", every_n_epochs, at_least=1)
        for argument, given in (("bank", bank), ("queries", "val" if queries is None else queries)):
            if not isinstance(given, str | DataLoader):
                raise TypeError(
                    f"{argument} must be the name of a split or a DataLoader, got "
                    f"{type(given).__name__}."
                )
        self.k = tuple(k)
        self.temperature = temperature
        self.name = name
        self.every_n_epochs = every_n_epochs
        self.bank = bank
        self.queries = queries
        self._has_warned = False
        self._lacks_loaders = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Warn, before anything is trained, if nothing gives the loaders.

        Raises:
            TypeError: If a checkpoint or early stopping needs the metrics then.
        """
        self._has_warned = False
        self._lacks_loaders = stage != "predict" and self.lacks_loaders(trainer)
        if not self._lacks_loaders:
            return
        data: Any = getattr(trainer, "datamodule", None)
        found = "none (plain loaders were passed)" if data is None else type(data).__name__
        needed = (
            "trainer.datamodule must have a method evaluation_dataloader(split) that gives "
            '(images, labels) of the split "train", "val" or "test" in a fixed order, got '
            f"{found}. KNNMonitor takes its bank and its queries from there: pass a data "
            "module such as weince_lightning.data.VisionData, give it loaders as bank and "
            "queries, or remove the callback."
        )
        for follower in trainer.callbacks if stage == "fit" else []:  # type: ignore[attr-defined]
            if f"{getattr(follower, 'monitor', '')}".startswith(f"{self.name}/"):
                raise TypeError(f"{needed} {type(follower).__name__} needs {follower.monitor}.")
        self._warn_once(needed)

    def lacks_loaders(self, trainer: Trainer) -> bool:
        """Whether neither the arguments nor the data module of a trainer give the loaders."""
        data: Any = getattr(trainer, "datamodule", None)
        is_named = not isinstance(self.bank, DataLoader) or not isinstance(self.queries, DataLoader)
        return is_named and not callable(getattr(data, "evaluation_dataloader", None))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score the validation split."""
        if trainer.sanity_checking:
            return
        # The epochs of ModelCheckpoint(every_n_epochs), which fails where its metric is absent.
        is_turn = (trainer.current_epoch + 1) % self.every_n_epochs == 0
        if is_turn or trainer.state.fn != "fit":
            self._log_scores(trainer, pl_module, "val")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score the test split."""
        self._log_scores(trainer, pl_module, "test")

    def _log_scores(self, trainer: Trainer, pl_module: LightningModule, split: str) -> None:
        if self._lacks_loaders:
            return
        try:
            with isolate_rng():
                bank = _batches(trainer, self.bank, "train")
                queries = _batches(trainer, split if self.queries is None else self.queries, split)
                scores = knn_scores(
                    pl_module, bank, queries, self.k, self.temperature, is_shared=True
                )
        except NoLabelError as error:
            self._warn_once(error)
            return
        top1 = dict(zip(self.k, scores.accuracy, strict=True))
        metrics = {f"{self.name}/top1_k{k}": value for k, value in top1.items()}
        for r, value in zip(RECALL_AT, scores.recall, strict=True):
            metrics[f"{self.name}/recall_at_{r}"] = value
        metrics[f"{self.name}/top1"] = top1[max(self.k)]
        for name, value in metrics.items():
            pl_module.log(
                name,
                value.to(pl_module.device),  # where processes can exchange it
                prog_bar=name.endswith("/top1"),
                sync_dist=True,
                # All processes have the same numbers; the mean of three of them would be rounded.
                reduce_fx="max",
            )

    def _warn_once(self, error: NoLabelError | str) -> None:
        if not self._has_warned:
            self._has_warned = True
            rank_zero_warn(f'KNNMonitor "{self.name}" logs nothing: {error}')


def _batches(trainer: Trainer, source: str | DataLoader[Any], split: str) -> Iterable[Any]:
    """The batches of a split or a loader, as many as the trainer's limits admit.

    Args:
        trainer: Has the limits and the data module.
        source: Name of a split, or a loader.
        split: Whose limit holds for a loader.
    """
    if isinstance(source, str):
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        split = source
        source = data.evaluation_dataloader(split)
    # Of whole numbers that of batches, else the share; a data module may have splits of its own.
    limit = getattr(trainer, f"limit_{split}_batches", 1.0)
    if isinstance(limit, float) and 0.0 < limit < 1.0:
        return islice(source, max(1, int(limit * len(source))))
    return islice(source, limit) if limit and isinstance(limit, int) else source
