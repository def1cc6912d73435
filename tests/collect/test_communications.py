"""Calls of `torch.distributed` as they are written down: those of this process, and of the Flight Recorder by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from etude.capture.collect.communications import CallRecorder, all_calls
from later import TORCH, later

torch = later("torch", TORCH)
dist = later("torch.distributed", TORCH)


@pytest.fixture
def world() -> Iterator[None]:
    """A world of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_calls_of_python(world: None) -> None:
    small = dist.new_group([0])
    before = {name: vars(dist.ProcessGroup)[name] for name in ("allreduce", "send")}, vars(dist.Work)["wait"]
    recorder = CallRecorder(torch)
    dist.broadcast(torch.ones(3, dtype=torch.int64), 0, group=small)
    parts = [torch.ones(4)]
    work = dist.all_gather(parts, torch.ones(4), async_op=True)
    pending = dict(recorder.calls[-1])
    work.wait()
    recorder.stop()
    assert ({name: vars(dist.ProcessGroup)[name] for name in ("allreduce", "send")}, vars(dist.Work)["wait"]) == before
    dist.barrier()
    first, second = recorder.calls
    facts = ("name", "group", "root", "peer", "in_bytes", "out_bytes", "dtype", "device")
    assert [first[key] for key in facts] == ["broadcast", small.group_name, 0, None, 24, 24, "int64", "cpu"]
    assert [second[key] for key in facts] == ["allgather", "0", None, None, 16, 16, "float32", "cpu"]
    assert (pending["waited_ns"], pending["completed_ns"]) == (None, None)
    assert second["issued_ns"] <= second["returned_ns"] <= second["waited_ns"] <= second["completed_ns"]
    assert first["operation"] == 1  # the first call of its group


def test_a_call_that_fails_fails_as_without_us_and_is_no_row(world: None) -> None:
    recorder = CallRecorder(torch)
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        dist.group.WORLD.allreduce("nothing")
    dist.all_reduce(torch.ones(2))
    recorder.stop()
    assert [row["name"] for row in recorder.calls] == ["allreduce"]


def row(issued_ns: int, returned_ns: int, thread: int = 7, group: str = "0") -> dict[str, Any]:
    about = {"name": "allreduce", "group": group, "sequence": None, "operation": None, "thread": thread}
    return about | {"issued_ns": issued_ns, "returned_ns": returned_ns}


def entry(made_ns: int, number: int, group: str = "0", **more: Any) -> dict[str, Any]:
    about = {"profiling_name": "gloo:all_reduce", "process_group": [group, ""], "time_created_ns": made_ns, "op_id": 50}
    sizes = {"input_sizes": [[2, 3], [5]], "input_dtypes": ["BFloat16"], "output_sizes": [], "output_dtypes": []}
    return about | sizes | {"collective_seq_id": number, "p2p_seq_id": 3, "is_p2p": False} | more


def test_entries_of_the_flight_recorder_number_the_calls_around_them_and_are_calls_of_their_own_elsewhere() -> None:
    calls = [row(10, 20), row(30, 40), row(31, 39, thread=8, group="1"), row(50, 60), row(55, 65, thread=8)]
    entries = [entry(35, 8), entry(15, 7), entry(25, 9), entry(36, 4, "1"), entry(57, 10), entry(35, 11, "2")]
    found = all_calls(calls, entries)
    assert [(r["issued_ns"], r["thread"], r["sequence"]) for r in found] == [
        (10, 7, 7), (25, None, 9), (30, 7, 8), (31, 8, 4), (35, None, 11), (50, 7, None), (55, 8, None),
    ]  # fmt: skip
    unseen = found[1]
    assert (unseen["name"], unseen["in_bytes"], unseen["out_bytes"], unseen["dtype"]) == (
        "gloo:all_reduce", 2 * (6 + 5), 0, "bfloat16",
    )  # fmt: skip
    assert (unseen["operation"], unseen["returned_ns"]) == (50, None)
    (message,) = all_calls([], [entry(5, 1, is_p2p=True, input_dtypes=["Unheard"])])
    assert (message["sequence"], message["in_bytes"], message["dtype"]) == (3, None, "")
