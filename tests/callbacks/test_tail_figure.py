"""What the figure shows, against plain definitions, and how it is drawn."""

import numpy as np
import pytest
import torch
from cases import few
from matplotlib.text import Text

from weince_lightning.callbacks.tail.figure import AnchorTail, TailPicture, draw_tails
from weince_lightning.callbacks.tail.summary import read_picture
from weince_lightning.figures import render_pixels
from weince_lightning.functional.candidates import compare, score
from weince_lightning.functional.contrastive import weince
from weince_lightning.functional.layouts import build_candidates
from weince_lightning.losses import TailGate, WEINCELoss

LOSSES = {
    "views": lambda: WEINCELoss(0.2),
    "queries": lambda: WEINCELoss(0.2, layout="queries"),
    "pairs, gate a number": lambda: WEINCELoss(0.2, gate=0.7, layout="pairs"),
    "learnt temperature": lambda: WEINCELoss(torch.nn.Parameter(torch.tensor(0.2))),
    "long tails": lambda: WEINCELoss(0.2, TailGate(tail_fraction=0.5, min_tail_points=10)),
}


def two_views(generator, samples=40, dtype=torch.float64):
    centre = torch.randn(samples, 8, generator=generator, dtype=dtype)
    noise = torch.randn(2, samples, 8, generator=generator, dtype=dtype)
    return centre + 0.5 * noise[0], centre + 0.5 * noise[1]


def picture_of(views, loss):
    with torch.no_grad():
        return read_picture(*views, loss.terms(*views), loss)


def negatives_of(views, layout, anchor):
    """Shortfalls of an anchor's negatives, ascending."""
    u0, u1 = (view / view.norm(dim=1, keepdim=True) for view in views)
    n = len(u0)
    candidates = {"views": torch.cat([u0, u1]), "pairs": u1 if anchor < n else u0, "queries": u1}
    kept = torch.ones(len(candidates[layout]), dtype=torch.bool)
    kept[anchor % n] = False
    if layout == "views":
        kept[anchor % n + n] = False
    return (1 - candidates[layout] @ torch.cat([u0, u1])[anchor])[kept].sort().values


@pytest.mark.parametrize("name", LOSSES)
def test_the_picture_shows_all_anchors_and_three_of_their_tails(name, generator):
    views, loss = two_views(generator), LOSSES[name]()
    tail, picture = loss.terms(*views).tail, picture_of(views, loss)
    np.testing.assert_allclose(picture.rho, tail.rho)
    np.testing.assert_allclose(picture.gate, tail.gate)
    assert picture.rho0 == tail.rho0.item()

    ascending = tail.rho.sort().values
    for shown, quantile in zip(picture.tails, (0.05, 0.5, 0.95), strict=True):
        assert shown.rho == ascending[round(quantile * (len(ascending) - 1))]
        # Two anchors that are each other's hardest negative share their rho.
        anchor = tail.beta_hat.tolist().index(shown.beta_hat)
        shortfalls = negatives_of(views, loss.layout, anchor)
        size = 32
        if name == "long tails":
            size = round(0.5 * len(shortfalls))
        np.testing.assert_allclose(shown.shortfalls, shortfalls[:size], rtol=1e-9)
        assert shown.num_points == size - max(1, size // 20)
        assert (shown.rho, shown.gate) == (tail.rho[anchor], tail.gate[anchor])
        assert shown.delta_aic == tail.delta_aic[anchor]
    assert [shown.name for shown in picture.tails] == ["hard", "median", "easy"]


def test_the_shares_are_means_over_the_anchors_of_autograd_shares(generator):
    views, loss = two_views(generator), WEINCELoss(0.2)
    picture, terms = picture_of(views, loss), loss.terms(*views)
    (group,) = build_candidates(*views, "views")
    scores = score(group, compare(group))
    for gate, found in (
        (torch.zeros_like(terms.tail.gate), picture.softmax_shares),
        (terms.tail.gate, picture.weince_shares),
    ):
        similarity = scores.similarity.clone().requires_grad_()
        part = scores._replace(similarity=similarity)
        weince(part, gate, terms.tail.shape, 0.2).sum().backward()
        sizes = scores.fill_excluded_(similarity.grad.abs(), 0.0).sort(1, descending=True).values
        shares = sizes.cumsum(1)[:, [0, 3, 7]] / sizes.sum(1, keepdim=True)  # of 78 negatives
        np.testing.assert_allclose(found, shares.mean(dim=0), rtol=1e-9)


def test_keys_of_earlier_batches_are_among_the_negatives(generator):
    loss = WEINCELoss(0.2, layout="queries", queue_size=100)
    for _ in range(3):
        loss(*two_views(generator))
    loss.eval()
    views = two_views(generator)
    picture = picture_of(views, loss)
    assert loss.terms(*views).num_negatives.tolist() == [139] * 40
    tail = loss.terms(*views).tail
    hard = picture.tails[0]
    anchor = int(tail.rho.argsort()[2])
    keys = (1 - loss.queue.held.vectors @ torch.nn.functional.normalize(views[0])[anchor]).clamp(0)
    shortfalls = torch.cat([negatives_of(views, "queries", anchor), keys]).sort().values
    np.testing.assert_allclose(hard.shortfalls, shortfalls[:32], rtol=1e-9)


def test_groups_with_other_numbers_of_negatives_have_tails_of_their_own_size(generator):
    # The anchors of z0 see 1000 keys beside the 8 samples, those of z1 do not.
    loss = WEINCELoss(0.2, queue_size=1000)
    for _ in range(4):
        loss(*two_views(generator, samples=250))
    loss.eval()
    views = two_views(generator, samples=8)
    picture = picture_of(views, loss)
    assert {len(tail.shortfalls) for tail in picture.tails} == {14, 101}


def test_a_memory_bank_gives_the_negatives_alone(generator):
    loss = WEINCELoss(0.2, memory_bank_size=64)
    views = two_views(generator)
    assert picture_of(views, loss) is None  # an empty bank
    loss(*views)
    loss(*views)
    picture = picture_of(two_views(generator), loss.eval())
    assert picture.rho.shape == (40,)
    assert [len(tail.shortfalls) for tail in picture.tails] == [32, 32, 32]


def test_anchors_that_are_not_finite_are_left_out(generator):
    views, loss = two_views(generator), WEINCELoss(0.2)
    terms = loss.terms(*views)
    gate = terms.tail.gate.clone()
    gate[3] = float("nan")
    broken = terms._replace(tail=terms.tail._replace(gate=gate))
    assert read_picture(*views, broken, loss).rho.shape == (79,)
    nothing = (torch.full((4, 8), torch.nan), torch.ones(4, 8))
    assert picture_of(nothing, loss) is None


def test_other_negatives_than_those_of_the_views_give_no_picture(generator):
    views, loss = two_views(generator), WEINCELoss(0.2)
    terms = loss.terms(*views, ids=torch.arange(40) // 2)
    assert read_picture(*views, terms, loss) is None
    assert read_picture(*(view[1:] for view in views), terms, loss) is None


def test_a_batch_is_read_in_blocks_as_it_is_whole(generator, monkeypatch):
    views, loss = two_views(generator), WEINCELoss(0.2)
    whole = picture_of(views, loss)
    monkeypatch.setattr("weince_lightning.callbacks.tail.summary._BLOCK", 1000)
    blocks = picture_of(views, loss)
    np.testing.assert_allclose(blocks.weince_shares, whole.weince_shares, rtol=1e-12)
    np.testing.assert_allclose(blocks.softmax_shares, whole.softmax_shares, rtol=1e-12)


def tail_of(shortfalls, num_points, beta_hat=3.0):
    return AnchorTail("hard", np.asarray(shortfalls), num_points, 0.1, 0.9, beta_hat, 50.0)


def picture_with(tails, rho=(0.1, 0.2, 0.4)):
    rho = np.asarray(rho)
    shares = np.array([0.1, 0.3, 0.5])
    return TailPicture(rho, 0 * rho + 0.5, 0.2, tails, (0.01, 0.05, 0.1), shares, 0.5 * shares)


@pytest.fixture
def figure(generator):
    return draw_tails(picture_of(two_views(generator), WEINCELoss(0.2)), "a title")


def test_every_axis_is_labelled_and_every_text_large_enough_at_1000_pixels(figure):
    assert len(figure.axes) == 3
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)
    shown = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    # Ten inches wide: a point is 1000 / 720 pixels.
    assert figure.get_figwidth() == 10
    assert min(text.get_fontsize() for text in shown) >= 8


def test_no_text_is_cut_off_and_the_background_is_white(figure):
    pixels = render_pixels(figure)
    assert pixels.shape == (540, 1500, 4)
    for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]):
        assert (edge == 255).all()


