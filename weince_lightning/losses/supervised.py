"""The supervised form of the losses: samples with labels in place of two views."""

from abc import ABC

import torch
from torch import Tensor

from weince_lightning.distributed import gather, world_size
from weince_lightning.functional.inputs import check_labelled
from weince_lightning.functional.layouts import Labelled, build_labelled_candidates
from weince_lightning.losses.base import ContrastiveLoss, without_autocast
from weince_lightning.losses.exchange import gather_labelled
from weince_lightning.losses.results import ContrastiveTerms


class SupervisedLoss(ContrastiveLoss, ABC):
    """A contrastive loss that takes labelled samples too."""

    def supervised_terms(
        self,
        embeddings: Tensor,
        labels: Tensor,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
    ) -> ContrastiveTerms:
        """Compute the loss of labelled samples and its parts: equal labels are positives.

        Each anchor loses the mean, over its positives, of the negative log-probability among all
        its candidates; its tail is that of candidates with other labels. ``layout`` is ignored.

        Args:
            embeddings: The anchors, raw, shape ``(samples, features)``, any float type.
            labels: Of each anchor, shape ``(samples,)``, integers.
            references: The candidates, shape ``(candidates, features)``; None: each anchor's are
                all other anchors.
            reference_labels: Of each candidate, shape ``(candidates,)``; with ``references``.

        Returns:
            The mean over the anchors that have a positive (0 where none has), and its parts, in
            which the anchors without have 0.

        Raises:
            TypeError: If an argument is of the wrong kind.
            ValueError: If shapes do not fit, or the loss has a queue.
            RuntimeError: If several processes disagree in more than the number of samples.

        References:
            Khosla et al., "Supervised Contrastive Learning", NeurIPS 2020, arXiv:2004.11362,
            equation 2, which this is where the logits are those of the softmax.

        Example:
            >>> import torch
            >>> from weince_lightning import WEINCELoss
            >>> z = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
            >>> labels = torch.tensor([0, 0, 0, 1, 1, 1, 2, 3])
            >>> WEINCELoss(0.1).supervised_terms(z, labels).per_anchor[6:]
            tensor([0., 0.])
        """
        check_labelled(embeddings, labels, references, reference_labels)
        if self.queue is not None:
            raise ValueError(
                f"{self.queue.argument} must be 0 for labelled samples, got {self.queue.size}. "
                "Give earlier ones as references."
            )
        batch = Labelled(
            embeddings,
            labels.to(torch.int64),
            references,
            None if reference_labels is None else reference_labels.to(torch.int64),
            0 if references is None else None,
        )
        sizes = [len(embeddings)]
        if self.gather_distributed and world_size() > 1:
            batch, sizes = gather_labelled(batch)
        with without_autocast(embeddings.device.type):
            group = build_labelled_candidates(batch).counted()
            # All with its label, itself aside, are no negatives.
            count = (group.count_negatives() < group.max_negatives).sum()
            if len(sizes) > 1:
                count = gather(count[None], [1] * len(sizes)).sum()
            weight = len(sizes) / count.clamp_min(1).to(group.anchors.dtype)
            return self._evaluate([group], sizes, weight, self.temperature)
