"""Two modalities, real and small: emoji in two drawing styles, each found from the other.

    npm pack emoji-datasource-google@16.0.0 emoji-datasource-twitter@16.0.0
    for style in google twitter; do
        mkdir -p data/emoji/$style
        tar -xzf emoji-datasource-$style-16.0.0.tgz -C data/emoji/$style
    done
    python benchmarks/emoji_retrieval.py --data data/emoji --output docs/results/emoji_retrieval

Trains two small encoders, one for each style, with InfoNCE and with WEINCE
between the styles, and asks of emoji from subcategories that were held out of the training: is the
nearest picture of the other style the same emoji? The temperature is learnt beside the encoders, as
in CLIP, so that each loss has the one that it asks for and none is tuned on what is measured.
Pixels compared as they are give the baseline. Writes the numbers after every training, and a table
and a figure at the end; called again, it goes on with what is missing.
"""

import argparse
import copy
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from kept_runs import read_runs, write_runs
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn
from torch.nn import functional as F

from weince_lightning import InfoNCELoss, WEINCELoss
from weince_lightning.data.pixel_operations import turn_images
from weince_lightning.functional.neighbours import nearest_neighbours
from weince_lightning.networks import build_encoder
from weince_lightning.reporting.intervals import Summary, paired_difference, summarise

STYLES = ("google", "twitter")
DIRECTIONS = ("google_to_twitter", "twitter_to_google")
SIZE = 16
"""Side of the encoders' images in pixels; the files have 64."""
DIMENSION = 128
"""Length of the embeddings."""
LOSSES = {
    "InfoNCE": lambda: InfoNCELoss(layout="pairs"),
    "WEINCE, the paper's form": lambda: WEINCELoss(layout="pairs"),
    "WEINCE with shape 1": lambda: WEINCELoss(layout="pairs", shape=1.0),
}
BASELINE = "InfoNCE"
HELD_OUT = 0.2
"""Share of the emoji that are held out, at most."""
FIRST_TEMPERATURE, LEAST_TEMPERATURE = 0.07, 0.01
"""CLIP's."""
HOW_TO_GET = """{path} is not there. Both packages of npm can be had with
    npm pack emoji-datasource-google@16.0.0 emoji-datasource-twitter@16.0.0
Unpack each in the folder DATA/google or DATA/twitter, so that it holds package/emoji.json."""


class Emoji(NamedTuple):
    """Pairs of pictures."""

    pictures: tuple[Tensor, Tensor]
    """Of each style: RGBA, the colours multiplied by alpha, shape ``(emoji, 4, 64, 64)``."""
    subcategories: list[str]
    """Of each emoji."""
    drawings: tuple[Tensor, Tensor]
    """Numbers, equal where the pictures of a style are, shape ``(emoji,)``."""
    ids: Tensor
    """Equal where emoji share a picture in either style, shape ``(emoji,)``."""


def load(data: Path) -> Emoji:
    """Read the pictures that both styles have."""
    for style in STYLES:
        path = data / style / "package" / "emoji.json"
        if not path.is_file():
            raise SystemExit(HOW_TO_GET.format(path=path))
    entries = json.loads((data / STYLES[0] / "package" / "emoji.json").read_text(encoding="utf-8"))
    entries = [each for each in entries if all(each[f"has_img_{style}"] for style in STYLES)]
    pixels = [
        np.stack([_read(data / style / "package" / "img" / style / "64" / entry["image"])
                  for entry in entries])
        for style in STYLES
    ]  # fmt: skip
    rows = [each.reshape(len(each), -1) for each in pixels]
    # NumPy 2.0 gives a column.
    drawings = [np.unique(r, axis=0, return_inverse=True)[1].reshape(-1) for r in rows]
    return Emoji(
        (_premultiplied(pixels[0]), _premultiplied(pixels[1])),
        [entry["subcategory"] for entry in entries],
        (torch.from_numpy(drawings[0]), torch.from_numpy(drawings[1])),
        torch.from_numpy(_connected(drawings)),
    )


