"""The files of a report, read back."""

import csv
import json
import re
import shutil
import subprocess

import pytest

from weince_lightning.reporting import compare, read_results
from weince_lightning.reporting.latex import escape
from weince_lightning.reporting.writing import write_report

COMMAND = "weince report sweeps/x"


def report_of(sweep, **options):
    """Write a report; give its texts by suffix."""
    comparison = compare(read_results(sweep.path), **options)
    files = write_report(comparison, sweep.path, COMMAND)
    assert [file.name for file in files] == [
        f"report.{suffix}" for suffix in ("json", "md", "csv", "tex", "png")
    ]
    return {file.suffix[1:]: file.read_text(encoding="utf-8") for file in files[:4]}


@pytest.fixture(scope="module")
def report(unchanged):
    """Texts by suffix of the report on the folder as it is."""
    return report_of(unchanged)


def rows_of(markdown, first):
    """Cells of the tables' rows that begin with a cell."""
    rows = [line for line in markdown.splitlines() if line.startswith(f"| {first} ")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def section(markdown, title):
    return markdown.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_the_main_table_gives_per_cent_beside_differences_and_the_paper(report):
    main = report["md"].partition("## ")[0]
    # Means and half-widths as worked out in test_comparison.py; kNN is 10 points lower.
    assert rows_of(main, "arm")[0] == (
        ["arm", "configuration", "linear test", "difference", "paper", "kNN(50) test", "difference"]
    )
    difference = "+3.00 [+0.52, +5.48] *"
    assert rows_of(main, "InfoNCE") == [
        [
            "InfoNCE",
            "temperature=0.1 (of 2)",
            "52.00 ± 4.97",
            "baseline",
            "50.01 ± 0.19",
            "42.00 ± 4.97",
            "baseline",
        ]
    ]
    assert rows_of(main, "WEINCE") == [
        [
            "WEINCE",
            "default",
            "55.00 ± 6.57",
            difference,
            "53.28 ± 0.28",
            "45.00 ± 6.57",
            difference,
        ]
    ]


def test_the_page_says_how_to_read_it(report):
    page = report["md"]
    assert "mean ± half-width of the 95 % t-interval over 3 encoder seeds" in page
    assert "Differences to InfoNCE are paired by seed" in page
    assert "2 comparisons" in page
    assert "largest mean `linear.val_top1`" in page
    assert "test numbers had no part in the choice" in page
    assert "Its 100 epochs at a learning rate of 0.0003 stop short of convergence" in page
    assert f"Made by `{COMMAND}`" in page


def test_all_configurations_are_listed_with_validation_and_test(sweep):
    sweep.file("infonce", "temperature=0.5", 63).unlink()
    listed = section(report_of(sweep)["md"], "All configurations")
    # Validation 0.58 and 0.60: s = 0.0141421, 12.706205 x 0.0141421 / sqrt(2) = 0.1270620.
    assert [row[:5] for row in rows_of(listed, "InfoNCE")] == [
        ["InfoNCE", "**temperature=0.1**", "3 of 3", "62.00 ± 4.97", "52.00 ± 4.97"],
        [
            "InfoNCE",
            "temperature=0.5",
            "2 of 3",
            "59.00 ± 12.71 (2 seeds)",
            "71.00 ± 12.71 (2 seeds)",
        ],
    ]
    assert len(rows_of(listed, "WEINCE")) == 1


def test_further_metrics_stand_beside_the_papers(report):
    further = section(report["md"], "Further metrics")
    recall, gradient = rows_of(further, "WEINCE")
    assert recall == ["WEINCE", "35.00 ± 6.57 / 42.94 ± 0.20"]
    assert gradient == ["WEINCE", "0.25 ± 0"]  # no accuracy: as it is


def test_what_is_missing_or_strange_is_named(report, sweep):
    assert "Nothing." in section(report["md"], "Missing and strange")
    sweep.file("weince", "default", 21).unlink()
    sweep.file("weince", "default", 63).write_text("{", encoding="utf-8")
    report = report_of(sweep)
    missing = section(report["md"], "Missing and strange")
    assert "- WEINCE, default lacks seeds 21, 63." in missing
    assert "- results/weince/default/seed_63.json is left out: it is no JSON" in missing
    row = rows_of(report["md"], "WEINCE")[0]
    assert row == ["WEINCE", "1 of 3 seeds", "-", "-", "53.28 ± 0.28", "-", "-"]
    assert "- WEINCE is not compared: 1 of 3 seeds." in report["md"]
    assert json.loads(report["json"])["comparisons"] == 0
    assert "paired by seed" not in report["md"]


def test_an_incomplete_comparison_is_marked_in_every_file_for_people(sweep):
    sweep.file("weince", "default", 21).unlink()
    report = report_of(sweep, allow_incomplete=True)
    assert "**Incomplete**: compared over the seeds that all chosen" in report["md"]
    assert "7, 63 (2 of 3)" in report["md"]
    assert "over 2 encoder seeds of 3 planned" in report["tex"]
    assert json.loads(report["json"])["incomplete"] is True


def test_one_seed_is_said_to_give_no_interval(sweep):
    sweep.plan["seeds"] = [7]
    sweep.write_plan()
    page = report_of(sweep)["md"]
    assert "One seed gives no interval." in page
    assert rows_of(page, "WEINCE")[0][2:4] == ["53.00 (1 seed)", "+3.00 (1 seed)"]


def test_without_a_sweep_file_the_page_says_so_and_has_no_differences(sweep):
    (sweep.path / "sweep.yaml").unlink()
    report = report_of(sweep)
    assert "There is no sweep.yaml: arms, configurations and seeds are those that" in report["md"]
    assert "difference" not in report["md"].splitlines()[2]
    assert json.loads(report["json"])["baseline"] is None


def test_settings_are_shown_and_those_that_differ_are_named(report, sweep):
    settings = section(report["md"], "Settings")
    for line in ("- linear.epochs: 100", "- data.dataset: digits", "- fit.epochs: 2"):
        assert line in settings
    assert "Encoder seeds: 7, 21, 63." in settings
    assert "layers:\n- digits" in settings
    content = json.loads(sweep.file("weince", "default", 7).read_text())
    content["evaluation"]["settings"]["linear"]["epochs"] = 10
    sweep.write("weince", "default", 7, content)
    report = report_of(sweep)
    line = (
        "The runs differ in linear.epochs: 100 (8 runs); 10 (results/weince/default/seed_7.json)."
    )
    assert f"- {line}" in section(report["md"], "Missing and strange")
    assert line in json.loads(report["json"])["problems"]


def test_json_holds_every_configuration_in_fractions(report):
    record = json.loads(report["json"])
    assert (record["command"], record["select"]) == (COMMAND, "linear.val_top1")
    assert (record["baseline"], record["comparisons"]) == ("infonce", 2)
    infonce, weince = record["arms"]["infonce"], record["arms"]["weince"]
    assert infonce["chosen"] == "temperature=0.1"
    other = infonce["configurations"]["temperature=0.5"]
    assert (other["point"], other["complete"]) == ({"model.loss.temperature": 0.5}, True)
    assert other["metrics"]["linear.test_top1"]["values"] == pytest.approx(
        {"7": 0.70, "21": 0.72, "63": 0.74}
    )
    difference = weince["differences"]["linear.test_top1"]
    assert difference == pytest.approx(
        {"mean": 0.03, "half_width": 0.0248414, "low": 0.0051586, "high": 0.0548414}
        | {"num_seeds": 3, "excludes_zero": True},
        abs=1e-7,
    )
    assert weince["paper"]["linear.test_top1"] == {"mean": 0.5328, "half_width": 0.0028}


def test_csv_has_a_row_for_each_configuration_and_metric(sweep):
    sweep.change("infonce", "temperature=0.5", 21, "knn", "test_top1_k50", None)
    rows = list(csv.DictReader(report_of(sweep)["csv"].splitlines()))
    assert len(rows) == 3 * 6
    assert {row["chosen"] for row in rows if row["point"] == "temperature=0.5"} == {"false"}
    (row,) = [row for row in rows if (row["arm"], row["metric"]) == ("weince", "linear.test_top1")]
    assert [float(row[f"seed_{seed}"]) for seed in (7, 21, 63)] == pytest.approx([0.53, 0.54, 0.58])
    numbers = [float(row[name]) for name in ("mean", "low", "high")]
    assert numbers == pytest.approx([0.55, 0.55 - 0.0657241, 0.55 + 0.0657241], abs=1e-7)
    (row,) = [
        row
        for row in rows
        if (row["point"], row["metric"]) == ("temperature=0.5", "knn.test_top1_k50")
    ]
    assert (row["num_seeds"], row["seed_21"]) == ("2", "")


AWKWARD = r"50 % & $5 #1_{a}~^\ <b>|*x* [y] λ_0, ΔAIC"


def test_names_of_arms_can_not_break_the_markdown_table(sweep):
    sweep.plan["arms"]["weince"]["label"] = AWKWARD
    sweep.write_plan()
    lines = report_of(sweep)["md"].splitlines()
    separators = [len(re.findall(r"(?<!\\)\|", line)) for line in lines[2:6]]
    assert separators == [8] * 4


def latex_rows(text):
    body = text.partition(r"\toprule")[2].partition(r"\bottomrule")[0].replace(r"\midrule", "")
    return [row.strip() for row in body.split(r" \\" + "\n") if row.strip()]


def test_latex_has_as_many_cells_in_every_row_as_columns(sweep):
    sweep.plan["arms"]["weince"]["label"] = AWKWARD
    sweep.write_plan()
    text = report_of(sweep)["tex"]
    (columns,) = re.findall(r"\\begin\{tabular\}\{(\w+)\}", text)
    rows = latex_rows(text)
    assert len(rows) == 3
    for row in rows:
        assert len(re.findall(r"(?<!\\)&", row)) == len(columns) - 1
        # LaTeX takes a bracket or star after the end of a row for its argument.
        assert row.startswith("{}")
    plain = re.sub(r"\\.", "", text)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    assert not re.search(r"[_#^~<>|\"]", plain)
    assert re.sub("[±]", "", text).isascii()
    for name in ("table", "tabular"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_b & 5 %", r"a\_b \& 5 \%"),
        ("\\ ~ ^", r"\textbackslash{} \textasciitilde{} \textasciicircum{}"),
        ("κ ≥ 2", r"$\kappa$ $\geq$ 2"),
        ("Δ ± é", r"$\Delta$ $\pm$ é"),
    ],
)
def test_latex_names_are_escaped(text, expected):
    assert escape(text) == expected


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs a LaTeX")
def test_latex_compiles(sweep, tmp_path):
    sweep.plan["arms"]["weince"]["label"] = AWKWARD
    sweep.write_plan()
    report_of(sweep)
    document = r"\documentclass{article}\usepackage{booktabs}\begin{document}\input{report}"
    (tmp_path / "page.tex").write_text(document + r"\end{document}", encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-2000:]


