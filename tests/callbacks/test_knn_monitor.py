"""KNNMonitor in real runs."""

import gc
import re
import sys
import warnings
from pathlib import Path

import pytest
import torch
from cases import few
from jsonargparse import ArgumentParser
from lightly.loss import NTXentLoss
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from weince_lightning.callbacks import KNNMonitor, TailMonitor
from weince_lightning.evaluation.features import extract_features, knn_scores
from weince_lightning.functional.neighbours import neighbour_scores

NAMES = {f"knn/top1_k{k}" for k in (1, 5, 20, 50)} | {"knn/top1"}
NAMES |= {f"knn/recall_at_{r}" for r in (1, 2, 5, 10, 20, 50)}


def knn_metrics(trainer):
    return {
        name: value for name, value in trainer.callback_metrics.items() if name.startswith("knn")
    }


def scores(module, data, split, **options):
    bank = extract_features(module, data.evaluation_dataloader("train"))
    queries = extract_features(module, data.evaluation_dataloader(split))
    return neighbour_scores(*queries, *bank, **options)


def test_it_logs_the_promised_names(make_trainer, make_module, make_data):
    trainer = make_trainer(callbacks=[KNNMonitor()])
    trainer.fit(make_module(), make_data())
    assert set(knn_metrics(trainer)) == NAMES


def test_metrics_are_the_scores_of_the_validation_images(make_trainer, make_module, make_data):
    module, data = make_module(), make_data()
    trainer = make_trainer(callbacks=[KNNMonitor(k=(3, 7), temperature=0.2)])
    trainer.fit(module, data)
    wanted = scores(module, data, "val", k=(3, 7), temperature=0.2)
    metrics = knn_metrics(trainer)
    accuracy = [metrics["knn/top1_k3"], metrics["knn/top1_k7"]]
    assert torch.equal(torch.stack(accuracy), wanted.accuracy)
    assert metrics["knn/top1"] == metrics["knn/top1_k7"]
    recall = [metrics[f"knn/recall_at_{r}"] for r in (1, 2, 5, 10, 20, 50)]
    assert torch.equal(torch.stack(recall), wanted.recall)


def test_a_test_run_asks_with_the_test_images(make_trainer, make_module, make_data):
    module, data = make_module(), make_data()
    trainer = make_trainer(callbacks=[KNNMonitor()])
    trainer.test(module, data, verbose=False)
    wanted = scores(module, data, "test").accuracy
    assert data.evaluated[:2] == ["train", "test"]
    assert trainer.callback_metrics["knn/top1_k5"] == wanted[1]


def test_a_validate_run_always_looks(make_trainer, make_module, make_data):
    trainer = make_trainer(callbacks=[KNNMonitor(every_n_epochs=5)])
    trainer.validate(make_module(), make_data(), verbose=False)
    assert set(knn_metrics(trainer)) == NAMES


def test_the_sanity_check_is_skipped(make_trainer, make_module, make_data):
    data = make_data()
    trainer = make_trainer(callbacks=[KNNMonitor()], num_sanity_val_steps=2, max_epochs=2)
    trainer.fit(make_module(), data)
    assert data.evaluated == ["train", "val"] * 2


def test_a_checkpoint_can_follow_it_every_other_epoch(
    make_trainer, make_module, make_data, tmp_path
):
    data = make_data()
    checkpoint = ModelCheckpoint(tmp_path, monitor="knn/top1", mode="max", every_n_epochs=2)
    trainer = make_trainer(
        callbacks=[KNNMonitor(every_n_epochs=2), checkpoint], enable_checkpointing=True,
        max_epochs=4,
    )  # fmt: skip
    trainer.fit(make_module(), data)
    assert data.evaluated == ["train", "val"] * 2
    assert checkpoint.best_model_score == trainer.callback_metrics["knn/top1"]


def test_the_metric_is_on_the_progress_bar(make_trainer, make_module, make_data):
    trainer = make_trainer(callbacks=[KNNMonitor()])
    trainer.fit(make_module(), make_data())
    assert set(trainer.progress_bar_metrics) == {"knn/top1"}


