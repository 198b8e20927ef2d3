"""What WEINCE adds to a training step, as a share of the step with InfoNCE.

The losses are timed alone, on the projections of the batch: the difference of two whole steps
would be lost in the noise of the encoder's time. One round is a whole step, then many pairs of the
two losses.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from compared_losses import LOSSES, forward_backward
from measurement import (
    create_parser,
    parse_arguments,
    print_table,
    progress,
    ratio,
    show,
    summarise,
    time_calls,
    time_interleaved,
    write_report,
)
from torch import Tensor

from weince_lightning import ContrastiveModule

Views = tuple[Tensor, Tensor]


def training_step(module: ContrastiveModule, views: Views) -> Callable[[], Any]:
    """Return a call of forward, loss, backward and Adam's step; the data are ready in memory."""
    optimizer: Any = module.configure_optimizers()
    batch = (views, torch.zeros(len(views[0]), dtype=torch.int64))

    def call() -> None:
        optimizer.zero_grad()
        module.step(batch)["loss"].backward()
        optimizer.step()

    return call


def project(module: ContrastiveModule, views: Views) -> Views:
    """Return the projections of both views, as leaves."""
    with torch.no_grad():
        z0, z1 = (module.encode(view)[1] for view in views)
    return z0.requires_grad_(), z1.requires_grad_()


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time steps and losses in turn."""
    torch.manual_seed(0)
    size = arguments.image_size
    module = ContrastiveModule(
        arguments.backbone,
        loss=LOSSES["InfoNCELoss"].create(),
        image_size=size,
        projection_dim=arguments.features,
    )
    images = torch.rand(arguments.batch_size, 3, size, size)
    views = (images, (images + 0.1 * torch.randn_like(images)).clamp(0.0, 1.0))
    projections = project(module, views)
    losses = {
        name: forward_backward(LOSSES[name].create(), *projections)
        for name in ("InfoNCELoss", "WEINCELoss")
    }
    step = training_step(module, views)
    step()  # allocates Adam's state
    infonce, weince, difference, steps = [], [], [], []
    for done in range(arguments.rounds):
        progress(f"round {done + 1} of {arguments.rounds}")
        steps.append(time_calls(step))
        times = time_interleaved(losses, arguments.pairs)
        both = list(zip(times["InfoNCELoss"], times["WEINCELoss"], strict=True))
        infonce.append(statistics.median(times["InfoNCELoss"]))
        weince.append(statistics.median(times["WEINCELoss"]))
        difference.append(statistics.median(after - before for before, after in both))
    return {
        "infonce_seconds": summarise(infonce),
        "weince_seconds": summarise(weince),
        "difference_seconds": summarise(difference),
        "step_seconds": summarise(steps),
        "overhead": ratio(difference, steps),
    }


def main() -> None:
    """Run the benchmark."""
    parser = create_parser(__doc__, features=64)
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7, help="whole steps")
    parser.add_argument("--pairs", type=int, default=21, help="pairs of the losses in a round")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parse_arguments(parser, {"batch_size": 8, "rounds": 2, "pairs": 3, "threads": 1})
    torch.set_num_threads(arguments.threads)
    row = measure(arguments)
    print(
        f"{arguments.backbone}, batch {arguments.batch_size} of {arguments.image_size} x "
        f"{arguments.image_size}, float32, {arguments.threads} threads: median (quartiles).\n"
    )
    print_table(
        ("what", "time"),
        [
            ("InfoNCE, forward and backward", f"{show(row['infonce_seconds'], 1e3)} ms"),
            ("WEINCE, forward and backward", f"{show(row['weince_seconds'], 1e3)} ms"),
            ("WEINCE minus InfoNCE", f"{show(row['difference_seconds'], 1e3)} ms"),
            ("training step with InfoNCE", f"{show(row['step_seconds'], 1e3)} ms"),
            ("overhead of WEINCE", f"{show(row['overhead'], 1e2)} %"),
        ],
    )
    progress(f"Written to {write_report(arguments, [row])}")


if __name__ == "__main__":
    main()
