"""WEINCE for pytorch-metric-learning, in place of its SupConLoss."""

from typing import Any

from pytorch_metric_learning.losses import BaseMetricLossFunction
from torch import Tensor

from weince_lightning.distributed import world_size
from weince_lightning.functional.inputs import check_labelled
from weince_lightning.losses import TailGate, TailShape, WEINCELoss


class WEINCESupConLoss(BaseMetricLossFunction):
    """WEINCE with several positives for each anchor, called as pytorch-metric-learning's losses.

    ``loss(embeddings, labels)`` compares all embeddings with each other, ``loss(embeddings, labels,
    ref_emb=..., ref_labels=...)`` with the references: equal labels are positives, and the tail of
    an anchor is that of the embeddings with other labels. With ``gate=0.0`` it is ``SupConLoss``,
    but that anchors whose loss rounds to 0 stay in the mean.
    See :meth:`~weince_lightning.losses.supervised.SupervisedLoss.supervised_terms`.

    Args:
        temperature: As for ``SupConLoss``; a number, or a 0-dim tensor that then gets a gradient.
        gate: As for :class:`~weince_lightning.losses.WEINCELoss`.
        shape: As for :class:`~weince_lightning.losses.WEINCELoss`.
        gather_distributed: Use the candidates of all processes, where there are several. It does
            what ``DistributedLossWrapper`` is for, which must not be put around it.
        **kwargs: ``collect_stats``, ``embedding_regularizer`` and its weight, as for every loss of
            pytorch-metric-learning; neither ``distance`` nor ``reducer``: the loss is made of
            cosine similarities and is the mean over the anchors that have a positive.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a number is out of its range.
    """

    def __init__(
        self,
        temperature: float | Tensor = 0.1,
        gate: TailGate | float | None = None,
        shape: TailShape | float | None = None,
        gather_distributed: bool = True,
        **kwargs: Any,
    ) -> None:
        for name in ("distance", "reducer"):
            if name in kwargs:
                raise ValueError(
                    f"{name} must be left out, got {kwargs[name]!r}: the loss is the mean over the "
                    "anchors, of cosine similarities."
                )
        super().__init__(**kwargs)
        self.contrastive = WEINCELoss(
            temperature, gate, shape, gather_distributed=gather_distributed
        )

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> dict[str, Any]:
        """Compute the loss, in the form that pytorch-metric-learning's reducers take."""
        if labels is None:
            raise ValueError("labels must be given, got None: they tell positives and negatives.")
        if indices_tuple is not None:
            raise ValueError(
                "indices_tuple must be None: the tail needs all negatives of an anchor, not pairs "
                "that a miner chose."
            )
        # Without references the library puts the batch in their place.
        is_batch = ref_emb is embeddings and ref_labels is labels
        if is_batch and len(embeddings) == 1 and world_size() == 1:
            loss = 0.0 * embeddings.sum()
        else:
            references, theirs = (None, None) if is_batch else (ref_emb, ref_labels)
            check_labelled(embeddings, labels, references, theirs, ("ref_emb", "ref_labels"))
            terms = self.contrastive.supervised_terms(embeddings, labels, references, theirs)
            # As the library has it: where no anchor has a negative there is nothing to learn.
            loss = terms.loss * (terms.num_negatives > 0).any()
        return {"loss": {"losses": loss, "indices": None, "reduction_type": "already_reduced"}}
