"""Each benchmark runs, and reports what it promises; how fast anything is, is not tested."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from processes import run_python

ROOT = Path(__file__).parents[1]
SUMMARY = {"median", "first_quartile", "third_quartile", "samples"}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


def run_benchmark(script: str, *options: object, timeout: float = 300) -> str:
    """Run a benchmark as a person does, and return what it wrote."""
    return run_python(f"benchmarks/{script}.py", *options, folder=ROOT, timeout=timeout)


def run_quick(script: str, folder: Path, *options: str) -> tuple[str, list[dict]]:
    """Return the lines of a benchmark's table and the rows of its JSON."""
    path = folder / "report.json"
    output = run_benchmark(script, "--quick", "--json", path, *options)
    report = json.loads(path.read_text(encoding="utf-8"))
    assert report["benchmark"] == script
    assert {"processor", "cores", "threads", "load_average", "packages"} <= set(report["machine"])
    lines = [line for line in output.splitlines() if line.startswith("| ")]
    assert len({line.count("|") for line in lines}) == 1
    return lines, report["rows"]


def assert_summaries(row: dict, *fields: str) -> None:
    for field in fields:
        assert set(row[field]) == SUMMARY, field
        found = row[field]
        assert found["first_quartile"] <= found["median"] <= found["third_quartile"]
        assert found["median"] > 0


@pytest.fixture(scope="module")
def speed(tmp_path_factory):
    return run_quick("loss_speed", tmp_path_factory.mktemp("speed"))


def test_loss_speed_reports_every_loss_at_every_size(speed):
    lines, rows = speed
    names = ["lightly", "InfoNCELoss", "WEINCELoss", "pytorch-metric-learning", "three products"]
    assert [(row["samples"], row["loss"]) for row in rows] == [
        (size, name) for size in (64, 128) for name in names
    ]
    assert [line.split()[1] for line in lines[2:]] == ["64", "128"]
    for row in rows:
        if row["skipped"] is None:
            assert_summaries(row, "seconds", "ratio_to_lightly", "ratio_to_products")
            assert len(row["seconds"]["samples"]) == 3
        else:
            assert row["loss"] == "pytorch-metric-learning"
            assert "not installed" in row["skipped"]


def test_loss_speed_takes_ratios_round_by_round(speed):
    rows = {row["loss"]: row for row in speed[1] if row["samples"] == 64}
    ours, theirs = rows["WEINCELoss"], rows["lightly"]
    expected = [
        a / b for a, b in zip(ours["seconds"]["samples"], theirs["seconds"]["samples"], strict=True)
    ]
    assert ours["ratio_to_lightly"]["samples"] == pytest.approx(expected)


def test_libraries_are_timed_on_the_same_loss(speed):
    rows = [row for row in speed[1] if row["samples"] == 64 and row["skipped"] is None]
    values = {row["loss"]: row["value"] for row in rows}
    for name in set(values) - {"WEINCELoss", "three products"}:
        assert values[name] == pytest.approx(values["lightly"], rel=1e-5)


@pytest.mark.slow
def test_loss_memory_reports_peaks_and_skips_what_does_not_fit(tmp_path):
    # At N = 256 nothing is known; of the matrices at N = 4096, only a limit says that they are big.
    options = ("--sizes", "256", "4096", "--losses", "lightly", "--memory-limit", "0.001")
    lines, (small, large) = run_quick("loss_memory", tmp_path, *options)
    assert small["loss"] == large["loss"] == "lightly"
    assert_summaries(small, "bytes", "ratio_to_lightly")
    assert small["skipped"] is None
    assert "GiB" in large["skipped"]
    assert large["bytes"] is None
    assert large["ratio_to_lightly"] is None
    assert lines[-1].split()[-2] == "-"


@pytest.mark.slow
def test_step_overhead_reports_the_share_of_a_step(tmp_path):
    lines, (row,) = run_quick("step_overhead", tmp_path)
    assert_summaries(row, "infonce_seconds", "weince_seconds", "step_seconds")
    assert set(row["difference_seconds"]) == set(row["overhead"]) == SUMMARY
    shares = [
        difference / step
        for difference, step in zip(
            row["difference_seconds"]["samples"], row["step_seconds"]["samples"], strict=True
        )
    ]
    assert row["overhead"]["samples"] == pytest.approx(shares)
    assert "%" in lines[-1]


@pytest.mark.slow
def test_scaling_reports_growth_beside_the_model(tmp_path):
    lines, rows = run_quick("scaling", tmp_path)
    assert [(row["loss"], row["samples"], row["processes"]) for row in rows] == [
        ("WEINCELoss", 64, 1),
        ("WEINCELoss", 64, 2),
    ]
    assert [(row["time_model"], row["memory_model"]) for row in rows] == [(1, 1), (2, 2)]
    for row in rows:
        assert_summaries(row, "cpu_seconds", "wall_seconds", "time_growth")
        assert set(row["peak_bytes"]) == SUMMARY
        assert "memory_growth" in row
    assert len(lines) == 4


@pytest.mark.slow
def test_knn_speed_reports_a_search_that_agrees_with_faiss(tmp_path):
    lines, rows = run_quick("knn_speed", tmp_path)
    names = ["faiss IndexFlatIP", "nearest_neighbours", "neighbour_scores", "matrix product"]
    assert [row["case"] for row in rows] == names[4 - len(rows) :]
    assert len(lines) == 2 + len(rows)
    for row in rows:
        assert_summaries(row, "seconds", "ratio_to_product")
    if len(rows) == len(names):  # faiss is installed
        assert_summaries(rows[1], "ratio_to_faiss")
        assert rows[1]["agreement_with_faiss"] > 0.99


