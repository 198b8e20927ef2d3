"""KNNMonitor on three processes against one, to the last digit."""

import sys
from pathlib import Path

import pytest
import torch
from processes import run_ranks

from weince_lightning.evaluation.features import RECALL_AT, extract_features, knn_scores

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or sys.platform == "win32", reason="needs gloo processes"
)

HERE = Path(__file__).parent
PROCESSES = 3
LOADERS = (
    "in order", "fewer batches than processes", "one batch", "shuffled", "padded", "a stream",
    "a list",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the processes leave behind; all end if they take too long, as in a deadlock."""
    folder = tmp_path_factory.mktemp("knn")
    run_ranks(PROCESSES, HERE / "knn_processes.py", folder, timeout=240)
    return folder


@pytest.fixture(scope="module")
def ranks(folder):
    return [torch.load(folder / f"{rank}.pt") for rank in range(PROCESSES)]


@pytest.fixture
def reloaded(folder, make_module):
    """The module of the checkpoint, in this one process."""
    module = make_module()
    module.load_state_dict(torch.load(folder / "last.ckpt", weights_only=True)["state_dict"])
    return module


def test_its_numbers_are_those_of_one_process_with_the_checkpoint(ranks, reloaded):
    wanted = knn_scores(reloaded, ranks[0]["train"], ranks[0]["val"], k=(3, 7), temperature=0.1)
    names = ["knn/top1_k3", "knn/top1_k7", *(f"knn/recall_at_{r}" for r in RECALL_AT), "knn/top1"]
    values = [*wanted.accuracy.tolist(), *wanted.recall.tolist(), wanted.accuracy[1].item()]
    assert min(values) < 1
    for rank in ranks:
        assert rank["fit"] == dict(zip(names, values, strict=True))


@pytest.mark.parametrize("loader", LOADERS)
def test_features_are_those_of_one_process_to_the_last_bit(loader, ranks, reloaded, make_data):
    # Batches of another size may be rounded otherwise; one process has the same.
    size = {"fewer batches than processes": 20, "one batch": 30}.get(loader, 4)
    images = make_data().evaluation_dataloader("val").dataset
    batches = torch.utils.data.DataLoader(images, size)
    features, labels = extract_features(reloaded, batches)
    for rank in ranks:
        assert torch.equal(rank[loader]["features"], features)
        assert torch.equal(rank[loader]["labels"], labels)


@pytest.mark.parametrize("loader", LOADERS)
def test_every_image_is_encoded_once_by_one_process(loader, ranks):
    assert sum(sum(rank[loader]["seen"]) for rank in ranks) == 21
    batches = [len(rank[loader]["seen"]) for rank in ranks]
    assert max(batches) - min(batches) <= 1


def test_processes_keep_their_own_batch_norm_statistics(ranks):
    first, second, _ = (rank["in order"] for rank in ranks)
    assert not all(map(torch.equal, first["buffers"], second["buffers"]))
    for rank in ranks:
        each = rank["in order"]
        assert all(map(torch.equal, each["buffers"], each["buffers after"]))


def test_without_any_label_all_log_nothing_and_one_warns(ranks):
    assert [rank["unlabelled"]["metrics"] for rank in ranks] == [{}, {}, {}]
    assert [len(rank["unlabelled"]["warnings"]) for rank in ranks] == [1, 0, 0]
