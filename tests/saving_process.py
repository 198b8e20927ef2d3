"""Train and save without pause in a child that is killed at a random moment, again and again.

``python saving_process.py FOLDER KILLS`` prints, as JSON, for each kill how many saves the child
had completed, and what lies in its folder afterwards.
"""

import json
import logging
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from weince_lightning.checkpoints.saving import save_atomically

NUM_WEIGHTS = 6_000_000  # 24 MB: a save takes some 50 ms
ARRANGEMENTS = (
    {"filename": "last", "enable_version_counter": False},  # written over, as in our configurations
    {"filename": "{step}", "save_last": True},  # written anew, and the older one removed
)


class Numbered(LightningModule):
    """A model whose every weight is the number of the step."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(NUM_WEIGHTS))

    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            self.weight.fill_(self.global_step + 1)
        return 0.0 * self.weight[0]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)

    def train_dataloader(self):
        return DataLoader(torch.zeros(10_000, 1), batch_size=1)


class Announce(Callback):
    """Tell the parent that a save begins, and that those of a step are over."""

    def __init__(self, pipe):
        self.pipe = pipe

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        os.write(self.pipe, b"(")

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        os.write(self.pipe, b")")


def train(folder, pipe, arrangement):
    saving = ModelCheckpoint(folder, every_n_train_steps=1, **arrangement)
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        max_epochs=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Announce(pipe), saving],
    )
    save_atomically(trainer)
    trainer.fit(Numbered())


def kill_during_a_save(folder, arrangement, source):
    """Kill a child in its third save or somewhat later; return how many steps it had saved."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            train(folder, writing, arrangement)
        finally:
            os._exit(1)
    os.close(writing)
    seen, begin, duration = b"", 0.0, 0.0
    while seen.count(b")(") < 3:
        seen += (byte := os.read(reading, 1))
        if not byte:
            raise RuntimeError("The child ended by itself.")
        if byte == b"(":
            begin = time.monotonic()
        else:
            duration = time.monotonic() - begin
    time.sleep(source.uniform(0.0, 1.2) * duration)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while byte := os.read(reading, 100):  # what it wrote meanwhile
        seen += byte
    os.close(reading)
    return seen.count(b")") - 1  # the first one comes before the first step


def content(path):
    """Return the step of a checkpoint, or what is wrong with it."""
    try:
        checkpoint = torch.load(path, weights_only=True)
    except (RuntimeError, EOFError, ValueError) as error:
        return str(error)
    weight = checkpoint["state_dict"]["weight"]
    is_one = bool((weight == checkpoint["global_step"]).all())
    return checkpoint["global_step"] if is_one else "weights of several steps"


def main(folder, kills):
    torch.set_num_threads(1)  # what has threads cannot be forked
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    source, reports = random.Random(0), []
    for kill in range(kills):
        run = folder / str(kill)
        saved = kill_during_a_save(run, ARRANGEMENTS[kill % 2], source)
        files = {path.name: content(path) for path in run.glob("*.ckpt")}
        parts = [path.name for path in run.iterdir() if path.name not in files]
        reports.append({"saved": saved, "files": files, "parts": parts})
    sys.stdout.write(json.dumps(reports))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