@pytest.mark.slow
def test_epoch_speed_reports_both_libraries_on_both_augmentations(tmp_path):
    lines, rows = run_quick("epoch_speed", tmp_path)
    names = ["lightly", "lightly, our augmentation", "ours", "ours, batch_augmentation"]
    assert [row["case"] for row in rows] == names
    assert len(lines) == 2 + len(rows)
    for row in rows:
        assert_summaries(row, "seconds", "ratio_to_lightly", "ratio_to_same_views")
    assert rows[1]["ratio_to_same_views"]["samples"] == [1, 1]


@pytest.mark.slow
def test_real_tails_writes_numbers_and_words_of_every_case_that_is_installed(tmp_path):
    run_benchmark("real_tails", "--output", tmp_path, "--samples", "300", timeout=900)
    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    cases = sorted(file.stem for file in tmp_path.glob("*.json"))
    assert {"digits_trained", "digits_untrained"} <= set(cases)
    assert len(cases) + summary.count("Left out: ") == 4
    rows = [line for line in summary.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == len(cases)
    found = [json.loads((tmp_path / f"{case}.json").read_text()) for case in cases]
    assert all(f" {case['dimension']} |" in summary for case in found)
    assert summary.count(".** Cannot tell: ") + summary.count(".** No reason ") == len(cases)
    # The trained encoder has left the cone in which the untrained one lies.
    means = {case: each["pooled"]["mean"] for case, each in zip(cases, found, strict=True)}
    assert means["digits_trained"] < means["digits_untrained"] - 0.3


@pytest.fixture
def emoji_retrieval(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("emoji_retrieval")


def write_emoji(folder: Path, count: int) -> None:
    """Pictures as the two packages of npm hold them, in all the kinds of PNG that they use."""
    entries = []
    for number in range(count):
        name = f"{number:04x}.png"
        entries.append(
            {
                "image": name,
                "subcategory": f"part-{number // 3}",
                "has_img_google": True,
                "has_img_twitter": number < count - 1,
            }
        )
        colours = np.random.default_rng(number).integers(0, 256, (4, 4, 4), dtype=np.uint8)
        picture = Image.fromarray(colours.repeat(16, axis=0).repeat(16, axis=1), "RGBA")
        for style, mode in (("google", "LA" if number == 0 else "RGBA"), ("twitter", "P")):
            images = folder / style / "package" / "img" / style / "64"
            images.mkdir(parents=True, exist_ok=True)
            picture.convert(mode).save(images / name)
    for style in ("google", "twitter"):
        path = folder / style / "package" / "emoji.json"
        path.write_text(json.dumps(entries), encoding="utf-8")


@pytest.mark.slow
def test_emoji_retrieval_writes_numbers_table_and_figure(tmp_path):
    write_emoji(tmp_path, 31)
    output = tmp_path / "results"
    options = ["--data", tmp_path, "--output", output, "--epochs", "2", "--batch-size", "8"]
    printed = run_benchmark("emoji_retrieval", *options, "--seeds", "1", "2")
    numbers = json.loads((output / "numbers.json").read_text(encoding="utf-8"))
    assert numbers["emoji"] == 30  # twitter lacks the last
    names = list(dict.fromkeys(run["name"] for run in numbers["runs"]))
    assert names[:3] == ["InfoNCE", "WEINCE, the paper's form", "WEINCE with shape 1"]
    assert len(numbers["runs"]) == 2 * len(names)
    assert {run["candidates"] for run in numbers["runs"]} == {6}
    # Pictures of both styles are alike but for their colours.
    assert numbers["pixels_of_all"]["pixels, 64 px"]["google_to_twitter"] > 0.8
    text = (output / "table.md").read_text(encoding="utf-8")
    assert text in printed
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]] == names
    assert len({line.count("|") for line in lines}) == 1
    assert (output / "figure.png").read_bytes().startswith(b"\x89PNG")
    numbers["runs"][0]["training"] = "kept"
    del numbers["runs"][1]
    (output / "numbers.json").write_text(json.dumps(numbers), encoding="utf-8")
    printed = run_benchmark("emoji_retrieval", *options, "--seeds", "1", "2")
    assert printed.count("InfoNCE, seed 2:") == printed.count(", seed ") == 1
    assert printed.endswith(text)
    assert json.loads((output / "numbers.json").read_text())["runs"][0]["training"] == "kept"


def test_emoji_retrieval_says_how_to_get_what_is_absent(emoji_retrieval, tmp_path):
    with pytest.raises(SystemExit, match=r"npm pack emoji-datasource-google@16\.0\.0"):
        emoji_retrieval.load(tmp_path)


def test_emoji_that_share_a_drawing_are_one(emoji_retrieval, tmp_path):
    write_emoji(tmp_path, 9)
    for style, number, other in (("google", 1, 4), ("twitter", 4, 7)):
        images = tmp_path / style / "package" / "img" / style / "64"
        shutil.copy(images / f"{number:04x}.png", images / f"{other:04x}.png")
    assert emoji_retrieval.load(tmp_path).ids.tolist() == [0, 1, 2, 3, 1, 4, 5, 1]


def test_emoji_are_held_out_by_whole_subcategories(emoji_retrieval):
    names = [f"{part}" for part in range(20) for _ in range(part + 1)]
    masks = [emoji_retrieval.hold_out(names, seed) for seed in range(5)]
    for mask in masks:
        asked = {name for name, is_out in zip(names, mask.tolist(), strict=True) if is_out}
        assert 0.1 * len(names) < mask.sum() <= 0.2 * len(names)
        assert int(mask.sum()) == sum(name in asked for name in names)
    assert len({tuple(mask.tolist()) for mask in masks}) == 5
