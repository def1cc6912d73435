"""Execution plans of MSCCL++ as schedules: times by hand on a switch of 1 B/ns and 10 ns, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etude.base.errors import ClusterError, CycleError, MismatchError
from etude.capture.opening import open_algorithm
from etude.cost.execution_plans import from_execution_plan
from etude.machine.fabrics import topology_of_system
from etude.model.schema import Collective
from etude.run.simulate.networks import run_operations
from etude.run.simulate.networks.operation import Operation
from toy_systems import one_level

MEMORY = {"channel_ids": [0], "channel_type": "memory"}
SIGNAL, WAIT = {"name": "signal", **MEMORY}, {"name": "wait", **MEMORY}


def own(index: int, size: int = 1, kind: str = "i") -> dict[str, Any]:
    return {"type": kind, "index": index, "size": size}


def there(index: int, size: int = 1, buffer: int = 0) -> dict[str, Any]:
    return {"buffer_id": buffer, "index": index, "size": size}


def put(chunks: int) -> dict[str, Any]:
    return {"name": "put", **MEMORY, "src_buff": [own(0, chunks)], "dst_buff": [there(0, chunks)]}


def gpu(me: int, peers: list[int], *blocks: list[dict[str, Any]], chunks: int = 1, kind: str = "o") -> dict[str, Any]:
    """A GPU with a channel and a buffer of each peer, all of them known to all of its blocks."""
    every = list(range(len(peers)))
    made = [
        {
            "id": at,
            "ops": ops,
            "channels": [{"channel_type": "memory", "channel_ids": every}],
            "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": every}],
        }
        for at, ops in enumerate(blocks)
    ]
    return {
        "id": me, "input_chunks": chunks, "output_chunks": chunks, "scratch_chunks": 0, "threadblocks": made,
        "channels": [{"type": "memory", "connected_to": peers}],
        "remote_buffers": [{"rank": peer, "type": kind, "access_channel_types": ["memory"]} for peer in peers],
    }  # fmt: skip


def plan(collective: str, *gpus: dict[str, Any]) -> bytes:
    return json.dumps({"name": "p", "collective": collective, "protocol": "Simple", "gpus": gpus}).encode()


def gather(me: int) -> dict[str, Any]:
    put = {"name": "put", "src_buff": [own(me, kind="o")], "dst_buff": [there(me)], **MEMORY}
    return gpu(me, [1 - me], [SIGNAL, WAIT, {"name": "nop"}, put, SIGNAL, WAIT])


def time_ns(text: bytes, size: int) -> int:
    made = from_execution_plan(text)
    topology = topology_of_system(one_level("switch", 8))
    return run_operations(topology, [Operation(made, range(made.members), size)], model="links").end_ns


def test_a_signal_after_a_put_comes_with_it(tmp_path: Path) -> None:
    text = plan("allgather", gather(0), gather(1))
    # The first signals take 10 ns, the blocks of 1,000 bytes 1,010; the signals behind them come at the same time.
    assert time_ns(text, 1000) == 10 + 1010
    made = from_execution_plan(text)
    assert made.collective == Collective.ALL_GATHER
    assert made.transfer_bytes(1000).sum() == 2 * 1000
    (tmp_path / "mine.json").write_bytes(text)
    assert len(open_algorithm(tmp_path / "mine.json")) == len(made)


def test_reads_wait_for_signals_and_sends_for_reads() -> None:
    # GPU 0 adds the first half of GPU 1's to its own and puts the sum back, GPU 1 the second half: each reads 500 bytes
    # (510), puts 500 (510), and both ways are used at once.
    def half(me: int) -> dict[str, Any]:
        both = {"src_buff": [own(2 * me, 2), there(2 * me, 2)], "dst_buff": [own(2 * me, 2), there(2 * me, 2)]}
        return gpu(me, [1 - me], [SIGNAL, WAIT, {"name": "rres", **both, **MEMORY}, SIGNAL, WAIT], chunks=4)

    text = plan("allreduce", half(0), half(1))
    assert time_ns(text, 1000) == 10 + 510 + 510
    assert from_execution_plan(text).transfer_bytes(1000).sum() == 4 * 500


def test_packets_carry_their_flags() -> None:
    # Everybody sends all it has to the scratch of the two others, and adds what comes: no signals, one latency.
    def one(me: int) -> dict[str, Any]:
        peers = [(me + 1) % 3, (me + 2) % 3]  # no two to the same at once
        puts = [
            {"name": "ppkt", "src_buff": [own(0)], "dst_buff": [there(me, buffer=k)], "channel_type": "memory"}
            for k in range(2)
        ]
        add = {"name": "repkt", "src_buff": [own(0), *(own(p, kind="s") for p in peers)], "dst_buff": [own(0)]}
        return gpu(me, peers, [*puts, add], kind="s")

    made = from_execution_plan(plan("allreduce", *map(one, range(3))))
    topology = topology_of_system(one_level("switch", 8))
    times = run_operations(topology, [Operation(made, range(3), 1000)], model="links")
    assert times.finish_ns[0].tolist() == [2010] * 3  # two blocks through each port


def test_blocks_meet_at_barriers_and_semaphores() -> None:
    # Block 1 puts when block 0 has heard the other side's signal.
    def two(me: int, link: list[dict[str, Any]], follow: list[dict[str, Any]]) -> dict[str, Any]:
        put = {"name": "put", "src_buff": [own(me, kind="o")], "dst_buff": [there(me)], **MEMORY}
        return gpu(me, [1 - me], [SIGNAL, WAIT, *link], [*follow, put])

    barrier = [{"name": "barrier", "nthread_blocks": 2, "barrier_id": 0}]
    hold, go = [{"name": "sem_release", "semaphore_ids": [0]}], [{"name": "sem_acquire", "semaphore_ids": [0]}]
    for one, other in ((barrier, barrier), (hold, go)):
        assert time_ns(plan("allgather", two(0, one, other), two(1, one, other)), 1000) == 10 + 1010


@pytest.mark.parametrize(
    "text, error, says",
    [
        (b"{}", ClusterError, "not an execution plan"),
        (plan("sum", gather(0), gather(1)), ClusterError, "unknown collective `sum`"),
        (plan("allgather", gather(0), gather(0)), ClusterError, "not 0 to 1"),
        (plan("allgather", gather(0), gpu(1, [0], [{"name": "glre"}])), ClusterError, "in a switch"),
        (plan("allgather", gather(0), gpu(1, [0], [{"name": "dance"}])), ClusterError, "unknown operation `dance`"),
        (plan("allgather", gather(0), gpu(1, [0], [SIGNAL])), MismatchError, "would wait without end"),
        (plan("allgather", gpu(0, [1], [WAIT, SIGNAL]), gpu(1, [0], [WAIT, SIGNAL])), CycleError, "in a cycle"),
        (plan("allgather", gather(0), gpu(1, [7], [SIGNAL])), ClusterError, "connected to GPU 7, of 2"),
        (plan("allgather", gather(0), gpu(1, [0], [{**SIGNAL, "channel_ids": [3]}])), ClusterError, "3 of 1"),
        (plan("allgather", gpu(0, [1], chunks=1 << 40), gpu(1, [0], chunks=1 << 40)), ClusterError, "1 to 4,194,304"),
        (plan("allgather", gpu(0, [1], [put(9**30)]), gpu(1, [0], [put(1)])), ClusterError, "chunks, of 2 that"),
    ],
)
def test_what_is_refused(text: bytes, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        from_execution_plan(text)
