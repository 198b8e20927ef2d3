"""What is chosen and what is compared, against numbers worked out by hand."""

import shutil

import numpy as np
import pytest
from scipy import stats

from weince_lightning.reporting import compare, read_results


def arms_of(sweep, **options):
    return {arm.name: arm for arm in compare(read_results(sweep.path), **options).arms}


def points(arms):
    return {name: arm.chosen and arm.chosen.point for name, arm in arms.items()}


def test_mean_and_interval_are_over_encoder_seeds_with_probe_seeds_averaged(sweep):
    summary = arms_of(sweep)["infonce"].summaries["linear.test_top1"]
    assert summary.num_seeds == 3
    # 1.56 / 3, the sum being 0.50 + 0.52 + 0.54.
    assert summary.mean == pytest.approx(0.52, abs=1e-12)
    # Deviations -0.02, 0, 0.02: s = sqrt(0.0008 / 2) = 0.02. t(0.975, 2) = 4.302653.
    # 4.302653 x 0.02 / sqrt(3) = 0.0496828
    assert summary.half_width == pytest.approx(0.0496828, abs=1e-7)
    assert summary.interval == pytest.approx((0.4703172, 0.5696828), abs=1e-7)


def test_the_choice_is_that_of_validation_though_another_is_better_on_test(sweep):
    arm = arms_of(sweep)["infonce"]
    first, second = arm.configurations
    assert first.summary("linear.val_top1").mean == pytest.approx(0.62)
    assert second.summary("linear.val_top1").mean == pytest.approx(0.60)
    assert first.summary("linear.test_top1").mean == pytest.approx(0.52)
    assert second.summary("linear.test_top1").mean == pytest.approx(0.72)
    assert arm.chosen is first


def test_another_validation_metric_can_choose(sweep):
    for seed in (7, 21, 63):
        value = {"mean": 0.9, "values": [0.9]}
        sweep.change("infonce", "temperature=0.5", seed, "knn", "val_top1_k50", value)
    assert points(arms_of(sweep, select="knn.val_top1_k50"))["infonce"] == "temperature=0.5"
    assert points(arms_of(sweep))["infonce"] == "temperature=0.1"


@pytest.mark.parametrize(
    "select",
    ["linear.test_top1", "knn.test_top1_k50", "gradient.hardest_1", "val", "val_.test_x"],
)
def test_nothing_but_validation_may_choose(sweep, select):
    with pytest.raises(ValueError, match=r"select must name a validation metric.*linear\.val_top1"):
        compare(read_results(sweep.path), select=select)


def test_a_validation_metric_that_no_run_has_is_refused_where_there_is_a_choice(sweep):
    with pytest.raises(ValueError, match=r"select must name a metric of .*knn\.val_top1"):
        compare(read_results(sweep.path), select="linear.val_top5")
    sweep.plan["arms"]["infonce"]["grid"] = {"model.loss.temperature": [0.1]}
    sweep.write_plan()
    assert points(arms_of(sweep, select="linear.val_top5"))["infonce"] == "temperature=0.1"


def test_differences_are_paired_by_seed(sweep):
    difference = arms_of(sweep)["weince"].differences["linear.test_top1"]
    # 0.53 - 0.50 = 0.03, 0.54 - 0.52 = 0.02, 0.58 - 0.54 = 0.04: mean 0.03, s = 0.01.
    # 4.302653 x 0.01 / sqrt(3) = 0.0248414
    assert difference.mean == pytest.approx(0.03, abs=1e-12)
    assert difference.half_width == pytest.approx(0.0248414, abs=1e-7)
    assert difference.num_seeds == 3
    assert difference.excludes_zero
    # Unpaired, the interval of the same six numbers holds 0: pooled variance
    # (0.0004 + 0.0007) / 2, so 2.776445 x sqrt(0.00055 x 2 / 3) = 0.0531649 > 0.03.
    unpaired = stats.ttest_ind([0.53, 0.54, 0.58], [0.50, 0.52, 0.54]).confidence_interval()
    np.testing.assert_allclose(unpaired, (0.03 - 0.0531649, 0.03 + 0.0531649), atol=1e-7)
    assert unpaired.low < 0 < difference.interval[0]


def test_an_interval_that_holds_zero_is_not_marked(sweep):
    # Differences 0.03, 0.02 and 0.58 - 0.60 = -0.02: mean 0.01, s = sqrt(0.0014 / 2) = 0.0264575,
    # half-width 4.302653 x 0.0264575 / sqrt(3) = 0.0657241.
    sweep.change("infonce", "temperature=0.1", 63, "linear", "test_top1", {"values": [0.6]})
    difference = arms_of(sweep)["weince"].differences["linear.test_top1"]
    assert (difference.mean, difference.half_width) == pytest.approx((0.01, 0.0657241), abs=1e-7)
    assert not difference.excludes_zero


def test_the_baseline_has_no_difference_to_itself(sweep):
    assert arms_of(sweep)["infonce"].differences == {}


def test_an_incomplete_configuration_is_never_chosen(sweep):
    # On its two seeds temperature 0.1 has 0.61 on validation, more than the 0.60 of the other.
    sweep.file("infonce", "temperature=0.1", 63).unlink()
    arm = arms_of(sweep)["infonce"]
    assert arm.chosen.point == "temperature=0.5"
    assert arm.configurations[0].missing == [63]
    assert not arm.configurations[0].is_complete
    # Nor with incomplete ones allowed, as long as there is a complete one.
    assert points(arms_of(sweep, allow_incomplete=True))["infonce"] == "temperature=0.5"


def test_an_arm_without_complete_configuration_has_no_number(sweep):
    sweep.file("weince", "default", 21).unlink()
    arm = arms_of(sweep)["weince"]
    assert arm.chosen is None
    assert (arm.summaries, arm.differences) == ({}, {})


