"""Schedules from MSCCL-style XML and from Chakra traces."""

import re

import numpy as np
import pytest

from etude.base.errors import ClusterError, CycleError, MismatchError
from etude.cost.collectives import schedule
from etude.cost.schedule_files import from_job, from_msccl
from etude.machine.topology import Wire, ring
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import Collective, Kind
from etude.run.simulate.networks import Operation, run_operations
from symbolic import assert_right


def msccl_ring(n: int) -> str:
    """An all-reduce around a ring, as msccl-tools write it: send, n - 2 times rrs, rrcs, n - 2 times rcs, receive."""
    gpus = []
    for g in range(n):
        kinds = ["s", *["rrs"] * (n - 2), "rrcs", *["rcs"] * (n - 2), "r"]
        steps = [
            f'<step s="{i}" type="{kind}" srcbuf="i" srcoff="{(g - i) % n}" dstbuf="i" dstoff="{(g - i) % n}" '
            f'cnt="1" depid="-1" deps="-1" hasdep="0"/>'
            for i, kind in enumerate(kinds)
        ]
        block = f'<tb id="0" send="{(g + 1) % n}" recv="{(g - 1) % n}" chan="0">{"".join(steps)}</tb>'
        gpus.append(f'<gpu id="{g}" i_chunks="{n}" o_chunks="0" s_chunks="0">{block}</gpu>')
    head = f'<algo name="ring" nchunksperloop="{n}" ngpus="{n}" coll="allreduce" proto="Simple" nchannels="1">'
    return head + "".join(gpus) + "</algo>"


@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_a_ring_in_msccl_is_our_ring(n: int) -> None:
    theirs, ours = from_msccl(msccl_ring(n)), schedule(Collective.ALL_REDUCE, "ring", n)
    for seed in range(4):
        assert_right(theirs, seed)
    assert sorted(theirs.transfer_bytes(1003)[theirs.src != theirs.dst]) == sorted(
        ours.transfer_bytes(1003)[ours.src != ours.dst]
    )
    t = ring(n, Wire(bytes_per_s=1e9, latency_ns=100))
    ends = [run_operations(t, [Operation(s, range(n), 1000 * n)]).end_ns for s in (theirs, ours)]
    assert ends[0] == ends[1] == 2 * (n - 1) * 1100


@pytest.mark.parametrize(
    ("change", "say"),
    [
        (("allreduce", "magic"), "unknown collective `magic`"),
        (('type="r"', 'type="x"'), "unknown step type `x`"),
        (('type="r"', 'type="nop"'), "sends 4 times to"),
        (('ngpus="3"', 'ngpus="2"'), "gpu 2 is outside 0..1"),
        (('depid="-1" deps="-1"', 'depid="5" deps="1"'), "waits for step 1 of block 5"),
        (('cnt="1"', 'cnt="?"'), "`cnt` is `\\?`, which is not a number"),
        (("</algo>", ""), "is not XML"),
        (("algo", "other"), "`<algo>` expected"),
    ],
)
def test_broken_xml_is_refused(change: tuple[str, str], say: str) -> None:
    with pytest.raises((ClusterError, MismatchError), match=say):
        from_msccl(msccl_ring(3).replace(*change))


def test_a_circle_is_refused() -> None:
    text = msccl_ring(2).replace('depid="-1" deps="-1"', 'depid="0" deps="1"')
    with pytest.raises(CycleError, match="wait for one another"):
        from_msccl(text)


def ring_job(n: int, size: int, compute_ns: int = 0) -> Job:
    """An all-gather around a ring: step k sends what step k - 1 received."""
    builders = []
    for rank in range(n):
        b, got = TraceBuilder(), None
        for k in range(n - 1):
            wait = [] if got is None else [got]
            b.add(Kind.SEND, dst=(rank + 1) % n, tag=k, in_bytes=size, data=wait)
            got = b.add(Kind.RECV, src=(rank - 1) % n, tag=k, in_bytes=size)
            if compute_ns:
                got = b.add(Kind.COMP, duration_ns=compute_ns, data=[got])
        builders.append(b)
    return job_of("ring by hand", builders)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_trace_as_algorithm(n: int) -> None:
    t = ring(n, Wire(bytes_per_s=1e9, latency_ns=100))
    s = from_job(ring_job(n, 700))
    assert s.transfer_bytes(12345).sum() == n * (n - 1) * 700  # its own sizes, whatever is asked
    assert run_operations(t, [Operation(s, range(n), 0)]).end_ns == (n - 1) * 800
    slow = from_job(ring_job(n, 700, compute_ns=50))
    assert run_operations(t, [Operation(slow, range(n), 0)]).end_ns == (n - 1) * 850


def test_sends_and_receives_that_do_not_match_are_refused() -> None:
    send, receive = TraceBuilder(), TraceBuilder()
    send.add(Kind.SEND, dst=1, tag=0, in_bytes=8)
    with pytest.raises(MismatchError, match=re.escape("has no receive on rank 1")):
        from_job(job_of("x", [send, TraceBuilder()]))
    receive.add(Kind.RECV, src=0, tag=0, in_bytes=8)
    with pytest.raises(MismatchError, match="has no send"):
        from_job(job_of("x", [TraceBuilder(), receive]))
    far = TraceBuilder()
    far.add(Kind.SEND, dst=7, tag=0, in_bytes=8)
    with pytest.raises(MismatchError, match="names rank 7"):
        from_job(job_of("x", [far, TraceBuilder()]))
    assert np.array_equal(from_job(job_of("x", [send, receive])).fixed_bytes, [8])