def _read(path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as image:  # grey, palette or colour
        return np.asarray(image.convert("RGBA"))


def _premultiplied(pixels: NDArray[np.uint8]) -> Tensor:
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    return torch.cat([images[:, :3] * images[:, 3:], images[:, 3:]], dim=1)


def _connected(drawings: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Number the emoji so that those that share a drawing have one number."""
    count = len(drawings[0])
    own = np.tile(np.arange(count), 2)
    first, second = (np.unique(each, return_inverse=True)[1] for each in drawings)
    nodes = np.concatenate([count + first, count + first.max() + 1 + second])
    graph = coo_array((np.ones(2 * count), (own, nodes)), shape=(nodes.max() + 1,) * 2)
    return connected_components(graph, directed=False)[1][:count].astype(np.int64)


def hold_out(subcategories: Sequence[str], seed: int) -> Tensor:
    """Draw whole subcategories, in which the near-duplicates are; a mask of shape ``(emoji,)``."""
    names, sizes = np.unique(np.array(subcategories), return_counts=True)
    left, chosen = HELD_OUT * len(subcategories), set()
    for place in np.random.default_rng(seed).permutation(len(names)):
        if sizes[place] <= left:
            chosen.add(str(names[place]))
            left -= sizes[place]
    return torch.tensor([name in chosen for name in subcategories])


def on_white(pictures: Tensor) -> Tensor:
    """Lay pictures on white, shape ``(pictures, 3, height, width)``."""
    return pictures[:, :3] + 1 - pictures[:, 3:]


def shrink(pictures: Tensor, size: int) -> Tensor:
    """Average pixels."""
    return F.interpolate(pictures, size=(size, size), mode="area")


def draw_views(pair: Sequence[Tensor], random: np.random.Generator) -> list[Tensor]:
    """Make new pairs, so that encoders learn how styles differ and not which emoji there are.

    Both pictures of a pair are mirrored, cut into a collage with those of another, dyed, moved and
    turned in the same way; then each is moved and lit a little on its own.

    Args:
        pair: Of each style pictures, shape ``(emoji, 4, size, size)``.
        random: Where the numbers come from.

    Returns:
        Of each style images on white, shape ``(emoji, 3, size, size)``, in [0, 1].
    """
    count, size = len(pair[0]), pair[0].shape[3]
    is_mirrored = _flags(random, count, 0.5)
    partners = torch.from_numpy(random.permutation(count))
    is_pasted = draw_rectangles(random, count, size) & _flags(random, count, 0.7)
    channels = torch.from_numpy(random.permuted(np.tile(np.arange(3), (count, 1)), axis=1))
    channels = torch.where(_flags(random, count, 0.5)[:, :, 0, 0], channels, torch.arange(3))
    is_negative = _flags(random, count, 0.15)
    gain = torch.from_numpy(random.uniform(0.5, 1, (count, 3, 1, 1))).float()
    gain = torch.where(_flags(random, count, 0.5), gain, 1.0)
    angle, scale, shift = draw_moves(random, count, 15, 0.1, 0.05)
    views = []
    for pictures in pair:
        pictures = torch.where(is_mirrored, pictures.flip(3), pictures)
        pictures = torch.where(is_pasted, pictures[partners], pictures)
        colours, alpha = pictures[:, :3], pictures[:, 3:]
        colours = colours.gather(1, channels[:, :, None, None].expand_as(colours))
        colours = gain * torch.where(is_negative, alpha - colours, colours)
        own_angle, own_scale, own_shift = draw_moves(random, count, 6, 0.06, 0.04)
        moved = turn_images(
            torch.cat([colours, alpha], dim=1),
            angle + own_angle,
            *(shift + own_shift) * size,
            scale * own_scale,
        )
        light = torch.from_numpy(random.uniform(0.9, 1.1, (count, 1, 1, 1))).float()
        views.append((on_white(moved) * light).clamp_(0, 1))
    return views


def draw_rectangles(random: np.random.Generator, count: int, size: int) -> Tensor:
    """Draw rectangles of a quarter to two thirds of the side; masks ``(count, 1, size, size)``."""
    first = random.uniform(0, 0.6, (2, count, 1))
    last = first + random.uniform(0.25, 0.67, (2, count, 1))
    middles = (np.arange(size) + 0.5) / size
    rows, columns = torch.from_numpy((first < middles) & (middles < last))
    return (rows[:, :, None] & columns[:, None, :])[:, None]


def draw_moves(
    random: np.random.Generator, count: int, degrees: float, log_scale: float, shift: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Draw angles in radians, scales, and shifts to the right and down as shares of the side."""
    return (
        np.deg2rad(random.uniform(-degrees, degrees, count)),
        np.exp(random.uniform(-log_scale, log_scale, count)),
        random.uniform(-shift, shift, (2, count)),
    )


def _flags(random: np.random.Generator, count: int, probability: float) -> Tensor:
    """Draw which pictures are touched, shape ``(count, 1, 1, 1)``."""
    return torch.from_numpy(random.random((count, 1, 1, 1)) < probability)


def recall(sides: Sequence[Tensor], drawings: Sequence[Tensor]) -> dict[str, float]:
    """Count how often the nearest picture of the other style shows the same emoji."""
    found = {}
    for direction, start in zip(DIRECTIONS, (0, 1), strict=True):
        nearest = nearest_neighbours(sides[start], sides[1 - start], k=1).indices[:, 0]
        is_right = drawings[1 - start][nearest] == drawings[1 - start]
        found[direction] = float(is_right.double().mean())
    return found


def pixel_recall(emoji: Emoji, asked: Tensor, seen: Tensor) -> dict[str, dict[str, float]]:
    """Compare pixels of the emoji ``asked``; means are taken over those that were ``seen``."""
    found = {}
    drawings = [each[asked] for each in emoji.drawings]
    for name, size, is_centred in (("64 px", 64, False), ("16 px, centred", 16, True)):
        sides = []
        for pictures in emoji.pictures:
            pixels = shrink(on_white(pictures), size).flatten(1)
            sides.append(pixels[asked] - (pixels[seen].mean(dim=0) if is_centred else 0))
        found[f"pixels, {name}"] = recall(sides, drawings)
    return found


class Towers(nn.Module):
    """An encoder and a linear head for each style, as in CLIP, and the temperature between them.

    They share no weight, but start from the same ones: then they are near each other at once.
    """

    def __init__(self) -> None:
        super().__init__()
        encoder = build_encoder("convnet", in_channels=3, image_size=SIZE)
        tower = nn.Sequential(encoder, nn.Linear(512, DIMENSION, bias=False))
        self.towers = nn.ModuleList([tower, copy.deepcopy(tower)])
        self.log_temperature = nn.Parameter(torch.tensor(math.log(FIRST_TEMPERATURE)))

    def forward(self, pair: Sequence[Tensor]) -> list[Tensor]:
        """Return the embeddings of both styles."""
        return [tower(images) for tower, images in zip(self.towers, pair, strict=True)]


def train(emoji: Emoji, loss: nn.Module, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train once; returns what was found on the way and at the end."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    is_held_out = hold_out(emoji.subcategories, seed)
    model = Towers()
    if options.temperature is not None:
        nn.init.constant_(model.log_temperature, math.log(options.temperature))
        model.log_temperature.requires_grad_(False)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay
    )
    small = [shrink(pictures, SIZE) for pictures in emoji.pictures]
    seen = torch.nonzero(~is_held_out)[:, 0]
    batch = min(options.batch_size, len(seen))
    steps = options.epochs * (len(seen) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.learning_rate, max(2, steps), pct_start=0.1
    )
    curve, start = [], time.process_time()
    for epoch in range(options.epochs):
        model.train()
        order = seen[torch.from_numpy(random.permutation(len(seen)))]
        for chosen in order[: len(order) // batch * batch].split(batch):
            z0, z1 = model(draw_views([pictures[chosen] for pictures in small], random))
            temperature = model.log_temperature.exp()
            terms = loss.terms(z0, z1, emoji.ids[chosen], temperature=temperature)
            optimizer.zero_grad()
            terms.loss.backward()
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                model.log_temperature.clamp_(min=math.log(LEAST_TEMPERATURE))
        if (epoch + 1) % options.look_every == 0 or epoch + 1 == options.epochs:
            held_out = embed_and_score(model, emoji, small, is_held_out)
            curve.append({"epoch": epoch + 1, **held_out})
    return {
        **curve[-1],
        "training": embed_and_score(model, emoji, small, ~is_held_out),
        "loss_of_last_batch": float(terms.loss.detach()),
        "gate_of_last_batch": None if terms.tail is None else float(terms.tail.gate.mean()),
        "temperature": float(model.log_temperature.detach().exp()),
        "processor_seconds": time.process_time() - start,
        "curve": curve,
    }


@torch.no_grad()
def embed_and_score(
    model: Towers, emoji: Emoji, small: Sequence[Tensor], asked: Tensor
) -> dict[str, float]:
    """Measure the encoders in evaluation mode, on pictures as they are."""
    model.eval()
    sides = model([on_white(pictures[asked]) for pictures in small])
    return recall(sides, [each[asked] for each in emoji.drawings])


def by_seed(runs: Sequence[dict[str, Any]], name: str, direction: str) -> dict[int, float]:
    """Pick out what a loss, or pixels, reached with each seed."""
    return {run["seed"]: run[direction] for run in runs if run["name"] == name}


def table(runs: Sequence[dict[str, Any]], pixels_of_all: dict[str, dict[str, float]]) -> str:
    """Set means over the seeds and differences to InfoNCE in a table."""
    names = list(dict.fromkeys(run["name"] for run in runs))
    lines = [
        "| recall@1 in per cent | google to twitter | difference | twitter to google | difference "
        "| temperature |\n" + "| --- " * 6 + "|"
    ]
    for name in names:
        cells = [name]
        for direction in DIRECTIONS:
            values = by_seed(runs, name, direction)
            baseline = by_seed(runs, BASELINE, direction)
            difference = None if name == BASELINE else paired_difference(values, baseline)
            cells += [_mean(summarise(list(values.values()))), _difference(difference)]
        learnt = [run["temperature"] for run in runs if run["name"] == name]
        cells.append("-" if None in learnt else f"{sum(learnt) / len(learnt):.3f}")
        lines.append(f"| {' | '.join(cells)} |")
    seeds = sorted({run["seed"] for run in runs})
    candidates = sorted({run["candidates"] for run in runs})
    lines.append(
        f"\nMean and 95 % t-interval over the seeds {', '.join(map(str, seeds))}, each with "
        f"subcategories of its own held out ({' or '.join(map(str, candidates))} emoji, which are "
        "the candidates); differences to InfoNCE are paired by seed, * marks intervals without 0."
    )
    for name, found in pixels_of_all.items():
        first, second = (f"{100 * found[direction]:.1f}" for direction in DIRECTIONS)
        lines.append(f"\nOver all emoji, nothing held out: {name}: {first} and {second}.")
    return "\n".join(lines)


def _mean(summary: Summary) -> str:
    half = "" if summary.half_width is None else f" ± {100 * summary.half_width:.1f}"
    return f"{100 * summary.mean:.1f}{half}"


def _difference(summary: Summary | None) -> str:
    if summary is None:
        return "-"
    if summary.interval is None:
        return f"{100 * summary.mean:+.1f}"
    low, high = (f"{100 * end:+.1f}" for end in summary.interval)
    return f"{100 * summary.mean:+.1f} [{low}, {high}]{' *' if summary.excludes_zero else ''}"


def draw(runs: Sequence[dict[str, Any]]) -> Figure:
    """Draw recall over the training, a line for each seed; pixels are dashed, as their mean."""
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    names = list(dict.fromkeys(run["name"] for run in runs))
    for axes, direction in zip(panels, DIRECTIONS, strict=True):
        for place, name in enumerate(names):
            own = [run for run in runs if run["name"] == name]
            color = f"C{place}"
            for number, run in enumerate(own):
                label = None if number else name
                if run["curve"]:
                    points = [(look["epoch"], 100 * look[direction]) for look in run["curve"]]
                    axes.plot(*zip(*points, strict=True), color, label=label, linewidth=1)
                elif not number:
                    mean = sum(run[direction] for run in own) / len(own)
                    axes.axhline(100 * mean, color=color, label=label, linestyle="--", linewidth=1)
        axes.set(title=direction.replace("_", " "), xlabel="epoch")
    panels[0].set_ylabel("recall@1 in %, held-out subcategories")
    panels[1].legend(fontsize="small")
    return figure


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder that holds google/ and twitter/"
    )
    parser.add_argument("--output", type=Path, required=True, help="folder to write to")
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 21, 63])
    parser.add_argument("--losses", nargs="+", choices=[*LOSSES], default=[*LOSSES])
    parser.add_argument("--temperature", type=float, help="a fixed one in place of the learnt one")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--look-every", type=int, default=5, help="epochs between looks")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    """Train all and write what was found."""
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    emoji = load(options.data)
    everything = torch.ones(len(emoji.ids), dtype=torch.bool)
    pixels_of_all = pixel_recall(emoji, everything, everything)
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "numbers.json"
    settings = {
        name: value
        for name, value in vars(options).items()
        if not isinstance(value, Path) and name not in ("losses", "seeds")
    }
    numbers: dict[str, Any] = {
        "benchmark": "emoji_retrieval",
        "settings": settings,
        "emoji": len(emoji.ids),
        "pixels_of_all": pixels_of_all,
        "runs": read_runs(path, settings),
    }
    runs = numbers["runs"]
    done = {(run["name"], run["seed"]) for run in runs}
    for seed in options.seeds:
        for name in options.losses:
            if (name, seed) in done:
                continue
            found = train(emoji, LOSSES[name](), seed, options)
            candidates = int(hold_out(emoji.subcategories, seed).sum())
            runs.append({"name": name, "seed": seed, "candidates": candidates, **found})
            write_runs(path, numbers)
            print(f"{name}, seed {seed}: {100 * found[DIRECTIONS[0]]:.1f} %", flush=True)
    for seed in options.seeds:
        asked = hold_out(emoji.subcategories, seed)
        for name, found in pixel_recall(emoji, asked, ~asked).items():
            if (name, seed) not in done:
                place = {"name": name, "seed": seed, "candidates": int(asked.sum())}
                runs.append({**place, **found, "temperature": None, "curve": []})
    order = [*LOSSES, *pixels_of_all]
    runs.sort(key=lambda run: (order.index(run["name"]), run["seed"]))
    write_runs(path, numbers)
    (options.output / "table.md").write_text(table(runs, pixels_of_all) + "\n", encoding="utf-8")
    draw(runs).savefig(options.output / "figure.png", dpi=100)
    print(table(runs, pixels_of_all))


if __name__ == "__main__":
    main()
