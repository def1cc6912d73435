"""Changes between archived runs: which, why, and what differs; tables written by hand."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from etude.surface.cli import main
from etude.tell.archive import Lake, run_changes
from etude.tell.archive.entry import LakeEntry, shaped
from etude.tell.archive.schema import TABLES


def tables(steps_us: list[int], comm_us: list[int], commits: list[str]) -> dict[str, pa.Table]:
    """Runs a day apart of eight steps of two ranks; a step is 600 us of work and its communication and idle time."""
    rng = np.random.default_rng(5)
    runs, steps, collectives, cards = [], [], [], []
    for i, (step, comm, commit) in enumerate(zip(steps_us, comm_us, commits, strict=True)):
        run = f"{i:032x}"
        runs.append({"run": run, "name": "job", "path": f"day{i}/", "start_ns": i, "world_size": 2, "model": "gpt"})
        for number in range(8):
            for rank in range(2):
                span = round(step * 1000 * rng.normal(1, 0.003)) * (5 if number == 0 else 1)
                row = {"run": run, "rank": rank, "step": number, "span_ns": span, "compute_ns": 600_000}
                row |= {"exposed_comm_ns": comm * 1000, "exposed_memory_ns": 0, "idle_ns": (step - 600 - comm) * 1000}
                steps.append(row)
        for what, us in (("all_reduce", comm), ("all_gather", 10)):
            row = {"run": run, "collective": what, "group_name": "dp", "calls": 10}
            collectives.append(row | {"total_transfer_ns": 10_000 * us, "total_wait_ns": 0})
        cards += [{"run": run, "key": "program.commit", "value": commit}, {"run": run, "key": "batch", "value": "8"}]
        cards += [{"run": run, "key": "created", "value": str(i)}]
    found = {"runs": runs, "steps": steps, "collectives": collectives, "cards": cards}
    return {name: pa.Table.from_pylist(rows) for name, rows in found.items()}


def test_the_commit_from_which_communication_takes_longer() -> None:
    found = tables([1000, 1003, 1001, 1100, 1102, 1098], [300, 300, 300, 400, 400, 400], list("aaabbb"))
    (row,) = run_changes(found).to_pylist()
    assert (row["name"], int(row["before"], 16), int(row["after"], 16)) == ("gpt on 2 ranks", 2, 3)
    assert row["change_pct"] == pytest.approx(10, abs=0.7)
    assert (row["cause"], row["cause_ns"], row["lasts"]) == ("communication", 100_000, True)
    assert row["most"] == "all_reduce of dp: its transfer"
    assert row["differs"] == "program.commit: a -> b"
    assert row["command"] == "etude compare day2/ day3/"


def test_a_single_slow_run_does_not_last_and_a_late_host_is_the_cause() -> None:
    found = tables([1000, 1200, 1001, 999], [300] * 4, list("aaaa"))
    slower, faster = run_changes(found).to_pylist()
    assert (slower["cause"], slower["lasts"], slower["differs"]) == ("host", False, "")
    assert (faster["cause"], faster["change_pct"] < 0) == ("host", True)


def test_two_changes_of_four_are_not_the_usual_scatter() -> None:
    found = tables([1000, 1001, 1500, 1000, 1001], [300] * 5, list("aabaa"))
    assert [row["change_pct"] > 0 for row in run_changes(found).to_pylist()] == [True, False]


def test_runs_that_scatter_anyway_have_no_changes() -> None:
    found = tables([1000, 1050, 990, 1045, 1005, 1052], [300] * 6, list("abcdef"))
    assert len(run_changes(found)) == 0


def test_the_command_says_so_of_an_archive_without_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = Lake(tmp_path / "lake")
    found = tables([1000, 1001], [300, 300], ["a", "b"])
    for run in found["runs"]["run"].to_pylist():
        mine = {
            name: rows.filter(pa.array([r == run for r in rows["run"].to_pylist()])) for name, rows in found.items()
        }
        empty = pa.table({"run": pa.array([], pa.string())})
        lake.add(LakeEntry(run, {name: shaped(name, run, mine.get(name, empty)) for name in TABLES}))
    assert main(["archive", "changes", "--in", str(tmp_path / "lake"), "--json"]) == 0
    assert "no step time differs" in capsys.readouterr().err
