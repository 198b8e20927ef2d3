"""Negatives from earlier batches: the queue and lightly's memory bank."""

import copy
import io
import math
import pickle

import pytest
import reference
import torch
from cases import few
from lightly.loss import NTXentLoss
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.swa_utils import AveragedModel
from torch.utils._python_dispatch import TorchDispatchMode

from weince_lightning.losses import InfoNCELoss, TopMTerm, WeibitLink, WEINCELoss

LAYOUTS = ("views", "pairs", "queries")
MODES = {"queue": {"queue_size": 20}, "bank": {"memory_bank_size": 20}}
LOSSES = {
    "infonce": InfoNCELoss,
    "pooled": lambda **rest: InfoNCELoss(link=WeibitLink("pooled"), **rest),
    "top-m": lambda **rest: InfoNCELoss(top_m_terms=[TopMTerm(top_m=5)], **rest),
    "weince": WEINCELoss,
    "losses": lambda **rest: WEINCELoss(mix="losses", **rest),
    "released": WEINCELoss.released,
}
every_loss = pytest.mark.parametrize("build", LOSSES.values(), ids=LOSSES)
every_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)

Batch = tuple[Tensor, Tensor]


def batches(number: int, samples: int = 8, features: int = 6, dtype=torch.float64) -> list[Batch]:
    """Two correlated views for each step, with gradient."""
    generator = torch.Generator().manual_seed(4)

    def draw() -> Batch:
        z0, noise = torch.randn(2, samples, features, generator=generator, dtype=torch.float64)
        return tuple(z.to(dtype).requires_grad_() for z in (z0, z0 + 0.5 * noise))

    return [draw() for _ in range(number)]


def gradients(loss: Tensor, *inputs: Tensor) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, inputs)])


def copied_state(loss: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in loss.state_dict().items()}


def assert_equal_states(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def keys_of(loss: nn.Module) -> Tensor:
    return loss.state_dict()["queue.vectors"]


# Oracle


@pytest.mark.parametrize("layout", [*LAYOUTS, "bank"])
@pytest.mark.parametrize("name", ["infonce", "weince"])
@pytest.mark.parametrize(
    "extra", few(["", "ids", "late ids", "own", "shared", "ids own", "ids shared"], 2, -1)
)
def test_several_steps_equal_the_loop(name, layout, extra):
    size, keys = 20, []
    options = {"memory_bank_size": size} if layout == "bank" else {"queue_size": size}
    loss = LOSSES[name](temperature=0.2, layout="views" if layout == "bank" else layout, **options)
    generator = torch.Generator().manual_seed(7)
    for step, (z0, z1) in enumerate(batches(4)):
        given = {}
        if "ids" in extra and not (extra == "late ids" and step in (0, 2)):
            given["ids"] = torch.randint(-3, 9, (len(z0),), generator=generator)
        if "own" in extra:
            given["negatives"] = torch.randn(8, 3, 6, generator=generator, dtype=z0.dtype)
        if "shared" in extra:
            given["negatives"] = torch.randn(5, 6, generator=generator, dtype=z0.dtype)
        inputs = [z0, z1, *(v.requires_grad_() for k, v in given.items() if k == "negatives")]
        terms = loss.terms(z0, z1, **given)
        scores = reference.compare(reference.candidates_of(z0, z1, layout, **given, queue=keys))
        found = reference.tail_of(scores)
        if name == "weince":
            expected = reference.weince(
                scores, reference.gates(found), reference.shapes(found), 0.2
            )
            hardness = torch.tensor([e.rho for e in found], dtype=z0.dtype)
            torch.testing.assert_close(terms.tail.rho, hardness, rtol=1e-10, atol=0)
        else:
            expected = reference.infonce(scores, 0.2)
        assert terms.num_negatives.tolist() == [len(negatives) for _, negatives in scores]
        torch.testing.assert_close(terms.loss, expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(
            gradients(terms.loss, *inputs), gradients(expected, *inputs), rtol=1e-9, atol=1e-12
        )
        keys = reference.enqueued(keys, z1, given.get("ids"), size)
        torch.testing.assert_close(keys_of(loss), torch.stack([key for key, _ in keys]))


@pytest.mark.parametrize("extra", [0, torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max])
@every_mode
def test_a_key_without_id_matches_no_id_at_all(mode, extra):
    loss = InfoNCELoss(layout="queries", **mode)
    first, second = batches(2)
    loss(*first)
    ids = torch.arange(8) if extra == 0 else extra - torch.arange(8) * (1 if extra > 0 else -1)
    of_batch = 0 if loss.queue.argument == "memory_bank_size" else 7
    assert loss.terms(*second, ids=ids).num_negatives.tolist() == [8 + of_batch] * 8


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
@every_mode
def test_ids_of_any_integer_type_are_compared(mode, dtype):
    loss = InfoNCELoss(layout="queries", **mode)
    first, second = batches(2)
    loss(*first, ids=torch.arange(8, dtype=dtype))
    plain = loss.eval().terms(*second).num_negatives
    assert torch.equal(
        loss.terms(*second, ids=torch.arange(8, dtype=dtype)).num_negatives, plain - 1
    )


# lightly's memory bank


def lightly_keys(bank: nn.Module) -> Tensor:
    """The keys of lightly's ring, oldest first."""
    start = int(bank.bank_ptr)
    return torch.cat([bank.bank[start:], bank.bank[:start]])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-6)])
