"""Recording in other processes: ranks, the launcher, signals. Each start of PyTorch costs seconds, so there are few."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import etude
from collected import PROGRAMS, ROOTS, SCENARIOS, Files, finished, start
from etude.capture.collect import layout
from later import TORCH, later

later("torch", TORCH)

GLOO = {
    "ddp": {"gloo:all_reduce"},
    "batch_norm": {"gloo:all_reduce", "gloo:broadcast"},
    "fsdp2": {"gloo:all_gather", "gloo:all_reduce"},
    "tensor_parallel": {"gloo:all_reduce"},
    "pipeline": {"gloo:send", "gloo:recv"},
    "in_flight": set(),  # the first rank sends, the last receives
    "moe": {"gloo:all_to_all"},
    "overlapping": {"gloo:all_reduce"},
    "mesh": {"gloo:send", "gloo:recv", "gloo:all_reduce"},
}
P2P = {"gloo:send", "gloo:recv"}  # the Flight Recorder has no entries for these


@pytest.mark.parametrize("size", [2, 4])
def test_every_rank_of_every_parallelism(size: int, captures: Callable[[int], Path]):
    folder = captures(size)
    for scenario in SCENARIOS:
        for rank in range(size):
            check_rank(Files(folder / scenario, rank), scenario, rank, size)


def check_rank(found: Files, scenario: str, rank: int, size: int) -> None:
    manifest = found.manifest
    assert found.steps() == [1, 2]
    assert found.unlinked() <= ROOTS
    assert (manifest["rank"], manifest["world_size"], manifest["backend"]) == (rank, size, "gloo")
    assert (manifest["partial"], manifest["plan"]) == (False, {scenario: size})
    groups = {group["pg_desc"]: group["ranks"] for group in manifest["process_groups"]}
    assert groups["default_pg"] == list(range(size))
    assert groups.get("pair") == ([0, 1] if rank < 2 else None)
    gloo = [name for name in found.events if name.startswith("gloo:")]
    assert GLOO[scenario] <= set(gloo)
    entries = [entry["profiling_name"] for entry in found.flight["entries"]] if found.flight else []
    assert sorted(entries) == sorted(name for name in gloo if name not in P2P)
    check_calls(found, scenario, rank, size)


def check_calls(found: Files, scenario: str, rank: int, size: int) -> None:
    """One call for each `c10d::` operator, whoever made it, and the facts that the profiler does not have."""
    calls = found.calls
    operators = [name for name in found.events if name.startswith("c10d::")]
    assert len(calls) == len(operators)
    members = {group["pg_name"]: group["ranks"] for group in found.manifest["process_groups"]}
    assert all(rank in members[call["group"]] for call in calls)
    begin_ns, end_ns = found.manifest["window_ns"]
    assert all(begin_ns <= call["issued_ns"] <= end_ns for call in calls)
    by_python = [call for call in calls if call["thread"] is not None]
    assert all(call["issued_ns"] <= call["returned_ns"] for call in by_python)
    assert all(call["returned_ns"] <= call["waited_ns"] <= call["completed_ns"] for call in by_python)
    if scenario in ("ddp", "batch_norm", "tensor_parallel"):  # called in C++: the Flight Recorder has seen them
        assert by_python == []
    if scenario == "overlapping":
        assert [call["in_bytes"] for call in calls] == [4 * (1000 + k) for k in range(20)] * 2
        numbers = [call["sequence"] for call in calls]
        assert numbers == list(range(numbers[0], numbers[0] + 40))
        assert {call["dtype"] for call in calls} == {"float32"}
    if scenario == "mesh":
        messages = [call for call in calls if call["name"] in ("send", "recv")]
        assert {call["peer"] for call in messages} == {(rank + size // 2) % size}
        assert {len(members[call["group"]]) for call in messages} == {2}


def collecting(out: Path) -> tuple[object, ...]:
    return ("-m", "etude", "collect", "--warmup", 2, "-o", out, "--")


def test_the_launcher_records_every_rank_of_an_unchanged_script(tmp_path: Path):
    run = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    process = start(*collecting(tmp_path / "run"), *run, PROGRAMS / "plain.py", "trains")
    out, talk = finished(process)
    assert process.returncode == 0, talk
    assert sorted(out.splitlines()) == ["done 0 -", "done 1 -"]
    assert talk.splitlines()[-1] == f"etude collect: 2 ranks, 3 steps each, in {tmp_path / 'run'}"
    for rank in range(2):
        found = Files(tmp_path / "run", rank)
        assert found.steps() == [2, 3, 4]
        assert found.unlinked() <= ROOTS
        assert found.events.count("gloo:all_reduce") == 3
        assert (found.manifest["rank"], found.manifest["world_size"]) == (rank, 2)
        assert [group["ranks"] for group in found.manifest["process_groups"]] == [[0, 1]]


def test_the_launcher_leaves_a_script_as_it_is(tmp_path: Path):
    ways = ("infers", "raises", "profiles")
    started = [start(*collecting(tmp_path / how), sys.executable, PROGRAMS / "plain.py", how) for how in ways]
    ended = [finished(process) for process in started]
    assert [process.returncode for process in started] == [7, 1, 7], ended
    assert [out for out, _ in ended] == ["done - -\n", "", "own profile has events: True\ndone - -\n"]
    for how, reason in (("infers", ""), ("raises", "ValueError")):
        found = Files(tmp_path / how)
        assert found.manifest["reason"] == reason
        assert "aten::linear" in found.nodes
        assert found.unlinked() <= ROOTS
    reason = "ended after 0 of 3 steps: the program runs its own profiler"
    assert f"etude collect: rank 0: partial: {reason}" in ended[2][1]
    assert [path.name for path in (tmp_path / "profiles").iterdir()] == ["trace.rank0.manifest.json"]


OWN = """\
waits first [4, 4]
warms up first [2]
after a step [4, 4]
by hand [4, 4, 4]
thread [2, 2]
nested [2]
observer [True, True]
done
"""


def test_profilers_of_the_program_are_left_as_they_are_and_recording_goes_on_after_them(tmp_path: Path):
    """What the program prints are two calls a step of its two linear layers, with or without the launcher."""
    process = start(*collecting(tmp_path), sys.executable, PROGRAMS / "profilers.py", "6")
    out, talk = finished(process)
    assert (out, process.returncode) == (OWN, 5), talk
    assert talk.splitlines()[-1] == f"etude collect: 1 rank, 3 steps each, in {tmp_path}"
    found = Files(tmp_path)
    assert len(found.steps()) == 3
    assert found.nodes.count("aten::linear") == found.events.count("aten::linear") == 3 * 2
    assert found.unlinked() <= ROOTS
    assert found.manifest["partial"] is False


def test_ranks_are_the_job_and_other_processes_lie_beside_it(tmp_path: Path):
    """Ranks that destroy their groups before they end, and have no RANK in their environment."""
    process = start(*collecting(tmp_path), sys.executable, PROGRAMS / "processes.py")
    out, talk = finished(process)
    assert (out, process.returncode) == ("ended [0, 0, 0]\n", 0), talk
    for rank in range(2):
        about = Files(tmp_path, rank).manifest
        assert (about["rank"], about["world_size"], about["backend"], about["process"]) == (rank, 2, "gloo", None)
        groups = [(group["pg_desc"], group["ranks"]) for group in about["process_groups"]]
        assert groups == [("default_pg", [0, 1]), ("pair", [0, 1])]
    others = [json.loads(path.read_text()) for path in tmp_path.glob("trace.process*.manifest.json")]
    assert sorted(m["process"]["name"] for m in others) == ["helper", "processes.py"]
    assert {m["rank"] for m in others} == {None}
    assert "etude collect: other processes, not part of the job: trace.process" in talk
    job = etude.open(tmp_path)
    assert job.ranks.tolist() == [0, 1]
    table = etude.query(
        job, "select rank, src, dst from nodes where kind in ('COMM_SEND_NODE', 'COMM_RECV_NODE') order by rank"
    )
    assert [tuple(row.values()) for row in table.to_pylist()] == [(0, 0, 1), (1, 0, 1)]
    one = etude.open(tmp_path / f"trace.process{others[0]['process']['pid']}")
    assert len(one.ranks) == 1


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
def test_ctrl_c_ends_the_script_and_keeps_what_there_is(tmp_path: Path):
    process = start(*collecting(tmp_path), sys.executable, PROGRAMS / "plain.py", "waits")
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal would: to all of its processes
    _, talk = finished(process)
    assert process.returncode == 130
    assert "etude collect: rank 0: partial: KeyboardInterrupt" in talk
    assert Files(tmp_path).manifest["steps"]["numbers"] == [2, 3]


TERMINATED = """
import sys, time, torch
from etude.capture.collect import layout, torch as collect
with collect.trace(sys.argv[1], steps=3):
    torch.ones(1) + 1
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
def test_sigterm_kills_as_ever_and_keeps_what_there_is(tmp_path: Path):
    process = start("-c", TERMINATED, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    finished(process)
    assert process.returncode == -signal.SIGTERM
    found = Files(tmp_path)
    assert (found.manifest["partial"], found.manifest["reason"]) == (True, "SIGTERM")
    assert found.nodes.count("aten::add") == 1
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


NOT_WOKEN = """
import signal, sys, threading, time, torch
from etude.capture.collect import torch as collect

def other():
    time.sleep(0.3)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # the main thread goes on with its sleep

with collect.trace(sys.argv[1], steps=3):
    torch.ones(1) + 1
    threading.Thread(target=other, daemon=True).start()
    time.sleep(60)
"""


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
def test_a_signal_that_does_not_wake_the_main_thread_keeps_what_there_is(tmp_path: Path):
    process = start("-c", NOT_WOKEN, tmp_path)
    finished(process)
    assert process.returncode == -signal.SIGTERM
    assert Files(tmp_path).manifest["reason"] == "SIGTERM"


KILLED = """
import os, signal, sys, torch
from etude.capture.collect import layout, layout, torch as collect

def killed(source, target, *, force):
    os.kill(os.getpid(), signal.SIGKILL)

whole = layout.compress
layout.compress = lambda *files, force: (whole if files[0].name == "host.json" else killed)(*files, force=force)
with collect.trace(sys.argv[1]):
    torch.ones(1) + 1
"""


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
def test_a_kill_between_two_files_leaves_none_that_looks_whole(tmp_path: Path):
    process = start("-c", KILLED, tmp_path)
    finished(process)
    assert process.returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == []
    assert list(layout.unfinished(tmp_path)) == [process.pid]
