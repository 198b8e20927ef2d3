import tracemalloc

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torchvision.transforms.functional import pil_to_tensor

from weince_lightning.data import VisionData
from weince_lightning.data.order import EpochOrder


def order_of(seed=0, epoch=0, first=0):
    order = EpochOrder(10, seed)
    order.epoch, order.first = epoch, first
    return list(order)


def test_every_epoch_has_each_image_once_and_order_and_seeds_of_its_own():
    epochs = [order_of(epoch=epoch) for epoch in range(3)]
    assert all(sorted(image for image, _ in epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(image for image, _ in epoch) for epoch in epochs}) == 3
    assert len({seed for epoch in epochs for _, seed in epoch}) == 30


def test_order_depends_on_seed_and_epoch_alone():
    assert order_of(5, 2) == order_of(5, 2)
    assert order_of(5, 2) != order_of(6, 1)


def test_what_has_been_seen_comes_last():
    whole = order_of()
    assert order_of(first=4) == whole[4:] + whole[:4]


@pytest.mark.parametrize("processes", [2, 3])
def test_batches_of_all_processes_make_up_those_of_one(processes, monkeypatch):
    whole = order_of()
    shares = []
    for rank in range(processes):
        monkeypatch.setattr("weince_lightning.data.order.world_size", lambda: processes)
        monkeypatch.setattr("weince_lightning.data.order.rank", lambda rank=rank: rank)
        shares.append(order_of())
    dealt = [pair for step in zip(*shares, strict=True) for pair in step]
    assert dealt == (whole + whole)[: len(dealt)]


@pytest.mark.parametrize("first", [0, 4, 9])
@pytest.mark.parametrize("processes", [1, 3])
def test_order_is_the_same_in_blocks_as_whole(processes, first, monkeypatch):
    monkeypatch.setattr("weince_lightning.data.order.BLOCK", 3)
    monkeypatch.setattr("weince_lightning.data.order.world_size", lambda: processes)
    generator = np.random.default_rng((5, 2))
    images = generator.permutation(10)
    seeds = generator.integers(2**63, size=10)
    size = -(-10 // processes)
    for rank in range(processes):
        monkeypatch.setattr("weince_lightning.data.order.rank", lambda rank=rank: rank)
        own = np.roll(np.resize(images, size * processes)[rank::processes], -first)
        assert order_of(5, 2, first) == list(zip(own.tolist(), seeds[own].tolist(), strict=True))


def test_order_takes_sixteen_bytes_an_image():
    tracemalloc.start()
    for _ in zip(EpochOrder(1_000_000, seed=0), range(20_000), strict=False):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 16e6 < peak < 20e6  # one list of integers takes forty bytes an image


def test_iterations_outside_of_a_trainer_are_epochs():
    loader = VisionData("digits", batch_size=1294, transforms=pil_to_tensor).train_dataloader()
    (first, _), (second, _) = (next(iter(loader)) for _ in range(2))
    assert not torch.equal(first[0], second[0])


def test_a_loader_of_ones_own_in_the_middle_of_an_epoch_starts_at_its_beginning():
    class Look(LightningModule):
        def training_step(self, batch, batch_idx):
            self.lengths = [len(labels) for _, labels in self.trainer.datamodule.train_dataloader()]

        def configure_optimizers(self):
            return None

    model, data = Look(), VisionData("digits", batch_size=300, transforms=pil_to_tensor)
    Trainer(
        accelerator="cpu", max_epochs=1, limit_val_batches=0, logger=False, barebones=True,
        limit_train_batches=2,
    ).fit(model, data)  # fmt: skip
    assert model.lengths == [300] * 4


def test_overfitting_sees_the_same_views_in_every_epoch():
    seen = []

    class Look(LightningModule):
        def training_step(self, batch, batch_idx):
            seen.append(np.stack(batch[0]))

        def configure_optimizers(self):
            return None

    Trainer(accelerator="cpu", max_epochs=2, barebones=True, overfit_batches=1).fit(
        Look(), VisionData("digits", batch_size=8)
    )
    assert len(seen) == 2
    assert np.array_equal(*seen)
