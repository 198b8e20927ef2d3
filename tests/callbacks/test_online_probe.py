"""OnlineLinearProbe in real runs."""

import copy
import math
import warnings

import pytest
import torch
from cases import few
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn.functional import linear
from torch.utils.data import DataLoader

from weince_lightning.callbacks import OnlineLinearProbe
from weince_lightning.callbacks.online_probe import count_right


class Outputs(Callback):
    """Keeps what the steps returned in the last epoch."""

    def on_train_epoch_start(self, trainer, pl_module):
        self.train = []

    def on_validation_epoch_start(self, trainer, pl_module):
        self.val = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.train.append(outputs)

    def on_validation_batch_end(
        self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0
    ):
        self.val.append(outputs)


def weights(probe):
    state = probe.state_dict()
    return state["weight"].clone(), state["bias"].clone()


def probe_metrics(trainer):
    return {name for name in trainer.callback_metrics if name.startswith("probe")}


def test_it_learns_to_tell_separable_features(make_trainer, make_module, make_data):
    trainer = make_trainer(callbacks=[OnlineLinearProbe(num_classes=4)], max_epochs=10)
    trainer.fit(make_module(), make_data())
    assert trainer.callback_metrics["probe/train_top1"] > 0.95
    assert trainer.callback_metrics["probe/val_top1"] > 0.95


def test_validation_accuracy_is_the_mean_over_samples_not_over_batches(
    make_trainer, make_module, make_data
):
    # 21 images in batches of 10: the last one holds a single image.
    probe, outputs = OnlineLinearProbe(4, learning_rate=1e-4), Outputs()
    trainer = make_trainer(callbacks=[probe, outputs])
    trainer.fit(make_module(), make_data())
    right = torch.cat([
        linear(view, *weights(probe)).argmax(1) == output["labels"]
        for output in outputs.val for view in output["features"]
    ])  # fmt: skip
    assert len(right) == 42
    torch.testing.assert_close(trainer.callback_metrics["probe/val_top1"], right.float().mean())


@pytest.fixture
def seven_classes(make_data):
    """Images of 7 classes, so that the five best are not all."""

    class SevenClasses(make_data):
        def _loader(self, *arguments, **options):
            loader = super()._loader(*arguments, **options)
            loader.dataset.labels = torch.arange(len(loader.dataset)) % 7
            return loader

    return SevenClasses(shuffle=False)


def test_top5_is_the_part_with_the_label_among_the_five_largest_scores(
    make_trainer, make_module, seven_classes
):
    probe, outputs = OnlineLinearProbe(7), Outputs()
    trainer = make_trainer(callbacks=[probe, outputs])
    trainer.fit(make_module(), seven_classes)
    right = torch.cat([
        (linear(view, *weights(probe)).topk(5).indices == output["labels"][:, None]).any(1)
        for output in outputs.val for view in output["features"]
    ])  # fmt: skip
    assert 0 < right.sum() < len(right) == 42
    torch.testing.assert_close(trainer.callback_metrics["probe/val_top5"], right.float().mean())
    top1, top5 = (trainer.callback_metrics[f"probe/train_top{k}"] for k in (1, 5))
    assert 0 < top1 < top5 < 1


@pytest.mark.parametrize(("num_classes", "top_k"), [(4, {1}), (5, {1}), (6, {1, 5})])
def test_the_five_best_of_five_classes_or_fewer_are_not_logged(
    num_classes, top_k, make_trainer, make_module, make_data
):
    trainer = make_trainer(callbacks=[OnlineLinearProbe(num_classes)])
    trainer.fit(make_module(), make_data())
    assert probe_metrics(trainer) == {
        f"probe/{split}_top{k}" for split in ("train", "val") for k in top_k
    }


def test_counts_agree_with_a_plain_loop(generator):
    # Few different scores: many are equal, and of those the first class comes first.
    scores = torch.randint(3, (50, 8), generator=generator).float()
    labels = torch.randint(-1, 8, (50,), generator=generator)
    ranked = [sorted(range(8), key=lambda c, row=row: (-row[c], c)) for row in scores.tolist()]
    expected = [
        sum(label in row[:k] for row, label in zip(ranked, labels.tolist(), strict=True))
        for k in (1, 3, 5)
    ]
    assert count_right(scores, labels, (1, 3, 5)).tolist() == [*expected, int((labels >= 0).sum())]
    assert expected[0] == (scores.argmax(1) == labels).sum()


