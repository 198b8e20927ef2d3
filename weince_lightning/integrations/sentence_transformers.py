"""WEINCE for the trainer of sentence-transformers (``pip install weince-lightning[text]``)."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import cos_sim
from torch import Tensor

from weince_lightning.checks import check_choice, check_flag, check_number
from weince_lightning.distributed import world_size
from weince_lightning.functional.inputs import check_batch
from weince_lightning.losses import TailGate, TailShape, WEINCELoss
from weince_lightning.losses.descriptions import describe

if TYPE_CHECKING:
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
else:
    try:
        from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    except ModuleNotFoundError:  # where versions up to 5.3 have it
        from sentence_transformers.losses import MultipleNegativesRankingLoss

_CITATION = """
@inproceedings{erol2026weince,
    title = "When Softmax Fails at the Top: Extreme-Value Corrections for {InfoNCE}",
    author = "Erol, Melihcan and Evren, Suat and Ozel, Oktay and Morgan, Alexander
              and Ryu, Jongha Jon and Zheng, Lizhong",
    booktitle = "Proceedings of the 43rd International Conference on Machine Learning",
    series = "PMLR",
    volume = "306",
    pages = "28187--28211",
    year = "2026",
    url = "https://arxiv.org/abs/2606.00262",
}
"""

_ONE_WAY: Final = ("query_to_doc",)
_BOTH_WAYS: Final = ("query_to_doc", "doc_to_query")


class WEINCERankingLoss(MultipleNegativesRankingLoss):
    r"""WEINCE in place of ``MultipleNegativesRankingLoss``, for ``SentenceTransformerTrainer``.

    The data set has the columns anchor, positive and any number of negatives. The candidates of an
    anchor are those of the loss it replaces: the positives and all negatives of the batch, its own
    and other anchors' alike. Their logits are those of :class:`~weince_lightning.WEINCELoss` with
    ``layout="queries"``; ``gate=0.0`` gives the loss it replaces. Duplicates in a batch are each
    other's negatives, so let the trainer's ``BatchSamplers.NO_DUPLICATES`` keep them apart. A lone
    pair, such as a last incomplete batch, has no negative: its loss is 0.

    Args:
        model: The model that is trained.
        scale: One over the temperature, positive, dimensionless: 20 is a temperature of 0.05.
        similarity_fct: Must be ``cos_sim``: WEINCE is about similarities that end at 1.
        gather_across_devices: Whether candidates are those of all processes. Value, gates and
            gradient are then those of one process with the whole batch, for batches of different
            sizes too.
        directions: ``("query_to_doc",)``, or with ``"doc_to_query"`` the mean of both ways.
        partition_mode: "joint" or "per_direction", which are the same for one direction; both
            directions need "per_direction".
        hardness_mode: Must be None: the gate is what looks at the hardness of negatives.
        hardness_strength: Of no effect, as there.
        gate: As for :class:`~weince_lightning.WEINCELoss`.
        shape: As for :class:`~weince_lightning.WEINCELoss`.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a number is out of its range, or what is asked for has no such form.

    Example:
        ``SentenceTransformerTrainer(model, train_dataset=pairs, loss=WEINCERankingLoss(model))``
    """

    def __init__(
        self,
        model: SentenceTransformer,
        scale: float = 20.0,
        similarity_fct: Callable[[Tensor, Tensor], Tensor] = cos_sim,
        gather_across_devices: bool = False,
        directions: Sequence[str] = _ONE_WAY,
        partition_mode: Literal["joint", "per_direction"] = "joint",
        hardness_mode: str | None = None,
        hardness_strength: float = 0.0,
        gate: TailGate | float | None = None,
        shape: TailShape | float | None = None,
    ) -> None:
        check_number("scale", scale, above=0.0)
        check_flag("gather_across_devices", gather_across_devices)
        if similarity_fct is not cos_sim:
            raise ValueError(
                "similarity_fct must be sentence_transformers.util.cos_sim, got "
                f"{getattr(similarity_fct, '__name__', similarity_fct)}: WEINCE reads the distance "
                "of a similarity to 1, where cosines end."
            )
        if hardness_mode is not None:
            raise ValueError(
                f"hardness_mode must be None, got {hardness_mode!r}: the gate is what WEINCE does "
                "about hard negatives."
            )
        ways = set(directions) if isinstance(directions, Iterable) else set()
        if isinstance(directions, str) or ways not in (set(_ONE_WAY), set(_BOTH_WAYS)):
            raise ValueError(f"directions must be {_ONE_WAY} or {_BOTH_WAYS}, got {directions!r}.")
        is_both = len(ways) == 2
        check_choice("partition_mode", partition_mode, ("joint", "per_direction"))
        if is_both and partition_mode != "per_direction":
            raise ValueError(
                'partition_mode must be "per_direction" with both directions, got '
                f"{partition_mode!r}: each anchor has a tail of its own."
            )
        super().__init__(
            model,
            scale=scale,
            gather_across_devices=gather_across_devices,
            directions=_BOTH_WAYS if is_both else _ONE_WAY,
            partition_mode=partition_mode,
            hardness_strength=hardness_strength,
        )
        self.weince = WEINCELoss(
            1 / scale,
            gate,
            shape,
            layout="pairs" if is_both else "queries",
            gather_distributed=gather_across_devices,
        )

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor) -> Tensor:
        """Compute the loss of the embeddings of each column; labels play no part.

        Args:
            embeddings: Of the anchors, their positives and any number of columns of negatives,
                each of shape ``(batch, features)``.
            labels: Unused, as in the loss it replaces.

        Returns:
            A scalar with gradient.

        Raises:
            ValueError: If there is no column of positives.
        """
        if len(embeddings) < 2:
            raise ValueError(
                "the data set must have columns for anchors and positives, got "
                f"{len(embeddings)} column."
            )
        anchors, positives, *columns = embeddings
        check_batch(anchors, positives, names=("anchors", "positives"))
        is_alone = not self.gather_across_devices or world_size() == 1
        if len(anchors) == 1 and not columns and is_alone:
            return 0.0 * (anchors.sum() + positives.sum())
        loss: Tensor = self.weince(
            anchors, positives, negatives=torch.cat(columns) if columns else None
        )
        return loss

    def get_config_dict(self) -> dict[str, Any]:
        """Say what the loss was built with, in plain values, as model cards show it."""
        own = {"gate": describe(self.weince.gate), "shape": describe(self.weince.shape)}
        return {**super().get_config_dict(), **own}

    @property
    def citation(self) -> str:
        """The paper, in BibTeX, as model cards cite it."""
        return _CITATION
