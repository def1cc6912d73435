"""Allocations that a profiler recorded: what they were for, what is alive at the peak, what grows from step to step."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from etude.analyse.allocations import allocation_owners
from etude.capture.ingest import allocations, reading
from etude.surface.cli import main

MIB = 1 << 20
STEPS = 16


def recorded(path: Path, rank: int, kept_bytes: int) -> Path:
    """Steps of 100 us: a forward pass, a backward pass, an optimizer. Each forward allocates 4 MiB for the backward and
    2 MiB that it gives back at once, each backward a gradient of 1 MiB that the next step gives back, the first
    optimizer 3 MiB for good; and each forward keeps `kept_bytes`."""
    events: list[dict[str, Any]] = []
    total = 10 * MIB  # weights, from before
    address = 0

    def span(name: str, category: str, start: float, lasts: float, **args: Any) -> None:
        events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": lasts, "args": args}
        )

    def moved(at: float, where: int, size: int) -> None:
        nonlocal total
        total += size
        args = {"Addr": where, "Bytes": size, "Total Allocated": total, "Total Reserved": 64 * MIB}
        args |= {"Device Type": 1, "Device Id": 0}
        event = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "s": "t", "ts": at}
        events.append(event | {"args": args})

    gradient = 0
    for step in range(STEPS):
        t = 1000.0 + 100 * step
        span(f"ProfilerStep#{step}", "user_annotation", t, 99)
        span("aten::linear", "cpu_op", t + 5, 20)
        span("autograd::engine::evaluate_function: AddmmBackward0", "cpu_op", t + 40, 20)
        span("Optimizer.step#SGD.step", "user_annotation", t + 70, 20)
        address += 100
        if gradient:
            moved(t + 1, gradient, -MIB)
        moved(t + 6, address + 1, 4 * MIB)
        moved(t + 7, address + 2, 2 * MIB)
        moved(t + 8, address + 2, -2 * MIB)
        if kept_bytes:
            moved(t + 9, address + 3, kept_bytes)
        moved(t + 45, address + 4, MIB)
        moved(t + 46, address + 1, -4 * MIB)
        gradient = address + 4
        if step == 0:
            moved(t + 75, address + 5, 3 * MIB)
    file = path / f"job.rank{rank}.kineto.json.gz"
    trace = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": rank, "world_size": 2},
        "deviceProperties": [{"id": 0, "name": "a GPU", "totalGlobalMem": 100 * MIB}],
        "traceEvents": events,
    }
    file.write_bytes(gzip.compress(json.dumps(trace).encode()))
    return file


def rows(capsys: pytest.CaptureFixture[str], *args: str) -> list[dict[str, Any]]:
    assert main([*args, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return found if isinstance(found, list) else found.get("rows", found.get("findings"))


def test_each_kind_has_its_owner_at_the_peak_and_at_the_end(tmp_path: Path) -> None:
    trace = reading.load_device(recorded(tmp_path, 0, 0))
    found = allocation_owners(allocations.owned_allocations(trace)).to_pylist()
    backward = "autograd::engine::evaluate_function: AddmmBackward0"
    assert [(row["kind"], row["owner"], row["size_bytes"] // MIB, row["last_bytes"] // MIB) for row in found] == [
        ("weights", "before the recording", 10, 10),
        ("activations", "aten::linear", 4, 0),
        ("optimizer", "", 3, 3),
        ("workspaces", "aten::linear", 2, 0),
        ("gradients", backward, 0, 1),
    ]


def test_a_rank_that_keeps_something_in_each_step_leaks_and_when_it_is_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path, 0, 0)
    recorded(tmp_path, 1, MIB // 2)
    first, second = rows(capsys, "memory", str(tmp_path), "--growth")
    assert (first["rank"], first["leaks"], first["steps_left"]) == (0, False, None)
    assert (second["rank"], second["leaks"], second["grows"]) == (1, True, "aten::linear")
    assert second["bytes_per_step"] == pytest.approx(MIB / 2, rel=0.01)
    # 10 + 3 + 1 MiB and 16 halves are held at the end: 78 MiB are left, of half a MiB each
    assert second["steps_left"] == pytest.approx(156, abs=1)
    (found,) = [one for one in rows(capsys, "diagnose", str(tmp_path)) if one["kind"] == "leak"]
    assert found["ranks"] == [1]
    assert "grows by 524 kB in each step" in found["words"]


def test_owners_of_a_folder_say_which_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path, 0, 0)
    recorded(tmp_path, 1, MIB)
    found = rows(capsys, "memory", str(tmp_path), "--owners")
    kept = {row["rank"]: row["last_bytes"] for row in found if row["owner"] == "aten::linear" and row["last_bytes"]}
    assert kept == {1: STEPS * MIB}
