"""From batches to features: every image once, in evaluation mode, as the model is."""

from itertools import chain

import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from weince_lightning.evaluation.features import extract_features, knn_scores
from weince_lightning.functional.neighbours import NoLabelError


@pytest.fixture
def dataset(generator):
    """21 images of 4 pixels: a last batch of 10 holds one."""
    return TensorDataset(torch.randn(21, 2, 2, generator=generator), torch.arange(21) % 3)


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))


SAMPLERS = {
    "shuffle": lambda dataset: {"shuffle": True},
    "drop_last": lambda dataset: {"drop_last": True},
    "padded to 11 of 22": lambda dataset: {"sampler": DistributedSampler(dataset, 2, 1)},
}


@pytest.mark.parametrize("options", SAMPLERS)
def test_every_image_counts_once_and_in_order_whatever_the_sampler(options, dataset, model):
    loader = DataLoader(dataset, batch_size=10, **SAMPLERS[options](dataset))
    features, labels = extract_features(model, loader)
    wanted, _ = extract_features(model, DataLoader(dataset, batch_size=10))
    assert torch.equal(labels, dataset.tensors[1])
    assert torch.equal(features, wanted)


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": [3, 3, 8], "batch_size": 2},
        {"batch_sampler": [[3, 3], [8]]},
        {"sampler": SequentialSampler([8, 8, 3]), "batch_size": 2},
        {"sampler": RandomSampler(range(21), num_samples=3), "batch_size": 2},
        {"sampler": RandomSampler(range(3), replacement=True), "batch_size": 2},
    ],
    ids=["sampler", "batch sampler", "first ones", "some at random", "with replacement"],
)
def test_a_sampler_that_chooses_images_is_followed(options, dataset, model):
    seen = []

    class Watched(TensorDataset):
        def __getitem__(self, index):
            seen.append(index)
            return super().__getitem__(index)

    torch.manual_seed(0)
    extract_features(model, DataLoader(Watched(*dataset.tensors), **options))
    torch.manual_seed(0)
    chosen = options.get("sampler") or chain.from_iterable(options["batch_sampler"])
    assert seen == list(chosen)
    assert len(seen) == 3


def test_workers_and_collate_functions_of_a_loader_are_used(dataset, model):
    def collate(samples):
        images, labels = zip(*samples, strict=True)
        return torch.stack(images), torch.stack(labels) + 100, "more"

    loader = DataLoader(dataset, batch_size=10, num_workers=1, collate_fn=collate)
    assert extract_features(model, loader)[1].tolist() == [100 + i % 3 for i in range(21)]


def test_other_batches_are_taken_as_they_are(dataset, model):
    batches = [(images, labels, "ignored") for images, labels in DataLoader(dataset, 10)]
    wanted, _ = extract_features(model, DataLoader(dataset, 10))
    for kind in (list, iter):
        features, labels = extract_features(model, kind(batches))
        assert torch.equal(features, wanted)
        assert torch.equal(labels, dataset.tensors[1])


def test_neither_autocast_nor_the_mode_changes_the_features(dataset, model):
    loader = DataLoader(dataset, 10)
    model.eval()
    wanted = torch.cat([model(images) for images, _ in loader])
    model.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features, _ = extract_features(model, loader)
    assert torch.equal(features, wanted)
    assert all(module.training for module in model.modules())
    assert not features.requires_grad


@pytest.mark.parametrize(
    ("precision", "wanted"),
    [(torch.float64, torch.float64), (torch.bfloat16, torch.float32), (torch.half, torch.float32)],
)
def test_a_model_of_any_precision_gets_images_of_its_own(precision, wanted, dataset, model):
    features, _ = extract_features(model.to(precision), DataLoader(dataset, 10))
    assert features.dtype == wanted


def test_integers_such_as_words_stay_integers():
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten()).double()
    batches = [(torch.tensor([[0, 4], [1, 1]]), torch.tensor([0, 1], dtype=torch.int32))]
    features, labels = extract_features(model, batches)
    assert features.shape == (2, 6)
    assert labels.dtype == torch.int64


def test_modes_come_back_after_an_error(dataset, model):
    with pytest.raises(
        ValueError, match=r"features of shape \(batch, features\), got \(10, 2, 2\)"
    ):
        extract_features(nn.Dropout().train(), DataLoader(dataset, 10))
    model[2].eval()
    with pytest.raises(RuntimeError):
        extract_features(model, [(torch.ones(2, 7), torch.ones(2))])
    assert [module.training for module in model] == [True, True, False, True]


def test_no_batch_is_refused(model):
    with pytest.raises(ValueError, match="batches must hold at least one batch, got none"):
        extract_features(model, [])


def test_scores_need_a_label_in_bank_and_queries(dataset, model):
    none = TensorDataset(dataset.tensors[0], torch.full((21,), -1))
    loader, unlabelled = DataLoader(dataset, 10), DataLoader(none, 10)
    for bank, queries in ((loader, unlabelled), (unlabelled, loader)):
        with pytest.raises(NoLabelError, match="got 21 of -1"):
            knn_scores(model, bank, queries, k=(1,), temperature=0.1)
