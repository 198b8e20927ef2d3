"""What the figures of a diagnosis show, read from the figures themselves."""

import io
import re
from itertools import product
from xml.etree import ElementTree

import diagnoses
import matplotlib as mpl
import matplotlib.image
import numpy as np
import pytest
import torch
from cases import few

from weince_lightning.diagnostics.diagnosis import SHARES
from weince_lightning.diagnostics.figures import draw
from weince_lightning.extremes.threshold import qq_points
from weince_lightning.figures import DARK, LIGHT

BATCHES = ["evidence", "gate", "gradient_shares"]


@pytest.fixture(scope="module")
def pairs():
    return diagnoses.pairs()


@pytest.fixture(scope="module")
def digits():
    return diagnoses.digits()


def axes_of(diagnosis, name):
    return draw(diagnosis)[name].figure().axes


def line(axes, label):
    (found,) = [each for each in axes.lines if str(each.get_label()).startswith(label)]
    return found


def points(axes, label):
    return np.asarray(line(axes, label).get_xydata())


def test_each_topic_has_its_picture_in_the_order_of_names(pairs):
    every = [*BATCHES, "exceedances", "hardest", "link", "mean_excess", "quantiles",
             "stability"]  # fmt: skip
    assert list(draw(pairs)) == sorted(every)


@pytest.mark.parametrize(
    ("name", "extra"),
    few(
        [
            ("digits", ["exceedances", "hardest", "mean_excess", "quantiles", "stability"]),
            ("plane", ["exceedances", "hardest", "mean_excess"]),
            ("constant", []),
            ("three", []),
        ],
        1,  # the page of a diagnosis renders those of the last
    ),
)
def test_what_can_not_be_drawn_is_left_out_and_the_rest_renders(name, extra):
    diagnosis = getattr(diagnoses, name)()
    pictures = draw(diagnosis)
    assert list(pictures) == sorted(BATCHES + extra)
    for picture in pictures.values():
        assert not re.search(r"\b(nan|inf|None)\b", picture.alt)
        assert not re.search(r"\b(nan|inf|None)\b", picture.caption)
        ElementTree.fromstring(picture.render("svg"))


def test_a_tail_without_fit_is_drawn_without_a_line_and_says_so():
    diagnosis = diagnoses.plane()
    picture = draw(diagnosis)["exceedances"]
    assert diagnosis.threshold.note in picture.alt
    assert "no fit" in picture.caption
    for axes in picture.figure().axes:
        assert not [each for each in axes.lines if "Pareto" in str(each.get_label())]
    assert "Pareto" not in str(
        [each.get_label() for each in axes_of(diagnosis, "mean_excess")[0].lines]
    )


@pytest.mark.parametrize("name", ["pairs", "digits"])
def test_every_picture_has_a_title_named_axes_and_words_with_numbers(name):
    for picture in draw(getattr(diagnoses, name)()).values():
        figure = picture.figure()
        assert figure.get_suptitle() == picture.title
        assert picture.question.endswith("?")
        assert picture.caption
        assert len(re.findall(r"\d", picture.alt)) > 8
        for axes in figure.axes:
            assert axes.get_xlabel()
            assert axes.get_ylabel() or figure.get_supylabel()


def test_legends_name_each_thing_once(digits):
    for name, picture in draw(digits).items():
        figure = picture.figure()
        legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
        for legend in filter(None, legends):
            labels = [text.get_text() for text in legend.get_texts()]
            assert len(labels) == len(set(labels)), name


def test_exceedances_are_drawn_with_both_fits_the_end_and_the_cap(digits):
    fit, tail = digits.threshold, digits.pooled.tail
    falling, density = axes_of(digits, "exceedances")
    assert (falling.get_xscale(), falling.get_yscale()) == ("log", "log")
    above = tail.scores[tail.scores > fit.threshold] - fit.threshold
    for x, y in points(falling, "observed"):
        assert (above >= x).mean() == pytest.approx(y + 0.5 / len(above))
    x, y = points(falling, "generalised").T
    inside = y > 0
    expected = (1 + fit.xi * x[inside] / fit.sigma) ** (-1 / fit.xi)
    np.testing.assert_allclose(y[inside], expected, rtol=1e-6)
    x, y = points(falling, "exponential").T
    np.testing.assert_allclose(y, np.exp(-x / above.mean()))
    # Ends stand where they are in both units.
    for axes, shift in ((falling, fit.threshold), (density, 0.0)):
        assert line(axes, "fitted end").get_xdata()[0] + shift == pytest.approx(fit.endpoint)
        assert line(axes, "similarity 1").get_xdata()[0] + shift == pytest.approx(1)
    # Densities have the area 1 above the threshold.
    assert sum(bar.get_width() * bar.get_height() for bar in density.patches) == pytest.approx(1)
    for label in ("generalised", "exponential"):
        x, y = points(density, label).T
        assert (np.diff(x) * (y[1:] + y[:-1]) / 2).sum() == pytest.approx(1, abs=0.05)