def test_the_same_results_give_the_same_bytes(sweep):
    contents = []
    for _ in range(2):
        report_of(sweep)
        contents.append({file.name: file.read_bytes() for file in sweep.path.glob("report.*")})
    assert contents[0] == contents[1]


def test_files_appear_whole_and_leave_nothing_behind(sweep):
    report_of(sweep)
    assert {path.name for path in sweep.path.iterdir()} == (
        {"sweep.yaml", "results"} | {f"report.{end}" for end in ("json", "md", "csv", "tex", "png")}
    )


def test_sharpness_of_the_loss_stands_beside_each_arm(sweep):
    for seed, temperature in zip((7, 21, 63), (0.1, 0.2, 0.3), strict=True):
        sweep.change("weince", "default", seed, "loss", "effective_temperature", temperature)
    main = report_of(sweep)["md"].partition("## ")[0]
    assert rows_of(main, "arm")[0][-1] == "effective temperature"
    assert rows_of(main, "WEINCE")[0][-1] == "0.200"
    assert rows_of(main, "InfoNCE")[0][-1] == "-"


def test_what_differs_between_anchors_is_one_cell_of_quantiles(sweep):
    for seed in (7, 21, 63):
        gate = {"mean": 0.2, "q05": 0.0, "q25": 0.1, "q50": seed / 1000, "q95": 0.9}
        sweep.change("weince", "default", seed, "loss", "gate", gate)
    further = section(report_of(sweep)["md"], "Further metrics")
    # The mean of 0.007, 0.021 and 0.063.
    assert rows_of(further, "WEINCE")[-1] == ["WEINCE", "0.0303 (0 to 0.9)"]
    assert "q25" not in further


def test_numbers_that_one_kind_of_loss_has_are_not_missed_in_the_others(sweep):
    for seed in (7, 21):
        sweep.change("weince", "default", seed, "loss", "gate", {"mean": 0.2})
    [problem] = read_results(sweep.path).problems
    assert problem.startswith("results/weince/default/seed_63.json has no finite number for")
