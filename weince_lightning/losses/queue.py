"""Queue of the keys of earlier batches, saved and moved with its loss."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from weince_lightning.checks import check_integer
from weince_lightning.functional.layouts import Keys

Argument = Literal["queue_size", "memory_bank_size"]


class KeyQueue(nn.Module):
    """The newest keys of earlier batches, oldest first; it starts empty and grows.

    The keys are saved and moved with the loss, but they are no registered buffers, because their
    number changes: ``DistributedDataParallel`` sends the buffers of the first process to all at
    every forward, over keys of their own, and averages of models expect buffers of one shape. An
    average of keys or ids would be wrong, too; see :func:`own_keys`.

    Args:
        argument: The argument of the loss that asks for the keys, for errors.
        size: Most keys, at least 1.
        features: Features of a key; None takes those of the first keys.
    """

    def __init__(self, argument: Argument, size: int, features: int | None = None) -> None:
        super().__init__()
        self.argument = argument
        self.size = size
        self.features = features
        self.held = Keys(
            torch.empty(0, features or 0),
            torch.empty(0, dtype=torch.int64),
            torch.empty(0, dtype=torch.bool),
        )

    @property
    def filled(self) -> int:
        """Number of keys, known without a host sync."""
        return len(self.held.ids)

    def read(self, beside: Tensor) -> Keys:
        """Return the keys, on the device where they are needed; the queue itself stays as it is.

        Args:
            beside: Embeddings that they will be compared with, shape ``(rows, features)``.

        Returns:
            The keys, copied: those of the queue change while a backward may still need them.

        Raises:
            ValueError: If the keys have another number of features.
        """
        held = Keys(*(column.to(beside.device, copy=True) for column in self.held))
        found = beside.shape[1]
        if self.features not in (None, found):
            raise ValueError(
                f"z1 must have {self.features} features, as {self.argument}="
                f"{(self.size, self.features)} says, got {found}. Give {(self.size, found)}, or "
                f"{self.size} for any number of features."
            )
        if self.filled and held.vectors.shape[1] != found:
            raise ValueError(
                f"z1 must have {held.vectors.shape[1]} features, as the keys that "
                f"{self.argument} keeps, got {found}. Another network needs a loss of its own."
            )
        if self.filled == 0:
            return held._replace(vectors=held.vectors.new_empty(0, found))
        return held

    @torch.no_grad()
    def push(self, vectors: Tensor, ids: Tensor | None) -> None:
        """Add keys at the end and drop the oldest beyond ``size``.

        Args:
            vectors: Unit vectors, shape ``(keys, features)``, in float32 at least. One that is not
                finite becomes zero: it would spoil every batch for as long as it stays.
            ids: What each key shows, shape ``(keys,)``; None if that is unknown.
        """
        is_finite = vectors.isfinite().all(dim=1, keepdim=True)
        has_id = torch.full((len(vectors),), ids is not None, device=vectors.device)
        newest = Keys(
            vectors.where(is_finite, 0.0),
            (has_id if ids is None else ids).to(torch.int64),
            has_id,
        )
        gone = max(0, self.filled + len(vectors) - self.size)
        # New tensors, no larger than what they hold: a view would be saved with all beneath it.
        moved = Keys(
            *(
                torch.cat([old[gone:], new[-self.size :]])
                for old, new in zip(self.read(vectors), newest, strict=True)
            )
        )
        if all(map(_is_alike, self.held, moved)):
            # A full queue stays in its place: a CUDA graph reads the same memory at every step.
            for column, value in zip(self.held, moved, strict=True):
                column.copy_(value)
        else:
            self.held = moved

    def extra_repr(self) -> str:
        """Show the size and how many keys there are."""
        return f"size={self.size}, filled={self.filled}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "KeyQueue":
        """Move the keys with the module but leave their type: half precision would round them."""
        moved = [(column, fn(column)) for column in self.held]
        self.held = Keys(
            *(new if new.dtype == old.dtype else old.to(new.device) for old, new in moved)
        )
        return self

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # Copies: the next step writes over a full queue.
        held = {prefix + name: column.clone() for name, column in self.held._asdict().items()}
        destination.update(held)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Take the saved keys, however many there are, or say why they do not fit."""
        names = {prefix + name for name in Keys._fields}
        others = {key: value for key, value in state_dict.items() if key not in names}
        super()._load_from_state_dict(
            others, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        missing = sorted(names - state_dict.keys())
        if missing:
            missing_keys.extend(missing)
            return
        saved = Keys(*(state_dict[prefix + name] for name in Keys._fields))
        number = saved.ids.numel()
        if saved.vectors.ndim != 2 or {len(column) for column in saved} != {number}:
            shapes = {name: tuple(column.shape) for name, column in saved._asdict().items()}
            error_msgs.append(
                f"{self.argument} must hold vectors of shape (keys, features) and as many ids and "
                f"has_id, got the shapes {shapes}."
            )
            return
        features = saved.vectors.shape[1]
        if number > self.size:
            error_msgs.append(
                f"{self.argument} must be at least {number} to hold the saved keys, got "
                f"{self.size}."
            )
        elif number > 0 and self.features not in (None, features):
            error_msgs.append(
                f"{self.argument} must have {features} features to hold the saved keys, got "
                f"{self.features}."
            )
        else:
            # Also into a module on the meta device, whose tensors hold nothing.
            device = None if self.held.ids.is_meta else self.held.ids.device
            self.held = Keys(*(column.detach().to(device, copy=True) for column in saved))


def own_keys(module: nn.Module, state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the keys of the queues in a module under the names that a state has for them.

    Averaged weights are those of a copy of the module, whose queues never saw a key.

    Args:
        module: The one that trains.
        state: A ``state_dict`` of it, or of an average of it.
    """
    keys: dict[str, Tensor] = {}
    for name, part in module.named_modules():
        if isinstance(part, KeyQueue):
            keys.update(part.state_dict(prefix=f"{name}."))
    return {name: value for name, value in keys.items() if name in state}


def _is_alike(one: Tensor, other: Tensor) -> bool:
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)


def create_queue(queue_size: int, memory_bank_size: int | Sequence[int]) -> KeyQueue | None:
    """Return what keeps the keys of a loss, or refuse its sizes; None if both are 0."""
    check_integer("queue_size", queue_size, at_least=0)
    features = None
    bank_size = memory_bank_size
    if isinstance(bank_size, Sequence) and not isinstance(bank_size, str):
        if len(bank_size) != 2:
            raise ValueError(
                f"memory_bank_size must be a number or (size, features), got {memory_bank_size!r}."
            )
        bank_size, features = bank_size
        check_integer("features of memory_bank_size", features, at_least=1)
    check_integer("memory_bank_size", bank_size, at_least=0)
    if queue_size > 0 and bank_size > 0:
        raise ValueError(
            f"queue_size must be 0 beside a memory_bank_size, got queue_size={queue_size} and "
            f"memory_bank_size={memory_bank_size!r}. A queue adds earlier keys to the negatives of "
            "the batch, a memory bank takes their place."
        )
    if bank_size > 0:
        return KeyQueue("memory_bank_size", bank_size, features)
    return KeyQueue("queue_size", queue_size) if queue_size > 0 else None
