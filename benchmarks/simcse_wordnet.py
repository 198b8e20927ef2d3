"""Unsupervised SimCSE with InfoNCE and with WEINCE: do definitions find their examples?

    python benchmarks/wordnet_sentences.py data/wordnet
    python benchmarks/simcse_wordnet.py --output docs/results/simcse_wordnet

Trains a small BERT from scratch on WordNet as ``weince fit -c simcse/wordnet_tiny -c loss/LOSS``
does, with each loss and seed, and then asks with each definition of test.tsv for its example among
1,000: ``retrieval/top1``. Beside it stand the encoder of each seed before training and tf-idf with
the training lines' frequencies. Writes numbers.json after every training, and table.md at the end;
called again, it goes on with what is missing.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from kept_runs import read_runs, write_runs
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import LightningCLI
from sklearn.feature_extraction.text import TfidfVectorizer

from weince_lightning.callbacks import SentenceSimilarityMonitor
from weince_lightning.data import SentenceData
from weince_lightning.data.pairs import read_pairs
from weince_lightning.functional.retrieval import top1_among
from weince_lightning.reporting.intervals import Summary, paired_difference, summarise

CONFIGS = Path(str(files("weince_lightning.configs")))
TEMPERATURE = 0.1  # that of the configuration
CANDIDATES = 1000
LOSSES = {
    "InfoNCE": ["-c", f"{CONFIGS}/loss/infonce.yaml"],
    "WEINCE, the paper's form": ["-c", f"{CONFIGS}/loss/weince.yaml"],
    "WEINCE with shape 1": ["-c", f"{CONFIGS}/loss/weince.yaml", "--model.loss.shape=1.0"],
}
"""Arguments that are added."""
BASELINE, UNTRAINED = "InfoNCE", "untrained"


def train(loss: Sequence[str], seed: int, data: Path, options: Sequence[str]) -> Any:
    """Train as ``weince fit`` does; return Lightning's command line, with its model and data."""
    files = {"train_file": "train.txt", "tokenizer": "vocab.txt", "retrieval_file": "val.tsv"}
    files["test_retrieval_file"] = "test.tsv"
    with TemporaryDirectory() as folder:
        arguments = ["fit", "-c", f"{CONFIGS}/simcse/wordnet_tiny.yaml", *loss]
        arguments += [f"--model.loss.temperature={TEMPERATURE}"]
        arguments += [f"--data.{name}={data / file}" for name, file in files.items()]
        arguments += [f"--seed_everything={seed}", "--trainer.logger=false", *options]
        arguments += [f"--trainer.default_root_dir={folder}", "--trainer.accelerator=cpu"]
        return LightningCLI(
            LightningModule, LightningDataModule, save_config_callback=None,
            subclass_mode_model=True, subclass_mode_data=True,
            auto_configure_optimizers=False, args=arguments,
        )  # fmt: skip


def score(model: LightningModule, data: SentenceData) -> float:
    """Return the share of the test definitions that find their example."""
    trainer = Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[SentenceSimilarityMonitor(CANDIDATES)],
    )  # fmt: skip
    (metrics,) = trainer.test(model, data, verbose=False)
    return metrics["retrieval/top1"]


def score_tf_idf(data: Path) -> float:
    """Return the same for counts of words, weighted by their rarity in the training lines."""
    weights = TfidfVectorizer().fit((data / "train.txt").read_text(encoding="utf-8").splitlines())
    pairs = read_pairs(data / "test.tsv")
    size = min(CANDIDATES, len(pairs))
    found = []
    for first in range(0, len(pairs) // size * size, size):  # whole, the counts would be gigabytes
        firsts, seconds, _ = zip(*pairs[first : first + size], strict=True)
        counts = [weights.transform(side).toarray() for side in (firsts, seconds)]
        found.append(top1_among(*map(torch.from_numpy, counts), CANDIDATES).item())
    return float(np.mean(found))


def table(runs: Sequence[Mapping[str, Any]], tf_idf: float) -> str:
    """Set means over the seeds in a table, with intervals and differences paired by seed."""
    top1: dict[str, dict[int, float]] = {}
    for run in runs:
        top1.setdefault(run["name"], {})[run["seed"]] = run["top1"]
    lines = [
        f"| encoder | top-1 among {CANDIDATES} | minus {UNTRAINED} | minus {BASELINE} | seeds |",
        "| --- | --- | --- | --- | --- |",
        f"| tf-idf | {tf_idf:.4f} | - | - | - |",
    ]
    for name in (name for name in (UNTRAINED, *LOSSES) if name in top1):
        cells = [_show(summarise(list(top1[name].values())))]
        for other in (UNTRAINED, BASELINE):
            is_known = other != name and other in top1
            difference = paired_difference(top1[name], top1[other]) if is_known else None
            cells.append(_show(difference, sign="+") if difference else "-")
        lines.append(f"| {name} | {' | '.join(cells)} | {len(top1[name])} |")
    return "\n".join(lines)


def _show(summary: Summary, sign: str = "") -> str:
    half = "" if summary.half_width is None else f" ± {summary.half_width:.4f}"
    return f"{summary.mean:{sign}.4f}{half}"


def main() -> None:
    """Train all, and write what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder to write to")
    parser.add_argument("--data", type=Path, default=Path("data/wordnet"), help="the text files")
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 21, 63], help="encoder seeds")
    parser.add_argument("--losses", nargs="+", choices=[*LOSSES], default=[*LOSSES])
    parser.add_argument("--threads", type=int, default=1, help="threads of a training")
    given, options = parser.parse_known_args()  # the rest is for weince fit
    torch.set_num_threads(given.threads)
    given.output.mkdir(parents=True, exist_ok=True)
    path = given.output / "numbers.json"
    settings = {"options": options, "threads": given.threads}
    runs = read_runs(path, settings)
    numbers = {"benchmark": "simcse_wordnet", "settings": settings}
    numbers |= {"tf-idf": score_tf_idf(given.data), "runs": runs}
    done = {(run["name"], run["seed"]) for run in runs}
    for seed in given.seeds:
        for name in (name for name in (UNTRAINED, *given.losses) if (name, seed) not in done):
            start = time.perf_counter()
            more = ["--trainer.max_steps=0"] if name == UNTRAINED else []
            command = train(LOSSES.get(name, LOSSES[BASELINE]), seed, given.data, [*options, *more])
            seconds = None if name == UNTRAINED else time.perf_counter() - start
            top1 = score(command.model, command.datamodule)
            runs.append({"name": name, "seed": seed, "top1": top1, "seconds": seconds})
            write_runs(path, numbers)
    found = table(runs, numbers["tf-idf"])
    (given.output / "table.md").write_text(found + "\n", encoding="utf-8")
    print(found)


if __name__ == "__main__":
    main()