def test_several_validation_loaders_do_not_change_the_names(make_trainer, make_module, make_data):
    trainer = make_trainer(callbacks=[KNNMonitor()])
    trainer.fit(make_module(), make_data(num_val_loaders=2))
    assert set(knn_metrics(trainer)) == NAMES


def test_two_monitors_log_apart(make_trainer, make_module, make_data):
    monitors = [KNNMonitor(k=[1]), KNNMonitor(k=[3], name="knn_wide", every_n_epochs=1)]
    trainer = make_trainer(callbacks=monitors)
    trainer.fit(make_module(), make_data())
    assert {"knn/top1_k1", "knn_wide/top1_k3"} <= set(trainer.callback_metrics)


def test_modes_and_statistics_of_the_module_stay(make_trainer, make_module, make_data):
    class Modes(Callback):
        def on_validation_epoch_end(self, trainer, pl_module):
            self.modes = [module.training for module in pl_module.modules()]
            self.state = {name: value.clone() for name, value in pl_module.state_dict().items()}

    class MixedModes(Callback):
        def on_validation_start(self, trainer, pl_module):
            pl_module.encoder.train()

    before, after = Modes(), Modes()
    callbacks = [MixedModes(), before, KNNMonitor(), after]
    make_trainer(callbacks=callbacks).validate(make_module(), make_data(), verbose=False)
    assert before.modes == after.modes
    assert True in after.modes
    assert False in after.modes
    assert all(torch.equal(before.state[name], value) for name, value in after.state.items())


def test_features_are_computed_in_evaluation_mode_on_the_cpu(make_module, make_data):
    module, loader = make_module(), make_data().evaluation_dataloader("val")
    module.train()
    features, labels = extract_features(module, loader)
    assert module.training
    module.eval()
    wanted = torch.cat([module(images) for images, _ in loader])
    torch.testing.assert_close(features, wanted.detach(), rtol=0, atol=0)
    assert not features.requires_grad
    assert labels.tolist() == [index % 4 for index in range(21)]


def test_images_without_label_are_left_out(make_trainer, make_module, make_data):
    module, data = make_module(), make_data(unlabelled=10)
    trainer = make_trainer(callbacks=[KNNMonitor()])
    trainer.fit(module, data)
    bank = extract_features(module, data.evaluation_dataloader("train"))
    queries = extract_features(module, data.evaluation_dataloader("val"))
    wanted = neighbour_scores(queries[0][10:], queries[1][10:], bank[0][10:], bank[1][10:])
    assert trainer.callback_metrics["knn/top1_k5"] == wanted.accuracy[1]


