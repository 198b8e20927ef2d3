"""Real gloo processes against one process that holds the whole batch."""

import sys
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from weince_lightning.distributed import gather
from weince_lightning.losses import InfoNCELoss, TailGate, TopMTerm, WeibitLink, WEINCELoss

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
CASES = list(product(LOSSES, ("views", "pairs", "queries"), ("", "ids", "own", "shared ids")))


def whole_batch(samples: int, option: str) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    z0 = draw(samples, 16)
    z1 = z0 + 0.5 * draw(samples, 16)
    extra = {}
    if "ids" in option:
        extra["ids"] = torch.arange(samples) // 2
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
    """What a process gets from its rows."""

    value: Tensor
    gradient: Tensor
    buffers: list[Tensor]
    per_sample: list[Tensor]  # of each anchor, samples first: (samples, views)
    rho0: Tensor


def compute(
    loss: InfoNCELoss | WEINCELoss, rows: slice, samples: int, option: str, dtype: torch.dtype
) -> Found:
    z0, z1, extra = whole_batch(samples, option)
    net = network()
    z0, z1, negatives = (None if z is None else z[rows] for z in (z0, z1, extra.get("negatives")))

    def embed(z: Tensor | None) -> Any:
        return None if z is None else net(z).to(dtype)

    ids = extra["ids"][rows] if "ids" in extra else None
    terms = loss.terms(embed(z0), embed(z1), ids, embed(negatives))
    terms.loss.backward()
    tail = terms.tail
    per_anchor = [terms.per_anchor, terms.num_negatives]
    rho0 = torch.zeros(())
    if tail is not None:
        per_anchor += [tail.gate, tail.shape, tail.beta_hat, tail.rho, tail.delta_aic]
        rho0 = tail.rho0
    views = 1 if loss.layout == "queries" else 2
    return Found(
        terms.loss.detach().double(),
        net.weight.grad,
        [buffer.double() for buffer in loss.buffers()],
        [column.double().view(views, -1).T for column in per_anchor],
        rho0.double(),
    )


def work(rank: int, sizes: list[int], folder: str, dtype: torch.dtype) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=len(sizes),
        timeout=timedelta(seconds=60),
    )
    rows = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    found: dict[str, Any] = {}
    for name, layout, option in CASES:
        case = compute(LOSSES[name](layout=layout), rows, sum(sizes), option, dtype)
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
    [
        ([4, 4], torch.float64),
        ([4, 3], torch.float64),
        ([5, 2, 1], torch.float64),
        ([3, 0, 4], torch.float64),
        ([4, 3], torch.float32),
    ],
    ids=str,
)
def test_ranks_together_equal_one_process_with_the_whole_batch(
    sizes: list[int], dtype: torch.dtype, tmp_path: Path
):
    mp.spawn(work, args=(sizes, str(tmp_path), dtype), nprocs=len(sizes))
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(len(sizes))]
    of_values, of_gradients = (1e-9, 1e-9) if dtype == torch.float64 else (1e-5, 1e-4)
    for name, layout, option in CASES:
        case = f"{name}, {layout}, {option}"
        expected = compute(LOSSES[name](layout=layout), slice(None), sum(sizes), option, dtype)
        found = [Found(*rank[case]) for rank in ranks]
        assert_same(torch.stack([f.value for f in found]).mean(), expected.value, of_values, case)
        for column, whole in zip(
            zip(*(f.per_sample for f in found), strict=True), expected.per_sample, strict=True
        ):
            assert_same(torch.cat(column), whole, of_gradients, case)
        for f in found:
            assert_same(f.gradient, expected.gradient, of_gradients, case)
            assert_same(f.rho0, expected.rho0, of_values, case)
            for buffer, whole in zip(f.buffers, expected.buffers, strict=True):
                assert_same(buffer, whole, of_values, case)
    for rank, size in enumerate(sizes):
        if size > 1:
            rows = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
            alone = compute(WEINCELoss(), rows, sum(sizes), "", dtype)
            torch.testing.assert_close(Found(*ranks[rank]["local"]), alone)
    rows = [torch.arange(8.0).view(2, 4).T[:size] + 10 * i for i, size in enumerate(sizes)]
    for found in ranks:
        assert torch.equal(torch.stack(found["gathered"]), torch.cat(rows))


def test_one_process_gathers_nothing():
    rows = torch.ones(2, 3)
    assert gather(rows) is rows
