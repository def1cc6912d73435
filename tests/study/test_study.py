"""Studies from end to end, with a command whose answer is worked out by hand."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.base.errors import UsageError
from etude.decide.study.results import JOURNAL
from etude.decide.study.run import Study
from etude.decide.study.spec import spec_of
from etude.surface.cli.executing import executed

NOISE = [3.0, -1.0, 2.0, 0.5, -2.0, 1.0, -0.5, 4.0]


class Toy:
    """`toy --work w --speed s --seed k` says time = w/s + noise of the seed, and counts how often it was asked."""

    def __init__(self, stop_after: int = 10**9) -> None:
        self.calls: list[list[str]] = []
        self.stop_after = stop_after

    def __call__(self, words: list[str]) -> tuple[int, str, str]:
        if len(self.calls) >= self.stop_after:
            return 130, "", ""
        self.calls.append(words)
        given = {k: v for k, v in pairwise(words) if k.startswith("--")}
        speed = float(given["--speed"])
        if speed == 0:
            return 2, "", f"note: x\nerror: {Path.cwd()}/a.yaml: speed is 0\nhint: another\n"
        noise = NOISE[int(given["--seed"]) % len(NOISE)] if "--seed" in given else 0
        time = float(given["--work"]) / speed + noise + float(given.get("--extra", 0))
        return 0, json.dumps({"time": time, "more": {"words": len(words)}}), "talk"


TOY: dict[str, Any] = {
    "workload": "toy", "sweep": {"work": [100, 200]}, "baseline": {"name": "slow", "speed": 1},
    "variants": {"fast": {"speed": 2}}, "metrics": {"time": {"value": "time", "better": "lower"}},
}  # fmt: skip


def study(folder: Path = Path("/nowhere"), **more: Any) -> Study:
    return Study(spec_of({**TOY, **more}, "toy", "toy.yaml", folder))


def test_rows_ratios_and_verdicts() -> None:
    found = study().outcome(execute=Toy())
    assert [(r["work"], r["baseline_value"], r["variant_value"], r["ratio"], r["verdict"]) for r in found.rows] == [
        (100, 100, 50, 0.5, "better"), (200, 200, 100, 0.5, "better"),
    ]  # fmt: skip
    assert [r["p"] for r in found.rows] == [None, None]
    assert found.ok and found.ran == 4


def test_what_points_share_is_asked_once() -> None:
    calls: list[str] = []

    def execute(words: list[str]) -> tuple[int, str, str]:
        calls.append(" ".join(words))
        if words[0] == "make":
            Path("job").write_text(words[1])
        text = Path(words[1]).read_text() if words[0] == "read" else "0"
        return 0, json.dumps({"time": float(text.split()[-1])}), ""

    run = {"fixed": "read fixed.txt", "made": "make {speed}", "own": "read job", "other": "read of-{speed}.txt"}
    files = {"fixed.txt": "7", "of-{speed}.txt": "number {speed}"}
    metrics = {"own": "own.time", "fixed": "fixed.time", "other": "other.time"}
    given = {k: v for k, v in TOY.items() if k != "workload"} | {"run": run, "files": files, "metrics": metrics}
    found = Study(spec_of({**given, "sweep": {}}, "toy", "toy.yaml", Path("/nowhere"))).outcome(execute=execute)
    assert [(r["own"], r["fixed"], r["other"]) for r in found.points] == [(1, 7, 1), (2, 7, 2)]
    assert calls == ["read fixed.txt", "make 1", "read job", "read of-1.txt", "make 2", "read job", "read of-2.txt"]


def test_what_points_share_is_written_once() -> None:
    calls: list[str] = []

    def execute(words: list[str]) -> tuple[int, str, str]:
        calls.append(" ".join(words))
        if words[0] == "make":
            Path(words[1]).mkdir(exist_ok=True)
            (Path(words[1]) / "of").write_text(words[2])
        elif words[0] == "change":
            (Path(words[1]) / "of").write_text("4")
        named = words[1:] if words[0] == "read" else words[1:2]
        return 0, json.dumps({"time": sum(float((Path(name) / "of").read_text()) for name in named)}), ""

    run = {
        "same": "make same 10", "first": "read same", "own": "make own {speed}", "again": "read same",
        "both": "read same own", "changed": "change same", "last": "read same",
    }  # fmt: skip
    given = {k: v for k, v in TOY.items() if k != "workload"} | {"run": run, "sweep": {}}
    given["metrics"] = {name: f"{name}.time" for name in ("first", "both", "last")}
    found = Study(spec_of(given, "toy", "toy.yaml", Path("/nowhere"))).outcome(execute=execute)
    # What reads only the folder that points share is asked once, also behind commands that write another.
    assert [(r["first"], r["both"], r["last"]) for r in found.points] == [(10, 11, 4), (10, 12, 4)]
    first = ["make same 10", "read same", "make own 1", "read same own", "change same", "read same"]
    assert calls == [*first, "make own 2", "read same own", "change same"]


def test_a_against_a_is_zero_and_runs_once() -> None:
    toy = Toy()
    found = study(variants={"same": {"speed": 1}}, seeds=8).outcome(execute=toy)
    assert [(r["difference"], r["p"], r["ratio"], r["verdict"]) for r in found.rows] == [(0, 1, 1, "equal")] * 2
    assert len(toy.calls) == 16


@pytest.mark.parametrize("stats", ["sign", "wilcoxon"])
def test_swapped_is_negated(stats: str) -> None:
    one = study(seeds=8, stats=stats).outcome(execute=Toy()).rows
    other = study(
        seeds=8, stats=stats, baseline={"name": "fast", "speed": 2}, variants={"slow": {"speed": 1}}
    ).outcome(execute=Toy()).rows  # fmt: skip
    assert [r["difference"] for r in one] == [-r["difference"] for r in other]
    assert [r["p"] for r in one] == [r["p"] for r in other]
    assert {r["verdict"] for r in one} == {"better"} and {r["verdict"] for r in other} == {"worse"}


def test_seeds_of_one_sign_and_holm() -> None:
    rows = study(seeds=7, predict={"fast": "lower"}).outcome(execute=Toy()).rows
    assert [r["p"] for r in rows] == [2.0**-6] * 2
    assert {r["predicted"] for r in rows} == {"as predicted"}
    # 2 rows, so the smallest p must be 0.025 or less: five seeds do not decide
    rows = study(seeds=5, predict={"fast": "higher"}).outcome(execute=Toy()).rows
    assert [r["p"] for r in rows] == [2.0**-4] * 2
    assert {(r["verdict"], r["predicted"]) for r in rows} == {("undecided", "undecided")}
    assert all(r["low"] < r["ratio"] < r["high"] for r in rows)


def test_the_baseline_is_tuned_before_it_is_compared() -> None:
    found = study(baseline={"name": "slow"}, tune={"speed": [1, 4, 2]}, variants={"fast": {"extra": 1}}, tune_all=True)
    rows = found.outcome(execute=Toy()).rows
    assert [(r["baseline_value"], r["variant_value"]) for r in rows] == [(25, 26), (50, 51)]
    weak = study(baseline={"name": "slow"}, tune={"grain": [1, 2]}, set={"speed": 1}, variants={"fast": {"extra": -9}})
    assert [r["difference"] for r in weak.outcome(execute=Toy()).rows] == [-9, -9]


def test_a_point_that_fails_is_a_row_with_its_error() -> None:
    toy = Toy()
    checks = [{"name": "faster", "kind": "exact", "that": "time('dead', work=100) < 100"}]
    found = study(variants={"fast": {"speed": 2}, "dead": {"speed": 0}}, checks=checks).outcome(execute=toy)
    dead = [row for row in found.points if row["variant"] == "dead"]
    assert [row["error"] for row in dead] == ["etude toy: a.yaml: speed is 0 hint: another"] * 2
    assert [row["time"] for row in dead] == [None, None]
    assert not found.ok and "a point failed" in found.checks[0]["detail"]
    assert {row["variant"] for row in found.rows} == {"fast"}
    assert "2 of 6 points failed" in found.notes[0]


def test_a_metric_that_is_not_there_fails_its_own_checks_alone() -> None:
    checks = [
        {"name": "own", "kind": "exact", "that": "other('fast') > 0"},
        {"name": "another", "kind": "exact", "that": "time('slow', work=100) == 100"},
    ]
    found = study(metrics={"time": "time", "other": "more.wrods"}, checks=checks).outcome(execute=Toy())
    assert found.points[0]["error"] == "" and found.points[0]["time"] == 100 and not found.ok
    assert [check["ok"] for check in found.checks] == [False, True]
    assert "`other` has no value at some points: metrics: there is no `wrods`" in found.notes[0]


def test_with_no_metric_that_is_there_the_point_has_failed() -> None:
    found = study(metrics={"other": "more.wrods"}).outcome(execute=Toy())
    assert "there is no `wrods`" in found.points[0]["error"]


def test_checks_see_means_places_and_gains() -> None:
    found = study(
        seeds=2,
        checks=[
            {"name": "one", "kind": "exact", "that": "time('slow', work=100) == 101 and time('fast', work=200) == 101"},
            {"name": "all", "kind": "exact", "that": "rising(time('slow')) and len(gain('fast')) == 2"},
            {"name": "close", "kind": "shape", "margin": 0.1, "that": "abs(gain('fast') - 2) < margin"},
            {"name": "not so", "kind": "shape", "margin": 0.1, "that": "gain('fast') > 2 + margin"},
            {"name": "elsewhere", "kind": "exact", "that": "time('slow', work=7) > 0"},
            {"name": "where it applies", "kind": "exact", "that": "1 > 2", "when": "max(time('slow')) > 1e6"},
        ],
    ).outcome(execute=Toy())
    assert [check["ok"] for check in found.checks] == [True, True, True, False, None, None]
    assert found.checks[3]["detail"].startswith("gain of fast: 1.9")
    assert found.checks[4]["detail"] == "no point has work=7"
    assert found.checks[5]["detail"].startswith("applies where max(time('slow')) > 1e6")


@pytest.mark.parametrize(
    "that, problem",
    [
        ("time('fastest') > 0", "no variant `fastest`"),
        ("gain('fast', metric='speed') > 0", "no metric `speed`"),
        ("time('fast', wrok=100) > 0", "no axis `wrok`"),
        ("gain('fast')", "is not a condition"),
        ("9 ** 9 ** 9 > 1", None),
    ],
)
def test_checks_that_cannot_be_answered_are_refused_before_anything_runs(that: str, problem: str | None) -> None:
    checks = [{"name": "a", "kind": "exact", "that": that}]
    if problem is None:
        found = study(checks=checks).outcome(execute=Toy())
        assert "bits" in found.checks[0]["detail"] and found.checks[0]["ok"] is False
        return
    with pytest.raises(UsageError, match=problem):
        study(checks=checks)


def test_a_gain_is_above_1_where_the_variant_is_better() -> None:
    rate = {"value": "1000 / time", "better": "higher"}
    checks = [
        {"name": "a", "kind": "exact", "that": "all(gain('fast', metric='rate') == 2)"},
        {"name": "b", "kind": "exact", "that": "all(gain('fast') == 2)"},
    ]
    assert (
        study(metrics={"time": {"value": "time", "better": "lower"}, "rate": rate}, checks=checks)
        .outcome(execute=Toy())
        .ok
    )


def test_constants_that_help_do_not_make_a_prediction_undecided() -> None:
    """Seven pairs of one sign have p = 1/64; with six constants in one family Holm's limit would be 1/140."""
    helpers = {f"c{i}": f"{i}" for i in range(6)}
    found = study(
        seeds=7, sweep={"work": [100]}, metrics={"time": {"value": "time", "better": "lower"}, **helpers},
        predict={"fast": "lower"},
    ).outcome(execute=Toy())  # fmt: skip
    assert [row["predicted"] for row in found.rows if row["metric"] == "time"] == ["as predicted"]


