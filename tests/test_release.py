"""What a release needs: one version, a workflow that runs our checks, an sdist with all that tests and docs need."""

import re
import tomllib
from pathlib import Path

import yaml

import etude

ROOT = Path(__file__).resolve().parent.parent


def test_the_version_is_said_once_and_the_citation_agrees():
    assert re.fullmatch(r"\d+\.\d+\.\d+", etude.__version__)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert str(citation["version"]) == etude.__version__
    assert citation["license"] == tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["license"]
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert f"## {etude.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dynamic"] == ["version"]


def test_the_workflow_runs_what_must_pass():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert ".ci/run" in [step.get("run") for step in steps]
    assert workflow["permissions"] == {"contents": "read"}
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_templates_are_whole():
    for place in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(place.read_text("utf-8"))
        if place.name != "config.yml":
            assert {"name", "description", "body"} <= set(form)
            assert len({part["id"] for part in form["body"]}) == len(form["body"])
    assert ".ci/run" in (ROOT / ".github/PULL_REQUEST_TEMPLATE.md").read_text("utf-8")


def test_the_sdist_has_all_that_is_in_the_tree():
    """Every file and folder at the top of the tree but those that belong to a checkout."""
    given = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["sdist"]
    named = {text.removeprefix("/") for text in given["include"]}
    assert all((ROOT / name).exists() for name in named)
    wanted = {"src", "tests", "docs", "benchmarks", "examples", ".ci", "zensical.toml", "Makefile", "CONTRIBUTING.md"}
    assert wanted <= named
    assert any(name in ("CHANGELOG.md",) for name in named)


def test_minor_versions_that_are_named_are_those_that_are_tried():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = {c.rpartition(" ")[2] for c in project["classifiers"] if re.search(r":: 3\.\d+$", c)}
    workflow = (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
    assert min(named, key=lambda text: int(text.partition(".")[2])) == project["requires-python"].removeprefix(">=")
    assert all(version in workflow for version in named)
