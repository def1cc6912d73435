"""Communication played by real processes over gloo: every call as planned, seen by PyTorch's own recorder."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from etude.base.errors import EtudeError, UsageError
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import Collective, Kind, ValueKind
from etude.run.replay.communication import (
    PlayOptions,
    communication_figures,
    communication_run,
    plan_communication,
    play,
    rehearse,
    shrink,
)
from later import TORCH, later

torch = later("torch", TORCH)

C = Collective
FLOATS = "['Tensor(float)']"
QUICK = PlayOptions(iterations=2, warmup=1, timeout_s=600)


def splits(name: str, values: list[int]) -> dict[str, tuple[ValueKind, list[int]]]:
    return {name: (ValueKind.INT64_LIST, values)}


def every_call(ranks: int) -> Job:
    """Every collective once, unequal shares, a data type that gloo does not take, messages both ways at once, two
    groups of the same ranks, calls that overlap."""
    builders = [TraceBuilder() for _ in range(ranks)]
    uneven = [[8 * (1 + (i + 2 * j) % 3) for j in range(ranks)] for i in range(ranks)]
    root = {"comm_root": (ValueKind.INT32, ranks - 1)}
    for rank, b in enumerate(builders):
        last = rank == ranks - 1

        def coll(what: Collective, into: int, out: int, b=b, **more) -> None:
            given = {"group": "all", "in_types": FLOATS, "data": [len(b) - 1] if len(b) else []} | more
            b.add(Kind.COLL, collective=what, in_bytes=into, out_bytes=out, **given)

        coll(C.ALL_REDUCE, 4096, 4096)
        coll(C.BROADCAST, 64, 64, attrs=root)
        coll(C.REDUCE, 64, 64, attrs=root)
        coll(C.ALL_GATHER, 40, 40 * ranks)
        coll(C.ALL_GATHER, 4 * (rank + 1), 2 * ranks * (ranks + 1),
             attrs=splits("out_split", [4 * (r + 1) for r in range(ranks)]))  # fmt: skip
        coll(C.REDUCE_SCATTER, 40 * ranks, 40)
        coll(C.ALL_TO_ALL, 16 * ranks, 16 * ranks)
        taken = [row[rank] for row in uneven]
        coll(C.ALL_TO_ALL, sum(uneven[rank]), sum(taken),
             attrs=splits("in_split", uneven[rank]) | splits("out_split", taken))  # fmt: skip
        coll(C.GATHER, 12, 12 * ranks if last else 0, attrs=root)
        coll(C.SCATTER, 12 * ranks if last else 0, 12, attrs=root)
        coll(C.BARRIER, 0, 0)
        coll(C.ALL_REDUCE, 33, 33, in_types="['Tensor(c10::Float8_e4m3fn)']")
        here = len(b) - 1
        coll(C.ALL_REDUCE, 1 << 16, 1 << 16, data=[here])
        coll(C.ALL_REDUCE, 1 << 12, 1 << 12, data=[here], group="also")
        b.add(Kind.SEND, data=[here], dst=(rank + 1) % ranks, tag=5, in_bytes=20, in_types=FLOATS)
        b.add(Kind.RECV, data=[here], src=(rank - 1) % ranks, tag=5, in_bytes=20, in_types=FLOATS)
    return job_of("every", builders, {"all": list(range(ranks)), "also": list(range(ranks))})


@pytest.fixture(scope="module")
def played():
    job = every_call(3)
    programs = plan_communication(job)
    rehearse(programs)
    return job, programs, play(programs, QUICK)


def test_every_call_is_as_in_the_trace(played):
    _, _, results = played
    for result in results:
        checked = result.about["verified"]
        assert checked["differences"] == []
        # 16 calls: two messages and the all-gather of unequal shares are held at the call
        assert (checked["calls"], checked["by_flight_recorder"], checked["at_call"]) == (16, 13, 3)


def test_what_gloo_cannot_do_is_said(played):
    _, _, results = played
    assert results[0].about["notes"] == {
        "reduce_scatter: gloo runs it as an all-reduce of the whole input": 1,
        "all_gather of unequal shares: as a broadcast from each member": 1,
        "float8_e4m3fn: gloo does not support it; sent as bytes": 1,
    }


def test_a_replayed_run_is_a_run(played):
    job, programs, results = played
    run = communication_run(job, programs, results)
    for rank in range(3):
        start, end = run.timing.block(rank)
        assert (end >= start).all() and (start[:12] >= 0).all()
        assert (np.diff(start) >= 0).all()  # issued in order
    figures = communication_figures(programs, results, programs)
    assert figures["coverage"]["count"] == 1.0 and figures["stand_ins"] == [] and figures["calls"] == 48
    assert len(figures["step_ns"]["iterations"]) == 2


def test_fewer_processes_than_ranks():
    """64 ranks in groups of 8 and 8, 4 processes: two groups have two members each, messages to others are left out."""
    builders = [TraceBuilder() for _ in range(64)]
    for rank, b in enumerate(builders):
        b.add(Kind.COLL, collective=C.ALL_GATHER, in_bytes=64, out_bytes=512, group=f"tp{rank // 8}", in_types=FLOATS)
        b.add(Kind.COLL, data=[0], collective=C.ALL_REDUCE, in_bytes=256, group=f"dp{rank % 8}", in_types=FLOATS)
        b.add(Kind.SEND, data=[1], dst=(rank + 16) % 64, in_bytes=16)
        b.add(Kind.RECV, data=[1], src=(rank - 16) % 64, in_bytes=16)
    groups = {f"tp{g}": list(range(8 * g, 8 * g + 8)) for g in range(8)}
    groups |= {f"dp{g}": list(range(g, 64, 8)) for g in range(8)}
    chosen = [0, 1, 8, 9]
    planned = plan_communication(job_of("big", builders, groups), chosen)
    programs = [shrink(p, chosen, "scaled") for p in planned]
    assert rehearse(programs) == 4
    results = play(programs, QUICK)
    figures = communication_figures(programs, results, planned)
    assert figures["verified"] == {"calls": 8, "by_flight_recorder": 8, "at_call": 0, "differences": []}
    assert figures["stand_ins"] == [{"name": "recv", "count": 4}, {"name": "send", "count": 4}]
    assert figures["sizes"] == "scaled" and figures["coverage"]["count"] == 0.5
    assert [(g["members"], g["here"]) for g in figures["groups"]] == [(8, 2), (8, 2)]


# -- what fails --------------------------------------------------------------------------------------------------------


def test_a_missing_backend_is_a_typed_error_and_nothing_is_left_behind(tmp_path, monkeypatch):
    import torch

    if torch.cuda.is_available():
        pytest.skip("NCCL is there")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(UsageError, match="this machine has no NCCL or no GPU") as caught:
        play(plan_communication(every_call(2)), PlayOptions(backend="nccl"))
    assert caught.value.hint == "--backend gloo"
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_dies_ends_the_others(monkeypatch, tmp_path):
    """The program of one process is broken after the rehearsal, as a full disk would: the others do not hang."""
    from etude.run.replay.communication import processes

    def broken(program, path):
        if path.name == "1.program":
            Path(path).write_bytes(b"not a program")
        else:
            processes_save(program, path)

    processes_save = processes.save
    monkeypatch.setattr(processes, "save", broken)
    with pytest.raises(EtudeError, match="process 1: .*not a program"):
        play(plan_communication(every_call(2)), QUICK)


def test_the_end_of_the_parent_is_the_end_of_all(tmp_path):
    """A replay that is told to stop leaves no process and no file."""
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from test_communication_torch import every_call\n"
        "from etude.run.replay.communication import PlayOptions, plan_communication, play\n"
        "import signal\n"
        "def stop(*_): raise KeyboardInterrupt\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "play(plan_communication(every_call(2)), PlayOptions(iterations=10_000_000))\n"
    )
    here = Path(__file__).resolve()
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    paths = [str(here.parents[2] / "src"), str(here.parent), str(here.parent.parent)]
    command = [sys.executable, "-c", program, *paths]
    child = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: len(list(tmp_path.glob("etude-replay-*/store"))) == 1)
        workers = children(child.pid)
        assert len(workers) == 2
        child.send_signal(signal.SIGTERM)
        child.wait(300)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
        assert list(tmp_path.iterdir()) == []
    finally:
        child.kill()
        child.wait()


def children(parent: int) -> list[str]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(stat.parent.name)
    return found


def wait_until(true) -> None:
    limit = time.monotonic() + 300
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_options_that_cannot_be_are_refused():
    with pytest.raises(UsageError, match="0 iterations"):
        play(plan_communication(every_call(2)), PlayOptions(iterations=0))


def test_programs_are_played_without_the_rest_of_the_house():
    """The modules of a worker import the standard library, NumPy and PyTorch alone."""
    code = (
        "import sys, json\n"
        "import etude.run.replay.communication.worker, etude.run.replay.communication.calls\n"
        "import etude.run.replay.communication.player, etude.run.replay.communication.flight\n"
        "print(json.dumps([m for m in ('numba', 'pyarrow', 'typer', 'msgspec') if m in sys.modules]))\n"
    )
    source = str(Path(__file__).resolve().parents[2] / "src")
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": source},
    )
    assert json.loads(found.stdout) == []


# -- the command -------------------------------------------------------------------------------------------------------


def written(job: Job, folder: Path) -> Path:
    from etude.store import columns

    folder.mkdir()
    columns.write_job(job, folder)
    return folder


def test_the_command_plays_and_writes_a_run(tmp_path, capfd):
    from etude import open as open_job
    from etude.surface.cli import main

    job = written(every_call(2), tmp_path / "job")
    out = tmp_path / "out"
    words = ["replay", str(job), "--only", "communication", "--iterations", "2", "--timeout", "600"]
    assert main([*words, "-o", str(out), "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["verified"] == {"calls": 32, "by_flight_recorder": 26, "at_call": 6, "differences": []}
    assert set(told["step_ns"]) >= {"recorded", "replayed", "unprofiled"} and told["coverage"]["count"] == 1.0
    timing = open_job(out).timing
    assert timing is not None and timing.origin.name == "REPLAYED"
    start, end = timing.block(1)
    assert (end >= start).all()


def test_the_command_refuses_before_any_work(tmp_path, capsys, monkeypatch):
    from etude.run.replay.communication import processes
    from etude.surface.cli import main

    monkeypatch.setattr(processes, "processes_run", None)  # nothing may be started
    monkeypatch.chdir(tmp_path)
    written(every_call(3), tmp_path / "job")
    words = ["replay", "job", "--only", "communication"]
    assert main([*words, "--processes", "2"]) == 2
    assert "3 ranks but 2 processes" in capsys.readouterr().err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    assert main([*words, "-o", "full"]) == 2 and main([*words, "-o", "full", "--force"]) == 2
    assert main([*words, "--ranks", "7"]) == 2
    crossed = [TraceBuilder(), TraceBuilder()]
    for rank, b in enumerate(crossed):
        for number, group in enumerate(("g", "h") if rank else ("h", "g")):
            b.add(Kind.COLL, data=[0] if number else [], collective=C.ALL_REDUCE, in_bytes=8, group=group)
    written(job_of("crossed", crossed, {"g": [0, 1], "h": [0, 1]}), tmp_path / "crossed")
    assert main(["replay", "crossed", "--only", "communication"]) == 1
    assert "nothing was started" in capsys.readouterr().err


def test_a_wish_to_stop_is_agreed_on_and_keeps_what_is_done(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        stopping = later("etude.run.replay.communication.stopping").Stopping(torch.device("cpu"))
        assert not stopping.agreed(True)
        stopping.wanted = True
        assert stopping.agreed(True)
        with pytest.raises(KeyboardInterrupt):
            stopping.agreed(False)
    finally:
        torch.distributed.destroy_process_group()
