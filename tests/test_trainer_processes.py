"""Two processes under a trainer's plain ``strategy="ddp"`` against one with the whole batch."""

import math
import sys
from pathlib import Path

import pytest
import torch
from processes import run_ranks
from two_processes import (
    CASES,
    MICRO_BATCHES,
    ODD_SIZES,
    SIZE,
    Descent,
    Ending,
    network,
    pairs,
    train,
    validate,
)

from weince_lightning import WEINCELoss

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or sys.platform == "win32", reason="needs gloo processes"
)

TESTS = Path(__file__).parent
LIBRARIES = ("lightning", "pytorch_lightning")
# A bfloat16 has 8 bits, and the sums over the micro-batches are rounded to it.
TOLERANCES = {"64-true": 1e-9, "32-true": 1e-4, "bf16-mixed": 2e-2}


def run(library: str, folder: Path) -> list[dict]:
    """Let two processes train every case; returns what each found, or ends both."""
    run_ranks(2, TESTS / "two_processes.py", library, folder, timeout=240)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What both processes found, by library; each library trains when it is first asked for."""
    found = {}

    def of(library):
        pytest.importorskip(library)
        if library not in found:
            found[library] = run(library, tmp_path_factory.mktemp(library))
        return found[library]

    return of


def assert_equals_one_process(ranks, library, name, case):
    expected = train(library, 1, case)
    steps = [expected.parameters - expected.start]
    found = [Ending(*rank[name]) for rank in ranks(library)]
    assert torch.equal(found[0].parameters, found[1].parameters)
    tolerance = TOLERANCES[case.precision]
    step = found[0].parameters - found[0].start
    assert steps[0].norm() > 0
    assert (step - steps[0]).norm() <= tolerance * steps[0].norm()
    for rank in found:
        torch.testing.assert_close(rank.loss, expected.loss, rtol=tolerance, atol=0)
        for buffer, whole in zip(rank.buffers, expected.buffers, strict=True):
            torch.testing.assert_close(buffer, whole, rtol=tolerance, atol=0)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_step_of_two_processes_is_that_of_one_with_the_whole_batch(ranks, library, name):
    assert_equals_one_process(ranks, library, name, CASES[name])


@pytest.mark.parametrize("name", MICRO_BATCHES)
def test_a_step_of_two_processes_in_micro_batches_is_that_of_one_whole_batch(ranks, name):
    assert_equals_one_process(ranks, "lightning", name, MICRO_BATCHES[name])


def test_training_with_all_callbacks_ends_with_the_same_on_both_processes(ranks):
    first, second = (rank["watched"] for rank in ranks("lightning"))
    torch.testing.assert_close(first["state"], second["state"], rtol=0, atol=0)
    metrics = first["metrics"]
    names = {"train/loss", "val/loss", "tail/lambda_mean", "knn/top1", "knn_2/top1"}
    names |= {"probe/val_top1", "probe_2/val_top1", "geometry/alignment"}
    assert names <= set(metrics)
    assert all(map(math.isfinite, metrics.values()))
    of_all = [key for key in metrics if not key.startswith("train/loss")]
    assert [metrics[key] for key in of_all] == [second["metrics"][key] for key in of_all]


@pytest.mark.parametrize("what", ["state", "moments", "steps", "stream"])
def test_two_processes_train_bit_identically_with_and_without_callbacks(ranks, what):
    for rank in ranks("lightning"):
        torch.testing.assert_close(rank["watched"][what], rank["alone"][what], rtol=0, atol=0)


def test_batch_norm_that_is_not_synchronised_is_warned_of_once_and_on_one_process(ranks):
    first, second = (rank["watched"]["warnings"] for rank in ranks("lightning"))
    (message,) = first
    assert message.startswith("sync_batchnorm must be True")
    assert "2 processes" in message
    assert second == []


@pytest.mark.parametrize("case", ODD_SIZES)
def test_the_validation_loss_of_two_processes_counts_each_sample_once(ranks, case):
    samples, batch_size = ODD_SIZES[case]
    whole = validate(1, samples, batch_size)
    assert [rank["odd"][case] for rank in ranks("lightning")] == pytest.approx([whole] * 2)


def test_processes_that_do_not_gather_count_each_sample_once(ranks):
    torch.manual_seed(0)
    module = Descent(network(), WEINCELoss(0.2), 1, SIZE).double()
    views = [torch.stack([pair[0][i] for pair in pairs()[:13]]).double() for i in range(2)]
    z0, z1 = (module.encode(view)[1] for view in views)
    each = [module.loss(z0[rank::2], z1[rank::2]).item() for rank in range(2)]
    expected = (7 * each[0] + 6 * each[1]) / 13
    found = [rank["odd"]["each its own"] for rank in ranks("lightning")]
    assert found == pytest.approx([expected] * 2)
