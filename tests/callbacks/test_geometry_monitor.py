"""GeometryMonitor in real runs."""

import csv
import gc
import math
import warnings

import pytest
import torch
from cases import few
from lightning.pytorch import Callback
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from weince_lightning import ContrastiveModule, InfoNCELoss, WEINCELoss
from weince_lightning.callbacks import GeometryMonitor
from weince_lightning.functional.geometry import (
    alignment,
    candidate_geometry,
    effective_rank,
    normalized_std,
    positive_similarity,
    uniformity,
)

NUM_FEATURES = 12
OF_THE_SPLIT = {
    "geometry/alignment",
    "geometry/positive_similarity",
    "geometry/uniformity",
    "geometry/effective_rank",
    "geometry/std",
    "geometry/projection_effective_rank",
    "geometry/projection_std",
}
OF_THE_BATCHES = {
    "geometry/hardest_negative_similarity",
    "geometry/information",
    "geometry/information_limit",
}


class Outputs(Callback):
    """Keeps what the steps of the last evaluation returned."""

    def on_validation_epoch_start(self, trainer, pl_module):
        self.batches = []

    on_test_epoch_start = on_validation_epoch_start

    def on_validation_batch_end(
        self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0
    ):
        self.batches.append((outputs["features"], outputs["projections"]))

    on_test_batch_end = on_validation_batch_end


class TwoLoaders(ContrastiveModule):
    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        return self.step(batch)


@pytest.fixture
def module():
    def make(loss=None, kind=ContrastiveModule):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            backbone = nn.Sequential(
                nn.Flatten(), nn.Linear(36, NUM_FEATURES), nn.Dropout(0.1), nn.Tanh()
            )
            return kind(backbone, loss, in_channels=1, image_size=6, projection_dim=8)

    return make


def geometry(trainer):
    metrics = trainer.callback_metrics.items()
    return {name: value for name, value in metrics if name.startswith("geometry")}


def expected_metrics(batches, temperature, layout="views"):
    """From all batches at once, and the mean over anchors of each batch's candidates."""
    f0, f1 = (torch.cat([features[view] for features, _ in batches]) for view in (0, 1))
    z0, z1 = (torch.cat([projections[view] for _, projections in batches]) for view in (0, 1))
    pairs = [projections for _, projections in batches if len(projections[0]) > 1]
    found = [candidate_geometry(*views, temperature, layout) for views in pairs]
    sizes = [len(views[0]) for views in pairs]
    means = [
        sum(size * value for size, value in zip(sizes, values, strict=True)) / sum(sizes)
        for values in zip(*found, strict=True)
    ]
    return {
        "geometry/alignment": alignment(z0, z1),
        "geometry/positive_similarity": positive_similarity(z0, z1),
        "geometry/uniformity": (uniformity(z0) + uniformity(z1)) / 2,
        "geometry/effective_rank": effective_rank(torch.cat([f0, f1])),
        "geometry/std": normalized_std(torch.cat([f0, f1])),
        "geometry/projection_effective_rank": effective_rank(torch.cat([z0, z1])),
        "geometry/projection_std": normalized_std(torch.cat([z0, z1])),
        "geometry/hardest_negative_similarity": means[0],
        "geometry/information": means[1],
        "geometry/information_limit": means[2],
    }


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_it_measures_the_whole_validation_split(make_trainer, module, make_data):
    # 21 images in batches of 10: the last one holds a single image, without any negative.
    outputs = Outputs()
    trainer = make_trainer(callbacks=[GeometryMonitor(), outputs])
    trainer.fit(module(WEINCELoss(0.2)), make_data())
    assert [len(features[0]) for features, _ in outputs.batches] == [10, 10, 1]
    assert set(geometry(trainer)) == OF_THE_SPLIT | OF_THE_BATCHES
    assert_same(geometry(trainer), expected_metrics(outputs.batches, 0.2))


