"""Flows of a job: their bytes are what the links carry, their order is what the algorithm says."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from etude.base.errors import UsageError
from etude.cost.schedule import Schedule
from etude.machine import System, open_system
from etude.machine.fabrics import topology_of_system
from etude.machine.system import Device, Level, LevelKind
from etude.make.generate import MicroOptions, micro
from etude.model.schema import Collective
from etude.run.simulate.flows import flow_table
from etude.run.simulate.flows.table import _moves
from etude.run.simulate.options import Network, Options
from etude.run.simulate.run import simulate_with_links
from etude.surface.cli import main


def one_switch(devices: int) -> System:
    level = Level(name="x", kind=LevelKind.SWITCH, size=devices, bandwidth_bytes_per_s=100e9, latency_ns=1000)
    return System(name="toy", device=Device(name="d"), levels=(level,))


def rows(what: str, system: System, ranks: int, size: int, **more: Any) -> list[dict[str, Any]]:
    job = micro(what, MicroOptions(ranks=ranks, sizes=(size,)))
    return flow_table(job, system, **more).table.to_pylist()


@pytest.mark.parametrize("what", ["all_reduce", "all_gather", "all_to_all", "reduce_scatter", "broadcast", "ring"])
@pytest.mark.parametrize("ranks", [4, 5])
def test_what_devices_send_is_what_their_links_carry(what: str, ranks: int) -> None:
    """10,001 bytes: a size that no number of blocks divides."""
    system, size = one_switch(ranks), 10_001
    job = micro(what, MicroOptions(ranks=ranks, sizes=(size,)))
    found = flow_table(job, system).table
    _, carried = simulate_with_links(job, system, Options(network=Network.LINKS).on(system))
    topology = topology_of_system(system)
    for end, column in ((topology.src, "src"), (topology.dst, "dst")):
        on_links = [int(carried.bytes[end == topology.device[rank]].sum()) for rank in range(ranks)]
        here = np.zeros(ranks, np.int64)
        np.add.at(here, found[column].to_numpy(), found["bytes"].to_numpy())
        assert here.tolist() == on_links
    assert len(found) > 0 and int(found["bytes"].to_numpy().min()) > 0


def test_a_ring_of_two_by_hand() -> None:
    """Halves are added, then passed on: the last two wait for what came in, and for what the member sent before."""
    found = rows("all_reduce", one_switch(2), 2, 10, collective={"all_reduce": "ring"})
    shown = [(r["src"], r["dst"], r["bytes"], r["after"]) for r in found]
    assert sorted(shown[:2]) == [(0, 1, 5, []), (1, 0, 5, [])]
    assert sorted(shown[2:]) == [(0, 1, 5, [0, 1]), (1, 0, 5, [0, 1])]
    assert {(r["what"], r["algorithm"], r["operation"]) for r in found} == {("all_reduce", "ring", 0)}


def test_flows_start_when_both_ends_have_come() -> None:
    """5 us of compute, then a message; a direct all-to-all has nothing to wait for."""
    job = micro("all_to_all", MicroOptions(ranks=3, sizes=(300,), compute_ns=5000))
    found = flow_table(job, one_switch(3)).table.to_pylist()
    assert len(found) == 6 and all(r["bytes"] == 100 and not r["after"] for r in found)
    assert {r["start_ns"] for r in found} == {5000}


def test_an_order_that_a_packet_simulator_can_follow() -> None:
    """Each flow waits for earlier ones of its own operation alone, and operations come in order of time."""
    job = micro("all_reduce", MicroOptions(ranks=16, sizes=(1 << 20, 1 << 20), compute_ns=1000))
    found = flow_table(job, open_system("dgx-a100").for_ranks(16)).table.to_pylist()
    assert all(other < r["flow"] and found[other]["operation"] == r["operation"] for r in found for other in r["after"])
    begins = {r["operation"]: r["start_ns"] for r in reversed(found)}
    assert begins[0] < begins[1]


def test_reductions_in_switches_become_rings_and_are_refused_where_asked_for() -> None:
    system = open_system("dgx-h100").for_ranks(8)
    job = micro("all_reduce", MicroOptions(ranks=8, sizes=(64_000_000,)))
    with pytest.raises(UsageError, match="switches take part"):
        flow_table(job, system, collective={"all_reduce": "in_switch"})
    found = flow_table(job, system)
    assert max(found.table["dst"].to_pylist()) == 7


def test_joins_are_waited_through() -> None:
    """0 -> 1 moves; 1 joins it with nothing else; an empty transfer follows; 1 -> 0 waits for all of that."""
    plan = Schedule(
        collective=Collective.ALL_REDUCE, algorithm="mine", members=2,
        src=np.array([0, 1, 0, 1], np.int32), dst=np.array([1, 1, 1, 0], np.int32),
        first=np.zeros(4, np.int64), count=np.array([1, 0, 0, 1]), stride=np.ones(4, np.int64),
        put=np.zeros(4, np.uint8), chunk=np.zeros(4, np.int32), delay_ns=np.zeros(4, np.int64),
        dep_start=np.array([0, 0, 1, 2, 3]), dep=np.array([0, 1, 2], np.int32),
        owners=1, blocks=1, block_owner=np.array([-1], np.int32),
    )  # fmt: skip
    moves = _moves(plan, 7)
    assert (moves.src.tolist(), moves.dst.tolist(), moves.bytes.tolist()) == ([0, 1], [1, 0], [7, 7])
    assert (moves.dep_start.tolist(), moves.dep.tolist()) == ([0, 0, 1], [0])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job"
    assert main(["generate", "micro", "all_to_all", "--ranks", "3", "--bytes", "300", "-o", str(job)]) == 0
    to = ["--to", "flows", "--system", "dgx-h100"]
    assert main(["convert", str(job), str(tmp_path / "f.csv"), *to]) == 0
    assert main(["convert", str(job), "-o", str(tmp_path / "f.parquet"), *to]) == 0
    with open(tmp_path / "f.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    table = pq.read_table(tmp_path / "f.parquet").to_pylist()
    assert [int(line["bytes"]) for line in lines] == [row["bytes"] for row in table] == [100] * 6
    names = "flow start_ns src dst bytes wire_bytes after operation what algorithm"
    assert list(lines[0]) == names.split()
    capsys.readouterr()
    assert main(["convert", str(job), str(tmp_path / "f.txt"), *to]) == 2
    assert "flows.csv" in capsys.readouterr().err
    assert main(["convert", str(job), str(tmp_path / "g.csv"), "--to", "flows"]) == 2
    assert "needs a system" in capsys.readouterr().err
    assert main(["convert", str(job), "--to", "flows", "--system", "dgx-h100"]) == 2
    assert "OUT is missing" in capsys.readouterr().err