def test_a_filled_bank_equals_lightly_over_several_steps(layout, dtype, tolerance):
    theirs = NTXentLoss(0.2, memory_bank_size=(64, 16)).to(dtype)
    mine = InfoNCELoss(0.2, layout=layout, memory_bank_size=(64, 16))
    for step, (z0, z1) in enumerate(batches(24, features=16, dtype=dtype)):
        found, expected = mine(z0, z1), theirs(z0, z1)
        if step < 8:  # lightly's bank still holds random vectors
            continue
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=0)
        of_mine, of_theirs = (gradients(loss, z0, z1) for loss in (found, expected))
        assert (of_mine - of_theirs).norm() <= tolerance * of_theirs.norm()
        torch.testing.assert_close(
            keys_of(mine), lightly_keys(theirs.memory_bank), rtol=0, atol=tolerance
        )


def test_an_empty_bank_gives_no_loss_and_no_gradient():
    for build in LOSSES.values():
        (batch,) = batches(1)
        terms = build(memory_bank_size=20).terms(*batch)
        assert terms.num_negatives.tolist() == [0] * 8
        assert float(terms.loss.detach()) == 0.0
        assert not gradients(terms.loss, *batch).any()


def test_a_bank_with_explicit_negatives_needs_no_keys():
    z = torch.tensor([[1.0, 0.0]])
    loss = InfoNCELoss(1.0, memory_bank_size=4)
    found = loss(z, z, negatives=torch.tensor([[0.0, 1.0]]))
    assert float(found) == pytest.approx(math.log(1 + math.exp(-1)))


# What is kept


@every_mode
def test_keys_enter_after_the_loss_and_leave_first_in_first_out(mode):
    loss = InfoNCELoss(**mode)
    expected = torch.empty(0, 6, dtype=torch.float64)
    for z0, z1 in batches(5):
        before = copied_state(loss)
        terms = loss.terms(z0, z1)
        added = int(terms.num_negatives[0]) - (14 if "queue_size" in mode else 0)
        assert added == len(before["queue.vectors"])
        unit = torch.nn.functional.normalize(z1.detach(), dim=1)
        expected = torch.cat([expected, unit])[-20:]
        torch.testing.assert_close(keys_of(loss), expected, rtol=1e-14, atol=1e-15)
        assert keys_of(loss).untyped_storage().nbytes() == expected.numel() * 8


def test_a_full_queue_and_a_running_shape_stay_where_they_are_in_memory():
    loss = WEINCELoss.released(queue_size=20)
    places = []
    for pair in batches(5):
        loss(*pair).backward()
        state = [*loss.queue.held, loss.top_m_terms[0].link.running_beta]
        places.append([column.data_ptr() for column in state])
    assert places[2:] == [places[2]] * 3


def test_only_anchors_of_the_first_view_meet_the_queue():
    for layout, of_batch in {"views": 14, "pairs": 7}.items():
        loss = InfoNCELoss(layout=layout, queue_size=20)
        first, second = batches(2)
        loss(*first)
        found = loss.terms(*second).num_negatives.tolist()
        assert found == [of_batch + 8] * 8 + [of_batch] * 8


@pytest.mark.parametrize("size", [1, 5, 8])
def test_of_a_batch_larger_than_the_queue_the_newest_stay(size):
    loss = InfoNCELoss(queue_size=size)
    for z0, z1 in batches(2):
        loss(z0, z1, ids=torch.arange(8))
        unit = torch.nn.functional.normalize(z1.detach(), dim=1)
        torch.testing.assert_close(keys_of(loss), unit[-size:], rtol=1e-14, atol=1e-15)
        assert loss.state_dict()["queue.ids"].tolist() == list(range(8))[-size:]


