"""Files for people who join: contributing, changelog, workflows, issue template."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
WORKFLOWS = {
    file.stem: yaml.safe_load(file.read_text(encoding="utf-8"))
    for file in sorted((ROOT / ".github" / "workflows").glob("*.yml"))
}
RELEASE = runpy.run_path(str(ROOT / ".ci" / "release.py"))


def version():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "version"
    ]


def jobs():
    return [(name, job) for flow in WORKFLOWS.values() for name, job in flow["jobs"].items()]


def commands(job):
    return [step["run"] for step in job.get("steps", []) if "run" in step]


def test_the_floors_name_every_part_once():
    block = re.search(r"```text\n(.*?)```", CONTRIBUTING, re.DOTALL).group(1)
    named = [part for line in block.splitlines() for part in re.split(r" {3,}", line)[0].split()]
    package = ROOT / "weince_lightning"
    files = {file.stem for file in package.glob("[a-z]*.py")}
    parts = {file.parent.name for file in package.glob("*/__init__.py")} | files
    assert sorted(named) == sorted(parts)


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "CHANGELOG.md"])
def test_files_that_are_named_exist(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", text)
    named = re.findall(r"`((?:tests|configs|weince_lightning|\.ci)/[\w./]*)`", text)
    assert [path for path in links + named if not (ROOT / path).exists()] == []


def test_contributing_is_one_screen():
    assert len(CONTRIBUTING.splitlines()) <= 70


def test_the_changelog_keeps_its_format():
    versions = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
    assert versions[0] == "[Unreleased]"
    assert f"[{version()}]" in CHANGELOG
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", each) for each in versions[1:])
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", CHANGELOG, re.MULTILINE)) <= kinds


def test_the_tag_of_a_release_is_the_version_of_all_files():
    assert RELEASE["mismatches"](f"v{version()}", ROOT) == []


def test_a_tag_that_differs_is_refused_with_each_file(tmp_path):
    for name, content in {
        "pyproject.toml": '[project]\nversion = "1.2.0"\n',
        "CITATION.cff": "cff-version: 1.2.0\nversion: 1.1.0\n",
        "CHANGELOG.md": "## [Unreleased]\n## [1.2.0]\n",
    }.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert RELEASE["mismatches"]("1.2.0", tmp_path) == [
        "The tag must be v1.2.0, the version in pyproject.toml, got 1.2.0.",
        "CITATION.cff must state version: 1.2.0.",
        "CHANGELOG.md must have a section '## [1.2.0] - YYYY-MM-DD'.",
    ]


def test_workflows_read_by_default_and_write_only_where_they_publish():
    assert all(flow["permissions"] == {"contents": "read"} for flow in WORKFLOWS.values())
    assert {
        (flow, name): job["permissions"]
        for flow, content in WORKFLOWS.items()
        for name, job in content["jobs"].items()
        if "permissions" in job
    } == {
        ("docs", "publish"): {"pages": "write", "id-token": "write"},
        ("release", "publish"): {"id-token": "write"},
    }


def test_workflows_hold_no_secret_and_pin_their_actions():
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        text = file.read_text(encoding="utf-8")
        assert "secrets" not in text
        for action in re.findall(r"uses: (\S+)", text):
            assert action.startswith("./") or re.search(r"@(v\d+|release/v\d+)$", action), action


def test_every_job_ends_and_no_event_text_reaches_a_shell():
    for name, job in jobs():
        assert "uses" in job or job["timeout-minutes"] <= 90, name
        assert not any("${{" in command for command in commands(job)), name


def test_ci_runs_the_script_with_newest_and_oldest_versions():
    check = WORKFLOWS["ci"]["jobs"]["check"]
    assert commands(check) == ["bash .ci/run"]
    matrix = check["strategy"]["matrix"]
    assert {*matrix["versions"], *(each["versions"] for each in matrix["include"])} == {
        "newest",
        "oldest",
    }


def test_the_site_is_built_for_pull_requests_and_published_from_main():
    # YAML reads the key `on` as true.
    assert WORKFLOWS["docs"][True] == {"push": {"branches": ["main"]}, "pull_request": None}
    assert "mkdocs build --strict" in commands(WORKFLOWS["docs"]["jobs"]["build"])
    publish = WORKFLOWS["docs"]["jobs"]["publish"]
    assert (publish["if"], publish["needs"]) == ("github.event_name == 'push'", "build")


def test_a_release_is_checked_before_it_is_published():
    workflow = WORKFLOWS["release"]
    assert workflow[True] == {"push": {"tags": ["v*"]}}
    assert workflow["jobs"]["check"] == {"uses": "./.github/workflows/ci.yml"}
    assert 'python .ci/release.py "$GITHUB_REF_NAME"' in commands(workflow["jobs"]["build"])
    publish = workflow["jobs"]["publish"]
    assert publish["needs"] == ["check", "build"]
    assert publish["environment"] == {"name": "pypi"}


def test_a_bug_report_asks_for_the_versions():
    file = ROOT / ".github" / "ISSUE_TEMPLATE" / "bug_report.yml"
    fields = {each["id"]: each for each in yaml.safe_load(file.read_text(encoding="utf-8"))["body"]}
    assert fields["versions"]["attributes"]["label"] == "Output of `weince --version`"
    assert fields["versions"]["validations"]["required"]
