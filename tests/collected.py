"""Starts processes that record, and reads what they wrote."""

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

SCENARIOS = ("ddp", "batch_norm", "fsdp2", "tensor_parallel", "pipeline", "in_flight", "moe", "overlapping", "mesh")
"""Of programs/parallel.py."""
PROGRAMS = Path(__file__).resolve().parent / "collect" / "programs"
SRC = Path(__file__).resolve().parent.parent / "src"

# One thread each: the tests share two cores. The source folder, should Etude not be installed.
_PATHS = [str(SRC), *filter(None, [os.environ.get("PYTHONPATH")])]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(_PATHS)}


def start(*args: str | Path, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, args)],
        env=os.environ | ENVIRONMENT | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finished(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Its stdout and stderr. One that hangs is ended, with all that it started; patience is for loaded machines."""
    try:
        return process.communicate(timeout=900)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def ranks(size: int, *args: str | Path) -> None:
    """Runs a program as `size` ranks, as torchrun would, less its own start-up and all imports of PyTorch but one."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    process = start(PROGRAMS / "forked.py", str(size), *args, MASTER_ADDR="localhost", MASTER_PORT=port)
    ended = finished(process)
    assert process.returncode == 0, ended


class Files:
    """What one rank has written."""

    def __init__(self, folder: Path, rank: int = 0, name: str = "trace") -> None:
        self.manifest: dict[str, Any] = json.loads((folder / f"{name}.rank{rank}.manifest.json").read_text())
        files = self.manifest["files"]
        self.host = _read(folder / files["host"]) if files else {}
        self.device = _read(folder / files["device"]) if files else {}
        self.calls = _read(folder / files["communications"])["calls"] if "communications" in files else []
        self.flight = _read(folder / files["flight_recorder"]) if "flight_recorder" in files else None

    @property
    def nodes(self) -> list[str]:
        return [node["name"] for node in self.host["nodes"]]

    @property
    def events(self) -> list[str]:
        return [event["name"] for event in self.device["traceEvents"] if event["ph"] == "X"]

    def steps(self) -> list[int]:
        """Numbers of the steps that both sides agree on."""
        both = [sorted(int(n.partition("#")[2]) for n in s if n.startswith("ProfilerStep#")) for s in self.sides]
        assert both[0] == both[1]
        return both[0]

    @property
    def sides(self) -> tuple[list[str], list[str]]:
        return self.nodes, self.events

    def unlinked(self) -> set[str]:
        """Names of host nodes without their twin in the profiler trace."""
        events = [event for event in self.device["traceEvents"] if "Record function id" in event.get("args", ())]
        twins = {(event["args"]["Record function id"], event["name"]) for event in events}
        nodes = self.host["nodes"]
        return {n["name"] for n in nodes if (n["attrs"][0]["value"], n["name"]) not in twins}


ROOTS = {
    "[pytorch|profiler|execution_trace|thread]",
    "[pytorch|profiler|execution_trace|process]",
    "## process_group:init ##",
}


def _read(path: Path) -> Any:
    with gzip.open(path) as file:
        return json.load(file)
