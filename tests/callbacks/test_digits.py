"""The callbacks beside a ContrastiveModule on the bundled digits."""

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from sklearn.neighbors import KNeighborsClassifier

from weince_lightning import ContrastiveModule
from weince_lightning.callbacks import (
    GeometryMonitor,
    KNNMonitor,
    OnlineLinearProbe,
    TailMonitor,
)
from weince_lightning.data import VisionData
from weince_lightning.evaluation.features import extract_features

pytestmark = pytest.mark.slow  # the same is tested, on less data, for each monitor


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Two epochs with some callbacks, from the same seed."""

    def run(callbacks):
        torch.manual_seed(7)
        module = ContrastiveModule("convnet", in_channels=1, image_size=16)
        data = VisionData("digits", batch_size=256)
        trainer = Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=2,
            logger=TensorBoardLogger(tmp_path_factory.mktemp("digits")),
            callbacks=callbacks,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=1,
        )
        trainer.fit(module, data)
        stream = torch.get_rng_state()
        return SimpleNamespace(module=module, data=data, trainer=trainer, stream=stream)

    return run


@pytest.fixture(scope="module")
def watched(train):
    return train(
        [TailMonitor(), KNNMonitor(), OnlineLinearProbe(num_classes=10), GeometryMonitor()]
    )


def test_knn_accuracy_is_that_of_scikit_learn(watched):
    bank, bank_labels = extract_features(
        watched.module, watched.data.evaluation_dataloader("train")
    )
    queries, labels = extract_features(watched.module, watched.data.evaluation_dataloader("val"))
    classifier = KNeighborsClassifier(
        n_neighbors=20,
        metric="cosine",
        algorithm="brute",
        weights=lambda distance: torch.exp((1 - torch.from_numpy(distance)) / 0.1).numpy(),
    )
    classifier.fit(bank.numpy(), bank_labels.numpy())
    wanted = classifier.score(queries.numpy(), labels.numpy())
    assert watched.trainer.callback_metrics["knn/top1_k20"].item() == pytest.approx(wanted)


def test_the_probe_learns_more_than_chance(watched):
    # Seeds 7 to 11: 0.76 to 0.80. In validation, where ten steps have hardly moved the running
    # statistics of BatchNorm, they range from 0.11 to 0.49.
    assert watched.trainer.callback_metrics["probe/train_top1"] > 0.7


def test_tensorboard_holds_the_histograms_of_every_anchor(watched, read_events):
    events = read_events(watched.trainer.logger.log_dir)
    for name in ("tail/lambda", "tail/beta_hat", "tail/rho", "tail/delta_aic"):
        assert events.Histograms(name)[0].histogram_value.num == 512


def test_the_encoder_is_bit_identical_without_callbacks(watched, train):
    alone = train([])
    state = watched.module.state_dict()
    assert all(torch.equal(state[name], v) for name, v in alone.module.state_dict().items())
    assert torch.equal(watched.stream, alone.stream)
    assert watched.trainer.global_step == alone.trainer.global_step
