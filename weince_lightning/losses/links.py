"""The links as objects: how a similarity becomes a logit."""

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from weince_lightning.checks import check_choice, check_number
from weince_lightning.functional.links import (
    arctanh_logits,
    power_logits,
    softmax_logits,
    weibit_logits,
)
from weince_lightning.functional.shapes import running_shape


class SoftmaxLink(nn.Module):
    r"""Softmax logits :math:`s / \tau` with the temperature of the loss."""

    def forward(self, similarity: Tensor, temperature: float | Tensor) -> Tensor:
        """See :func:`~weince_lightning.functional.links.softmax_logits`."""
        return softmax_logits(similarity, temperature)


class WeibitLink(nn.Module):
    r"""Weibit logits :math:`-\beta \log(1 - s)`; the temperature of the loss has no effect.

    Args:
        beta: Shape, positive; or "pooled": a running value that starts at 4 and follows the pooled
            tail of the training batches. It is saved with the loss.

    Raises:
        TypeError: If ``beta`` is neither a number nor a string.
        ValueError: If ``beta`` is not positive, or a string other than "pooled".
    """

    running_beta: Tensor

    def __init__(self, beta: float | Literal["pooled"] = 1.0) -> None:
        super().__init__()
        if isinstance(beta, str):
            check_choice("beta", beta, ("pooled",))
            self.register_buffer("running_beta", torch.tensor(4.0, dtype=torch.float32))
        else:
            check_number("beta", beta, above=0.0)
        self.beta = beta

    def forward(self, similarity: Tensor, temperature: float | Tensor) -> Tensor:
        """See :func:`~weince_lightning.functional.links.weibit_logits`."""
        if isinstance(self.beta, str):
            # A copy: a backward needs the value of its own step.
            return weibit_logits(similarity, self.running_beta.to(similarity, copy=True))
        return weibit_logits(similarity, self.beta)

    @torch.no_grad()
    def follow(self, beta: Tensor, r_squared: Tensor) -> None:
        """Move the running shape; see :func:`~weince_lightning.functional.shapes.running_shape`."""
        self.running_beta.copy_(running_shape(self.running_beta.to(beta), beta, r_squared))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "WeibitLink":
        """Move the running shape with the module, but leave it in float32.

        In half precision a tenth of a small difference would round away, and so would a part of
        the value in a checkpoint.
        """
        before = self._buffers.get("running_beta")
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if before is not None and self.running_beta.dtype != before.dtype:
            self.running_beta = before.to(self.running_beta.device)
        return self

    def extra_repr(self) -> str:
        """Show the shape."""
        return f"beta={self.beta!r}"


class PowerLink(nn.Module):
    r"""Power logits :math:`\alpha \log(1 + s)`; the temperature of the loss has no effect.

    Args:
        alpha: Exponent, positive.

    Raises:
        TypeError: If ``alpha`` is not a number.
        ValueError: If ``alpha`` is not positive.
    """

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = check_number("alpha", alpha, above=0.0)

    def forward(self, similarity: Tensor, temperature: float | Tensor) -> Tensor:
        """See :func:`~weince_lightning.functional.links.power_logits`."""
        return power_logits(similarity, self.alpha)

    def extra_repr(self) -> str:
        """Show the exponent."""
        return f"alpha={self.alpha}"


class ArctanhLink(nn.Module):
    r"""Logits :math:`2\,\mathrm{artanh}\, s`; the temperature of the loss has no effect."""

    def forward(self, similarity: Tensor, temperature: float | Tensor) -> Tensor:
        """See :func:`~weince_lightning.functional.links.arctanh_logits`."""
        return arctanh_logits(similarity)


Link: TypeAlias = SoftmaxLink | WeibitLink | PowerLink | ArctanhLink


def check_link(link: Link) -> Link:
    """Return a link, or refuse it."""
    if not isinstance(link, Link):
        raise TypeError(
            "link must be a SoftmaxLink, WeibitLink, PowerLink or ArctanhLink object, "
            f"got {link!r}."
        )
    return link
