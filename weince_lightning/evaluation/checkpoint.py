"""The evaluation of one checkpoint: what is known of it already, the rest, and the table."""

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor, nn

from weince_lightning.checkpoints import load_encoder, read_encoder
from weince_lightning.cli.messages import say
from weince_lightning.cli.run_files import shown
from weince_lightning.evaluation import KNNSettings, LinearSettings, evaluate
from weince_lightning.evaluation.cache import (
    KeptParts,
    cached_features,
    check_labelled,
    data_digest,
    folder_of,
    read_results,
    weights_digest,
    write_results,
)
from weince_lightning.evaluation.loss_profile import BATCH_SIZE, loss_profile
from weince_lightning.module import ContrastiveModule

_NEUTRAL = ("batch_size", "num_workers", "data_dir", "download", "transforms", "val_fraction")
"""Arguments of a data module that say nothing about its images, or about those of training."""

_TITLES = {"linear": "linear probe", "knn": "kNN"}


class Job(NamedTuple):
    """A checkpoint, and what the command line says of it."""

    checkpoint: Path
    linear: LinearSettings | None
    knn: KNNSettings | None
    data: LightningDataModule
    data_settings: dict[str, Any]
    """Class path and arguments, as in a configuration file."""
    device: str
    """"auto", "cpu" or "cuda"."""
    cache: bool
    backbone: str | nn.Module | None
    v1_stride: bool | None


def evaluate_checkpoint(job: Job) -> None:
    """Evaluate a checkpoint, except for what is known of it already, and print its numbers."""
    encoder = load_encoder(job.checkpoint, job.backbone, v1_stride=job.v1_stride)
    has_gpu = job.device != "cpu" and torch.cuda.is_available()
    device = torch.device("cuda" if has_gpu else "cpu")
    encoder.to(device)
    loaders = _loaders(job.data)
    for name, loader in loaders.items():
        check_labelled(name, loader)
    weights = weights_digest(encoder)
    names = {
        name: _feature_name(job, weights, encoder, device, loader)
        for name, loader in loaders.items()
    }
    file = folder_of(job.checkpoint) / "evaluation.json"
    asked = {
        name: {**asdict(part), "seeds": [*part.seeds]}
        for name, part in (("linear", job.linear), ("knn", job.knn))
        if part is not None
    }
    previous = read_results(file)
    known_settings = _settings_of_parts(previous, names)
    settings = {**known_settings, **asked}
    known = {name: previous[name] for name, was in known_settings.items() if was == settings[name]}
    if known.keys() >= asked.keys() and previous["checkpoint"] == job.checkpoint.name:
        results = previous
        say(f"\n{shown(file)} has these numbers already; remove it to compute them anew.\n")
    else:
        features = _features(job, encoder, loaders, names, device)
        kept = KeptParts(file.with_name("unfinished.pt"), [*names.values()])
        found = evaluate(
            *features,
            linear=None if "linear" in known else job.linear,
            knn=None if "knn" in known else job.knn,
            kept=kept,
        )
        profile = _loss_profile(job, device)
        results = {
            "checkpoint": job.checkpoint.name,
            "weights": weights,
            **known,
            **found,
            **({} if profile is None else {"loss": profile}),
            "settings": {**settings, "data": job.data_settings, "device": device.type},
            "features": names,
        }
        _keep_what_is_replaced(file, previous, results)
        write_results(file, results)
        kept.remove()
    say(_report(job, results, file))