@pytest.mark.filterwarnings("default")
def test_without_any_label_it_warns_once_and_logs_nothing(make_trainer, make_module, make_data):
    trainer = make_trainer(callbacks=[KNNMonitor()], max_epochs=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(make_module(), make_data(unlabelled=48))
    assert sum("KNNMonitor" in str(warning.message) for warning in caught) == 1
    assert not knn_metrics(trainer)


@pytest.mark.filterwarnings("default")
def test_each_run_is_warned_of_what_it_lacks(make_trainer, make_module, make_data):
    monitors = [KNNMonitor(), TailMonitor()]
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer = make_trainer(callbacks=monitors)
            trainer.fit(make_module(NTXentLoss()), make_data(unlabelled=48))
        said = [str(warning.message).partition(" ")[0] for warning in caught]
        assert said.count("KNNMonitor") == said.count("TailMonitor") == 1


def test_without_loaders_of_its_own_it_logs_nothing_and_says_so_once(
    make_trainer, make_module, make_data
):
    class Bare(type(make_data())):
        evaluation_dataloader = None

    trainer = make_trainer(callbacks=[KNNMonitor()])
    with pytest.warns(UserWarning, match=r"evaluation_dataloader\(split\).*got Bare") as said:
        trainer.fit(make_module(), Bare())
    assert len([each for each in said if "KNNMonitor" in str(each.message)]) == 1
    assert not knn_metrics(trainer)


def test_plain_loaders_are_refused_before_training_where_a_checkpoint_needs_them(
    make_trainer, make_module, make_data, tmp_path
):
    best = ModelCheckpoint(tmp_path, monitor="knn/top1", mode="max")
    data = make_data()
    trainer = make_trainer(callbacks=[KNNMonitor(), best], enable_checkpointing=True)
    message = r"evaluation_dataloader.*plain loaders were passed.* ModelCheckpoint needs knn/top1"
    with pytest.raises(TypeError, match=message):
        trainer.fit(make_module(), data.train_dataloader(), data.val_dataloader())


def test_a_fast_development_run_reads_the_first_batches_only(make_trainer, make_module, make_data):
    module, data = make_module(), make_data()
    trainer = make_trainer(callbacks=[KNNMonitor()], fast_dev_run=1)
    trainer.fit(module, data)
    bank = extract_features(module, data.evaluation_dataloader("train"))
    queries = extract_features(module, data.evaluation_dataloader("val"))
    wanted = neighbour_scores(queries[0][:10], queries[1][:10], bank[0][:10], bank[1][:10])
    assert trainer.callback_metrics["knn/recall_at_1"] == wanted.recall[0]
    assert trainer.callback_metrics["knn/top1_k5"] == wanted.accuracy[1]


@pytest.mark.parametrize(
    ("limits", "num_bank", "num_queries"),
    [
        ({"limit_train_batches": 2, "limit_val_batches": 1}, 20, 10),
        # Of 5 batches and of 3.
        ({"limit_train_batches": 0.5, "limit_val_batches": 0.7}, 20, 20),
        ({"limit_train_batches": 1, "limit_val_batches": 1.0}, 10, 21),
    ],
)
def test_limits_of_the_trainer_hold(
    limits, num_bank, num_queries, make_trainer, make_module, make_data
):
    module, data = make_module(), make_data()
    trainer = make_trainer(callbacks=[KNNMonitor()], **limits)
    trainer.fit(module, data)
    bank = extract_features(module, data.evaluation_dataloader("train"))
    queries = extract_features(module, data.evaluation_dataloader("val"))
    wanted = neighbour_scores(
        *(each[:num_queries] for each in queries), *(each[:num_bank] for each in bank)
    )
    assert trainer.callback_metrics["knn/recall_at_1"] == wanted.recall[0]
    assert trainer.callback_metrics["knn/top1"] == wanted.accuracy[-1]


def test_loaders_have_the_limits_of_training_and_of_the_split(make_trainer, make_module, make_data):
    module, data = make_module(), make_data()
    bank, queries = (data.evaluation_dataloader(split) for split in ("val", "train"))
    trainer = make_trainer(
        callbacks=[KNNMonitor(bank=bank, queries=queries)],
        limit_train_batches=1, limit_val_batches=0, limit_test_batches=2,
    )  # fmt: skip
    trainer.test(module, data, verbose=False)
    wanted = knn_scores(module, list(bank)[:1], list(queries)[:2], (1, 50), 0.1)
    assert trainer.callback_metrics["knn/top1"] == wanted.accuracy[1]
    # Validation is off; its images are no less a bank.
    by_name = KNNMonitor(bank="val", queries=queries)
    trainer = make_trainer(callbacks=[by_name], limit_val_batches=0)
    trainer.test(module, data, verbose=False)
    wanted = knn_scores(module, bank, queries, (1, 50), 0.1)
    assert trainer.callback_metrics["knn/top1"] == wanted.accuracy[1]


@pytest.mark.parametrize("precision", few(["64-true", "bf16-true", "bf16-mixed"], 1))
def test_every_precision_works(precision, make_trainer, make_module, make_data):
    trainer = make_trainer(callbacks=[KNNMonitor()], precision=precision)
    trainer.validate(make_module(), make_data(), verbose=False)
    assert set(knn_metrics(trainer)) == NAMES


def test_bank_and_queries_can_be_splits_by_name(make_trainer, make_module, make_data):
    module, data = make_module(), make_data()
    trainer = make_trainer(callbacks=[KNNMonitor(bank="test", queries="train")])
    trainer.fit(module, data)
    assert data.evaluated == ["test", "train"]
    bank = extract_features(module, data.evaluation_dataloader("test"))
    queries = extract_features(module, data.evaluation_dataloader("train"))
    wanted = neighbour_scores(*queries, *bank)
    assert set(knn_metrics(trainer)) == NAMES
    assert trainer.callback_metrics["knn/top1_k5"] == wanted.accuracy[1]


def test_bank_and_queries_can_be_loaders_without_a_data_module(
    make_trainer, make_module, make_data
):
    module, data = make_module(), make_data()
    bank, queries = (data.evaluation_dataloader(split) for split in ("train", "test"))
    trainer = make_trainer(callbacks=[KNNMonitor(bank=bank, queries=queries)])
    trainer.fit(module, data.train_dataloader(), data.val_dataloader())
    wanted = knn_scores(module, bank, queries, (1, 5, 20, 50), 0.1)
    assert set(knn_metrics(trainer)) == NAMES
    assert trainer.callback_metrics["knn/top1_k5"] == wanted.accuracy[1]


def test_several_monitors_each_have_their_own_bank(make_trainer, make_module, make_data):
    module, data = make_module(), make_data()
    loader = data.evaluation_dataloader("val")
    monitors = [
        KNNMonitor(k=[3]),
        KNNMonitor(k=[3], name="knn_self", bank=loader),
        KNNMonitor(k=[5], name="knn_test", bank="test"),
    ]
    trainer = make_trainer(callbacks=monitors)
    trainer.fit(module, data)
    metrics = trainer.callback_metrics
    assert metrics["knn_self/recall_at_1"] == 1.0
    for name, bank, k in (("knn", "train", 3), ("knn_test", "test", 5)):
        wanted = knn_scores(module, data.evaluation_dataloader(bank), loader, [k], 0.1)
        assert metrics[f"{name}/top1_k{k}"] == metrics[f"{name}/top1"] == wanted.accuracy[0]


def test_yaml_can_name_the_splits():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(KNNMonitor, "knn")
    config = parser.parse_string("knn: {bank: test, queries: train, k: [3]}")
    monitor = parser.instantiate(config).knn
    assert (monitor.bank, monitor.queries) == ("test", "train")
    monitor = parser.instantiate(parser.parse_string("knn: {}")).knn
    assert (monitor.bank, monitor.queries) == ("train", None)


@pytest.mark.parametrize("precision", few(["32-true", "bf16-mixed", "64-true"], 0, 1))
def test_a_reloaded_checkpoint_gets_the_same_number_to_the_last_digit(
    precision, make_trainer, make_module, make_data, tmp_path
):
    data = make_data()
    loaders = [data.evaluation_dataloader(split) for split in ("train", "val")]
    for seed, loader in enumerate(loaders):  # so much noise that no score is perfect
        views = loader.dataset.views
        views += torch.randn(views.shape, generator=torch.Generator().manual_seed(seed))
    monitor = KNNMonitor(k=(1, 3), temperature=0.07, bank=loaders[0], queries=loaders[1])
    checkpoint = ModelCheckpoint(tmp_path, monitor="knn/top1", save_top_k=-1)
    trainer = make_trainer(
        callbacks=[monitor, checkpoint], enable_checkpointing=True, max_epochs=2,
        precision=precision,
    )  # fmt: skip
    trainer.fit(make_module(), data)
    reloaded = make_module().to(torch.float64 if precision == "64-true" else torch.float32)
    for path, logged in checkpoint.best_k_models.items():
        reloaded.load_state_dict(torch.load(path, weights_only=True)["state_dict"])
        wanted = knn_scores(reloaded, *loaders, k=(1, 3), temperature=0.07)
        assert 0 < wanted.accuracy[1] < 1
        assert logged == wanted.accuracy[1]
    assert len(checkpoint.best_k_models) == 2
    assert trainer.callback_metrics["knn/recall_at_2"] == wanted.recall[1]


def test_k_larger_than_the_bank_means_the_whole_bank(make_trainer, make_module, make_data):
    trainer = make_trainer(callbacks=[KNNMonitor(k=(48, 500))])
    trainer.fit(make_module(), make_data())
    metrics = trainer.callback_metrics
    assert metrics["knn/top1_k500"] == metrics["knn/top1_k48"]


def test_classes_absent_from_the_bank_are_told_wrong(make_trainer, make_module, make_data):
    data = make_data()
    bank = data.evaluation_dataloader("train")
    bank.dataset.labels[bank.dataset.labels == 2] = 70_000
    trainer = make_trainer(callbacks=[KNNMonitor(bank=bank)])
    trainer.fit(make_module(), data)
    # 5 of the 21 queries are of class 2, and noise is small.
    assert trainer.callback_metrics["knn/recall_at_50"].item() == pytest.approx(16 / 21)


def test_features_that_are_nan_score_zero(make_trainer, make_module, make_data):
    class Broken(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            pl_module.encoder[0].bias.data.fill_(torch.nan)

    trainer = make_trainer(callbacks=[KNNMonitor(), Broken()], max_epochs=2)
    trainer.fit(make_module(), make_data())
    assert set(knn_metrics(trainer)) == NAMES
    assert not any(knn_metrics(trainer).values())


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.slow
def test_five_looks_take_no_more_memory_than_one(make_trainer, make_module, make_data):
    class Wide(type(make_module())):
        def forward(self, images):
            features = super().forward(images)
            return features if self.training else features.repeat(1, 64)  # 8192

    class Watch(Callback):
        def __init__(self):
            self.tensors, self.resident = [], []

        def on_validation_end(self, trainer, pl_module):
            gc.collect()
            held = [each for each in gc.get_objects() if type(each) is torch.Tensor]
            self.tensors.append(sum(each.untyped_storage().nbytes() for each in held))
            status = Path("/proc/self/status").read_text()
            self.resident.append(int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024)

    watch = Watch()
    data = make_data()
    images = type(data.evaluation_dataloader("val").dataset)(1000, seed=1, num_views=1)
    monitor = KNNMonitor(bank=DataLoader(images, 500))
    make_trainer(callbacks=[monitor, watch], max_epochs=6).fit(Wide(), data)
    bank_bytes = 1000 * 8192 * 4
    # The first look is left out: allocators and threads settle.
    assert watch.tensors[-1] - watch.tensors[1] < bank_bytes / 100
    assert watch.resident[-1] - watch.resident[1] < bank_bytes / 2


@pytest.mark.parametrize("argument", ["bank", "queries"])
def test_what_is_neither_a_name_nor_a_loader_is_refused(argument):
    message = f"{argument} must be the name of a split or a DataLoader, got list"
    with pytest.raises(TypeError, match=message):
        KNNMonitor(**{argument: [1]})


def test_one_loader_without_a_data_module_is_not_enough(make_trainer, make_module, make_data):
    data = make_data()
    monitor = KNNMonitor(bank=data.evaluation_dataloader("train"))
    trainer = make_trainer(callbacks=[monitor])
    with pytest.warns(UserWarning, match="give it loaders as bank and queries"):
        trainer.fit(make_module(), data.train_dataloader(), data.val_dataloader())
    assert not knn_metrics(trainer)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": ()}, r"k must hold numbers of at least 1, got \(\)"),
        ({"k": (5, 0)}, r"k must hold numbers of at least 1, got \(5, 0\)"),
        ({"temperature": 0}, "temperature must be positive, got 0"),
        ({"every_n_epochs": 0}, "every_n_epochs must be at least 1, got 0"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        KNNMonitor(**arguments)
