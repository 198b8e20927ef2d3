"""Monitors in two processes under ``strategy="ddp"`` against one process with the same images."""

import sys
from pathlib import Path

import pytest
import torch
from cases import few
from monitor_processes import FAR, fit
from processes import run_ranks

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or sys.platform == "win32", reason="needs gloo processes"
)

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What two processes found."""
    folder = tmp_path_factory.mktemp("monitors")
    run_ranks(2, TESTS / "monitor_processes.py", folder, timeout=240)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize(("case", "max_samples"), few([("all", 100), ("some", 12)], -1))
def test_the_geometry_is_that_of_one_process(ranks, case, max_samples):
    whole = fit(1, max_samples)["metrics"]
    names = {name for name in whole if name.startswith("geometry")}
    assert len(names) == 10
    for rank in ranks:
        found = rank[case]["metrics"]
        assert {name: found[name] for name in names} == pytest.approx(
            {name: whole[name] for name in names}, rel=1e-4, abs=1e-5
        )


def test_the_shape_of_the_tail_is_that_of_one_process(ranks):
    whole = fit(1, 100)["metrics"]
    names = ("tail/xi", "tail/xi_low", "tail/xi_high")
    for rank in ranks:
        found = rank["all"]["metrics"]
        assert found["tail/xi"] == pytest.approx(whole["tail/xi"], abs=1e-3)
        # Rounding decides whether a draw of so few samples has a fit, which moves the quantiles.
        assert [found[name] for name in names[1:]] == pytest.approx(
            [whole[name] for name in names[1:]], abs=0.05
        )
    assert whole["tail/xi_low"] < whole["tail/xi"] < whole["tail/xi_high"]


def test_the_bound_on_samples_was_felt(ranks):
    every, some = (ranks[0][case]["metrics"] for case in ("all", "some"))
    assert every["geometry/alignment"] != some["geometry/alignment"]


def test_a_probe_counts_each_validation_image_once(ranks):
    whole = fit(1, 100)["metrics"]
    names = [f"{probe}/{split}_top{k}" for probe in ("probe", FAR) for split in ("train", "val")
             for k in (1, 5)]  # fmt: skip
    for rank in ranks:
        found = rank["all"]["metrics"]
        assert [found[name] for name in names] == pytest.approx([whole[name] for name in names])
    # Images that all are right or wrong could be counted twice unnoticed.
    assert 0 < whole["probe/val_top1"] < 1


def test_probes_are_equal_on_all_processes(ranks):
    for own, other in zip(*(rank["all"]["weights"] for rank in ranks), strict=True):
        assert torch.equal(own, other)


def test_a_resume_within_an_epoch_keeps_the_counts_of_all_processes(ranks):
    for rank in ranks:
        found = rank["resume"]
        assert found["whole steps"] == found["resumed steps"] == 4
        assert found["resumed"] == found["whole"]
        assert len(found["whole"]) == 4


def test_processes_with_different_numbers_of_batches_end_and_agree(ranks):
    assert ranks[0]["uneven"] == ranks[1]["uneven"]
    for found in ranks[0]["uneven"]:
        assert len(found) == 10
