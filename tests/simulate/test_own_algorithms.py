"""Collective algorithms of the user's own: MSCCL-style XML and Chakra traces, on every network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etude.base.errors import ClusterError, MismatchError, UsageError
from etude.capture.opening import open_algorithm
from etude.cost.collectives import schedule
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import Collective, Kind
from etude.run.simulate.run import simulate
from etude.store import chakra
from etude.surface.cli import main
from toy_systems import one_level

ALL = pytest.mark.parametrize("network", ["analytic", "links", "flow"])
TOY = """
name: toy
device: {name: d}
levels: [{name: wire, kind: switch, size: 8, bandwidth: 1GB/s, latency: 10ns}]
"""


def msccl_ring(n: int) -> str:
    """An all-reduce around a ring: send, n - 2 times rrs, rrcs, n - 2 times rcs, receive."""
    gpus = []
    for g in range(n):
        kinds = ["s", *["rrs"] * (n - 2), "rrcs", *["rcs"] * (n - 2), "r"]
        steps = "".join(
            f'<step s="{i}" type="{kind}" srcbuf="i" srcoff="{(g - i) % n}" dstbuf="i" dstoff="{(g - i) % n}" '
            f'cnt="1" depid="-1" deps="-1" hasdep="0"/>'
            for i, kind in enumerate(kinds)
        )
        gpus.append(f'<gpu id="{g}"><tb id="0" send="{(g + 1) % n}" recv="{(g - 1) % n}" chan="0">{steps}</tb></gpu>')
    return f'<algo name="my ring" nchunksperloop="{n}" ngpus="{n}" coll="allreduce" proto="LL">{"".join(gpus)}</algo>'


def swap(size: int) -> Job:
    """Two ranks send each other `size` bytes: an algorithm as a trace, with a size of its own."""
    builders = []
    for rank in range(2):
        b = TraceBuilder()
        b.add(Kind.SEND, source_id=1, dst=1 - rank, tag=0, in_bytes=size)
        b.add(Kind.RECV, source_id=2, src=1 - rank, tag=0, in_bytes=size)
        builders.append(b)
    return job_of("swap", builders)


def sums(ranks: int, size: int = 4000, groups: dict[str, list[int]] | None = None, **row: Any) -> Job:
    builders = []
    for rank in range(ranks):
        b = TraceBuilder()
        b.add(Kind.COLL, "sum", source_id=1, collective=Collective.ALL_REDUCE, in_bytes=size, **row)
        if groups:
            name = next(g for g, members in groups.items() if rank in members)
            b.add(Kind.COLL, "part", source_id=2, data=[0], collective=Collective.ALL_REDUCE, in_bytes=size, group=name)
        builders.append(b)
    return job_of("w", builders, groups or {})


@ALL
def test_a_ring_in_xml_is_our_ring(network: str, tmp_path: Path):
    (tmp_path / "ring.xml").write_text(msccl_ring(4))
    own = open_algorithm(tmp_path / "ring.xml", "all_reduce")
    assert own.protocol == "ll"
    toy = one_level("switch", 4)
    found = simulate(sums(4), toy, network=network, collective={"all_reduce": own})
    assert found.makespan_ns == simulate(sums(4), toy, network=network, collective={"all_reduce": "ring"}).makespan_ns
    assert found.makespan_ns == 6 * (10 + 1000)


@ALL
def test_a_trace_has_sizes_of_its_own(network: str):
    from etude.cost.schedule_files import from_job

    own = from_job(swap(300), Collective.ALL_REDUCE)
    for size in (1, 4000):
        found = simulate(sums(2, size), one_level("switch", 2), network=network, collective={"all_reduce": own})
        assert found.makespan_ns == 310


@ALL
def test_one_for_each_size_of_group_and_the_rest_as_ever(network: str):
    toy, groups = one_level("switch", 4), {"a": [0, 1], "b": [2, 3]}
    plans = [schedule(Collective.ALL_REDUCE, "ring", n) for n in (2, 4)]
    both = simulate(sums(4, groups=groups), toy, network=network, collective={"all_reduce": plans})
    assert both.makespan_ns == 6 * 1010 + 2 * 2010
    one = simulate(sums(4, groups=groups), toy, network=network, collective={"all_reduce": plans[0]})
    assert any("no algorithm was given for groups of 4" in note for note in one.notes)


def test_what_does_not_fit_is_refused():
    toy, plan = one_level("switch", 4), schedule(Collective.ALL_REDUCE, "ring", 3)
    with pytest.raises(MismatchError, match="is for groups of 3, but those of the job have 4"):
        simulate(sums(4), toy, collective={"all_reduce": plan})
    with pytest.raises(UsageError, match="all_gather: algorithm `ring` is for all_reduce"):
        simulate(sums(4), toy, collective={"all_gather": plan})
    with pytest.raises(UsageError, match="two algorithms are for groups of 3"):
        simulate(sums(4), toy, collective={"all_reduce": [plan, plan]})


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "toy.yaml").write_text(TOY)
    (tmp_path / "ring.xml").write_text(msccl_ring(2))
    (tmp_path / "run").mkdir()
    (tmp_path / "swap").mkdir()
    chakra.write_job(sums(2), tmp_path / "run")
    chakra.write_job(swap(300), tmp_path / "swap")
    asked = ["simulate", str(tmp_path / "run"), "--system", str(tmp_path / "toy.yaml"), "--json", "--collective"]
    for value, time_ns in (("ring.xml", 4020), ("swap", 310), ("swap/swap", 310), ("swap/swap.0.et", None)):
        code = main([*asked, f"all_reduce={tmp_path / value}"])
        out, err = capsys.readouterr()
        if time_ns is None:
            assert code == 2
            assert "names rank 1, which does not exist" in err
        else:
            assert (code, json.loads(out)["makespan_ns"]) == (0, time_ns)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<algo", "is not XML"),
        (msccl_ring(2).replace("allreduce", "allgather"), "is for all_gather"),
        (msccl_ring(3), "is for groups of 3, but those of the job have 2"),
        (None, "no such file"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, problem: str):
    (tmp_path / "toy.yaml").write_text(TOY)
    if text is not None:
        (tmp_path / "mine.xml").write_text(text)
    (tmp_path / "run").mkdir()
    chakra.write_job(sums(2), tmp_path / "run")
    asked = ["simulate", str(tmp_path / "run"), "--system", str(tmp_path / "toy.yaml")]
    assert main([*asked, "--collective", f"all_reduce={tmp_path / 'mine.xml'}"]) == 2
    assert problem in capsys.readouterr().err


def test_an_unknown_algorithm_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(ClusterError, match="no such file"):
        open_algorithm(tmp_path / "no.xml")