@every_loss
@every_mode
def test_evaluation_and_no_grad_use_the_keys_and_leave_them(build, mode):
    loss = build(**mode)
    first, second = batches(2)
    loss(*first)
    before = copied_state(loss)
    loss.eval()
    evaluated = loss.terms(*second)
    loss.train()
    with torch.no_grad():
        unrecorded = loss.terms(*second)
    assert_equal_states(loss.state_dict(), before)
    trained = loss.terms(*second)
    assert torch.equal(evaluated.num_negatives, trained.num_negatives)
    assert torch.equal(unrecorded.num_negatives, trained.num_negatives)
    assert len(keys_of(loss)) == 16


def test_an_evaluation_before_training_leaves_an_empty_queue_as_it_was():
    for mode in MODES.values():
        loss = InfoNCELoss(**mode).eval()
        before = copied_state(loss)
        loss(*batches(1)[0])
        assert_equal_states(loss.state_dict(), before)


@every_loss
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_sample_is_enough_beside_a_queue_with_keys(build, layout):
    loss = build(layout=layout, queue_size=20)
    one = tuple(z[:1].detach().requires_grad_() for z in batches(1)[0])
    with pytest.raises(ValueError, match=f'at least 2 samples in layout "{layout}", got 1'):
        loss(*one)
    loss(*batches(1)[0])
    terms = loss.terms(*one)
    assert terms.num_negatives.tolist() == [8, 0][: len(terms.num_negatives)]
    assert gradients(terms.loss, *one).isfinite().all()


@every_mode
def test_no_sample_is_refused(mode):
    loss = InfoNCELoss(**mode)
    loss(*batches(1)[0])
    with pytest.raises(ValueError, match="z0 must hold at least"):
        loss(torch.ones(0, 6), torch.ones(0, 6))


@every_loss
@every_mode
def test_two_forwards_before_one_backward_give_their_own_gradients(build, mode):
    pairs = batches(3)
    losses = [build(**mode), build(**mode)]
    together = sum(losses[0](*pair) for pair in pairs)
    inputs = [z for pair in pairs for z in pair]
    for pair in pairs:
        losses[1](*pair).backward()
    apart = torch.cat([z.grad.flatten() for z in inputs])
    torch.testing.assert_close(gradients(together, *inputs), apart)


@every_mode
def test_keys_that_are_not_finite_spoil_their_own_step_alone(mode):
    loss = InfoNCELoss(**mode)
    first, second, third = batches(3)
    z1 = first[1].detach().clone()
    z1[0, 0], z1[3, 1] = math.nan, math.inf
    loss(first[0], z1)
    assert keys_of(loss).isfinite().all()
    assert not keys_of(loss)[[0, 3]].any()
    assert gradients(loss(*second), *second).isfinite().all()
    assert loss(*third).isfinite()


# Saving and loading


@pytest.mark.parametrize("name", few(["infonce", "weince", "released"], 1))
@pytest.mark.parametrize("mode", ["queue_size", "memory_bank_size"])
def test_a_loaded_loss_goes_on_bit_for_bit(name, mode):
    """A queue of 4096 that is partly filled when it is saved, and overflows later."""

    def steps(loss: nn.Module, pairs: list[Batch]) -> list[Tensor]:
        found = []
        for z0, z1 in pairs:
            terms = loss.terms(z0, z1, ids=torch.arange(len(z0)) // 2)
            found += [terms.per_anchor, gradients(terms.loss, z0, z1), *copied_state(loss).values()]
        return found

    pairs = batches(9, samples=500, dtype=torch.float32)
    whole = LOSSES[name](**{mode: 4096})
    steps(whole, pairs[:7])
    file = io.BytesIO()
    torch.save(whole.state_dict(), file)
    expected = steps(whole, pairs[7:])
    file.seek(0)
    resumed = LOSSES[name](**{mode: 4096})
    resumed.load_state_dict(torch.load(file, weights_only=True), strict=True)
    found = steps(resumed, pairs[7:])
    assert len(keys_of(resumed)) == 4096
    assert len(found) == len(expected)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))