def test_a_test_run_measures_the_test_split(make_trainer, module, make_data):
    outputs = Outputs()
    trainer = make_trainer(callbacks=[GeometryMonitor(), outputs])
    trainer.test(module(), make_data(), verbose=False)
    assert sum(len(features[0]) for features, _ in outputs.batches) == 19
    assert_same(geometry(trainer), expected_metrics(outputs.batches, 0.5))


def test_information_is_log_candidates_minus_infonce_under_weince_too(
    make_trainer, module, make_data
):
    outputs = Outputs()
    trainer = make_trainer(callbacks=[GeometryMonitor(), outputs], limit_val_batches=1)
    trainer.fit(module(WEINCELoss(0.2)), make_data())
    infonce = InfoNCELoss(0.2)(*outputs.batches[0][1])
    found = trainer.callback_metrics["geometry/information"]
    torch.testing.assert_close(found, math.log(19) - infonce)
    assert found <= trainer.callback_metrics["geometry/information_limit"]
    assert (math.log(19) - trainer.callback_metrics["val/loss"] - found).abs() > 1e-3


def learnt_temperature():
    return nn.Parameter(torch.tensor(0.3))


@pytest.mark.parametrize(
    ("loss", "argument", "temperature"),
    [
        (lambda: InfoNCELoss(0.2), None, 0.2),
        (lambda: InfoNCELoss(learnt_temperature()), None, 0.3),
        (lambda: InfoNCELoss(0.2), 0.1, 0.1),
        (nn.MSELoss, None, 0.5),
        (nn.MSELoss, 0.07, 0.07),
    ],
)
def test_the_temperature_is_the_argument_or_that_of_the_loss(
    loss, argument, temperature, make_trainer, module, make_data
):
    outputs = Outputs()
    trainer = make_trainer(callbacks=[GeometryMonitor(temperature=argument), outputs])
    trainer.validate(module(loss()), make_data(), verbose=False)
    assert_same(geometry(trainer), expected_metrics(outputs.batches, temperature))


def test_the_candidates_are_those_of_the_layout_of_the_loss(make_trainer, module, make_data):
    outputs = Outputs()
    trainer = make_trainer(callbacks=[GeometryMonitor(), outputs])
    trainer.validate(module(InfoNCELoss(0.2, layout="queries")), make_data(), verbose=False)
    assert_same(geometry(trainer), expected_metrics(outputs.batches, 0.2, "queries"))


