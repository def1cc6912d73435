"""Flows that another simulator moved, with their times read back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv

from etude.base.errors import FormatError, MismatchError, UsageError
from etude.machine import open_system
from etude.machine.topology import Wire, switch
from etude.make.generate import MicroOptions, micro
from etude.model.job import Job
from etude.run.simulate import Simulated, simulate
from etude.run.simulate.flows import flow_table, flow_times
from etude.surface.cli import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "flow_times.py"
SYSTEM = open_system("dgx-h100").resized(8).replace(topology=switch(8, Wire(bytes_per_s=1e9, latency_ns=500)))
DIRECT = {"all_to_all": "direct"}


def job(what: str, **more: Any) -> Job:
    return micro(what, MicroOptions(ranks=8, sizes=(1 << 20,), **more))


def ends(found: Simulated) -> list[list[int]]:
    return [block.tolist() for block in found.timing.end_ns]


def written(table: pa.Table, path: Path) -> None:
    at = table.schema.get_field_index("after")
    texts = [" ".join(map(str, some)) for some in table["after"].to_pylist()]
    csv.write_csv(table.set_column(at, "after", [texts]), path)


@pytest.mark.parametrize("what", ["shift:3", "all_to_all"])
def test_times_of_max_min_shares_come_back_as_flow_to_the_ns(what: str, tmp_path: Path) -> None:
    """The example moves the flows by itself, with no part of Etude; the step is that of `flow`."""
    one = job(what, compute_ns=7000)
    written(flow_table(one, SYSTEM, collective=DIRECT).table, tmp_path / "flows.csv")
    # a link of `switch` takes half of its latency on each side
    latency = str(SYSTEM.topology.latency_ns[0]) if SYSTEM.topology else ""
    command = [sys.executable, str(EXAMPLE), "flows.csv", "times.csv", "--rate", "1e9", "--latency-ns", latency]
    subprocess.run(command, cwd=tmp_path, check=True)
    times = flow_times(csv.read_csv(tmp_path / "times.csv"), one, SYSTEM, collective=DIRECT)
    found = simulate(one, SYSTEM, flow_times=times)
    assert ends(found) == ends(simulate(one, SYSTEM, network="flow", collective=DIRECT))
    assert any("begin when they began" in note for note in found.notes)


def given(one: Job, **columns: list[int]) -> pa.Table:
    """Flow k of a job takes k + 1 us from 0 on, unless said otherwise."""
    count = len(flow_table(one, SYSTEM, collective=DIRECT).table)
    usual = {"flow": list(range(count)), "start_ns": [0] * count, "end_ns": [1000 * (k + 1) for k in range(count)]}
    return pa.table(usual | columns)


def test_what_follows_a_flow_waits_for_it() -> None:
    """Two steps of a chain of three: 0 to 1 takes 1 us, 1 to 2 takes 5 us, and only then begins the third."""
    one = micro("broadcast", MicroOptions(ranks=3, sizes=(1000,)))
    ring = {"broadcast": "ring"}
    table = flow_table(one, SYSTEM, collective=ring).table
    chain = table.to_pylist()
    assert [(row["src"], row["dst"], row["after"]) for row in chain] == [(0, 1, []), (1, 2, [0])]
    times = pa.table({"flow": [1, 0], "start_ns": [50_000, 20_000], "end_ns": [55_000, 21_000]})
    plain = simulate(one, SYSTEM, flow_times=flow_times(times, one, SYSTEM, collective=ring))
    longer = times.set_column(2, "end_ns", pa.array([55_000, 24_000]))
    later = simulate(one, SYSTEM, flow_times=flow_times(longer, one, SYSTEM, collective=ring))
    assert later.makespan_ns - plain.makespan_ns == 3000
    assert any("2 of 2 flows begin at other moments" in note for note in plain.notes)


def test_rows_may_be_in_any_order() -> None:
    one = job("shift:3")
    table = given(one)
    mixed = table.take(list(reversed(range(len(table)))))
    first, second = (simulate(one, SYSTEM, flow_times=flow_times(t, one, SYSTEM)) for t in (table, mixed))
    assert ends(first) == ends(second)


@pytest.mark.parametrize(
    ("columns", "error", "words"),
    [
        ({"flow": [0, 1, 2, 3, 4, 5, 6, 99]}, MismatchError, "flow 99 is not one of the job, which has 8 flows"),
        ({"flow": [0, 1, 2, 3, 4, 5, 6, 6]}, FormatError, "flow 6 has several rows"),
        ({"start_ns": [9_000_000] * 8}, FormatError, "ends before it starts"),
        ({"start_ns": [0.5] * 8}, FormatError, "`start_ns` is not whole numbers"),
        ({"bytes": [5] * 8}, MismatchError, "flow 0 has `bytes` 5, in this job on this system 1048576"),
        ({"src": [7] * 8}, MismatchError, "flow 0 has `src` 7"),
    ],
)
def test_flows_that_are_not_those_of_the_job(columns: dict[str, Any], error: type[Exception], words: str) -> None:
    one = job("shift:3")
    with pytest.raises(error, match=words):
        flow_times(given(one, **columns), one, SYSTEM)


def test_missing_flows_and_columns() -> None:
    one = job("shift:3")
    with pytest.raises(MismatchError, match="flow 3 has no time; 5 of 8 flows have none"):
        flow_times(given(one).slice(0, 3), one, SYSTEM)
    with pytest.raises(FormatError, match="no column `end_ns`"):
        flow_times(given(one).drop_columns(["end_ns"]), one, SYSTEM)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"network": "flow"}, "network `flow`"),
        ({"routing": "spray", "network": "links"}, "routing"),
        ({"slow_links": {(0, 1): 2.0}}, "slow and failed links"),
        ({"jitter": {"p2p": 0.1}}, "jitter of collectives and messages"),
        ({"contention": True}, "contention"),
    ],
)
def test_what_changes_nothing_about_given_times_is_refused(more: dict[str, Any], words: str) -> None:
    one = job("shift:3")
    with pytest.raises(UsageError, match=f"{words}: the times of all transfers are given"):
        simulate(one, SYSTEM, flow_times=flow_times(given(one), one, SYSTEM), **more)


def test_times_of_another_job_are_refused() -> None:
    times = flow_times(given(job("all_to_all")), job("all_to_all"), SYSTEM, collective=DIRECT)
    with pytest.raises(MismatchError, match="of another job"):
        simulate(job("shift:3"), SYSTEM, flow_times=times)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """All the way: a job, its flows, their times, the step."""
    monkeypatch.chdir(tmp_path)
    assert main(["generate", "micro", "all_reduce", "--ranks", "4", "--bytes", "1MB", "-o", "job"]) == 0
    assert main(["convert", "job", "flows.csv", "--to", "flows", "--system", "dgx-h100"]) == 0
    subprocess.run([sys.executable, str(EXAMPLE), "flows.csv", "times.csv"], check=True)
    assert main(["simulate", "job", "--system", "dgx-h100", "--flow-times", "times.csv"]) == 0
    said = capsys.readouterr().err
    assert "times of flows are given" in said
    assert main(["simulate", "job", "--system", "dgx-h100", "--flow-times", "flows.csv"]) == 2
    assert "no column `end_ns`" in capsys.readouterr().err
    assert main(["simulate", "job", "--system", "dgx-h100", "--network", "flow", "--flow-times", "times.csv"]) == 2