def test_ends_out_of_sight_are_named_so():
    diagnosis = diagnoses.constant()
    scores = 1e-3 * np.arange(1, 101) ** 0.5
    tail = diagnosis.pooled.tail._replace(scores=scores, num_scores=10_000, pairs=None)
    threshold = diagnosis.threshold._replace(threshold=0.0)
    near_zero = diagnosis._replace(pooled=diagnosis.pooled._replace(tail=tail), threshold=threshold)
    falling, density = axes_of(near_zero, "exceedances")
    assert line(falling, "similarity 1").get_label().endswith("(out of sight)")
    assert falling.get_xlim()[1] < 0.1
    assert density.get_xlim()[1] < 0.1


def test_words_give_the_shape_its_interval_and_the_end(digits):
    fit, pictures = digits.threshold, draw(digits)
    assert f"ξ = {fit.xi:.3f}" in pictures["exceedances"].alt
    assert f"ends at {fit.endpoint:.3f}" in pictures["exceedances"].alt
    for each in digits.stability:
        low, high = each.xi_interval
        assert f"{each.xi:.3f} ({low:.3f} to {high:.3f})" in pictures["stability"].alt
    for null in digits.nulls.values():
        low, high = null.xi_range
        assert f"give {null.xi:.3f}, from {low:.3f} to {high:.3f}" in pictures["stability"].alt


def test_quantiles_lie_beside_the_diagonal(pairs):
    (axes,) = axes_of(pairs, "quantiles")
    expected = np.stack(qq_points(pairs.pooled.tail, pairs.threshold), axis=1)
    np.testing.assert_array_equal(points(axes, "observed"), expected)
    diagonal = points(axes, "if the fit")
    np.testing.assert_array_equal(diagonal[:, 0], diagonal[:, 1])
    assert diagonal.min() == expected.min()
    assert diagonal.max() == expected.max()


def test_shapes_stand_over_their_thresholds_with_intervals_and_nulls(pairs):
    (axes,) = axes_of(pairs, "stability")
    places = {tuple(np.round(xy, 9)) for each in axes.lines for xy in each.get_xydata()}
    for fit in [*pairs.stability, pairs.threshold]:
        for height in (fit.xi, *fit.xi_interval):
            assert (round(100 * (1 - fit.quantile), 9), round(height, 9)) in places
    corners = [
        each.get_patch_transform().transform(each.get_path().vertices)[:, 1]
        for each in axes.patches
    ]
    bands = sorted((each.min(), each.max()) for each in corners)
    np.testing.assert_allclose(bands, sorted(null.xi_range for null in pairs.nulls.values()))
    assert line(axes, "Gaussian").get_ydata()[0] == pairs.nulls["gaussian"].xi
    assert line(axes, "uniform").get_ydata()[0] == pairs.nulls["sphere"].xi
    left, right = axes.get_xlim()
    assert left > right


def test_a_shape_outside_its_interval_is_drawn(pairs):
    outside = pairs.threshold._replace(xi_interval=(-0.9, -0.8))
    picture = draw(pairs._replace(threshold=outside, stability=[outside]))["stability"]
    ElementTree.fromstring(picture.render("svg"))
    assert "(-0.900 to -0.800)" in picture.alt


def test_mean_excess_is_the_mean_above_each_threshold(digits):
    (axes,) = axes_of(digits, "mean_excess")
    scores, fit = digits.pooled.tail.scores, digits.threshold
    for threshold, mean in points(axes, "observed")[::10]:
        assert (scores[scores > threshold] - threshold).mean() == pytest.approx(mean)
    (band,) = axes.collections
    threshold, mean = points(axes, "observed")[0]
    above = scores[scores > threshold]
    top = band.get_paths()[0].vertices
    highest = top[top[:, 0] == threshold][:, 1].max()
    assert highest - mean == pytest.approx(1.96 * above.std() / len(above) ** 0.5, rel=1e-6)
    (x0, y0), (x1, y1) = points(axes, "generalised")
    assert (y1 - y0) / (x1 - x0) == pytest.approx(fit.xi / (1 - fit.xi))
    assert y0 == pytest.approx(fit.sigma / (1 - fit.xi))
    assert x0 == fit.threshold


def test_histograms_hold_every_anchor_and_the_marks_of_known_tails(pairs):
    panels, anchors = axes_of(pairs, "evidence"), pairs.anchors
    columns = (anchors.gate, anchors.beta_hat, anchors.rho, anchors.delta_aic)
    for axes, column in zip(panels, columns, strict=True):
        bars = axes.patches
        assert sum(bar.get_height() for bar in bars) == pytest.approx(100)
        first = bars[0]
        part = ((column >= first.get_x()) & (column < first.get_x() + first.get_width())).double()
        assert first.get_height() == pytest.approx(100 * float(part.mean()), abs=100 / len(column))
    assert panels[0].patches[0].get_x() == pytest.approx(0)
    assert panels[0].patches[-1].get_x() == pytest.approx(29 / 30)
    marks = {str(each.get_label()): each.get_xdata()[0] for each in panels[-1].lines}
    assert marks == {f"{law}: {at:.0f}": at for law, at in pairs.known_tails.items()}
    assert "no evidence" in panels[-1].get_xlabel()
    assert "no evidence" in draw(pairs)["evidence"].caption


