"""Real gloo processes against one process that holds the whole batch."""

import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from weince_lightning.distributed import gather
from weince_lightning.losses import InfoNCELoss, TopMTerm, WEINCELoss

pytestmark = pytest.mark.skipif(
    not dist.is_available() or sys.platform == "win32", reason="needs gloo processes"
)

CASES = {
    "infonce": (lambda: InfoNCELoss(0.2), ""),
    "weince": (lambda: WEINCELoss(0.2), ""),
    "weince pairs": (lambda: WEINCELoss(layout="pairs"), "ids"),
    "weince queries": (lambda: WEINCELoss(layout="queries"), "own"),
    "weince shared": (lambda: WEINCELoss(), "shared ids"),
    "released": (lambda: WEINCELoss.released(), ""),
    "losses": (lambda: WEINCELoss(mix="losses"), ""),
    "top-m": (lambda: InfoNCELoss(top_m_terms=[TopMTerm()]), ""),
}


def whole_batch(samples: int, option: str) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    z0 = draw(samples, 6)
    z1 = z0 + 0.5 * draw(samples, 6)
    extra = {}
    if "ids" in option:
        extra["ids"] = torch.arange(samples) // 2
    if "own" in option:
        extra["negatives"] = draw(samples, 2, 6)
    if "shared" in option:
        extra["negatives"] = draw(samples, 6)
    return z0, z1, extra


def network() -> nn.Module:
    layer = nn.Linear(6, 5, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(-1, 1, 30, dtype=torch.float64).sin().view(5, 6))
    return layer


def value_and_gradient(loss: nn.Module, rows: slice, samples: int, option: str) -> list[Tensor]:
    z0, z1, extra = whole_batch(samples, option)
    net = network()
    extra = {key: value[rows] for key, value in extra.items()}
    if "negatives" in extra:
        extra["negatives"] = net(extra["negatives"])
    value = loss(net(z0[rows]), net(z1[rows]), **extra)
    value.backward()
    running = [b.double() for b in loss.buffers()]
    return [value.detach(), net.weight.grad, *running]


def work(rank: int, sizes: list[int], folder: str) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=len(sizes),
        timeout=timedelta(seconds=60),
    )
    start = sum(sizes[:rank])
    rows, total = slice(start, start + sizes[rank]), sum(sizes)
    found = {}
    for name, (build, option) in CASES.items():
        parts = value_and_gradient(build(), rows, total, option)
        dist.all_reduce(parts[1])  # what DistributedDataParallel does
        parts[1] /= len(sizes)
        found[name] = parts
    local = InfoNCELoss(gather_distributed=False)
    if sizes[rank] > 1:
        found["local"] = value_and_gradient(local, rows, total, "")
    transposed = torch.arange(6.0).view(2, 3).T[: sizes[rank]] + 10 * rank
    found["gathered"] = [gather(transposed)]
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("sizes", [[4, 3], [5, 2, 1]], ids=str)
def test_ranks_together_equal_one_process_with_the_whole_batch(sizes: list[int], tmp_path: Path):
    mp.spawn(work, args=(sizes, str(tmp_path)), nprocs=len(sizes))
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(len(sizes))]
    for name, (build, option) in CASES.items():
        expected = value_and_gradient(build(), slice(None), sum(sizes), option)
        mean = torch.stack([found[name][0] for found in ranks]).mean()
        torch.testing.assert_close(mean, expected[0], rtol=1e-9, atol=0)
        for found in ranks:
            for part, whole in zip(found[name][1:], expected[1:], strict=True):
                assert (part - whole).norm() <= 1e-9 * whole.norm(), name
    start = 0
    for size, found in zip(sizes, ranks, strict=True):
        if size > 1:
            rows = slice(start, start + size)
            local = InfoNCELoss(gather_distributed=False)
            expected = value_and_gradient(local, rows, sum(sizes), "")
            torch.testing.assert_close(found["local"], expected)
        start += size
    rows = [torch.arange(6.0).view(2, 3).T[:size] + 10 * i for i, size in enumerate(sizes)]
    for found in ranks:
        assert torch.equal(found["gathered"][0], torch.cat(rows))


def test_one_process_gathers_nothing():
    rows = torch.ones(2, 3)
    assert gather(rows) is rows
