"""Every entry of the gallery: its checks hold, and with its mechanism switched off a shape does not."""

import json
import re
from pathlib import Path

import pytest

from etude.decide.study import entries
from etude.decide.study import study as opened
from etude.decide.study.library import GALLERY
from etude.decide.study.tasks import TaskAnswers
from etude.surface.cli import main
from etude.surface.cli.executing import executed
from study_doubts import held_when_exchanged, held_with_neutral

ENTRIES = {entry["name"]: entry for entry in entries()}


@pytest.mark.parametrize("name", list(ENTRIES))
def test_an_entry_holds_and_its_mechanism_is_why(name: str, tmp_path: Path) -> None:
    """In one folder, so that points of both run once, and so do commands that points have in common. With the results
    of the run without the mechanism in the place of its own no shape holds, nor with most exchanges of its own."""
    said = TaskAnswers()
    found = opened(name, quick=True).outcome(execute=executed, out=tmp_path / "a", said=said)
    assert [check for check in found.checks if not check["ok"]] == []
    assert not any(row["error"] for row in found.points)
    off = opened(name, quick=True, neutral=True).outcome(execute=executed, out=tmp_path / "a", said=said)
    assert [check["name"] for check in off.checks if check["kind"] == "shape" and not check["ok"]]
    assert held_with_neutral(found.spec, found.points, off.points) == set()
    assert [check for check, part in held_when_exchanged(found.spec, found.points).items() if part > 0.5] == []


@pytest.mark.parametrize("name", list(ENTRIES))
def test_an_entry_says_what_it_is(name: str) -> None:
    entry = ENTRIES[name]
    assert re.fullmatch(r"C\d+", entry["group"]) and all(re.fullmatch(r"M\d+", m) for m in entry["mechanisms"])
    assert entry["status"] == "whole" or entry["status"].startswith("partial: M")
    spec = opened(name).spec
    assert {"title", "about", "published", "not_shown", "paper"} <= set(spec.facts)
    kinds = [check.kind for check in spec.checks]
    assert "shape" in kinds and "exact" in kinds


def test_every_entry_says_how_its_mechanism_is_switched_off_and_then_asks_something_else() -> None:
    """What comes of it is tested above for each; here, that none is left out."""
    files = {path.stem for path in GALLERY.glob("*.yaml")}
    assert files == set(ENTRIES) and len(files) >= 86
    for name in ENTRIES:
        one, off = opened(name, quick=True), opened(name, quick=True, neutral=True)
        assert one.spec.neutral and one.spec.variants != off.spec.variants, name


def test_all_entries_end_with_one_line_of_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two small entries in the place of all."""
    listed = [ENTRIES[name] for name in ("tempus", "ccl-d")]
    monkeypatch.setattr("etude.decide.study.entries", lambda: listed)
    monkeypatch.chdir(tmp_path)
    checks = sum(len(opened(entry["name"]).spec.checks) for entry in listed)
    assert main(["study", "run", "--all", "--quick"]) == 0
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(rf"2 entries, 2 whole; {checks} checks, 0 failed; \d+ CPU s", last)
    assert main(["study", "run", "--all", "--quick", "--neutral"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(rf"2 entries, 2 whole; {checks} checks, [1-9]\d* failed \(.*tempus.*\); \d+ CPU s", last)


def test_the_list_and_one_run_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["study", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"name", "system", "group", "mechanisms", "status"} <= set(listed[0])
    assert {"system": "CCL-D", "group": "C11"}.items() <= next(e for e in listed if e["name"] == "ccl-d").items()
    assert main(["study", "run", "ccl-d", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"name", "rows", "checks", "notes"} <= set(found) and found["name"] == "ccl-d"
    assert set(found["checks"][0]) == {"name", "kind", "ok", "detail"}
    assert main(["study", "run", "ccl-d", "--neutral", "--json"]) == 1


def test_a_study_of_your_own_from_the_first_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["study", "new", "my.yaml"]) == 0
    assert main(["study", "new", "my.yaml"]) == 2
    assert main(["study", "run", "my.yaml"]) == 0
    assert "sharding saves memory" in capsys.readouterr().out
    assert (tmp_path / "studies" / "my" / "machines" / "dgx-a100.yaml").is_file()
    assert main(["study", "run", "ccl-bnch"]) == 2
    assert "ccl-bench" in capsys.readouterr().err
    assert main(["study", "run"]) == 2