def test_scores_that_are_not_numbers_and_labels_without_a_score_are_wrong():
    scores = torch.full((3, 7), math.nan)
    scores[1, 0] = 1.0
    labels = torch.tensor([0, 0, 6])
    assert count_right(scores, labels, (1, 5)).tolist() == [0, 0, 3]
    assert count_right(torch.ones(2, 7), torch.tensor([7, 99]), (1, 5)).tolist() == [0, 0, 2]


def test_training_accuracy_is_taken_before_the_probe_learns(make_trainer, make_module, make_data):
    # At zero all scores are equal and class 0 wins; the first epoch is one batch long.
    outputs = Outputs()
    trainer = make_trainer(callbacks=[OnlineLinearProbe(4), outputs], limit_train_batches=1)
    trainer.fit(make_module(), make_data())
    share = (outputs.train[0]["labels"] == 0).float().mean()
    assert trainer.callback_metrics["probe/train_top1"] == share


def test_it_learns_by_adam_on_the_mean_cross_entropy(make_trainer, make_module, make_data):
    probe, outputs = OnlineLinearProbe(4, learning_rate=0.05), Outputs()
    make_trainer(callbacks=[probe, outputs]).fit(make_module(), make_data())
    head = torch.nn.Linear(128, 4)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
    for output in outputs.train:
        loss = torch.nn.functional.cross_entropy(
            head(torch.cat(output["features"])), output["labels"].repeat(2)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weight, bias = weights(probe)
    torch.testing.assert_close(weight, head.weight.detach(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(bias, head.bias.detach(), atol=1e-5, rtol=1e-4)


def test_trainer_and_module_hold_nothing_of_it(make_trainer, make_module, make_data):
    module = make_module()
    names = set(module.state_dict())
    trainer = make_trainer(callbacks=[OnlineLinearProbe(4)])
    trainer.fit(module, make_data())
    assert trainer.global_step == 3
    assert len(trainer.optimizers) == 1
    assert set(module.state_dict()) == names


class SeedEachStep(Callback):
    """Makes a step independent of those before: Lightning does not save random streams."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        torch.manual_seed(trainer.global_step)


def test_four_epochs_equal_two_and_a_resume_and_two(make_trainer, make_module, make_data, tmp_path):
    def fit(max_epochs, **options):
        probe = OnlineLinearProbe(4)
        checkpoint = ModelCheckpoint(tmp_path / str(max_epochs), filename="last")
        trainer = make_trainer(
            callbacks=[probe, checkpoint, SeedEachStep()], enable_checkpointing=True,
            max_epochs=max_epochs,
        )  # fmt: skip
        trainer.fit(make_module(), make_data(shuffle=False), **options)
        return trainer, weights(probe)

    fit(2)
    resumed, resumed_weights = fit(4, ckpt_path=tmp_path / "2" / "last.ckpt", weights_only=True)
    whole, whole_weights = fit(4)
    assert torch.equal(resumed_weights[0], whole_weights[0])
    assert torch.equal(resumed_weights[1], whole_weights[1])
    for name in ("probe/train_top1", "probe/val_top1"):
        assert resumed.callback_metrics[name] == whole.callback_metrics[name]


def test_ten_steps_equal_five_and_a_resume_within_the_epoch_and_five(
    make_trainer, make_module, make_data, tmp_path
):
    class Save(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.global_step == 5:
                trainer.save_checkpoint(tmp_path / "step.ckpt")

    def fit(*more, **options):
        probes = [OnlineLinearProbe(7), OnlineLinearProbe(6, name="other", learning_rate=0.1)]
        trainer = make_trainer(callbacks=[*probes, SeedEachStep(), *more], val_check_interval=5)
        data = make_data()
        # Equal batches: after a resume Lightning begins with the first one again.
        images = 10 * [data.train_dataloader().dataset[i] for i in range(16)]
        loaders = DataLoader(images, batch_size=16), data.val_dataloader()
        trainer.fit(make_module(), *loaders, **options)
        assert trainer.global_step == 10
        metrics = {n: v for n, v in trainer.callback_metrics.items() if "_top" in n}
        return metrics, [tensor for probe in probes for tensor in tensors(probe.state_dict())]

    whole_metrics, whole = fit(Save())
    metrics, resumed = fit(ckpt_path=tmp_path / "step.ckpt", weights_only=True)
    assert all(map(torch.equal, resumed, whole))
    assert metrics == whole_metrics
    assert {"probe/train_top1", "other/train_top5", "probe/val_top5"} <= set(metrics)


def tensors(state):
    """All tensors of nested containers."""
    if isinstance(state, torch.Tensor):
        return [state]
    children = state.values() if isinstance(state, dict) else ()
    if isinstance(state, list):
        children = state
    return [tensor for child in children for tensor in tensors(child)]


def test_an_interrupted_validation_does_not_count_in_the_next(
    make_trainer, make_module, seven_classes
):
    class Interrupt(Callback):
        def on_validation_batch_end(
            self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0
        ):
            raise RuntimeError("interrupted")

    probe, module = OnlineLinearProbe(7), make_module()
    make_trainer(callbacks=[probe]).fit(module, seven_classes)
    with pytest.raises(RuntimeError, match="interrupted"):
        make_trainer(callbacks=[probe, Interrupt()]).validate(module, seven_classes)
    found = []
    for each in (probe, OnlineLinearProbe(7)):
        if each is not probe:
            each.load_state_dict(probe.state_dict())
        trainer = make_trainer(callbacks=[each])
        trainer.validate(module, seven_classes, verbose=False)
        found.append(trainer.callback_metrics["probe/val_top1"])
    assert 0 < found[0] == found[1] < 1


def test_an_interrupted_epoch_does_not_count_in_the_next_training(
    make_trainer, make_module, seven_classes
):
    class Interrupt(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            raise RuntimeError("interrupted")

    probe = OnlineLinearProbe(7)
    with pytest.raises(RuntimeError, match="interrupted"):
        make_trainer(callbacks=[probe, Interrupt()]).fit(make_module(), seven_classes)
    fresh = OnlineLinearProbe(7)
    state = copy.deepcopy(probe.state_dict())
    state["train_accuracy"]["counts"].zero_()
    fresh.load_state_dict(state)
    found = []
    for each in (probe, fresh):
        torch.manual_seed(0)
        trainer = make_trainer(callbacks=[each])
        trainer.fit(make_module(), seven_classes)
        found.append(trainer.callback_metrics["probe/train_top1"])
    assert 0 < found[0] == found[1] < 1


def test_state_within_an_epoch_keeps_optimizer_and_counts(make_trainer, make_module, make_data):
    class Swap(Callback):
        """Replaces the probe by a fresh one with its state, as a resume does."""

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if batch_idx == 1:
                fresh = OnlineLinearProbe(4)
                fresh.load_state_dict(trainer.callbacks[0].state_dict())
                fresh.on_train_start(trainer, pl_module)
                trainer.callbacks[0] = fresh

    results = []
    for callbacks in ([SeedEachStep()], [SeedEachStep(), Swap()]):
        trainer = make_trainer(callbacks=[OnlineLinearProbe(4), *callbacks])
        trainer.fit(make_module(), make_data(shuffle=False))
        results.append((weights(trainer.callbacks[0])[0], trainer.callback_metrics))
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


def test_the_checkpoint_loads_with_weights_only(make_trainer, make_module, make_data, tmp_path):
    probe = OnlineLinearProbe(4)
    trainer = make_trainer(callbacks=[probe])
    trainer.fit(make_module(), make_data())
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert torch.equal(checkpoint["callbacks"][probe.state_key]["weight"], weights(probe)[0])


def test_a_validate_run_scores_with_the_probe_of_the_checkpoint(
    make_trainer, make_module, make_data, tmp_path
):
    trainer = make_trainer(callbacks=[OnlineLinearProbe(4)], max_epochs=2)
    trainer.fit(make_module(), make_data())
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    wanted = trainer.callback_metrics["probe/val_top1"]
    trainer = make_trainer(callbacks=[OnlineLinearProbe(4)])
    trainer.validate(
        make_module(), make_data(), ckpt_path=tmp_path / "last.ckpt", verbose=False,
        weights_only=True,
    )  # fmt: skip
    assert trainer.callback_metrics["probe/val_top1"] == wanted


def test_a_probe_that_was_validated_first_can_still_learn(
    make_trainer, make_module, make_data, tmp_path
):
    probe, data = OnlineLinearProbe(4), make_data()
    trainer = make_trainer(callbacks=[probe])
    trainer.fit(make_module(), data)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    path = {"ckpt_path": tmp_path / "last.ckpt", "weights_only": True}
    fresh = OnlineLinearProbe(4)
    trainer = make_trainer(callbacks=[fresh])
    trainer.validate(make_module(), data, verbose=False, **path)
    trainer = make_trainer(callbacks=[fresh], inference_mode=False)
    trainer.fit(make_module(), data)
    assert not torch.equal(weights(fresh)[0], weights(probe)[0])


def test_an_untrained_probe_logs_nothing(make_trainer, make_module, make_data):
    trainer = make_trainer(callbacks=[OnlineLinearProbe(4)])
    trainer.validate(make_module(), make_data(), verbose=False)
    assert not probe_metrics(trainer)


def test_the_sanity_check_does_not_count(make_trainer, make_module, make_data):
    metrics = []
    for num_steps in (0, 2):
        trainer = make_trainer(callbacks=[OnlineLinearProbe(4)], num_sanity_val_steps=num_steps)
        torch.manual_seed(0)
        trainer.fit(make_module(), make_data(shuffle=False))
        metrics.append(trainer.callback_metrics)
    assert metrics[0] == metrics[1]


def test_two_probes_log_and_save_apart(make_trainer, make_module, make_data, tmp_path):
    probes = [OnlineLinearProbe(4), OnlineLinearProbe(6, name="probe_slow", learning_rate=1e-4)]
    trainer = make_trainer(callbacks=probes)
    trainer.fit(make_module(), make_data())
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"]
    assert [len(saved[probe.state_key]["weight"]) for probe in probes] == [4, 6]
    assert {"probe/train_top1", "probe_slow/train_top1"} <= probe_metrics(trainer)


def test_images_without_label_do_not_count(make_trainer, make_module, make_data):
    probe, outputs = OnlineLinearProbe(4), Outputs()
    trainer = make_trainer(callbacks=[probe, outputs])
    trainer.fit(make_module(), make_data(unlabelled=10))
    known = torch.cat([output["labels"] for output in outputs.val]) != -1
    features = [torch.cat([output["features"][view] for output in outputs.val]) for view in (0, 1)]
    labels = torch.cat([output["labels"] for output in outputs.val])
    right = torch.cat([
        (linear(view, *weights(probe)).argmax(1) == labels)[known] for view in features
    ])  # fmt: skip
    assert len(right) == 22
    torch.testing.assert_close(trainer.callback_metrics["probe/val_top1"], right.float().mean())


@pytest.mark.filterwarnings("default")
def test_without_any_label_it_warns_once_and_logs_nothing(make_trainer, make_module, make_data):
    probe = OnlineLinearProbe(4)
    trainer = make_trainer(callbacks=[probe], max_epochs=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(make_module(), make_data(unlabelled=48))
    assert sum("OnlineLinearProbe" in str(warning.message) for warning in caught) == 1
    assert not probe_metrics(trainer)
    assert not weights(probe)[0].any()


@pytest.mark.parametrize("precision", few(["bf16-mixed", "bf16-true", "64-true"], 1))
def test_the_probe_stays_in_float32(precision, make_trainer, make_module, make_data):
    probe = OnlineLinearProbe(4)
    trainer = make_trainer(callbacks=[probe], precision=precision, max_epochs=2)
    trainer.fit(make_module(), make_data())
    assert {tensor.dtype for tensor in weights(probe)} == {torch.float32}
    assert trainer.callback_metrics["probe/train_top1"].isfinite()


def test_too_few_classes_are_refused_with_the_label(make_trainer, make_module, make_data):
    trainer = make_trainer(callbacks=[OnlineLinearProbe(num_classes=3)])
    with pytest.raises(ValueError, match="num_classes must be larger than every label, got 3"):
        trainer.fit(make_module(), make_data())


@pytest.fixture
def with_labels(make_data):
    """Data whose training or validation labels go through a function."""

    def make(change, split="train"):
        class Changed(make_data):
            def _loader(self, name, *arguments, **options):
                loader = super()._loader(name, *arguments, **options)
                if name == split:
                    loader.dataset.labels = change(loader.dataset.labels)
                return loader

        return Changed(shuffle=False)

    return make


def last_is(label):
    return lambda labels: torch.cat([labels[:-1], torch.tensor([label])])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (last_is(4), ValueError, "larger than every label, got 4 and label 4"),
        (last_is(-100), ValueError, "at least 0, or -1 where unknown, got -100"),
        (lambda labels: ["cat"] * len(labels), TypeError, "labels must hold integers.*got tuple"),
        (lambda labels: labels == 0, TypeError, "labels must hold integers.*torch.bool"),
        (lambda labels: labels[:, None], ValueError, r"shape \(samples,\).*got \(16, 1\)"),
    ],
)
def test_labels_of_every_batch_are_checked(
    change, error, message, make_trainer, make_module, with_labels
):
    trainer = make_trainer(callbacks=[OnlineLinearProbe(4)])
    with pytest.raises(error, match=message):
        trainer.fit(make_module(), with_labels(change))


@pytest.mark.parametrize(("sanity_steps", "trained_steps"), [(-1, 0), (0, 3)])
def test_validation_labels_are_checked_too_before_training_if_there_is_a_sanity_check(
    sanity_steps, trained_steps, make_trainer, make_module, with_labels
):
    trainer = make_trainer(callbacks=[OnlineLinearProbe(4)], num_sanity_val_steps=sanity_steps)
    with pytest.raises(ValueError, match="larger than every label, got 4 and label 9"):
        trainer.fit(make_module(), with_labels(last_is(9), "val"))
    assert trainer.global_step == trained_steps


def test_labels_are_integers_of_any_width(make_trainer, make_module, with_labels):
    found = []
    for dtype in (torch.int64, torch.int32, torch.uint8):
        probe = OnlineLinearProbe(4)
        data = with_labels(lambda labels, dtype=dtype: labels.to(dtype))
        make_trainer(callbacks=[probe, SeedEachStep()]).fit(make_module(), data)
        found.append(weights(probe)[0])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_every_training_has_its_own_probe(make_trainer, make_module, make_data):
    probe, found = OnlineLinearProbe(4), []
    for is_wider in (False, True, False):
        module = make_module()
        if is_wider:
            module.encoder[0] = torch.nn.Conv2d(1, 8, 3, padding=1)
            module.head = torch.nn.Linear(288, 8)
        trainer = make_trainer(callbacks=[probe, SeedEachStep()])
        trainer.fit(module, make_data(shuffle=False))
        found.append((weights(probe)[0], trainer.callback_metrics["probe/train_top1"]))
    assert torch.equal(found[0][0], found[2][0])
    assert found[0][1] == found[2][1]


def test_a_trainer_that_goes_on_keeps_the_probe(make_trainer, make_module, make_data):
    probe, module, data = OnlineLinearProbe(4), make_module(), make_data()
    trainer = make_trainer(callbacks=[probe])
    trainer.fit(module, data)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, data)
    assert probe.state_dict()["optimizer"]["state"][0]["step"] == 6


def test_a_module_that_returns_no_features_is_refused(make_trainer, make_module, make_data):
    module = make_module()
    step = module.training_step
    module.training_step = lambda batch, batch_idx: step(batch, batch_idx)["loss"]
    trainer = make_trainer(callbacks=[OnlineLinearProbe(4)])
    with pytest.raises(TypeError, match=r"must return a dict with features.*got \['loss'\]"):
        trainer.fit(module, make_data())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_classes": 1}, "num_classes must be at least 2, got 1"),
        ({"num_classes": 4, "learning_rate": 0}, "learning_rate must be positive, got 0"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        OnlineLinearProbe(**arguments)


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (torch.zeros(4, 3), torch.zeros(4).long(), "features must hold a tensor .* got a tensor"),
        (
            (torch.zeros(4),),
            torch.zeros(4).long(),
            r"features must .* got \[\(4,\)\]",
        ),
        ((torch.zeros(4, 3),), torch.zeros(4), "labels must hold integers .* got torch.float32"),
    ],
)
def test_outputs_of_another_form_are_named(features, labels, message, make_trainer, make_module):
    probe = OnlineLinearProbe(num_classes=4)
    outputs = {"features": features, "labels": labels}
    with pytest.raises(TypeError, match=message):
        probe.on_train_batch_end(make_trainer(), make_module(), outputs, None, 0)
