"""What the figure shows, read from the figure itself."""

import io
import itertools
import json

import matplotlib.image
import numpy as np
import pytest
from matplotlib.collections import PathCollection

from weince_lightning.figures import encode
from weince_lightning.reporting import compare, read_results
from weince_lightning.reporting.figure import draw


def figure_of(sweep, **options):
    return draw(compare(read_results(sweep.path), **options))


def rings(axes):
    """Values of the encoder seeds, in per cent, by row."""
    found = [points for points in axes.collections if isinstance(points, PathCollection)]
    return [sorted(points.get_offsets()[:, 0]) for points in found]


def test_every_encoder_seed_is_a_ring_and_every_mean_a_dot_with_its_interval(sweep):
    linear, knn = figure_of(sweep).axes
    np.testing.assert_allclose(rings(linear), [[50, 52, 54], [53, 54, 58]])
    np.testing.assert_allclose(rings(knn), [[40, 42, 44], [43, 44, 48]])
    infonce, weince = linear.containers
    for row, (bar, mean, half) in enumerate(((infonce, 52, 4.96828), (weince, 55, 6.57241))):
        dot, _, (line,) = bar.lines
        np.testing.assert_allclose((dot.get_xdata()[0], dot.get_ydata()[0]), (mean, row))
        ((low, _), (high, _)) = line.get_segments()[0]
        np.testing.assert_allclose((low, high), (mean - half, mean + half), atol=1e-4)


def test_the_mean_of_the_baseline_is_a_line_through_each_panel(sweep):
    for axes, mean in zip(figure_of(sweep).axes, (52, 42), strict=True):
        dashed = [line for line in axes.lines if line.get_linestyle() == "--"]
        np.testing.assert_allclose([line.get_xdata() for line in dashed], [[mean, mean]])


def test_panels_and_rows_are_named(sweep):
    sweep.plan["arms"]["weince"]["label"] = "WEINCE, $a_1 and $b"
    sweep.write_plan()
    figure = figure_of(sweep)
    linear, knn = figure.axes
    assert linear.get_xlabel() == "linear test accuracy in %"
    assert knn.get_xlabel() == "kNN(50) test accuracy in %"
    labels = linear.get_yticklabels()
    assert [label.get_text() for label in labels] == ["InfoNCE", "WEINCE, $a_1 and $b"]
    assert not any(label.get_parse_math() for label in labels)
    assert "95 % t-interval over 3 encoder seeds" in figure.get_suptitle()
    assert "dashed: InfoNCE" in figure.get_suptitle()


def test_the_first_arm_of_the_sweep_file_stands_at_the_top(sweep):
    bottom, top = figure_of(sweep).axes[0].get_ylim()
    assert bottom > 1 > 0 > top


def test_an_arm_without_number_keeps_its_row_and_says_why(sweep):
    sweep.file("weince", "default", 21).unlink()
    axes = figure_of(sweep).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "InfoNCE",
        "WEINCE (2 of 3 seeds)",
    ]
    assert len(rings(axes)) == 1
    figure = figure_of(sweep, allow_incomplete=True)
    np.testing.assert_allclose(rings(figure.axes[0]), [[50, 54], [53, 58]])
    assert "over 2 encoder seeds of 3 planned" in figure.get_suptitle()


def test_one_seed_and_one_panel_are_drawn(sweep):
    sweep.plan["seeds"] = [7]
    sweep.write_plan()
    for point in ("temperature=0.1", "temperature=0.5"):
        sweep.change("infonce", point, 7, "knn", "test_top1_k50", None)
    sweep.change("weince", "default", 7, "knn", "test_top1_k50", None)
    (axes,) = figure_of(sweep).axes
    np.testing.assert_allclose(rings(axes), [[50], [53]])


@pytest.mark.parametrize("num_arms", [1, 15])
def test_labels_of_many_arms_do_not_touch_and_nothing_is_cut_off(sweep, num_arms):
    arms = {
        "infonce": sweep.plan["arms"]["infonce"] | {"label": "An InfoNCE of a very long name " * 2}
    }
    record = json.loads(sweep.file("weince", "default", 7).read_text())
    for number in range(1, num_arms):
        arms[f"arm_{number}"] = {"label": f"An arm with a name of two lines, number {number}"}
        for seed in sweep.plan["seeds"]:
            name = f"arm_{number}"
            sweep.write(name, "default", seed, record | {"arm": name, "seed": seed})
    sweep.plan["arms"], sweep.plan["paper"] = arms, {}
    sweep.write_plan()
    figure = figure_of(sweep)
    pixels = matplotlib.image.imread(io.BytesIO(encode(figure, "png")))
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    np.testing.assert_array_equal(border, 1)
    boxes = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    assert len(boxes) == num_arms
    for upper, lower in itertools.pairwise(boxes):
        assert upper.y0 > lower.y1