@pytest.fixture
def new_objects():
    """Makes ``gc.get_objects`` list what the test makes, and nothing older."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_of_a_large_split_evenly_spread_batches_count(make_trainer, module, make_data, new_objects):
    # 7 batches of 3: the fifth makes 15 and leaves the 1st, 3rd and 5th, and the 7th is then kept.
    class Threes(type(make_data())):
        def val_dataloader(self):
            return self._loader("val", 2, batch_size=3)

    class Rows(Callback):
        most = 0

        def on_validation_batch_end(
            self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0
        ):
            self.most = max(self.most, stored_rows())

    outputs, rows = Outputs(), Rows()
    trainer = make_trainer(callbacks=[GeometryMonitor(max_samples=12), rows, outputs])
    trainer.validate(module(), Threes(), verbose=False)
    assert len(outputs.batches) == 7
    assert_same(geometry(trainer), expected_metrics(outputs.batches[::2], 0.5))
    assert rows.most == 12


def stored_rows():
    """Rows of all living tensors that hold two views of features."""
    tensors = [each for each in gc.get_objects() if type(each) is torch.Tensor]
    return sum(len(each) for each in tensors if each.shape[1:] == (2, NUM_FEATURES))


def test_nothing_stays_after_an_epoch(make_trainer, module, make_data, new_objects):
    monitor = GeometryMonitor()
    make_trainer(callbacks=[monitor], max_epochs=5).fit(module(), make_data())
    assert stored_rows() == 0
    assert monitor.max_samples == 10_000  # the monitor itself is alive


def test_a_first_batch_that_is_too_large_is_measured(make_trainer, module, make_data):
    outputs = Outputs()
    trainer = make_trainer(callbacks=[GeometryMonitor(max_samples=1), outputs])
    trainer.validate(module(), make_data(), verbose=False)
    assert_same(geometry(trainer), expected_metrics(outputs.batches[:1], 0.5))


def test_several_validation_loaders_are_one_split(make_trainer, module, make_data):
    outputs = Outputs()
    trainer = make_trainer(callbacks=[GeometryMonitor(), outputs])
    trainer.fit(module(kind=TwoLoaders), make_data(num_val_loaders=2))
    assert len(outputs.batches) == 6
    assert_same(geometry(trainer), expected_metrics(outputs.batches, 0.5))


def test_a_split_of_one_image_logs_what_it_can(make_trainer, module, make_data):
    class One(type(make_data())):
        def val_dataloader(self):
            return self._loader("val", 2, batch_size=1)

    trainer = make_trainer(callbacks=[GeometryMonitor()], limit_val_batches=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.validate(module(), One(), verbose=False)
    assert set(geometry(trainer)) == OF_THE_SPLIT - {"geometry/uniformity"}
    assert not any("collapsed" in str(warning.message) for warning in caught)


def test_images_without_label_count(make_trainer, module, make_data):
    metrics = []
    for unlabelled in (0, 21):
        trainer = make_trainer(callbacks=[GeometryMonitor()])
        trainer.validate(module(), make_data(unlabelled=unlabelled), verbose=False)
        metrics.append(geometry(trainer))
    assert metrics[0] == metrics[1]


def test_the_sanity_check_is_not_measured(make_trainer, module, make_data):
    metrics = []
    for num_steps in (0, 2):
        torch.manual_seed(0)
        trainer = make_trainer(callbacks=[GeometryMonitor()], num_sanity_val_steps=num_steps)
        trainer.fit(module(), make_data(shuffle=False))
        metrics.append(geometry(trainer))
    assert metrics[0] == metrics[1]

    class Stop(Callback):
        def on_sanity_check_end(self, trainer, pl_module):
            self.names = set(trainer.callback_metrics)

    stop = Stop()
    trainer = make_trainer(callbacks=[GeometryMonitor(), stop], num_sanity_val_steps=2)
    trainer.fit(module(), make_data())
    assert not any(name.startswith("geometry") for name in stop.names)


def test_the_csv_logger_gets_every_epoch(make_trainer, module, make_data, tmp_path):
    logger = CSVLogger(tmp_path)
    trainer = make_trainer(callbacks=[GeometryMonitor()], logger=logger, max_epochs=2)
    trainer.fit(module(), make_data())
    with open(f"{logger.log_dir}/metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["geometry/information"]]
    assert len(rows) == 2
    last = {name: float(rows[-1][name]) for name in OF_THE_SPLIT | OF_THE_BATCHES}
    logged = {name: value.item() for name, value in geometry(trainer).items()}
    assert last == pytest.approx(logged, rel=1e-5)


def collapse_warnings(caught):
    return [str(each.message) for each in caught if "have collapsed" in str(each.message)]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("part", ["features", "projections"])
def test_collapse_is_warned_of_once(part, make_trainer, module, make_data):
    collapsed = module()
    layer = collapsed.backbone[1]
    if part == "projections":
        layer = list(collapsed.projection_head.modules())[-1]
    nn.init.zeros_(layer.weight)
    if part == "features":
        nn.init.ones_(layer.bias)
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    trainer = make_trainer(callbacks=[GeometryMonitor()], max_epochs=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(collapsed, make_data())
    (message,) = collapse_warnings(caught)
    assert message.startswith(f"The {part} have collapsed")
    name = "geometry/std" if part == "features" else "geometry/projection_std"
    assert trainer.callback_metrics[name] < 1e-6


def test_a_healthy_run_is_not_warned_of(make_trainer, module, make_data):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_trainer(callbacks=[GeometryMonitor()]).fit(module(), make_data())
    assert not collapse_warnings(caught)


def test_a_diverged_run_does_not_end_in_the_monitor(make_trainer, module, make_data):
    diverged = module()
    nn.init.constant_(list(diverged.projection_head.parameters())[-1], math.nan)
    trainer = make_trainer(callbacks=[GeometryMonitor()])
    trainer.fit(diverged, make_data())
    assert trainer.global_step == 3
    assert trainer.callback_metrics["geometry/uniformity"].isnan()


def test_a_module_that_returns_no_projections_is_refused_before_training(
    make_trainer, make_module, make_data
):
    trainer = make_trainer(callbacks=[GeometryMonitor()], num_sanity_val_steps=1)
    message = r"must return a dict with features and projections.*got \['features', 'labels'\]"
    with pytest.raises(TypeError, match=message):
        trainer.fit(make_module(), make_data())
    assert trainer.global_step == 0


@pytest.mark.parametrize("step", [lambda batch: None, lambda batch: {"projections": batch[0]}])
def test_other_outputs_than_pairs_are_refused(step, make_trainer, module, make_data):
    class Other(ContrastiveModule):
        def validation_step(self, batch, batch_idx):
            return step(batch)

    trainer = make_trainer(callbacks=[GeometryMonitor()])
    with pytest.raises(TypeError, match=r"must return.*for GeometryMonitor, got (None|\['proj)"):
        trainer.validate(module(kind=Other), make_data(), verbose=False)


@pytest.mark.parametrize("precision", few(["bf16-mixed", "bf16-true", "64-true"], 1))
def test_every_precision_works(precision, make_trainer, module, make_data):
    trainer = make_trainer(callbacks=[GeometryMonitor()], precision=precision)
    trainer.fit(module(), make_data())
    assert set(geometry(trainer)) == OF_THE_SPLIT | OF_THE_BATCHES
    assert all(value.isfinite() for value in geometry(trainer).values())


def test_training_is_bit_identical_with_and_without(make_trainer, module, make_data):
    runs = []
    for callbacks in ([], [GeometryMonitor()]):
        torch.manual_seed(3)
        trained = module()
        trainer = make_trainer(
            callbacks=callbacks, max_epochs=2, num_sanity_val_steps=2, gradient_clip_val=0.5
        )
        trainer.fit(trained, make_data())
        moments = trainer.optimizers[0].state_dict()["state"].values()
        tensors = [value for state in moments for value in state.values()]
        runs.append((trained.state_dict(), tensors, torch.get_rng_state(), trainer.global_step))
    (state, moments, stream, step), watched = runs
    assert set(state) == set(watched[0])
    assert all(torch.equal(value, watched[0][name]) for name, value in state.items())
    assert all(map(torch.equal, moments, watched[1]))
    assert torch.equal(stream, watched[2])
    assert step == watched[3] == 6


def test_yaml_names_it(tmp_path, make_module, make_data):
    config = tmp_path / "callbacks.yaml"
    config.write_text(
        """
trainer:
  logger: false
  callbacks:
    - class_path: weince_lightning.callbacks.GeometryMonitor
    - class_path: weince_lightning.callbacks.GeometryMonitor
      init_args:
        max_samples: 500
        temperature: 0.1
"""
    )
    cli = LightningCLI(
        type(make_module()),
        type(make_data()),
        run=False,
        save_config_callback=None,
        args=["--config", str(config), "--model.loss=null"],
    )
    plain, other = cli.trainer.callbacks[:2]
    assert (plain.max_samples, plain.temperature) == (10_000, None)
    assert (other.max_samples, other.temperature) == (500, 0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_samples": 0}, "max_samples must be at least 1, got 0"),
        ({"temperature": 0.0}, "temperature must be positive or None, got 0.0"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        GeometryMonitor(**arguments)
