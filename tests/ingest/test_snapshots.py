"""Snapshots of an allocator, written by hand: levels, owners, fragmentation; and pickles that would run code."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from etude.surface.cli import main

MIB = 1 << 20
STEP = [{"filename": "/env/torch/optim/adam.py", "line": 90, "name": "_init_group"},
        {"filename": "/home/me/train.py", "line": 12, "name": "main"}]  # fmt: skip
FORWARD = [{"filename": "/home/me/model.py", "line": 7, "name": "forward"}]


def snapshot() -> dict[str, Any]:
    """A segment of 20 MiB: 4 MiB that no event has, 6 of the optimizer, 10 free in pieces of 4 and 6. Before, 4 MiB of
    activations came and went, and 6 that were there before the first event were released."""
    blocks = [
        {"address": 0, "size": 4 * MIB, "requested_size": 4 * MIB - 100, "state": "active_allocated", "frames": []},
        {"address": 4 * MIB, "size": 4 * MIB, "requested_size": 0, "state": "inactive", "frames": []},
        {"address": 8 * MIB, "size": 6 * MIB, "requested_size": 6 * MIB, "state": "active_allocated", "frames": STEP},
        {"address": 14 * MIB, "size": 6 * MIB, "requested_size": 0, "state": "inactive", "frames": []},
    ]
    events = [
        {"action": "alloc", "addr": 4 * MIB, "size": 4 * MIB, "time_us": 10, "frames": FORWARD},
        {"action": "free_requested", "addr": 4 * MIB, "size": 4 * MIB, "time_us": 20, "frames": FORWARD},
        {"action": "free_completed", "addr": 4 * MIB, "size": 4 * MIB, "time_us": 21, "frames": FORWARD},
        {"action": "free_completed", "addr": 14 * MIB, "size": 6 * MIB, "time_us": 25, "frames": []},
        {"action": "alloc", "addr": 8 * MIB, "size": 6 * MIB, "time_us": 30, "frames": STEP},
    ]
    segment = {"device": 0, "address": 0, "total_size": 20 * MIB, "stream": 0, "blocks": blocks}
    return {"segments": [segment], "device_traces": [events]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "snapshot.pickle"
    found.write_bytes(pickle.dumps(snapshot()))
    return found


def rows(capsys: pytest.CaptureFixture[str], *given: str) -> list[dict[str, Any]]:
    assert main(["memory", *given, "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_what_is_in_use_and_how_fragmented_the_rest_is(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = rows(capsys, str(path))
    # at first 4 + 6 are there; 14 with the activations, then 10, 4, and 10 with the optimizer
    assert row == {
        "device": 0, "segments": 1, "reserved_bytes": 20 * MIB, "allocated_bytes": 10 * MIB, "rounded_bytes": 100,
        "free_bytes": 10 * MIB, "largest_free_bytes": 6 * MIB, "fragmentation": pytest.approx(0.4), "events": 4,
        "most_allocated_bytes": 14 * MIB, "at_ns": 10_000,
    }  # fmt: skip


def test_levels_are_counted_back_from_the_end(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row["allocated_bytes"] // MIB for row in rows(capsys, str(path), "--each")] == [14, 10, 4, 10]


def test_owners_of_what_was_alive_at_the_peak(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [
        (row["owner"], row["where"], row["size_bytes"] // MIB, row["last_bytes"] // MIB)
        for row in rows(capsys, str(path), "--owners")
    ]
    # 6 MiB released later and 4 that no event has were there before anything was recorded
    assert found == [
        ("not recorded", "", 10, 4),
        ("activations", "model.py:7 forward", 4, 0),
        ("optimizer", "train.py:12 main", 0, 6),
    ]


class _Runs:
    """Makes a folder when it is read as any pickle is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.pickle"
    made = tmp_path / "made"
    bad.write_bytes(pickle.dumps({"segments": [_Runs(made)]}))
    assert main(["memory", str(bad)]) == 2
    assert "would run code" in capsys.readouterr().err
    assert not made.exists()
    bad.write_bytes(pickle.dumps({"segments": [{"blocks": 3}]}))
    assert main(["memory", str(bad)]) == 2
    bad.write_bytes(pickle.dumps([1, 2]))
    assert main(["memory", str(bad)]) == 2


def test_what_is_no_snapshot_has_no_owners(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": []}))
    assert main(["memory", str(trace), "--owners"]) == 2
    assert "snapshot" in capsys.readouterr().err
    assert main(["memory", str(path), "--copies"]) == 2
