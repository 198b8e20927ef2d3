"""What losses do to an encoder over training: where the gradient goes, and how embeddings spread.

    python benchmarks/training_dynamics.py --output docs/results/training_dynamics

Trains the convnet on Fashion-MNIST (as configs/fashion_mnist_short.yaml, from the root of the
repository, the images in data/FashionMNIST/raw) with each loss and seed, and looks at fixed views
of test images at chosen steps: similarity of positives and of negatives, the share of the gradient
on the hardest negatives and the effective temperature, and for WEINCE gate, shape, and the part of
the gradient on the anchors with an open gate. Writes a table, a figure and the numbers.
"""

import argparse
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from matplotlib.figure import Figure
from torch import nn

from weince_lightning import ContrastiveModule, InfoNCELoss, WEINCELoss
from weince_lightning.data import VisionData
from weince_lightning.evaluation import KNNSettings, evaluate
from weince_lightning.evaluation.loss_profile import loss_profile

LOSSES: dict[str, Callable[[float], nn.Module]] = {
    "InfoNCE": InfoNCELoss,
    "WEINCE, the paper's form": WEINCELoss,
    "WEINCE with shape 1": lambda temperature: WEINCELoss(temperature, shape=1.0),
}
LOOKS = (1, 10, 20, 40, 80, 150, 300, 600, 1200)
"""Steps after which the encoder is looked at."""
SHOWN = {
    "negative": "mean similarity of negatives",
    "positive": "mean similarity of positives",
    "hardest_5_percent": "gradient on the hardest 5 %",
    "effective_temperature": "effective temperature",
    "beta_hat": "mean estimated shape",
    "open_anchors_gradient": "gradient on open anchors",
    "knn": "kNN accuracy, test images",
}


@functools.cache
def images() -> list[Any]:
    """Two views of test images; training and test images, each with labels."""
    data = VisionData("fashion_mnist", batch_size=2048, val_fraction=0)
    views = next(iter(data.test_dataloader()))[0]
    return [views, *(next(iter(data.evaluation_dataloader(part))) for part in ("train", "test"))]


class Look(Callback):
    """Looks at the encoder after some steps, and leaves the training as it is."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self.views, *self.images = images()

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *rest: Any) -> None:
        """Look, if it is time."""
        if trainer.global_step in LOOKS:
            self.found.append({"step": trainer.global_step, **self.look(module)})

    @torch.no_grad()
    def look(self, module: Any) -> dict[str, Any]:
        """Measure the encoder in evaluation mode."""
        module.eval()
        profile = loss_profile(module.loss, lambda x: module.encode(x)[1], [(self.views, None)], 2)
        z0, z1 = (
            nn.functional.normalize(module.encode(view)[1].double(), dim=1) for view in self.views
        )
        similarity = z0 @ z1.T
        is_positive = torch.eye(len(z0), dtype=torch.bool)
        (train, train_labels), (test, test_labels) = self.images
        found = evaluate(
            module(train),
            train_labels,
            module(test),
            test_labels,
            None,
            KNNSettings(20, seeds=(1,)),
        )
        module.train()
        shape = profile.get("beta_hat")
        return {
            "positive": float(similarity[is_positive].mean()),
            "negative": float(similarity[~is_positive].mean()),
            "hardest_5_percent": profile["hardest_5_percent"],
            "effective_temperature": profile["effective_temperature"],
            "beta_hat": None if shape is None else shape["mean"],
            "lambda_mean": profile["gate"]["mean"] if "gate" in profile else None,
            "open_anchors_gradient": profile.get("open_anchors_gradient"),
            "knn": found["knn"]["test_top1_k20"]["mean"],
        }


def train(loss: nn.Module, seed: int, steps: int) -> list[dict[str, Any]]:
    """Train once, and return what was seen."""
    seed_everything(seed, verbose=False)
    data = VisionData("fashion_mnist", batch_size=256, batch_augmentation=True, val_fraction=0)
    look = Look()
    module = ContrastiveModule(
        "convnet", loss, in_channels=1, image_size=28, projection_dim=64, learning_rate=1e-3,
        schedule="cosine", channels_last=True,
    )  # fmt: skip
    trainer = Trainer(
        max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False,
        limit_val_batches=0, enable_model_summary=False, callbacks=[look],
    )  # fmt: skip
    trainer.fit(module, data)
    return look.found


def draw(runs: dict[str, list[list[dict[str, Any]]]]) -> Figure:
    """Draw every number over the steps, a line for each seed."""
    figure = Figure(figsize=(10, 9), layout="constrained")
    axes = figure.subplots(4, 2).ravel()
    for place, (name, title) in enumerate(SHOWN.items()):
        for color, (label, seeds) in enumerate(runs.items()):
            for number, run in enumerate(seeds):
                points = [(look["step"], look[name]) for look in run if look[name] is not None]
                if points:
                    axes[place].plot(
                        *zip(*points, strict=True), f"C{color}", label=None if number else label
                    )
        axes[place].set(title=title, xscale="log", xlabel="step")
    axes[1].legend(fontsize="small")
    axes[-1].set_axis_off()
    return figure


def table(runs: dict[str, list[list[dict[str, Any]]]]) -> str:
    """Set the means over the seeds in a table."""
    lines = ["| loss | step | " + " | ".join(SHOWN.values()) + " |", "| --- " * 9 + "|"]
    for label, seeds in runs.items():
        for looks in zip(*seeds, strict=True):
            cells = []
            for name in SHOWN:
                values = [look[name] for look in looks]
                is_there = None not in values
                cells.append(f"{sum(values) / len(values):.3f}" if is_there else "-")
            lines.append(f"| {label} | {looks[0]['step']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Train all and write what was seen."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder to write to")
    parser.add_argument("--steps", type=int, default=300, help="steps of each training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 21], help="encoder seeds")
    parser.add_argument("--temperature", type=float, default=0.5, help="softmax temperature")
    parser.add_argument("--losses", nargs="+", choices=[*LOSSES], default=[*LOSSES])
    options = parser.parse_args()
    runs = {
        name: [train(LOSSES[name](options.temperature), seed, options.steps)
               for seed in options.seeds]
        for name in options.losses
    }  # fmt: skip
    options.output.mkdir(parents=True, exist_ok=True)
    numbers = {"steps": options.steps, "seeds": options.seeds, "temperature": options.temperature}
    (options.output / "numbers.json").write_text(json.dumps({**numbers, "runs": runs}, indent=1))
    (options.output / "table.md").write_text(table(runs) + "\n", encoding="utf-8")
    draw(runs).savefig(options.output / "figure.png", dpi=100)
    print(table(runs))


if __name__ == "__main__":
    main()
