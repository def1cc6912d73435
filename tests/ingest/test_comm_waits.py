"""Who waits for the work of gloo's threads, in tiny traces."""

import pytest

from etude.capture.ingest.causal import convert
from etude.capture.ingest.linked import Linked
from etude.model.schema import Why
from recorded import device_json, host_json, node, op, read_device_json, read_host_json


def linked(*of_thread: tuple[str, int, int]) -> Linked:
    """A thread that asks for a sum, which gloo carries out from 20 to 600 us, and then does this (name, start, length).
    Nothing else happens before 1000."""
    tensor = [[7, 8, 0, 64, 4, "cpu"]]
    host = host_json(
        node(4, "c10d::allreduce_", 2, 10, inputs=([tensor, "<Object>"], [], ["GenericList[Tensor(float)]", "Object"])),
        node(5, "gloo:all_reduce", 2, 11, inputs=(tensor, [[64]], ["Tensor(float)"])),
    )
    events = [op(name, start, length, 20 + k) for k, (name, start, length) in enumerate(of_thread)]
    device = device_json(op("c10d::allreduce_", 10, 5, 10), op("gloo:all_reduce", 20, 580, 11, tid=9,
                         cat="user_annotation"), op("aten::add", 1000, 5, 30), *events)  # fmt: skip
    return convert(read_device_json(device), read_host_json(host), groups=[{"pg_name": "0", "ranks": [0, 1]}])


def syncs(found: Linked) -> int:
    return int((found.part.trace.data_why == int(Why.SYNC)).sum())


def test_a_thread_that_does_nothing_for_long_waits() -> None:
    assert syncs(linked()) == 1
    assert syncs(linked(("aten::relu", 30, 5))) == 1


@pytest.mark.parametrize("callee", [(), (("aten::empty", 40, 1),)])
def test_an_operator_that_runs_when_the_work_ends_does_not_wait_for_it(
    callee: tuple[tuple[str, int, int], ...],
) -> None:
    """Whether or not it has called another, long before."""
    found = linked(("aten::mm", 30, 900), *callee)
    assert syncs(found) == 0
    trace = found.part.trace
    own = (trace.thread == 7) & (found.start_ns >= 30_000) & (found.start_ns < 930_000)
    assert trace.duration_ns[own].sum() == 900_000
