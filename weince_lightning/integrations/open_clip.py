"""WEINCE in open_clip's training step, in place of its ``ClipLoss``."""

import torch
from torch import Tensor, nn

from weince_lightning import distributed
from weince_lightning.checks import check_number
from weince_lightning.functional.inputs import check_batch
from weince_lightning.losses import TailGate, TailShape, WEINCELoss


class WEINCEClipLoss(nn.Module):
    r"""WEINCE between images and texts, with the arguments and results of open_clip's ``ClipLoss``.

    Each image is an anchor whose candidates are the texts of all processes, each text one whose
    candidates are the images; the temperature is ``1 / logit_scale``, with gradient. ``gate=0``
    gives CLIP's loss. open_clip's training loop keeps ``logit_scale`` within its bounds, as before.

    Where ``world_size`` is above 1, each process compares its own samples with those of all, and
    the gradient flows through the exchange: after DistributedDataParallel's average it is that of
    one process with the whole batch. ``ClipLoss`` needs ``gather_with_grad=True`` for that.

    Args:
        local_loss: Accepted for ``ClipLoss``'s sake; both give the same gradient. The value is that
            of this process's own samples, as with True; its mean over the processes is the same.
        gather_with_grad: Must be True for more than one process.
        cache_labels: Accepted for ``ClipLoss``'s sake; there are no labels to keep.
        rank: The place of this process among ``world_size``.
        world_size: How many processes share a batch: 1, or all of the default group.
        use_horovod: Must be False.
        gate: :math:`\lambda`, as for :class:`~weince_lightning.losses.WEINCELoss`.
        shape: :math:`\beta`, likewise.

    Raises:
        TypeError: If ``gate`` or ``shape`` is of the wrong kind.
        ValueError: If an argument asks for what this loss does not do, or a number is out of its
            range.

    References:
        Radford et al., "Learning Transferable Visual Models From Natural Language Supervision",
        ICML 2021, arXiv:2103.00020 (figure 3).

    Example:
        >>> images, texts = torch.randn(2, 16, 8, generator=torch.Generator().manual_seed(0))
        >>> logit_scale = torch.nn.Parameter(torch.tensor(2.66))
        >>> loss = WEINCEClipLoss()(images, texts, logit_scale.exp())
        >>> loss.backward()
        >>> logit_scale.grad is not None
        True
    """

    def __init__(
        self,
        local_loss: bool = False,
        gather_with_grad: bool = False,
        cache_labels: bool = False,
        rank: int = 0,
        world_size: int = 1,
        use_horovod: bool = False,
        *,
        gate: TailGate | float | None = None,
        shape: TailShape | float | None = None,
    ) -> None:
        super().__init__()
        if use_horovod:
            raise ValueError(
                f"use_horovod must be False, got {use_horovod}: "
                "the processes exchange through torch.distributed."
            )
        if world_size > 1 and not gather_with_grad:
            raise ValueError(
                f"gather_with_grad must be True for {world_size} processes, got "
                f"{gather_with_grad}: their gradients always flow through the exchange. "
                "Pass --gather-with-grad to open_clip."
            )
        self.rank = rank
        self.world_size = world_size
        self.loss = WEINCELoss(
            gate=gate, shape=shape, layout="pairs", gather_distributed=world_size > 1
        )

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        logit_bias: Tensor | float | None = None,
        output_dict: bool = False,
    ) -> Tensor | dict[str, Tensor]:
        """Compute the loss.

        Args:
            image_features: Shape ``(samples, features)``, of any length: they are normalised.
            text_features: Same shape; row i belongs to image i.
            logit_scale: One positive number, the inverse of the temperature.
            logit_bias: Changes nothing, as it adds the same to all logits of an anchor.
            output_dict: Whether to return ``{"contrastive_loss": loss}``, as open_clip's loop asks.

        Returns:
            The loss, a scalar.

        Raises:
            TypeError: If an argument is of the wrong kind.
            ValueError: If shapes do not fit, or ``logit_scale`` is a number that is not positive;
                a tensor is not read, which would wait for the device.
            RuntimeError: If ``world_size`` and ``rank`` are not those of torch.distributed.
        """
        self._check_processes()
        check_batch(image_features, text_features, names=("image_features", "text_features"))
        temperature = _temperature(logit_scale, image_features)
        if self.world_size == 1 and len(image_features) == len(text_features) == 1:
            # A last batch of one pair, which has no negative.
            loss = 0.0 * (image_features.sum() + text_features.sum() + temperature)
        else:
            loss = self.loss.terms(image_features, text_features, temperature=temperature).loss
        if isinstance(logit_bias, Tensor):
            # A gradient of zeros: without any, DistributedDataParallel would wait for it.
            loss = loss + 0 * logit_bias.sum()
        return {"contrastive_loss": loss} if output_dict else loss

    def _check_processes(self) -> None:
        """Refuse to compare with other samples than was asked for."""
        if self.world_size == 1:
            return
        for name, value, actual in (
            ("world_size", self.world_size, distributed.world_size()),
            ("rank", self.rank, distributed.rank()),
        ):
            if value != actual:
                raise RuntimeError(
                    f"{name} must be torch.distributed's, {actual}, got {value}. "
                    "Is its process group initialised?"
                )

    def extra_repr(self) -> str:
        """Show the settings that are plain values."""
        return f"rank={self.rank}, world_size={self.world_size}"


def _temperature(logit_scale: Tensor | float, features: Tensor) -> Tensor:
    """Turn the scale, of shape () or (1,), into a temperature of shape (), in float32 at least."""
    if not isinstance(logit_scale, Tensor):
        check_number("logit_scale", logit_scale, above=0.0)
    dtype = torch.promote_types(features.dtype, torch.float32)
    scale = torch.as_tensor(logit_scale, dtype=dtype, device=features.device)
    if scale.numel() != 1:
        raise ValueError(f"logit_scale must be one number, got the shape {tuple(scale.shape)}.")
    return 1 / scale.reshape(())