def test_neutral_switches_variants_off_and_quick_replaces_keys() -> None:
    given = {**TOY, "neutral": {"speed": 1}, "quick": {"sweep": {"work": [10]}}}
    off = Study(spec_of(given, "t", "t", Path("/nowhere"), neutral=True)).outcome(execute=Toy())
    assert {row["verdict"] for row in off.rows} == {"equal"}
    assert spec_of(given, "t", "t", Path("/nowhere"), quick=True).space.axes == {"work": [10]}
    with pytest.raises(UsageError, match="does not define how"):
        spec_of(TOY, "t", "t", Path("/nowhere"), neutral=True)


def whole(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_cut_off_and_resumed_nothing_runs_twice_and_the_bytes_are_the_same(tmp_path: Path) -> None:
    cut = Toy(stop_after=5)
    with pytest.raises(KeyboardInterrupt):
        study(seeds=4).outcome(out=tmp_path / "a", execute=cut)
    with (tmp_path / "a" / JOURNAL).open("a") as journal:
        journal.write('{"key": "half a li')  # a kill in the middle of a line
    rest = Toy()
    found = study(seeds=4).outcome(out=tmp_path / "a", execute=rest)
    assert (len(cut.calls), len(rest.calls), found.ran) == (5, 11, 11)
    study(seeds=4).outcome(out=tmp_path / "b", execute=Toy())
    assert whole(tmp_path / "a") == whole(tmp_path / "b")
    again = Toy()
    study(seeds=4).outcome(out=tmp_path / "a", execute=again)
    assert again.calls == []
    assert whole(tmp_path / "a") == whole(tmp_path / "b")
    assert {"page.html", "points.parquet", "rows.csv", "card.yaml", "study.yaml", "commands.sh"} <= set(
        whole(tmp_path / "a")
    )


ONE_BY_ONE = """
run: ["systems show {system} --json"]
sweep: {system: [dgx-h100, dgx-a100], i: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]}
files: {"point-{i}.txt": "{i}"}
metrics: {levels: len(levels)}
"""


def test_killed_and_resumed_nothing_that_was_answered_runs_again(tmp_path: Path) -> None:
    """`kill -9` in the middle, of the command as a user runs it."""
    file, out = tmp_path / "my.yaml", tmp_path / "out"
    file.write_text(ONE_BY_ONE)
    words = [sys.executable, "-m", "etude", "study", "run", str(file), "-o", str(out), "-j", "2"]
    path = {"PYTHONPATH": str(Path(etude.__file__).parent.parent)}
    journal, talk = out / "my" / JOURNAL, subprocess.DEVNULL
    process = subprocess.Popen(words, stdout=talk, stderr=talk, cwd=tmp_path, env={**os.environ, **path})
    try:
        for _ in range(3000):
            if journal.is_file() and journal.read_text().count('"key"') >= 3:
                break
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    known = [json.loads(line)["key"] for line in journal.read_text().splitlines() if line.endswith("}")]
    assert 3 <= len(set(known)) == len(known) < 40
    found = etude.study(file).outcome(out=out / "my", execute=executed)
    assert found.ran == 40 - len(known)
    assert [row["error"] for row in found.points] == [""] * 40
    assert etude.study(file).outcome(out=tmp_path / "whole", execute=executed).ran == 40
    assert whole(out / "my") == whole(tmp_path / "whole")


def test_what_failed_is_tried_again_only_if_asked(tmp_path: Path) -> None:
    for again, calls in ((False, 2), (False, 0), (True, 2)):
        toy = Toy()
        study(baseline={"speed": 0}, variants={}).outcome(out=tmp_path / "a", execute=toy, again=again)
        assert len(toy.calls) == calls


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    def nested(words: list[str]) -> tuple[int, str, str]:
        with pytest.raises(UsageError, match="another run of this study"):
            study().outcome(out=tmp_path / "a", execute=Toy())
        return Toy()(words)

    trusted = Study(replace(study().spec, trusted=True))  # what it runs writes elsewhere
    assert trusted.outcome(out=tmp_path / "a", execute=nested).ok


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="not a study"):
        study().outcome(out=tmp_path, execute=Toy())
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_without_variants_rows_are_points() -> None:
    found = study(variants={}).outcome(execute=Toy())
    assert [row["time"] for row in found.rows] == [100, 200]
    assert found.table().column_names == ["variant", "work", "time", "error", "commands"]


