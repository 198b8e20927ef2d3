"""What test_trainer_processes.py trains: by itself in one process, as a script in two.

python two_processes.py LIBRARY FOLDER: train every case with ``strategy="ddp"`` under "lightning"
or "pytorch_lightning", and save what each rank ends up with.
"""

import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from weince_lightning import ContrastiveModule, InfoNCELoss, WEINCELoss
from weince_lightning.callbacks import (
    GeometryMonitor,
    KNNMonitor,
    OnlineLinearProbe,
    TailMonitor,
)
from weince_lightning.data import VisionData

SIZE = 8
NUM_IMAGES = 32
LOSSES = {
    "infonce": lambda: InfoNCELoss(0.2),
    "weince": lambda: WEINCELoss(0.2),
    "released": WEINCELoss.released,
}


class Case(NamedTuple):
    """One step of training on the same images, however many processes share them."""

    loss: str
    precision: str
    micro_batch_size: int | None = None  # in two processes; one takes the batch whole
    clip: float | None = None


CASES = {
    f"{loss}, {precision}": Case(loss, precision)
    for loss in LOSSES
    for precision in ("64-true", "32-true")
}
MICRO_BATCHES = {
    "micro-batches": Case("weince", "64-true", micro_batch_size=3),
    "clipped micro-batches": Case("weince", "64-true", micro_batch_size=3, clip=0.01),
    "mixed micro-batches": Case("infonce", "bf16-mixed", micro_batch_size=3, clip=0.01),
}


class Ending(NamedTuple):
    """What a training leaves behind."""

    start: Tensor
    parameters: Tensor
    buffers: list[Tensor]
    loss: Tensor


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(SIZE * SIZE, 48), nn.Tanh())


class Descent(ContrastiveModule):
    """The module with plain descent: Adam's first step hides a gradient's length."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def foreign_module(library: Any, loss: nn.Module) -> Any:
    """A module of one's own with our loss, as a user of any Lightning writes it."""

    class Foreign(library.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = nn.Sequential(network(), nn.Linear(48, 16))
            self.loss = loss

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            views, _ = batch
            value: Tensor = self.loss(*map(self.network, views))
            self.log("train/loss", value, sync_dist=True)
            return value

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Foreign()


def pairs() -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    images, *noise = torch.randn(3, NUM_IMAGES, 1, SIZE, SIZE, generator=generator)
    views = [images + 0.5 * each for each in noise]
    return [((views[0][i], views[1][i]), i % 4) for i in range(NUM_IMAGES)]


def make_trainer(library: Any, num_processes: int, **arguments: Any) -> Any:
    return library.Trainer(
        accelerator="cpu",
        devices=num_processes,
        strategy="ddp" if num_processes > 1 else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        **arguments,
    )


def train(name: str, num_processes: int, case: Case) -> Ending:
    """Train one step; with two processes Lightning's own sampler gives each every other image."""
    library = import_module(name)
    torch.manual_seed(0)
    loss = LOSSES[case.loss]()
    if name == "lightning":
        size = case.micro_batch_size if num_processes > 1 else None
        module = Descent(network(), loss, 1, SIZE, micro_batch_size=size)
    else:
        module = foreign_module(library, loss)
    start = nn.utils.parameters_to_vector(module.parameters()).detach().double()
    trainer = make_trainer(
        library, num_processes, max_steps=1, precision=case.precision, gradient_clip_val=case.clip
    )
    trainer.fit(module, DataLoader(pairs(), batch_size=NUM_IMAGES // num_processes))
    return Ending(
        start,
        nn.utils.parameters_to_vector(module.parameters()).detach().double(),
        [buffer.double() for buffer in module.buffers()],
        trainer.callback_metrics["train/loss"].double(),
    )


def monitors() -> list[Any]:
    return [
        TailMonitor(every_n_steps=1, figure=True),
        KNNMonitor(),
        KNNMonitor(bank="val", queries="train", name="knn_2"),
        OnlineLinearProbe(num_classes=10),
        OnlineLinearProbe(num_classes=10, name="probe_2", learning_rate=1e-3),
        GeometryMonitor(),
    ]


def train_digits(folder: str, callbacks: list[Any]) -> dict[str, Any]:
    """Train a network with BatchNorm; returns all that is left, and the warnings."""
    torch.manual_seed(0)
    module = ContrastiveModule("convnet", in_channels=1, image_size=16)
    trainer = make_trainer(
        import_module("lightning"),
        2,
        callbacks=callbacks,
        max_epochs=2,
        limit_train_batches=2,
        log_every_n_steps=1,
        num_sanity_val_steps=2,
        gradient_clip_val=0.5,
        default_root_dir=folder,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(module, VisionData("digits", batch_size=64))
    return {
        "metrics": {key: value.item() for key, value in trainer.callback_metrics.items()},
        "state": module.state_dict(),
        "moments": trainer.optimizers[0].state_dict()["state"],
        "steps": trainer.global_step,
        "stream": torch.get_rng_state(),
        "warnings": [str(each.message) for each in caught if "weince_lightning" in each.filename],
    }


ODD_SIZES = {"the rest repeated": (21, 5), "uneven": (13, 4), "one batch": (21, 11)}
"""Samples, and samples of a batch on each of two processes."""


def validate(num_processes: int, samples: int, batch_size: int, gather: bool = True) -> float:
    """Return ``val/loss``; Lightning's sampler repeats a sample where they do not come out even."""
    torch.manual_seed(0)
    module = Descent(network(), WEINCELoss(0.2, gather_distributed=gather), 1, SIZE).double()
    trainer = make_trainer(import_module("lightning"), num_processes, precision="64-true")
    loader = DataLoader(pairs()[:samples], batch_size * 2 // num_processes)
    trainer.validate(module, loader, verbose=False)
    return trainer.callback_metrics["val/loss"].item()


def main(name: str, folder: str) -> None:
    torch.set_num_threads(1)
    cases = {**CASES, **MICRO_BATCHES} if name == "lightning" else CASES
    found: dict[str, Any] = {case: tuple(train(name, 2, cases[case])) for case in cases}
    if name == "lightning":
        found["watched"] = train_digits(folder, monitors())
        found["alone"] = train_digits(folder, [])
        found["odd"] = {case: validate(2, *sizes) for case, sizes in ODD_SIZES.items()}
        found["odd"]["each its own"] = validate(2, 13, 7, gather=False)
    torch.save(found, Path(folder) / f"{torch.distributed.get_rank()}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
