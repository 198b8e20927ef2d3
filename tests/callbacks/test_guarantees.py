"""What holds for all callbacks together: training does not notice them; YAML can name them."""

import random

import numpy as np
import pytest
import torch
from cases import few
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from weince_lightning.callbacks import (
    GeometryMonitor,
    KNNMonitor,
    OnlineLinearProbe,
    SentenceSimilarityMonitor,
    TailMonitor,
)

MONITORS = {
    "tail": lambda: [TailMonitor(every_n_steps=1, figure=True, fit_threshold=True)],
    "knn": lambda: [KNNMonitor()],
    "probe": lambda: [OnlineLinearProbe(num_classes=4)],
    "geometry": lambda: [GeometryMonitor()],
    "sentences": lambda: [SentenceSimilarityMonitor()],
    "all": lambda: [
        TailMonitor(every_n_steps=2, figure=True, fit_threshold=True),
        GeometryMonitor(),
        KNNMonitor(),
        KNNMonitor(name="knn_2"),
        OnlineLinearProbe(num_classes=4),
        OnlineLinearProbe(num_classes=4, name="probe_2"),
    ],
}


@pytest.fixture
def train(make_trainer, make_module, make_data, tmp_path):
    """Two epochs with gradient clipping: all that training leaves behind."""

    def run(callbacks):
        torch.manual_seed(3)
        np.random.seed(3)
        random.seed(3)
        module = make_module()
        module.validates_loss = True
        trainer = make_trainer(
            callbacks=callbacks,
            logger=[TensorBoardLogger(tmp_path), CSVLogger(tmp_path)],
            max_epochs=2,
            gradient_clip_val=0.5,
            num_sanity_val_steps=2,
        )
        trainer.fit(module, make_data())
        streams = (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1])
        return module, trainer, streams

    return run


@pytest.mark.parametrize("monitors", few(MONITORS, -2, -1))
def test_training_is_bit_identical_with_and_without(monitors, train):
    module, trainer, streams = train([])
    watched_module, watched_trainer, watched_streams = train(MONITORS[monitors]())

    assert trainer.global_step == watched_trainer.global_step == 6
    watched_state = watched_module.state_dict()
    assert set(watched_state) == set(module.state_dict())
    assert all(torch.equal(watched_state[name], v) for name, v in module.state_dict().items())
    moments = [t.optimizers[0].state_dict()["state"] for t in (trainer, watched_trainer)]
    for parameter, state in moments[0].items():
        assert all(torch.equal(moments[1][parameter][name], v) for name, v in state.items())
    assert streams[:2] == watched_streams[:2]
    assert np.array_equal(streams[2], watched_streams[2])


def test_yaml_names_every_callback(tmp_path, make_module, make_data):
    config = tmp_path / "callbacks.yaml"
    config.write_text(
        """
trainer:
  logger: false
  callbacks:
    - class_path: weince_lightning.callbacks.TailMonitor
      init_args:
        every_n_steps: 10
    - class_path: weince_lightning.callbacks.KNNMonitor
      init_args:
        k: [1, 20]
        temperature: 0.07
        name: knn_far
        every_n_epochs: 2
    - class_path: weince_lightning.callbacks.KNNMonitor
    - class_path: weince_lightning.callbacks.OnlineLinearProbe
      init_args:
        num_classes: 10
    - class_path: weince_lightning.callbacks.GeometryMonitor
"""
    )
    cli = LightningCLI(
        type(make_module()),
        type(make_data()),
        run=False,
        save_config_callback=None,
        args=["--config", str(config), "--model.loss=null"],
    )
    tail, far, near, probe, geometry = cli.trainer.callbacks[:5]
    assert (tail.every_n_steps, probe.num_classes, probe.name) == (10, 10, "probe")
    assert (far.k, far.temperature, far.name, far.every_n_epochs) == ((1, 20), 0.07, "knn_far", 2)
    assert near.k == (1, 5, 20, 50)
    assert isinstance(geometry, GeometryMonitor)