def test_the_page_shows_the_numbers(tmp_path: Path) -> None:
    study(seeds=2, title="Fast <b>").outcome(out=tmp_path / "a", execute=Toy())
    page = (tmp_path / "a" / "page.html").read_text()
    assert "Fast &lt;b&gt;" in page and "etude toy --work 100 --speed 1 --seed 0 --json" in page and "<svg" in page


def test_workers_say_what_the_command_line_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, in two others, and as a table from Python: the same."""
    from etude.surface.cli import main

    monkeypatch.chdir(tmp_path)
    file = tmp_path / "my.yaml"
    file.write_text(
        "run:\n  made: generate micro all_reduce --ranks 4 --bytes {size} -o job\n"
        "  ran: simulate job --system {machine} --json\nmachine: dgx-h100\n"
        "sweep: {size: [1MB, 64MB]}\nbaseline: {}\nmetrics: {ns: makespan_ns, twice: 2 * ran.makespan_ns}\n"
    )
    assert main(["study", "run", "my.yaml", "-o", "a", "-j", "1"]) == 0
    assert main(["study", "run", "my.yaml", "-o", "b", "-j", "2"]) == 0
    assert whole(tmp_path / "a") == whole(tmp_path / "b")
    table = etude.study(file).run(workers=1)
    first, second = table["ns"].to_pylist()
    assert 0 < first < second and table["twice"].to_pylist() == [2 * first, 2 * second]