def test_panels_do_not_run_into_each_other(figure):
    render_pixels(figure)
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    assert boxes[0].x1 <= boxes[1].x0
    assert boxes[1].x1 <= boxes[2].x0


def test_the_legend_gives_beta_hat_and_delta_aic_of_each_anchor(figure):
    texts = [text.get_text() for text in figure.axes[1].get_legend().get_texts()]
    assert [text.split(":")[0] for text in texts] == ["hard", "median", "easy"]
    assert all("beta" in text and "AIC" in text for text in texts)


def test_the_bars_are_as_high_as_the_shares():
    picture = picture_with([])
    heights = [bar.get_height() for bar in draw_tails(picture, "").axes[2].patches]
    assert heights == pytest.approx([10, 30, 50, 5, 15, 25])


def test_the_lines_are_the_fits_of_the_points_that_count():
    size, dropped = 40, 2
    position = np.arange(1, size + 1) / (size + 1)
    # Half a Weibull tail of shape 3, half a Gumbel proxy; the dropped points are far off both.
    for shortfalls, line in ((position ** (1 / 3), 0), ((-np.log(position)) ** -0.5, 1)):
        shortfalls = shortfalls.copy()
        shortfalls[:dropped] /= 100
        axes = draw_tails(picture_with([tail_of(shortfalls, size - dropped)]), "").axes[1]
        x, y = axes.lines[line].get_data()
        expected = 3 * x if line == 0 else -np.exp(-2 * x)
        np.testing.assert_allclose(y, expected, atol=1e-9)
        assert x.min() == pytest.approx(np.log(shortfalls[dropped]))


@pytest.mark.parametrize(
    "tails",
    few(
        [
            [],
            [tail_of([0.3], 0)],
            [tail_of([0.2, 0.3, 0.4], 2)],
            [tail_of([0.5] * 32, 31, beta_hat=0.0)],
            [tail_of(0.5 + 1e-12 * np.arange(32), 31)],
            [tail_of([1e-6] * 16 + [2.0] * 16, 31)],
        ],
        0,
        1,
        -1,
    ),
    ids=["none", "one point", "two points", "constant", "almost constant", "two heaps"],
)
def test_degenerate_tails_are_drawn_without_a_warning(tails, recwarn):
    assert render_pixels(draw_tails(picture_with(tails, rho=[0.3]), "")).shape == (540, 1500, 4)
    assert not recwarn.list


@pytest.mark.parametrize(("rho", "scale"), [((0.1, 0.9), "linear"), ((1e-6, 2.0), "log")])
def test_hardness_over_more_than_a_decade_is_shown_by_its_logarithm(rho, scale):
    assert draw_tails(picture_with([], rho), "").axes[0].get_xscale() == scale