def _settings_of_parts(results: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of the parts that an earlier evaluation of the same features has."""
    if results.get("features") != names:
        return {}
    settings = results.get("settings", {})
    return {name: settings[name] for name in _TITLES if name in results and name in settings}


def _keep_what_is_replaced(
    file: Path, earlier: Mapping[str, Any], results: Mapping[str, Any]
) -> None:
    """Put an earlier evaluation aside if numbers of it are not in the new one."""
    if all(earlier.get(part) == results.get(part) for part in _TITLES if part in earlier):
        return
    aside = file.with_name("evaluation.previous.json")
    write_results(aside, earlier)
    sys.stderr.write(
        f"weince: {shown(file)} had numbers of another checkpoint, of other data or settings; they "
        f"are in {shown(aside)} now.\n"
    )


def _loss_profile(job: Job, device: torch.device) -> dict[str, Any] | None:
    """Describe the loss of a module of ours on fixed views of the test images, None without one."""
    if read_encoder(job.checkpoint).layout != "weince_lightning":
        return None
    given: dict[str, Any] = (
        {"backbone": job.backbone} if isinstance(job.backbone, nn.Module) else {}
    )
    try:
        module = ContrastiveModule.load_from_checkpoint(
            job.checkpoint, map_location=device, **given
        )
        return loss_profile(
            module.loss,
            lambda images: module.encode(images.to(device))[1],
            job.data.test_dataloader(),
        )
    except Exception as error:
        # Whatever a foreign loss, module or data module raises: the accuracies do not need it.
        why = " ".join(str(error).split())
        sys.stderr.write(
            f"weince: what the loss of {shown(job.checkpoint)} does is left out: {why}\n"
        )
        return None


def _loaders(data: LightningDataModule) -> dict[str, Iterable[Any]]:
    """Return the loaders of the training images, in one or two parts, and of the test images."""
    give = getattr(data, "evaluation_dataloader", None)
    if not callable(give):
        raise TypeError(
            "data must have a method evaluation_dataloader(split) that gives (images, labels) of "
            f'the split "train", "val" or "test" in a fixed order, got {type(data).__name__}.'
        )
    data.prepare_data()
    data.setup("fit")
    data.setup("test")
    loaders = {"train": give("train")}
    with suppress(ValueError):  # there is no such split
        loaders["val"] = give("val")
    loaders["test"] = give("test")
    return loaders


def _feature_name(
    job: Job, weights: str, encoder: nn.Module, device: torch.device, loader: Iterable[Any]
) -> str:
    """Name features by all that decides about them: other weights or data get another name."""
    settings = {**job.data_settings, "init_args": {**(job.data_settings.get("init_args") or {})}}
    for name in _NEUTRAL:
        settings["init_args"].pop(name, None)
    # The text of a network shows its layers, with what leaves no trace in the weights.
    parts = [weights, str(encoder), device.type, settings, data_digest(loader)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _features(
    job: Job,
    encoder: nn.Module,
    loaders: Mapping[str, Iterable[Any]],
    names: Mapping[str, str],
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return features and labels of the training images and of the test images, on the device."""
    folder = folder_of(job.checkpoint)
    found = {
        name: cached_features(
            encoder, loader, folder / f"features-{names[name]}.pt" if job.cache else None, name
        )
        for name, loader in loaders.items()
    }
    test_features, test_labels = found.pop("test")
    train_features, train_labels = (torch.cat(parts) for parts in zip(*found.values(), strict=True))
    return train_features.to(device), train_labels, test_features.to(device), test_labels


def _report(job: Job, results: Mapping[str, Any], file: Path) -> str:
    """Set the numbers in a table."""
    rows = [["", "test", "validation"]]
    for part, title in _TITLES.items():
        for name in results.get(part, {}):
            if name.startswith("test_"):
                metric = name.removeprefix("test_")
                cells = [_cell(results[part][f"{split}_{metric}"]) for split in ("test", "val")]
                rows.append([f"{title} {metric.replace('_', ' ')}", *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    note = ""
    if job.linear is not None and job.linear.converge:
        note = "The linear probe is logistic regression (C = 1), converged.\n"
    elif job.linear is not None:
        is_papers = (job.linear.epochs, job.linear.learning_rate) == (100, 3e-4)
        paper = "as in the paper" if is_papers else "the paper: 100 at 0.0003"
        note = (
            f"The linear probe had {job.linear.epochs} epochs of Adam at "
            f"{job.linear.learning_rate:g} ({paper}), which stop well short of\n"
            "convergence; --linear.converge true goes on to it.\n"
        )
    if "loss" in results:
        note += (
            "The loss looks at the hardest negative as InfoNCE does at temperature "
            f"{results['loss']['effective_temperature']:.3g}\n(test images, batches of "
            f"{BATCH_SIZE}).\n"
        )
    return (
        f"\nFrozen features of {shown(job.checkpoint)}, mean over the seeds (lowest-highest):\n"
        + "".join(f"  {line}\n" for line in lines)
        + note
        + f"Results: {shown(file)}\n"
    )


def _cell(metric: Mapping[str, Any]) -> str:
    values = metric["values"]
    return f"{metric['mean']:.4f} ({min(values):.4f}-{max(values):.4f})"
