"""Real gloo processes against one process that holds the whole batch."""

import sys
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from cases import few
from processes import meet, spawn
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from weince_lightning.distributed import gather
from weince_lightning.functional.candidates import compare, score
from weince_lightning.losses import (
    BatchCandidates,
    InfoNCELoss,
    TailGate,
    TopMTerm,
    WeibitLink,
    WEINCELoss,
)

pytestmark = pytest.mark.skipif(
    not dist.is_available() or sys.platform == "win32", reason="needs gloo processes"
)

LOSSES = {
    "infonce": lambda **rest: InfoNCELoss(0.2, **rest),
    "pooled": lambda **rest: InfoNCELoss(link=WeibitLink("pooled"), **rest),
    "top-m": lambda **rest: InfoNCELoss(top_m_terms=[TopMTerm(top_m=3)], **rest),
    "weince": lambda **rest: WEINCELoss(0.2, **rest),
    "hard gate": lambda **rest: WEINCELoss(gate=TailGate(signals="rho", hard=True), **rest),
    "fixed gate": lambda **rest: WEINCELoss(gate=0.4, **rest),
    "fixed shape": lambda **rest: WEINCELoss(gate=TailGate(signals="aic"), shape=1.0, **rest),
    "released": lambda **rest: WEINCELoss.released(**rest),
    "losses": lambda **rest: WEINCELoss(mix="losses", **rest),
}
LAYOUTS = ("views", "pairs", "queries")
CASES = [
    *product(LOSSES, LAYOUTS, ("", "ids", "own", "shared ids", "ids queue")),
    *product(("infonce", "weince"), LAYOUTS, ("own queue", "shared queue")),
    *product(LOSSES, ("views",), ("ids bank",)),
    *product(("infonce", "weince"), ("queries",), ("own bank", "shared bank")),
]


def build(name: str, layout: str, option: str) -> InfoNCELoss | WEINCELoss:
    # The second of two steps overflows it.
    sizes = {"queue_size": 10 * ("queue" in option), "memory_bank_size": 10 * ("bank" in option)}
    return LOSSES[name](layout=layout, **sizes)


def whole_batch(samples: int, option: str, step: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(3 + step)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    z0 = draw(samples, 16)
    z1 = z0 + 0.5 * draw(samples, 16)
    extra = {}
    if "ids" in option:
        extra["ids"] = (torch.arange(samples) + step) // 2
    if "own" in option:
        extra["negatives"] = draw(samples, 2, 16)
    if "shared" in option:
        extra["negatives"] = draw(samples, 16)
    return z0, z1, extra


def network() -> nn.Module:
    """Sixteen numbers to eight: in fewer, float32 similarities come too close to 1 to compare."""
    layer = nn.Linear(16, 8, bias=False, dtype=torch.float64)
    nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(5))
    return layer


class Found(NamedTuple):
    """What a process gets from its rows, in one step or several."""

    values: Tensor
    gradient: Tensor
    state: list[Tensor]
    per_sample: list[Tensor]  # of each anchor, samples first: (samples, views)
    rho0: Tensor


def similarities(candidates: BatchCandidates) -> list[Tensor]:
    """Of each anchor, to its positive, and the sum and the largest of those to its negatives."""
    columns: list[list[Tensor]] = []
    for group in candidates.groups:
        scores = score(group, compare(group).detach())
        positive = scores.similarity.gather(1, scores.positive)[:, 0]
        total = scores.fill_excluded_(scores.similarity.clone(), 0.0).sum(dim=1)
        # Never below -1, so that an anchor without negatives can be compared too.
        largest = scores.fill_excluded_(scores.similarity.clone(), -1.0).amax(dim=1)
        columns.append([positive, total, largest])
    return [torch.cat(column) for column in zip(*columns, strict=True)]


def compute(
    loss: InfoNCELoss | WEINCELoss, rows: slice, samples: int, option: str, dtype: torch.dtype
) -> Found:
    net = network()

    def embed(z: Tensor | None) -> Any:
        return None if z is None else net(z[rows]).to(dtype)

    values, per_sample, rho0 = [], [], torch.zeros(())
    for step in range(2 if "queue" in option or "bank" in option else 1):
        z0, z1, extra = whole_batch(samples, option, step)
        ids = extra["ids"][rows] if "ids" in extra else None
        batch = embed(z0), embed(z1), ids, embed(extra.get("negatives"))
        candidates = loss.candidates(*batch)
        terms = loss.terms(*batch)
        terms.loss.backward()
        values.append(terms.loss.detach().double())
        per_anchor = [terms.per_anchor, terms.num_negatives, *similarities(candidates)]
        if terms.tail is not None:
            tail = terms.tail
            per_anchor += [tail.gate, tail.shape, tail.beta_hat, tail.rho, tail.delta_aic]
            rho0 = tail.rho0.double()
        views = 1 if loss.layout == "queries" or "bank" in option else 2
        per_sample += [column.double().view(views, -1).T for column in per_anchor]
    return Found(
        torch.stack(values),
        net.weight.grad,
        [tensor.double() for tensor in loss.state_dict().values()],
        per_sample,
        rho0,
    )