def test_incomplete_arms_can_be_compared_on_the_seeds_that_all_share(sweep):
    sweep.file("weince", "default", 21).unlink()
    comparison = compare(read_results(sweep.path), allow_incomplete=True)
    assert comparison.is_incomplete
    assert comparison.seeds == [7, 63]
    infonce, weince = comparison.arms
    # (0.50 + 0.54) / 2, (0.53 + 0.58) / 2, and differences 0.03 and 0.04.
    assert infonce.summaries["linear.test_top1"].mean == pytest.approx(0.52)
    assert weince.summaries["linear.test_top1"].mean == pytest.approx(0.555)
    difference = weince.differences["linear.test_top1"]
    # s = 0.01 / sqrt(2), so 12.706205 x 0.0070711 / sqrt(2) = 0.0635310
    assert difference.mean == pytest.approx(0.035)
    assert difference.half_width == pytest.approx(0.0635310, abs=1e-7)


def test_an_incomplete_arm_chooses_on_the_seeds_that_its_configurations_share(sweep):
    # Over its own seeds 7 and 21 temperature 0.1 has 0.61, over 21 and 63 temperature 0.5 has
    # 0.61 + 0.01. On the only seed of both, 21, they have 0.62 and 0.61.
    sweep.file("infonce", "temperature=0.1", 63).unlink()
    sweep.file("infonce", "temperature=0.5", 7).unlink()
    for seed, accuracy in ((21, 0.61), (63, 0.63)):
        value = {"values": [accuracy]}
        sweep.change("infonce", "temperature=0.5", seed, "linear", "val_top1", value)
    comparison = compare(read_results(sweep.path), allow_incomplete=True)
    assert comparison.arms[0].chosen.point == "temperature=0.1"
    assert comparison.seeds == [7, 21]
    sweep.file("infonce", "temperature=0.1", 21).unlink()
    comparison = compare(read_results(sweep.path), allow_incomplete=True)
    assert comparison.arms[0].chosen is None  # 7 and 21, 63: nothing shared


def test_arms_that_share_no_seed_are_not_compared(sweep):
    for seed in (21, 63):
        sweep.file("weince", "default", seed).unlink()
    for point in ("temperature=0.1", "temperature=0.5"):
        sweep.file("infonce", point, 7).unlink()
    comparison = compare(read_results(sweep.path), allow_incomplete=True)
    assert comparison.seeds == []
    assert all(arm.chosen and not arm.summaries for arm in comparison.arms)


def test_of_equal_configurations_the_first_of_the_sweep_file_is_chosen(sweep):
    # Both have mean 0.3, but in binary digits that of 0.1, 0.4 and 0.4 is larger by the last one.
    for seed, accuracy in ((7, 0.1), (21, 0.4), (63, 0.4)):
        value = {"values": [accuracy]}
        sweep.change("infonce", "temperature=0.5", seed, "linear", "val_top1", value)
    for seed, accuracy in ((7, 0.3), (21, 0.3), (63, 0.3)):
        value = {"values": [accuracy]}
        sweep.change("infonce", "temperature=0.1", seed, "linear", "val_top1", value)
    arm = arms_of(sweep)["infonce"]
    assert (arm.chosen.point, arm.tied) == ("temperature=0.1", ["temperature=0.5"])
    sweep.plan["arms"]["infonce"]["grid"] = {"model.loss.temperature": [0.5, 0.1]}
    sweep.write_plan()
    arm = arms_of(sweep)["infonce"]
    assert (arm.chosen.point, arm.tied) == ("temperature=0.5", ["temperature=0.1"])


def test_one_seed_gives_a_mean_and_no_interval(sweep):
    sweep.plan["seeds"] = [7]
    sweep.write_plan()
    arms = arms_of(sweep)
    assert arms["infonce"].summaries["linear.test_top1"] == (pytest.approx(0.5), None, 1)
    difference = arms["weince"].differences["linear.test_top1"]
    assert difference == (pytest.approx(0.03), None, 1)
    assert difference.interval is None
    assert not difference.excludes_zero


def test_equal_seeds_have_an_interval_of_width_zero(sweep):
    for seed in (7, 21, 63):
        sweep.change("weince", "default", seed, "linear", "test_top1", {"values": [0.7]})
    assert arms_of(sweep)["weince"].summaries["linear.test_top1"] == (0.7, 0.0, 3)


@pytest.mark.parametrize("value", [None, float("nan"), {"mean": None, "values": [None, 0.5]}])
def test_a_number_that_is_not_there_is_left_out_and_counted(sweep, value):
    sweep.change("weince", "default", 21, "linear", "test_top1", value)
    arms = arms_of(sweep)
    # Validation chooses, so the arm is compared; its test numbers are of two seeds.
    assert arms["weince"].summaries["linear.test_top1"].num_seeds == 2
    assert arms["weince"].differences["linear.test_top1"].num_seeds == 2
    assert arms["weince"].summaries["knn.test_top1_k50"].num_seeds == 3


def test_a_configuration_without_the_number_of_the_choice_is_not_chosen(sweep):
    sweep.change("infonce", "temperature=0.1", 21, "linear", "val_top1", float("nan"))
    arm = arms_of(sweep)["infonce"]
    assert arm.chosen.point == "temperature=0.5"
    assert (arm.configurations[0].missing, arm.configurations[0].missing_metric) == ([], [21])


def test_without_the_baseline_there_are_no_differences(sweep):
    shutil.rmtree(sweep.path / "results" / "infonce")
    arms = arms_of(sweep)
    assert arms["infonce"].chosen is None
    assert arms["weince"].summaries
    assert arms["weince"].differences == {}
