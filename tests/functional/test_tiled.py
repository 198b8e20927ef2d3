"""The tiled path against the whole matrix: value, gradient, evidence, memory."""

import re
import sys
import threading
from itertools import product
from pathlib import Path

import pytest
import torch
from cases import few
from processes import spawn
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from weince_lightning.functional.contrastive import Whole
from weince_lightning.functional.threads import _pool
from weince_lightning.losses import (
    ArctanhLink,
    InfoNCELoss,
    TailGate,
    TopMTerm,
    WeibitLink,
    WEINCELoss,
)

LOSSES = {
    "infonce": InfoNCELoss,
    "pooled": lambda **rest: InfoNCELoss(link=WeibitLink("pooled"), **rest),
    "arctanh": lambda **rest: InfoNCELoss(link=ArctanhLink(), **rest),
    "top-m": lambda **rest: InfoNCELoss(top_m_terms=[TopMTerm(top_m=4)], **rest),
    "weince": WEINCELoss,
    "hard gate": lambda **rest: WEINCELoss(gate=TailGate(signals="rho", hard=True), **rest),
    "fixed": lambda **rest: WEINCELoss(gate=0.3, shape=2.0, **rest),
    "losses": lambda **rest: WEINCELoss(mix="losses", **rest),
    "released": WEINCELoss.released,
}
POOLED = ("pooled", "top-m", "released")
"""They hold the shortfalls that the pooled line takes from the whole batch."""


