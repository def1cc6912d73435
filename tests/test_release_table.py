"""The table of benchmarks: every script has a row, figures are read from what it prints, bars are compared."""

import json
import re
import signal
from collections import Counter
from pathlib import Path

import pytest
import release

ROOT = Path(__file__).resolve().parent.parent
MODULES = {
    "big_jobs",
    "command_files",
    "command_grammar",
    "conformance_foreign",
    "conformance_formulas",
    "conformance_programs",
    "delayed_programs",
    "fault_in_step",
    "foreign_faults",
    "foreign_jobs",
    "held_out_errors",
    "injected_faults",
    "injected_runs",
    "nearer",
    "operator_programs",
    "replay_programs",
    "replay_turns",
}
"""Parts of other scripts."""
BESIDE = {"release", "try_wheel", "hta_values", "bench_compile", "given_flags"}
"""The table and the wheel themselves, values for a script that has a row, what bench_first_use measures too, and a tool
for those who declare verbs."""


def outcome(**changes: object) -> release.Outcome:
    known = {"rc": 0, "cpu_s": 12.4, "wall_s": 20.0, "load": 3.0, "date": "2026-01-02", "commit": "abc", "key": "k"}
    return release.Outcome(**{**known, "machine": "2 cores", **changes})  # type: ignore[arg-type]


def claim(**changes: object) -> release.Claim:
    known = {"name": "n", "kind": "exact", "claim": "c", "command": "python benchmarks/n.py"}
    return release.Claim(**{**known, **changes})  # type: ignore[arg-type]


def test_every_script_has_a_row() -> None:
    said = (ROOT / "benchmarks/release.toml").read_text("utf-8")
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - MODULES - BESIDE
    assert [name for name in sorted(scripts) if f"{name}.py" not in said] == []


def test_rows_name_scripts_that_exist_and_patterns_have_the_groups_that_are_shown() -> None:
    rows = release.claims()
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert (ROOT / re.search(r"benchmarks/\w+\.py", row.command)[0]).is_file(), row.name  # type: ignore[index]
        groups = {name for pattern in row.read for name in re.compile(pattern).groupindex}
        shown = set(re.findall(r"{(\w+)}", row.figure)) | {line.split()[0] for line in row.hold}
        assert shown <= groups, row.name
        assert all(len(line.split()) == 3 and line.split()[1] in release.COMPARE for line in row.hold), row.name
        assert row.kind != "recorded" or re.search(r"20\d\d-\d\d-\d\d", row.figure), row.name


def test_the_last_match_counts() -> None:
    row = claim(read=[r"^all +(?P<rows>[\d,]+) rows", r"error (?P<error>[\d.]+%)", "never (?P<none>x)"])
    text = "all 3 rows\nerror 4.0%\nall  1,024 rows, error 2.5%\n"
    assert release.figures(row, text) == {"rows": "1,024", "error": "2.5%"}


@pytest.mark.parametrize(
    ("hold", "bad"),
    [
        (["error <= 2.5"], []),
        (["error <= 2.4"], ["error <= 2.4"]),
        (["rows == all", "rows >= 1000"], []),
        (["none >= 0"], ["none >= 0"]),
    ],
)
def test_bars(hold: list[str], bad: list[str]) -> None:
    assert release.missed(claim(hold=hold), {"rows": "1,024", "all": "1024", "error": "2.5%"}) == bad


def test_a_row_says_what_became_of_it(tmp_path: Path) -> None:
    row = claim(read=["(?P<good>\\d+) good"], figure="{good} good", hold=["good >= 3"], last="5 (2026-01-01)")
    assert release.row_of(row, tmp_path, "abc")[0]["figure"] == "**not run**; last: 5 (2026-01-01)"
    expected = {
        ("4 good", 0, "abc"): ("4 good", "held"),
        ("4 good", 0, "def"): ("4 good (commit def)", "held"),
        ("2 good", 0, "abc"): ("2 good; **missed**: good >= 3", "missed"),
        ("4 good", 1, "abc"): ("**failed** with exit code 1: 4 good", "failed"),
        ("", 0, "abc"): ("**no figure**: `good` was not printed", "failed"),
        ("4 good", release.STOPPED, "abc"): ("**stopped** after 12 CPU s, 20 s by the clock", "failed"),
    }
    for (text, rc, commit), (figure, became) in expected.items():
        (tmp_path / "n.json").write_text(json.dumps(vars_of(outcome(rc=rc, commit=commit))))
        (tmp_path / "n.txt").write_text(text)
        found, what = release.row_of(row, tmp_path, "abc")
        assert (found["figure"], what, found["CPU s"]) == (figure, became, "12")


def vars_of(found: release.Outcome) -> dict[str, object]:
    return {name: getattr(found, name) for name in release.Outcome.__dataclass_fields__}


def test_a_command_is_run_once_for_the_same_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = claim(name="hello", command="WHO=you python -c \"import os; print('hello', os.environ['WHO'])\"")
    monkeypatch.setattr(release, "claims", lambda: [row])
    monkeypatch.setattr(release, "sources", lambda claim: "same")
    assert release.run(tmp_path, [], "") == 0
    assert (tmp_path / "hello.txt").read_text() == "hello you\n"
    assert release.run(tmp_path, [], "") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "hello: ran before with the same sources"


def test_a_command_is_stopped_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "sources", lambda claim: "same")
    slow = claim(command='python -c "import time; time.sleep(60)"', limit_s=1)
    assert release.carry_out(slow, tmp_path, wait=1).rc == release.STOPPED
    busy = claim(command='python -c "while True: pass"', limit_s=1)
    assert release.carry_out(busy, tmp_path, wait=100).rc == -signal.SIGXCPU


def test_the_page_has_the_block_between_its_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{release.BEGIN}\nold\n{release.END}\nafter\n")
    monkeypatch.setattr(release, "PAGE", page)
    release.write("new\n")
    assert page.read_text() == f"before\n{release.BEGIN}\n\nnew\n\n{release.END}\nafter\n"
    text, became = release.table(tmp_path)
    assert became == Counter({"not run": became["not run"], "recorded": became["recorded"]})
    assert text.startswith(f"{len(release.claims())} rows: ")