def test_a_loss_without_queue_saves_none():
    for build in LOSSES.values():
        assert not any("queue" in name for name in build().state_dict())
    InfoNCELoss().load_state_dict({}, strict=True)


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("size", [20, 30])
def test_a_queue_that_is_large_enough_takes_the_saved_keys(size, assign):
    saved = InfoNCELoss(queue_size=20)
    for pair in batches(4):
        saved(*pair)
    state = saved.state_dict()
    loaded = InfoNCELoss(queue_size=size)
    loaded(*batches(1)[0])
    loaded.load_state_dict(state, assign=assign)
    assert_equal_states(loaded.state_dict(), state)
    loaded(*batches(1)[0])
    assert len(keys_of(loaded)) == min(size, 28)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: InfoNCELoss(queue_size=7),
            "queue_size must be at least 8 to hold the saved keys, got 7",
        ),
        (
            lambda: InfoNCELoss(memory_bank_size=(8, 5)),
            "memory_bank_size must have 6 features to hold the saved keys, got 5",
        ),
        (InfoNCELoss, "Unexpected key.* in state_dict: .*queue"),
    ],
)
def test_saved_keys_that_do_not_fit_are_refused(build, message):
    saved = InfoNCELoss(queue_size=20)
    saved(*batches(1)[0])
    with pytest.raises(RuntimeError, match=message):
        build().load_state_dict(saved.state_dict())


@pytest.mark.parametrize(
    "column", [{"queue.vectors": torch.zeros(8)}, {"queue.ids": torch.zeros(0, dtype=torch.int64)}]
)
def test_a_saved_queue_of_wrong_shapes_is_refused(column):
    saved = InfoNCELoss(queue_size=20)
    saved(*batches(1)[0])
    with pytest.raises(RuntimeError, match="queue_size must hold vectors of shape"):
        InfoNCELoss(queue_size=20).load_state_dict({**saved.state_dict(), **column})


def test_missing_and_unknown_keys_are_named():
    loss = InfoNCELoss(queue_size=20)
    with pytest.raises(RuntimeError, match=r"(?s)Missing.*queue\.ids.*Unexpected.*queue\.more"):
        loss.load_state_dict({"queue.vectors": torch.zeros(2, 6), "queue.more": torch.zeros(1)})
    assert loss.queue.filled == 0


def test_a_saved_state_stays_as_it_was():
    loss = InfoNCELoss(queue_size=20)
    first, second = batches(2)
    loss(*first)
    state = loss.state_dict()
    kept = copied_state(loss)
    other = InfoNCELoss(queue_size=20)
    other.load_state_dict(state)
    loss(*second)
    other(*second)
    assert_equal_states(state, kept)


def test_loaded_keys_are_copies():
    saved, loaded = InfoNCELoss(queue_size=20), InfoNCELoss(queue_size=20)
    saved(*batches(1)[0])
    state = copied_state(saved)
    loaded.load_state_dict(state)
    state["queue.vectors"].zero_()
    assert_equal_states(loaded.state_dict(), saved.state_dict())


@pytest.mark.parametrize(
    "copy_of",
    [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))],
    ids=["deep", "pickle"],
)
def test_copies_go_on_by_themselves(copy_of):
    loss = WEINCELoss(queue_size=20)
    first, second = batches(2)
    loss(*first)
    other = copy_of(loss)
    assert torch.equal(loss(*second), other(*second))
    assert_equal_states(loss.state_dict(), other.state_dict())
    other(*second)
    assert len(keys_of(loss)) == 16


def test_an_average_of_models_can_be_taken():
    loss = InfoNCELoss(torch.nn.Parameter(torch.tensor(0.5)), queue_size=20)
    averages = [AveragedModel(loss, use_buffers=use) for use in (True, False)]
    for pair in batches(3):
        loss(*pair)
        for average in averages:
            average.update_parameters(loss)


# Devices and precision

PLAIN = [(name, mode) for name in ("infonce", "weince", "released") for mode in MODES.values()]


@every_mode
def test_keys_keep_their_precision_in_a_module_of_half_precision(mode):
    whole, half, late = (InfoNCELoss(**mode) for _ in range(3))
    half.half()
    pairs = batches(3, dtype=torch.float32)
    for step, pair in enumerate(pairs):
        if step == 2:
            late.bfloat16()
        values = [loss(*pair) for loss in (whole, half, late)]
        assert torch.equal(values[0], values[1])
        assert torch.equal(values[0], values[2])
        assert_equal_states(half.state_dict(), whole.state_dict())
        assert_equal_states(late.state_dict(), whole.state_dict())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@every_mode
def test_keys_are_stored_in_single_precision_or_better(mode, dtype):
    loss = InfoNCELoss(**mode)
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    for pair in batches(2, dtype=dtype):
        assert loss(*pair).dtype == expected
        assert keys_of(loss).dtype == expected
        norms = torch.linalg.vector_norm(keys_of(loss), dim=1)
        torch.testing.assert_close(norms, torch.ones_like(norms))


