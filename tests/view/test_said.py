"""Sentences of a report are what its data says."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

import etude
from etude.surface.cli import main
from etude.tell.report.compose import findings
from etude.tell.view.plots import Axis
from summed_steps import noise, run_of

KERNELS = np.array([[[1.0, 1.0, 1.0]] * 8] * 6)


def said(run: etude.Run) -> list[str]:
    return [f"{one.what} {one.why}" for one in findings(run)]


def test_a_rank_that_computes_longer_is_said_to_come_last_only_as_often_as_it_does() -> None:
    """Rank 2 has one kernel of 300 us that is twice as long, in steps 0 to 3, where another rank comes 400 us late."""
    kernels, late = KERNELS.copy(), np.zeros((6, 8))
    kernels[:4, 2, 2] = 2.0
    late[:4, 5] = 400
    texts = [text for text in said(run_of(noise(6, 8), late, kernels=kernels)) if text.startswith("Rank 2 computes")]
    assert len(texts) == 1
    assert "it arrives last at none of the 6 collectives of the run." in texts[0]
    assert "every collective" not in texts[0]


def test_waiting_that_is_hidden_costs_nothing() -> None:
    """A device that computes on another stream while it is in the collective loses nothing by waiting there."""
    run = run_of(np.ones((6, 4)), np.array([[0, 0, 0, 600]] * 6, float))
    exposed = sum(etude.breakdown(run)["exposed_comm_ns"].to_pylist()) / 4
    costs = [one.cost_ns for one in findings(run) if "waiting for late ranks" in one.what and one.cost_ns]
    assert all(cost <= exposed * 1.01 for cost in costs)


def test_no_two_ticks_have_one_label() -> None:
    shown = [str(round(tick)) for tick in Axis("steps", lambda v: str(round(v)), False, 0.0, 2.0).ticks()]
    assert shown == ["0", "1", "2"]


def test_memory_of_a_folder_is_that_of_each_of_its_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank, sizes in enumerate(((100, 200, -200), (50, 50, 50))):
        total, events = 0, []
        for number, size in enumerate(sizes):
            total += size
            args = {
                "Addr": 8 * number,
                "Bytes": size,
                "Total Allocated": total,
                "Total Reserved": 512,
                "Device Type": 1,
                "Device Id": rank,
            }
            events.append(
                {
                    "ph": "i",
                    "cat": "cpu_instant_event",
                    "name": "[memory]",
                    "pid": 1,
                    "tid": 1,
                    "s": "t",
                    "ts": 10 + number,
                    "args": args,
                }
            )
        events.append(
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 100, "args": {}}
        )
        trace = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}
        (tmp_path / f"job.rank{rank}.kineto.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode()))
    assert main(["memory", str(tmp_path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    rows = rows if isinstance(rows, list) else rows["rows"]
    assert [(row["rank"], row["device"], row["most_allocated_bytes"]) for row in rows] == [
        (0, "cuda:0", 300),
        (1, "cuda:1", 150),
    ]
