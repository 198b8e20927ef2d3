"""How embeddings lie on the unit sphere: together, apart, in how many directions."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from weince_lightning.checks import check_number
from weince_lightning.functional.candidates import compare, score
from weince_lightning.functional.contrastive import cross_entropy, negated_similarities
from weince_lightning.functional.inputs import check_batch, check_matrix
from weince_lightning.functional.layouts import Layout, build_candidates
from weince_lightning.functional.links import softmax_logits
from weince_lightning.functional.vectors import unit_vectors

_BLOCK = 2**23
"""Similarities held at once: 32 MiB in float32."""
_ROWS = 4096
"""Rows turned into float64 at once."""


class CandidateGeometry(NamedTuple):
    """What the anchors of a batch see among their candidates; scalars."""

    hardest_negative_similarity: Tensor
    """Cosine similarity of an anchor to its most similar negative, the mean over the anchors."""
    information: Tensor
    """Information estimate in nats, at most ``information_limit``."""
    information_limit: Tensor
    """Logarithm of the number of candidates of an anchor, its positive among them."""


def alignment(z0: Tensor, z1: Tensor) -> Tensor:
    r"""Measure how far apart the two views of a sample are.

    .. math:: \frac{1}{N} \sum_i \lVert u_i - v_i \rVert_2^2

    with :math:`u, v` the rows scaled to unit length; 0 is best, 2 is that of unrelated views.
    Without gradient, in float32 at least.

    Args:
        z0: Embeddings of the first view, shape ``(samples, features)``; a zero row stays zero.
        z1: Embeddings of the second view, same shape.

    Returns:
        A scalar in ``[0, 4]``, NaN without samples.

    Raises:
        TypeError: If an argument is not a tensor of floating-point numbers.
        ValueError: If shapes do not fit together.

    References:
        Wang & Isola, "Understanding Contrastive Representation Learning through Alignment and
        Uniformity on the Hypersphere", ICML 2020, arXiv:2005.10242 (alpha = 2).

    Example:
        >>> alignment(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]]))
        tensor(2.)
    """
    check_batch(z0, z1)
    with _plainly(z0.device):
        return (_unit(z0) - _unit(z1)).square().sum(dim=1).mean()


def positive_similarity(z0: Tensor, z1: Tensor) -> Tensor:
    """Return the mean cosine similarity of the two views of a sample.

    Without gradient, in float32 at least. For unit vectors it is 1 minus half the
    :func:`alignment`.

    Args:
        z0: Embeddings of the first view, shape ``(samples, features)``; a zero row has similarity
            0.
        z1: Embeddings of the second view, same shape.

    Returns:
        A scalar in ``[-1, 1]``, NaN without samples.

    Raises:
        TypeError: If an argument is not a tensor of floating-point numbers.
        ValueError: If shapes do not fit together.

    Example:
        >>> positive_similarity(torch.eye(2), torch.tensor([[2.0, 0.0], [1.0, 0.0]]))
        tensor(0.5000)
    """
    check_batch(z0, z1)
    with _plainly(z0.device):
        return (_unit(z0) * _unit(z1)).sum(dim=1).mean()


def uniformity(embeddings: Tensor) -> Tensor:
    r"""Measure how evenly embeddings cover the unit sphere.

    .. math:: \log \frac{2}{N (N - 1)} \sum_{i < j} e^{-2 \lVert u_i - u_j \rVert_2^2}

    with :math:`u` the rows scaled to unit length; 0 where all are equal, about -4 where they are
    spread evenly over a sphere of many dimensions. Without gradient, in float32 at least; block by
    block, so that memory grows with the number of rows and not with its square.

    Args:
        embeddings: Shape ``(rows, features)``; a zero row stays zero.

    Returns:
        A scalar in ``[-8, 0]``, NaN with fewer than two rows, which make no pair.

    Raises:
        TypeError: If ``embeddings`` is not a tensor of floating-point numbers.
        ValueError: If it does not have that shape.

    References:
        Wang & Isola, arXiv:2005.10242 (t = 2); see :func:`alignment`.

    Example:
        >>> uniformity(torch.eye(3))  # every two of them have squared distance 2
        tensor(-4.)
    """
    check_matrix("embeddings", embeddings)
    with _plainly(embeddings.device):
        unit = _unit(embeddings)
        rows = len(unit)
        if rows < 2:
            return unit.new_tensor(math.nan)
        squares = unit.square().sum(dim=1)
        step = max(1, _BLOCK // rows)
        totals = []
        for start in range(0, rows, step):
            few, rest = slice(start, start + step), slice(start, None)
            distance = squares[few, None] + squares[rest]
            # A zero row is not of unit length: not 2 - 2 s.
            distance.addmm_(unit[few], unit[rest].T, alpha=-2).clamp_min_(0)
            # Each pair once, with the later row as the column; the first column is the first row.
            totals.append(distance.mul_(-2).exp_().triu_(1).sum())
        return (torch.stack(totals).sum() / (rows * (rows - 1) / 2)).log()


def effective_rank(embeddings: Tensor) -> Tensor:
    r"""Count the directions that embeddings use (RankMe).

    .. math:: \exp\Big(-\sum_k p_k \log p_k\Big), \qquad p_k = \sigma_k / \sum_l \sigma_l

    with :math:`\sigma` the singular values of the matrix, neither centred nor scaled to unit
    length. From the eigenvalues of the Gram matrix, in float64 on the CPU: memory grows with the
    square of the smaller of rows and features. Singular values within its rounding are left out;
    the paper adds 1e-7 to each :math:`p_k` instead.

    Args:
        embeddings: Shape ``(rows, features)``.

    Returns:
        A scalar on the CPU between 1 and the smaller of rows and features; 0 where all embeddings
        are zero or there is none, NaN where one is not finite.

    Raises:
        TypeError: If ``embeddings`` is not a tensor of floating-point numbers.
        ValueError: If it does not have that shape.

    References:
        Garrido et al., "RankMe: Assessing the Downstream Performance of Pretrained Self-Supervised
        Representations by Their Rank", ICML 2023, arXiv:2210.02885 (equation 1).

    Example:
        >>> effective_rank(torch.eye(4))
        tensor(4.)
        >>> effective_rank(torch.ones(8, 4))
        tensor(1.)
    """
    check_matrix("embeddings", embeddings)
    with _plainly(embeddings.device):
        dtype = torch.promote_types(embeddings.dtype, torch.float32)
        matrix = embeddings.cpu()
        matrix = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
        gram = torch.zeros(matrix.shape[1], matrix.shape[1], dtype=torch.float64)
        for rows in torch.split(matrix, _ROWS):
            gram += rows.double().T @ rows.double()
        if not gram.isfinite().all():
            return torch.tensor(math.nan, dtype=dtype)
        rounding = max(matrix.shape) * torch.finfo(gram.dtype).eps * gram.trace()
        eigenvalues = torch.linalg.eigvalsh(gram)
        singular = eigenvalues.where(eigenvalues > rounding, 0.0).sqrt()
        total = singular.sum()
        share = singular / total
        rank = (-torch.xlogy(share, share).sum()).exp()
        return rank.where(total > 0, 0.0).to(dtype)


def normalized_std(embeddings: Tensor) -> Tensor:
    r"""Return the standard deviation of the normalised embeddings: SimSiam's sign of collapse.

    .. math:: \frac{1}{d} \sum_k \sqrt{\frac{1}{N} \sum_i (u_{ik} - \bar u_k)^2}

    with :math:`u` the rows scaled to unit length. Without gradient, in float32 at least.

    Args:
        embeddings: Shape ``(rows, features)``; a zero row stays zero.

    Returns:
        A scalar: 0 where all embeddings point the same way (also for one row), about
        :math:`1 / \sqrt d` where they point everywhere alike. NaN without rows.

    Raises:
        TypeError: If ``embeddings`` is not a tensor of floating-point numbers.
        ValueError: If it does not have that shape.

    References:
        Chen & He, "Exploring Simple Siamese Representation Learning", CVPR 2021, arXiv:2011.10566
        (figure 2).

    Example:
        >>> normalized_std(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
        tensor(0.5000)
    """
    check_matrix("embeddings", embeddings)
    with _plainly(embeddings.device):
        unit = _unit(embeddings)
        return (unit - unit.mean(dim=0)).square().mean(dim=0).sqrt().mean()


def candidate_geometry(
    z0: Tensor, z1: Tensor, temperature: float, layout: Layout = "views"
) -> CandidateGeometry:
    r"""Measure what anchors see among their candidates: hardest negative, information estimate.

    .. math:: \log(K + 1) - \frac{1}{A} \sum_i
              -\log \frac{e^{s_{i+}/\tau}}{e^{s_{i+}/\tau} + \sum_j e^{s_{ij}/\tau}}

    the number of candidates and the cross-entropy of the softmax link, which is InfoNCE. Where the
    negatives are drawn independently, its expectation is a lower bound of the mutual information of
    the two views. WEINCE's own value gives none: its gate and shape depend on which candidates are
    the negatives. Without gradient, in float32 at least, block by block.

    Args:
        z0: Embeddings of the first view, shape ``(samples, features)``, at least 2 samples; a zero
            row has similarity 0 to everything.
        z1: Embeddings of the second view, same shape.
        temperature: Temperature :math:`\tau > 0`, dimensionless.
        layout: Who is compared with whom, as for the losses: "views" with
            :math:`K = 2 \cdot` samples - 2 negatives, "pairs" or "queries" with samples - 1.

    Returns:
        Means over the anchors.

    Raises:
        TypeError: If an embedding is not a tensor of floating-point numbers.
        ValueError: If shapes do not fit, there are fewer than 2 samples or a number is out of its
            range.

    References:
        van den Oord et al., "Representation Learning with Contrastive Predictive Coding",
        arXiv:1807.03748 (appendix A.1); Poole et al., "On Variational Bounds of Mutual
        Information", ICML 2019, arXiv:1905.06922 (equation 10).

    Example:
        >>> found = candidate_geometry(torch.eye(8), torch.eye(8), temperature=0.05)
        >>> found.hardest_negative_similarity
        tensor(0.)
        >>> bool((found.information_limit - found.information).abs() < 1e-6)  # as much as can be
        True
    """
    check_batch(z0, z1)
    check_number("temperature", temperature, above=0.0, condition="be positive")
    hardest, losses, limits = [], [], []
    with _plainly(z0.device):
        for group in build_candidates(z0, z1, layout):
            step = max(1, _BLOCK // group.num_columns)
            for start in range(0, group.num_anchors, step):
                few = group.select(slice(start, start + step))
                scores = score(few, compare(few))
                losses.append(cross_entropy(scores, softmax_logits(scores.similarity, temperature)))
                hardest.append(-negated_similarities(scores).amin(dim=1))
            limits.append(math.log(group.max_negatives + 1))
        loss = torch.cat(losses).mean()
        limit = loss.new_tensor(limits).mean()
        return CandidateGeometry(torch.cat(hardest).mean(), limit - loss, limit)


@contextmanager
def _plainly(device: torch.device) -> Iterator[None]:
    """Compute without gradient, and in full precision where autocast is on."""
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield


def _unit(embeddings: Tensor) -> Tensor:
    """Unit vectors in float32 at least."""
    return unit_vectors(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)))