@every_mode
def test_precisions_may_change_between_steps(mode):
    loss = WEINCELoss(**mode)
    double, single = batches(1)[0], batches(2, dtype=torch.float32)[1]
    loss(*double)
    assert loss(*single).dtype == torch.float32
    assert keys_of(loss).dtype == torch.float64
    assert loss(*double).dtype == torch.float64


@pytest.mark.parametrize(("name", "mode"), few(PLAIN, 1, 2), ids=str)
@pytest.mark.parametrize("block_size", few([None, 3], 1))
def test_nothing_is_read_from_the_device(name, mode, block_size):
    """A fake tensor has a shape and no numbers: whoever reads one, or counts by one, fails."""
    loss = LOSSES[name](block_size=block_size, **mode)
    with FakeTensorMode(allow_non_fake_inputs=True):
        for ids in (torch.arange(8, device="cuda"), None, torch.arange(8, device="cuda")):
            z0, z1 = torch.randn(2, 8, 6, device="cuda").unbind()
            assert loss(z0, z1, ids=ids).device.type == "cuda"
        assert keys_of(loss).device.type == "cuda"
        assert len(keys_of(loss)) == 20


def test_the_keys_move_with_the_module_and_to_their_inputs():
    loss = InfoNCELoss(queue_size=20)
    loss(*batches(1)[0])
    loss.to("meta")
    assert keys_of(loss).device.type == "meta"
    assert keys_of(loss).shape == (8, 6)
    fresh = InfoNCELoss(queue_size=20).to("meta")
    other = InfoNCELoss(queue_size=20)
    other(*batches(1)[0])
    fresh.load_state_dict(other.state_dict(), assign=True)
    assert_equal_states(fresh.state_dict(), other.state_dict())


class Names(TorchDispatchMode):
    """Records the name of every operation."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.__name__)
        return func(*args, **(kwargs or {}))


@every_loss
@every_mode
def test_a_step_synchronises_no_device(build, mode):
    loss = build(block_size=3, **mode)
    pairs = batches(3)
    with Names() as recorded:
        for pair in pairs:
            loss(*pair, ids=torch.arange(8)).backward()
    assert "cat.default" in recorded.names
    reading = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal.default")
    assert not {name for name in recorded.names if name.startswith(reading)}


# The door


@pytest.mark.parametrize("build", [InfoNCELoss, WEINCELoss, WEINCELoss.released])
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"queue_size": -1}, ValueError, "queue_size must be at least 0, got -1"),
        ({"queue_size": 4.0}, TypeError, "queue_size must be an integer, got 4.0"),
        ({"queue_size": True}, TypeError, "queue_size must be an integer, got True"),
        ({"queue_size": (4, 8)}, TypeError, r"queue_size must be an integer, got \(4, 8\)"),
        ({"memory_bank_size": -1}, ValueError, "memory_bank_size must be at least 0, got -1"),
        ({"memory_bank_size": (-1, 8)}, ValueError, "memory_bank_size must be at least 0, got -1"),
        ({"memory_bank_size": "8"}, TypeError, "memory_bank_size must be an integer, got '8'"),
        ({"memory_bank_size": (4, 0)}, ValueError, "features of memory_bank_size must be at least"),
        (
            {"memory_bank_size": (4, 8, 2)},
            ValueError,
            r"memory_bank_size must be a number or \(siz",
        ),
        (
            {"queue_size": 3, "memory_bank_size": 4},
            ValueError,
            "queue_size must be 0 beside a memory_bank_size, got queue_size=3 and memory_bank_s",
        ),
    ],
)
def test_wrong_sizes_are_refused(build, settings, error, message):
    with pytest.raises(error, match=message):
        build(**settings)


@pytest.mark.parametrize("settings", [{}, {"memory_bank_size": (0, 8)}, {"queue_size": 0}])
def test_size_zero_is_no_queue(settings):
    (batch,) = batches(1)
    loss = InfoNCELoss(**settings)
    assert torch.equal(loss(*batch), InfoNCELoss()(*batch))
    assert loss.state_dict() == {}


@every_mode
def test_another_number_of_features_is_refused(mode):
    loss = InfoNCELoss(**mode)
    loss(*batches(1)[0])
    (argument,) = mode
    with pytest.raises(ValueError, match=f"z1 must have 6 features, as the keys that {argument}"):
        loss(*batches(1, features=5)[0])
    with pytest.raises(
        ValueError, match=r"z1 must have 5 features, as memory_bank_size=.* got 6. Give"
    ):
        InfoNCELoss(memory_bank_size=[20, 5])(*batches(1)[0])