def work(rank: int, sizes: list[int], folder: str, dtype: torch.dtype) -> None:
    rows = meet(rank, sizes, folder)
    found: dict[str, Any] = {}
    for name, layout, option in CASES:
        case = compute(build(name, layout, option), rows, sum(sizes), option, dtype)
        dist.all_reduce(case.gradient)  # what DistributedDataParallel does
        found[f"{name}, {layout}, {option}"] = case._replace(gradient=case.gradient / len(sizes))
    if sizes[rank] > 1:
        local = WEINCELoss(gather_distributed=False)
        found["local"] = compute(local, rows, sum(sizes), "", dtype)
    transposed = torch.arange(8.0).view(2, 4).T[: sizes[rank]] + 10 * rank
    found["gathered"] = gather(transposed)
    torch.save({key: tuple(value) for key, value in found.items()}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def assert_same(found: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    assert (found - expected).norm() <= tolerance * expected.norm(), what


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    few(
        [
            ([4, 4], torch.float64),
            ([4, 3], torch.float64),
            ([5, 2, 1], torch.float64),
            ([3, 0, 4], torch.float64),
            ([4, 3], torch.float32),
        ],
        3,
    ),
    ids=str,
)
def test_ranks_together_equal_one_process_with_the_whole_batch(
    sizes: list[int], dtype: torch.dtype, tmp_path: Path
):
    spawn(work, (sizes, str(tmp_path), dtype), len(sizes))
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(len(sizes))]
    of_values, of_gradients = (1e-9, 1e-9) if dtype == torch.float64 else (1e-5, 1e-4)
    for name, layout, option in CASES:
        case = f"{name}, {layout}, {option}"
        expected = compute(build(name, layout, option), slice(None), sum(sizes), option, dtype)
        found = [Found(*rank[case]) for rank in ranks]
        values = torch.stack([f.values for f in found]).mean(dim=0)
        for value, whole in zip(values, expected.values, strict=True):
            assert_same(value, whole, of_values, case)
        for column, whole in zip(
            zip(*(f.per_sample for f in found), strict=True), expected.per_sample, strict=True
        ):
            assert_same(torch.cat(column), whole, of_gradients, case)
        for f in found:
            assert_same(f.gradient, expected.gradient, of_gradients, case)
            assert_same(f.rho0, expected.rho0, of_values, case)
            for mine, whole in zip(f.state, expected.state, strict=True):
                assert mine.shape == whole.shape
                assert_same(mine, whole, of_values, case)
            for mine, theirs in zip(f.state, found[0].state, strict=True):
                assert torch.equal(mine, theirs), case
    for rank, size in enumerate(sizes):
        if size > 1:
            rows = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
            alone = compute(WEINCELoss(), rows, sum(sizes), "", dtype)
            torch.testing.assert_close(Found(*ranks[rank]["local"]), alone)
    rows = [torch.arange(8.0).view(2, 4).T[:size] + 10 * i for i, size in enumerate(sizes)]
    for found in ranks:
        assert torch.equal(torch.stack(found["gathered"]), torch.cat(rows))


class WithItsLoss(nn.Module):
    """A network and its loss in one module, as a trainer wraps them."""

    def __init__(self, loss: InfoNCELoss) -> None:
        super().__init__()
        self.net, self.loss = network(), loss

    def forward(self, z0: Tensor, z1: Tensor) -> Tensor:
        return self.loss(self.net(z0), self.net(z1))


def keys_after_steps(module: nn.Module, rows: slice, samples: int) -> Tensor:
    for step in range(4):
        z0, z1, _ = whole_batch(samples, "", step)
        module(z0[rows], z1[rows]).backward()
    (name,) = [name for name in module.state_dict() if name.endswith("queue.vectors")]
    return module.state_dict()[name]


def work_with_queues(rank: int, sizes: list[int], folder: str) -> None:
    rows = meet(rank, sizes, folder)
    found = {}
    for gathers in (True, False):
        loss = InfoNCELoss(queue_size=13, gather_distributed=gathers)
        found[gathers] = keys_after_steps(
            DistributedDataParallel(WithItsLoss(loss)), rows, sum(sizes)
        )
    unequal = InfoNCELoss(queue_size=13)
    if rank == 0:
        unequal.load_state_dict(loss.state_dict())
    z0, z1, _ = whole_batch(4, "", 0)
    with pytest.raises(RuntimeError, match=r"keys .* the same in all processes, got \[13, 0\]"):
        unequal(network()(z0), network()(z1))
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_keys_are_those_of_all_processes_or_each_ones_own_under_ddp(tmp_path: Path):
    sizes = [4, 3]
    spawn(work_with_queues, (sizes, str(tmp_path)), 2)
    for rank, rows in enumerate((slice(0, 4), slice(4, 7))):
        found = torch.load(tmp_path / f"{rank}.pt")
        for gathers, expected in ((True, slice(None)), (False, rows)):
            alone = WithItsLoss(InfoNCELoss(queue_size=13))
            assert_same(found[gathers], keys_after_steps(alone, expected, 7), 1e-12, str(gathers))


def disagree(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    z = torch.randn(4, 8)
    messages = []
    for kinds in ({"ids": torch.arange(4)}, {"negatives": torch.randn(3, 8)}, {"z1": z[:, :5]}):
        mine = {"z0": z, "z1": z}
        if rank == 0:
            mine.update(kinds)
            mine["z0"] = mine["z0"][:, : mine["z1"].shape[1]]
        try:
            WEINCELoss()(**mine)
        except RuntimeError as error:
            messages.append(str(error))
    torch.save(messages, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_processes_that_disagree_are_all_told(tmp_path: Path):
    spawn(disagree, (str(tmp_path),), 2)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert found == [
            "The presence of ids (0 or 1) must be the same in all processes, got [1, 0].",
            "The dimensions of negatives (0 without) must be the same in all processes, "
            "got [2, 0].",
            "The features of z0 must be the same in all processes, got [5, 8].",
        ]


def test_one_process_gathers_nothing():
    rows = torch.ones(2, 3)
    assert gather(rows) is rows
