"""Circuits that change in phases: times of messages by hand on circuits of 1 B/ns and 10 ns, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from etude.base.errors import ClusterError, EtudeError, UsageError
from etude.machine import open_system
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import Kind
from etude.run.simulate.choices import Network
from etude.run.simulate.options import Options
from etude.run.simulate.run import simulate
from etude.surface.cli import main

FILE = """
name: optical
device: {name: d}
circuits:
  ranks: 4
  bandwidth: 1GB/s
  latency: 10ns
  delay: 1us
  phases:
  - {name: near, at: 0s, join: [0-1, 2-3]}
  - {name: far, at: 5us, join: [0-2, 1-3]}
"""
AGAIN = FILE + "  - {name: back, at: 20us, join: [0-1]}\n"
LEVELS = "levels: [{name: net, kind: switch, size: 4, bandwidth: 0.1GB/s, latency: 20ns}]\n"
BESIDE = FILE.replace("  ranks: 4\n", "") + LEVELS


def messages(*sent: tuple[int, int, int]) -> Job:
    """(from, to, bytes) of four ranks, all at once."""
    builders = [TraceBuilder() for _ in range(4)]
    for number, (src, dst, size) in enumerate(sent):
        builders[src].add(Kind.SEND, source_id=2 * number + 1, dst=dst, tag=number, in_bytes=size)
        builders[dst].add(Kind.RECV, source_id=2 * number + 2, src=src, tag=number, in_bytes=size)
    return job_of("messages", builders)


def ends(folder: Path, text: str, network: str, *sent: tuple[int, int, int]) -> list[int]:
    """When each message has arrived."""
    (folder / "s.yaml").write_text(text)
    job = messages(*sent)
    found = simulate(job, open_system(folder / "s.yaml"), Options(network=Network(network)))
    arrived = {}
    for i in range(len(job.ranks)):
        trace = job.traces[job.trace_of[i]]
        for row in np.flatnonzero(trace.kind == Kind.RECV):
            arrived[int(trace.source_id[row])] = int(found.timing.block(i)[1][row])
    return [arrived[number] for number in sorted(arrived)]


@pytest.mark.parametrize("network", ["links", "flow"])
def test_a_message_waits_for_its_circuit(tmp_path: Path, network: str) -> None:
    # 0 to 1 in the first phase; the second begins at 5,000 and carries from 6,000 on.
    assert ends(tmp_path, FILE, network, (0, 1, 1000), (0, 2, 1000)) == [1010, 7010]


@pytest.mark.parametrize("network", ["links", "flow"])
def test_what_is_on_its_way_when_a_circuit_ends(tmp_path: Path, network: str) -> None:
    # 5,000 of 8,000 bytes are through when the circuit ends; there is no other way, and it is back at 21,000.
    assert ends(tmp_path, AGAIN, network, (0, 1, 8000)) == [21_000 + 3000 + 10]
    with pytest.raises(EtudeError, match="device"):
        ends(tmp_path, FILE, network, (0, 1, 8000))


def test_levels_carry_what_has_no_circuit(tmp_path: Path) -> None:
    # 2 to 0 takes the switch at 0.1 B/ns: 100 bytes in 1,000, and 20.
    assert ends(tmp_path, BESIDE, "links", (0, 1, 1000), (2, 0, 100)) == [1010, 1020]


def test_each_phase_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.yaml").write_text(FILE)
    assert main(["systems", "draw", str(tmp_path / "s.yaml"), "-o", str(tmp_path / "f.svg")]) == 0
    for name in ("near", "far"):
        text = (tmp_path / f"f-{name}.svg").read_text()
        assert f"optical, {name}: 4 devices" in text
        assert "2 connections" in text


def test_closed_forms_know_no_circuits(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="links that change during the run"):
        ends(tmp_path, FILE, "analytic", (0, 1, 1000))


@pytest.mark.parametrize(
    "text, says",
    [
        (FILE.replace("0-1, 2-3", "0-1, 1-2"), "device 1 has 2 circuits and 1 port"),
        (FILE.replace("0-1, 2-3", "0-9"), "`0-9` is not two of 4 devices"),
        (FILE.replace("at: 0s", "at: 1s"), "the first begins at 0"),
        (FILE.replace("delay: 1us", "delay: 9us"), "a phase ends before"),
        (FILE.replace("name: far", "name: near"), "two phases have one name"),
        (FILE.replace("name: far", "name: a/b"), "not a name of a phase"),
        (FILE.replace("ranks: 4", "ranks: 2000000000"), "at most 1,048,576 are read"),
        (FILE.replace("  ranks: 4\n", ""), "either `ranks` or `levels`"),
        (BESIDE.replace("switch", "full"), "join devices to one another"),
        (FILE + "placement: [1, 0, 2, 3]\n", "cannot be combined with `circuits`"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(ClusterError, match=says):
        open_system(tmp_path / "s.yaml")