def batch(
    samples: int, option: str, dtype: torch.dtype = torch.float64, step: int = 0
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(2 + step)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    z0 = draw(samples, 8)
    inputs = {"z0": z0, "z1": z0 + draw(samples, 8)}
    if "own" in option:
        inputs["negatives"] = draw(samples, 3, 8)
    if "shared" in option:
        inputs["negatives"] = draw(5, 8)
    inputs = {key: value.to(dtype).requires_grad_() for key, value in inputs.items()}
    if "ids" in option:
        inputs["ids"] = torch.randint(0, samples // 2, (samples,), generator=generator)
    return inputs


def whole(loss: InfoNCELoss | WEINCELoss) -> InfoNCELoss | WEINCELoss:
    """The readable definition: the whole matrix, differentiated by autograd."""
    loss._compare = Whole
    return loss


def gradients(loss: Tensor, inputs: dict[str, Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, [v for k, v in inputs.items() if k != "ids"]))


OPTIONS = ("", "ids", "own", "ids shared")


@pytest.mark.parametrize("block_size", few([1, 7, None], 1))
@pytest.mark.parametrize(
    ("name", "layout", "option"),
    [
        *product(LOSSES, ("views",), OPTIONS),
        *few(product(LOSSES, ("pairs", "queries"), OPTIONS), *range(3, 8 * len(LOSSES), 4)),
        *product(LOSSES, ("views", "pairs", "queries"), ("ids queue",)),
        *product(("infonce", "weince"), ("views",), ("own queue", "shared queue", "own bank")),
        *product(LOSSES, ("views",), ("ids bank",)),
    ],
)
def test_blocks_equal_the_whole_matrix(name, layout, option, block_size):
    kept = {"queue_size": 25 * ("queue" in option), "memory_bank_size": 25 * ("bank" in option)}
    plain = whole(LOSSES[name](layout=layout, **kept))
    tiled = LOSSES[name](layout=layout, block_size=block_size, **kept)
    for step in range(3 if any(kept.values()) else 1):
        inputs = batch(17, option, step=step)
        expected, found = plain.terms(**inputs), tiled.terms(**inputs)
        torch.testing.assert_close(found.loss, expected.loss, rtol=1e-10, atol=0)
        torch.testing.assert_close(found.per_anchor, expected.per_anchor, rtol=1e-9, atol=1e-12)
        assert torch.equal(found.num_negatives, expected.num_negatives)
        torch.testing.assert_close(found.tail, expected.tail, rtol=1e-9, atol=1e-9)
        for mine, theirs in zip(
            gradients(found.loss, inputs), gradients(expected.loss, inputs), strict=True
        ):
            assert (mine - theirs).norm() <= 1e-10 * theirs.norm()
    torch.testing.assert_close(tiled.state_dict(), plain.state_dict())


@pytest.mark.parametrize("name", LOSSES)
def test_blocks_in_float32_are_close_to_the_whole_matrix(name):
    inputs = batch(100, "", torch.float32)
    expected = whole(LOSSES[name]())(**inputs)
    found = LOSSES[name](block_size=32)(**inputs)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    for mine, theirs in zip(gradients(found, inputs), gradients(expected, inputs), strict=True):
        assert (mine - theirs).norm() <= 1e-4 * theirs.norm()


def test_the_temperature_gets_its_gradient():
    inputs = {key: value.detach() for key, value in batch(17, "").items()}
    tau = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    for build in (InfoNCELoss, WEINCELoss):
        found = torch.autograd.grad(build(tau, block_size=5)(**inputs), tau)
        expected = torch.autograd.grad(whole(build(tau))(**inputs), tau)
        torch.testing.assert_close(found, expected)


def test_the_incoming_gradient_scales_the_stored_one():
    inputs = batch(17, "")
    once = gradients(WEINCELoss(block_size=5)(**inputs), inputs)
    thrice = gradients(3 * WEINCELoss(block_size=5)(**inputs), inputs)
    for mine, theirs in zip(thrice, once, strict=True):
        torch.testing.assert_close(mine, 3 * theirs)


def test_only_the_input_with_a_gradient_gets_one():
    inputs = batch(17, "")
    inputs["z1"] = inputs["z1"].detach()
    loss = WEINCELoss(block_size=5)(**inputs)
    expected = torch.autograd.grad(whole(WEINCELoss())(**inputs), inputs["z0"])
    torch.testing.assert_close(torch.autograd.grad(loss, inputs["z0"]), expected)


def test_a_second_backward_is_refused():
    inputs = batch(17, "")
    loss = InfoNCELoss(block_size=5)(**inputs)
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_has_the_gradient_of_the_whole_matrix(name):
    inputs = batch(9, "own")

    def twice(loss: Tensor) -> list[Tensor]:
        wanted = list(inputs.values())
        once = torch.autograd.grad(2 * loss, wanted, create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in once), wanted))

    found = twice(LOSSES[name](layout="pairs", block_size=4)(**inputs))
    expected = twice(whole(LOSSES[name](layout="pairs"))(**inputs))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "layout"), few([("infonce", "views"), ("weince", "views"), ("released", "pairs")], 1)
)
@pytest.mark.filterwarnings("error:.*lru_cache")  # of which people cannot do anything
def test_a_compiled_loss_gives_the_same(name, layout):
    inputs = batch(9, "")
    found = torch.compile(LOSSES[name](layout=layout), backend="eager")(**inputs)
    expected = LOSSES[name](layout=layout)(**inputs)
    torch.testing.assert_close(found, expected)
    for mine, theirs in zip(gradients(found, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_gradient_of_the_gradient_is_exact_under_autocast():
    inputs = batch(9, "", torch.float32)
    z0 = inputs["z0"]
    expected = torch.autograd.grad(InfoNCELoss(0.1)(**inputs), z0, create_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(InfoNCELoss(0.1)(**inputs), z0, create_graph=True)
    torch.testing.assert_close(found, expected)


def test_tensors_without_data_are_welcome():
    z = torch.randn(8, 4, device="meta", requires_grad=True)
    WEINCELoss()(z, z).backward()
    assert z.grad.shape == z.shape


@pytest.fixture
def threads():
    """Sets the number of threads, until the end of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", few(LOSSES, 4, -1))
@pytest.mark.parametrize("layout", ["views", "pairs", "queries"])
def test_threads_change_nothing(name, layout, threads, monkeypatch):
    monkeypatch.setattr("weince_lightning.functional.tiled.LEAST_SHARED", 1)
    inputs = batch(23, "ids own")
    found = []
    for number in (1, 3, 3):
        threads(number)
        loss = LOSSES[name](layout=layout, block_size=4)
        terms = loss.terms(**inputs)
        found.append([terms.per_anchor, *gradients(terms.loss, inputs), *loss.buffers()])
        assert torch.get_num_threads() == number
    for alone, together, again in zip(*found, strict=True):
        torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-14)
        assert torch.equal(together, again)


def test_an_error_in_a_thread_is_the_callers(threads, monkeypatch):
    def fail(*_: object) -> Tensor:
        raise ArithmeticError("in a thread")

    monkeypatch.setattr("weince_lightning.functional.tiled.LEAST_SHARED", 1)
    monkeypatch.setattr(InfoNCELoss, "_blend", lambda *_: None)
    monkeypatch.setattr(InfoNCELoss, "_per_anchor", fail)
    threads(2)
    with pytest.raises(ArithmeticError, match="in a thread"):
        InfoNCELoss(block_size=4)(**batch(17, ""))


def test_threads_that_can_not_start_leave_nothing_behind(threads, monkeypatch):
    start, calls = threading.Thread.start, []

    def fail_once(thread: threading.Thread) -> None:
        calls.append(thread)
        if len(calls) == 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr("weince_lightning.functional.tiled.LEAST_SHARED", 1)
    threads(2)
    _pool.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail_once)
        with pytest.raises(RuntimeError, match="can't start"):
            InfoNCELoss(block_size=4)(**batch(17, ""))
    assert not calls[0].is_alive()
    found: list[int] = []
    later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert found == [2]
    InfoNCELoss(block_size=4)(**batch(17, ""))


class Sizes(TorchDispatchMode):
    """Records the largest result of any operation, every operation's name, and its columns."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0
        self.names: set[str] = set()
        self.columns: set[tuple[str, int]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.names.add(func.__name__)
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.numel())
                self.columns.add((func.__name__, tensor.shape[-1] if tensor.ndim else 1))
        return result


@pytest.mark.parametrize("name", few([name for name in LOSSES if name not in POOLED], 0, 2))
@pytest.mark.parametrize("layout", few(["views", "pairs", "queries"], 0))
def test_no_tensor_is_larger_than_block_times_candidates(name, layout, threads):
    threads(1)  # it is this thread's operations that are recorded
    inputs = batch(200, "ids")
    candidates = 400 if layout == "views" else 200
    with Sizes() as sizes:
        LOSSES[name](layout=layout, block_size=20)(**inputs).backward()
    # The embeddings of 2 x 200 x 8 are smaller.
    assert sizes.largest <= 20 * candidates


@pytest.mark.parametrize("name", ["infonce", "weince"])
@pytest.mark.parametrize("kept", ["queue_size", "memory_bank_size"])
def test_no_tensor_is_larger_than_block_times_candidates_and_keys(name, kept, threads):
    threads(1)
    loss = LOSSES[name](layout="pairs", block_size=20, **{kept: 400})
    for step in range(3):
        inputs = batch(200, "ids", step=step)
        with Sizes() as sizes:
            loss(**inputs).backward()
        candidates = min(200 * step, 400) + (200 if kept == "queue_size" else 1)
        # The embeddings of 2 x 200 x 8 are smaller, but for those of an empty bank.
        assert sizes.largest <= max(20 * candidates, 2 * 200 * 8)


def test_without_gradient_none_is_computed(threads):
    threads(1)
    inputs = batch(50, "")
    with torch.no_grad(), Sizes() as sizes:
        WEINCELoss(block_size=10)(**inputs)
    assert not {name for name in sizes.names if "backward" in name or name.startswith("addmm")}
    # That of the similarities, whose columns are the candidates, and that of the lines of the tail,
    # whose columns are a block's anchors; none has the 8 features of a gradient.
    products = sorted(columns for name, columns in sizes.columns if name.startswith("mm"))
    assert products == [10, 100]


def _peak_is_small(rank: int, name: str, limit: int) -> None:
    """Fail where a batch of 8,192 anchors needs more MiB; runs in a process of its own."""
    torch.set_num_threads(1)
    loss = LOSSES[name]() if name != "weince" else WEINCELoss(gate=TailGate(tail_fraction=0.5))

    def status(field: str) -> int:
        found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert found is not None
        return int(found[1]) // 1024

    for samples in (8, 4096):
        views = [v.requires_grad_() for v in torch.randn(2, samples, 4)]
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far becomes the present
        loss(*views).backward()
    peak = status("VmHWM") - before
    assert peak < limit, f"{name}: {peak} MiB"


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
@pytest.mark.parametrize("name", ["weince", "arctanh"])
def test_what_stays_of_a_block_does_not_break_up_the_memory_of_the_next(name):
    # The matrix has 256 MiB. A block has 4, and a few of its size are needed; by autograd a dozen.
    spawn(_peak_is_small, (name, 64 if name == "weince" else 140), processes=1)