def test_anchors_without_finite_evidence_are_left_out_of_histograms(pairs):
    worse = pairs.anchors.delta_aic.clone()
    worse[:3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    anchors = pairs.anchors._replace(delta_aic=worse)
    panel = axes_of(pairs._replace(anchors=anchors), "evidence")[-1]
    assert sum(bar.get_height() for bar in panel.patches) == pytest.approx(100)


def test_each_anchor_is_a_point_of_gate_and_hardness(pairs):
    (axes,) = axes_of(pairs, "gate")
    (cloud,) = axes.collections
    expected = torch.stack([pairs.anchors.rho, pairs.anchors.gate], dim=1).double()
    np.testing.assert_array_equal(cloud.get_offsets(), expected)


def test_many_anchors_are_thinned_and_drawn_as_pixels(pairs):
    anchors = pairs.anchors
    many = anchors._replace(gate=anchors.gate.repeat(50), rho=anchors.rho.repeat(50))
    picture = draw(pairs._replace(anchors=many))["gate"]
    (cloud,) = picture.figure().axes[0].collections
    assert 1000 < len(cloud.get_offsets()) <= 2000
    assert len(picture.render("svg")) < 150_000
    assert b"data:image/png;base64," in picture.render("svg")


def test_bars_are_the_mean_shares_of_the_gradient(pairs):
    (axes,) = axes_of(pairs, "gradient_shares")
    shares = 100 * pairs.anchors.shares.mean(dim=0)
    heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
    np.testing.assert_allclose(heights, shares, rtol=1e-5)
    assert [bars.get_label() for bars in axes.containers] == ["softmax", "Weibit", "WEINCE"]
    assert [each.get_text() for each in axes.get_xticklabels()] == ["1 %", "5 %", "10 %"]
    for share in shares.flatten().tolist():
        assert f"{share:.1f} %" in draw(pairs)["gradient_shares"].alt


def test_the_profile_of_the_link_is_cut_where_its_interval_ends(pairs):
    (axes,) = axes_of(pairs, "link")
    low, high = pairs.link.lambda_interval
    # At the edge the curve may lie above the cut.
    assert 0 < low < high < 1
    curve = points(axes, "profile")
    np.testing.assert_array_equal(curve, np.stack([SHARES, pairs.profile], axis=1))
    cut = line(axes, "cut").get_ydata()[0]
    assert np.interp([low, high], *curve.T) == pytest.approx([cut, cut], abs=0.02)
    assert line(axes, "best").get_xdata()[0] == pairs.link.lambda_hat
    alt = draw(pairs)["link"].alt
    assert f"λ = {pairs.link.lambda_hat:.2f}; λ from {low:.2f} to {high:.2f}" in alt


@pytest.mark.parametrize(("kind", "dark"), few(product(("png", "svg"), (False, True)), 0, 3))
def test_files_are_the_same_each_time_whatever_the_users_settings(kind, dark):
    diagnosis = diagnoses.three()
    picture = draw(diagnosis)["gate"]
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "none"}):
        before = dict(mpl.rcParams)
        other = draw(diagnosis)["gate"].render(kind, dark)
        assert dict(mpl.rcParams) == before
    assert picture.render(kind, dark) == other
    assert b"<dc:date>" not in other


@pytest.mark.parametrize("name", few(["mean_excess", "gate", "stability"]))
def test_pictures_are_dark_on_light_and_light_on_dark(name, digits):
    picture = draw(digits)[name]
    for dark, colours in ((False, LIGHT), (True, DARK)):
        pixels = mpl.image.imread(io.BytesIO(picture.render("png", dark)))
        wanted = mpl.colors.to_rgb(colours.background)
        corners = pixels[[0, 0, -1, -1], [0, -1, 0, -1], :3]
        np.testing.assert_allclose(corners, np.tile(wanted, (4, 1)), atol=0.01, err_msg=name)
        assert (np.abs(pixels[..., :3] - wanted).max(axis=-1) > 0.3).mean() > 0.01


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_stand_out_from_their_background(colours):
    def luminance(colour):
        channels = np.array(mpl.colors.to_rgb(colour))
        linear = np.where(
            channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4
        )
        return linear @ (0.2126, 0.7152, 0.0722)

    back = luminance(colours.background)
    for name, colour in colours._asdict().items():
        if name not in ("background", "faint"):
            low, high = sorted([back, luminance(colour)])
            # WCAG 2: 4.5 for text, 3 for graphics.
            assert (high + 0.05) / (low + 0.05) >= (4.5 if name == "ink" else 3), name


def test_another_kind_of_file_is_refused(digits):
    with pytest.raises(ValueError, match=r'^kind must be "png" or "svg", got \'pdf\'\.$'):
        draw(digits)["gate"].render("pdf")
