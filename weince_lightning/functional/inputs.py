"""Checks of the tensors that a loss is computed from: kinds, shapes, devices."""

import torch
from torch import Tensor

from weince_lightning.checks import check_number
from weince_lightning.functional.tracing import is_traced


def check_batch(
    z0: Tensor,
    z1: Tensor,
    ids: Tensor | None = None,
    negatives: Tensor | None = None,
    names: tuple[str, str] = ("z0", "z1"),
) -> None:
    """Refuse a batch of the wrong kind or shape; costs no device synchronisation.

    Under ``torch.autograd.detect_anomaly`` it also refuses NaN and infinity, which does.

    Args:
        z0: Embeddings of the first view, shape ``(samples, features)``.
        z1: Embeddings of the second view, same shape.
        ids: What each sample shows, shape ``(samples,)``, an integer type.
        negatives: Explicit negatives of the anchors of ``z0``: shape ``(samples, own, features)``
            for each anchor's own, or ``(shared, features)``.
        names: What the caller calls the two views.

    Raises:
        TypeError: If an argument is not a tensor or has the wrong kind of numbers.
        ValueError: If shapes or devices do not fit together.
    """
    first, second = names
    embeddings = {first: z0, second: z1}
    if negatives is not None:
        embeddings["negatives"] = negatives
    _check_kinds(embeddings)
    if z0.ndim != 2 or z0.shape[1] == 0:
        raise ValueError(f"{first} must have shape (samples, features), got {tuple(z0.shape)}.")
    if z1.shape != z0.shape:
        raise ValueError(
            f"{second} must have the shape of {first}, {tuple(z0.shape)}, got {tuple(z1.shape)}. "
            "Row i of both must show the same sample."
        )
    if ids is not None:
        _check_ids(ids, len(z0))
    if negatives is not None:
        _check_negatives(negatives, *z0.shape)
    _check_devices(embeddings if ids is None else {**embeddings, "ids": ids})
    if not is_traced() and torch.is_anomaly_enabled():
        _check_finite(embeddings)


def check_labelled(
    embeddings: Tensor,
    labels: Tensor,
    references: Tensor | None = None,
    reference_labels: Tensor | None = None,
    names: tuple[str, str] = ("references", "reference_labels"),
) -> None:
    """Refuse labelled embeddings of the wrong kind or shape, see :func:`check_batch`.

    Args:
        embeddings: The anchors, shape ``(samples, features)``.
        labels: Their labels, shape ``(samples,)``, an integer type.
        references: The candidates, shape ``(candidates, features)``, or None.
        reference_labels: Theirs, shape ``(candidates,)``; given with ``references`` or not at all.
        names: What the caller calls the candidates and their labels.

    Raises:
        TypeError: If an argument is not a tensor or has the wrong kind of numbers.
        ValueError: If shapes or devices do not fit together.
    """
    if (references is None) != (reference_labels is None):
        given, lacking = names[:: -1 if references is None else 1]
        raise ValueError(f"{lacking} must be given where {given} are, got None.")
    tensors = {"embeddings": embeddings}
    if references is not None:
        tensors[names[0]] = references
    _check_kinds(tensors)
    for name, value in tensors.items():
        if value.ndim != 2 or value.shape[1] != embeddings.shape[-1] or value.shape[1] == 0:
            raise ValueError(
                f"{name} must have shape (samples, features), with the features of embeddings, "
                f"got {tuple(value.shape)}."
            )
    fewest = 2 if references is None else 1
    if min(len(embeddings), *(len(value) for value in tensors.values())) < fewest:
        raise ValueError(
            f"embeddings must hold at least {fewest} samples, and {names[0]} at least 1, got "
            f"{', '.join(str(len(value)) for value in tensors.values())}."
        )
    _check_ids(labels, len(embeddings), "labels")
    if references is not None and reference_labels is not None:
        _check_ids(reference_labels, len(references), names[1])
        _check_devices({**tensors, names[1]: reference_labels})
    _check_devices({**tensors, "labels": labels})
    if not is_traced() and torch.is_anomaly_enabled():
        _check_finite(tensors)


def check_matrix(name: str, value: Tensor) -> None:
    """Refuse anything but a floating-point tensor of shape ``(rows, features)``.

    Raises:
        TypeError: If it is not a tensor of floating-point numbers.
        ValueError: If it has another shape, or no features.
    """
    _check_kinds({name: value})
    if value.ndim != 2 or value.shape[1] == 0:
        raise ValueError(f"{name} must have shape (rows, features), got {tuple(value.shape)}.")


def check_temperature(value: float | Tensor) -> float | Tensor:
    """Return a positive number or a positive scalar tensor, or refuse it; reads the device."""
    if not isinstance(value, Tensor):
        return check_number("temperature", value, above=0.0)
    check_temperature_tensor(value)
    if not value.is_meta:
        check_number("temperature", value.detach().to(torch.float64).item(), above=0.0)
    return value


def check_temperature_tensor(temperature: Tensor) -> Tensor:
    """Return a tensor of one floating-point number, or refuse it; its value is not read."""
    if not isinstance(temperature, Tensor):
        raise TypeError(
            f"temperature must be a 0-dim floating-point tensor here, got {temperature!r}. "
            "Give a number to the constructor."
        )
    if temperature.ndim != 0 or not temperature.is_floating_point():
        raise TypeError(
            "temperature must be a number or a 0-dim floating-point tensor, "
            f"got a {temperature.dtype} tensor of shape {tuple(temperature.shape)}."
        )
    return temperature


def _check_kinds(embeddings: dict[str, Tensor]) -> None:
    """Refuse what is no tensor of floating-point numbers."""
    for name, value in embeddings.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}.")
        if not value.is_floating_point():
            raise TypeError(f"{name} must hold floating-point numbers, got {value.dtype}.")


def _check_devices(tensors: dict[str, Tensor]) -> None:
    """Refuse tensors that are not where the first is."""
    first, *_ = tensors
    device = tensors[first].device
    for name, value in tensors.items():
        if value.device != device:
            raise ValueError(
                f"{name} must be on the device of {first}, {device}, got {value.device}."
            )


def _check_finite(embeddings: dict[str, Tensor]) -> None:
    """Refuse NaN and infinity by name; reads the device."""
    for name, value in embeddings.items():
        bad = int((~value.isfinite()).sum())
        if bad:
            raise ValueError(f"{name} must be finite, got {bad} values that are NaN or inf.")


def _check_ids(ids: Tensor, samples: int, name: str = "ids") -> None:
    """Refuse ids that are not one integer per sample."""
    if not isinstance(ids, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(ids).__name__}.")
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise TypeError(f"{name} must hold integers, got {ids.dtype}. Give {name}.long().")
    if ids.shape != (samples,):
        raise ValueError(
            f"{name} must hold one integer per sample ({samples}), got shape {tuple(ids.shape)}."
        )


def _check_negatives(negatives: Tensor, samples: int, features: int) -> None:
    """Refuse explicit negatives that fit neither of the two shapes."""
    shape = tuple(negatives.shape)
    if shape[-1:] != (features,) or not (len(shape) == 2 or shape[:-2] == (samples,)):
        raise ValueError(
            f"negatives must have shape ({samples}, own, {features}) or (shared, {features}), "
            f"got {shape}."
        )
