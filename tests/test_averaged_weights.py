"""Lightning's averages of weights: the keys of a queue are those of the training."""

import pytest
import torch
from cases import few
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import (
    EMAWeightAveraging,
    ModelCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)
from torch.utils.data import DataLoader

from weince_lightning import ContrastiveModule, WEINCELoss

AVERAGES = {
    "ema": lambda: EMAWeightAveraging(decay=0.9),
    "own buffers": lambda: EMAWeightAveraging(decay=0.9, use_buffers=False),
    "equal": WeightAveraging,
    "swa": lambda: StochasticWeightAveraging(0.01, swa_epoch_start=1, annealing_epochs=1),
}
QUEUE = ("vectors", "ids", "has_id")


def batches():
    generator = torch.Generator().manual_seed(0)
    pairs = torch.rand(40, 2, 1, 8, 8, generator=generator)
    return DataLoader(
        pairs, 8, collate_fn=lambda part: (torch.stack(part).unbind(1), torch.ones(8))
    )


def train(folder, average, epochs, resume=None):
    """Train with a queue that is full and has moved on; return the module and the trainer."""
    seed_everything(0, verbose=False)
    loss = WEINCELoss.released(queue_size=20)
    module = ContrastiveModule("convnet", loss, in_channels=1, image_size=8, learning_rate=0.01)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        default_root_dir=folder,
        callbacks=[average, ModelCheckpoint(folder, save_top_k=-1, filename="{epoch}")],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, batches(), batches(), ckpt_path=resume)
    return module, trainer


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("name", few(AVERAGES))
def test_a_checkpoint_of_averaged_weights_has_the_keys_of_the_training(name, tmp_path):
    module, trainer = train(tmp_path, AVERAGES[name](), 2)
    # SWA adds an epoch for BatchNorm, which moves the queue on too.
    last = max(tmp_path.glob("*.ckpt"))
    saved = torch.load(last, weights_only=True)["state_dict"]
    own = module.loss.queue.state_dict()
    assert module.loss.queue.filled == 20
    for column in QUEUE:
        assert torch.equal(saved[f"loss.queue.{column}"], own[column])
    told = trainer.callback_metrics["val/loss"]
    again = ContrastiveModule.load_from_checkpoint(last)
    (found,) = trainer.validate(again, batches(), verbose=False)
    if name != "swa":  # which validates with the weights that train
        assert found["val/loss"] == told.item()
    resumed, _ = train(tmp_path / "more", AVERAGES[name](), 2, tmp_path / "epoch=0.ckpt")
    for key, value in module.state_dict().items():
        assert torch.equal(resumed.state_dict()[key], value), key
