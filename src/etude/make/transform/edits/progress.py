"""progress: each message has to be driven: by the rank itself, another core, or a SmartNIC.

progress on=host cost=1us                                in turn with the rank's compute
progress on=core cost=1us traffic=4 memory=100GB/s       beside it, with 3 bytes of memory traffic for each one sent
progress on=dpu cost=2us                                 beside it
"""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.make.transform.edits.definition import Definition, Here, Parameter, choice, number, rate, rounded, time
from etude.make.transform.rewrite.rewriting import AFTER, BEFORE, compute_stream, free_stream, free_thread
from etude.model.schema import UNKNOWN, Kind


def rewrite(here: Here, on: str, cost: int, traffic: float, memory: float) -> None:
    """Adds work and its traffic before each send and collective, and after each receive."""
    if traffic > 1 and np.isinf(memory):
        raise UsageError(f"traffic={traffic:g}needs the rate of the memory", hint="memory=100GB/s")
    behind, moved = here.trace.kind[here.rows] == Kind.RECV, _moved(here, traffic)
    for received, loads in ((False, False), (False, True), (True, False), (True, True)):
        mine = (behind == received) & ((moved > 0) == loads)
        rows, chain = here.rows[mine], list[I64]()
        if not len(rows):
            continue
        if cost:
            work = {"kind": int(Kind.COMP), "duration_ns": cost, **_place(here, on, rows)}
            chain.append(here.made.add(rows, AFTER if received else BEFORE - 1, "progress", **work))
        if loads:
            took = rounded(moved[mine] / memory, up=True)
            load = {"kind": int(Kind.MEM_LOAD), "tensor_bytes": moved[mine], "duration_ns": took, "cpu": 0}
            place = AFTER + 1 if received else BEFORE
            chain.append(here.made.add(rows, place, "traffic", **load, stream=free_stream(here.trace)))
        if chain:
            _put(here, rows, chain, received)


def _moved(here: Here, traffic: float) -> I64:
    """Bytes of memory traffic in addition to each message's own."""
    trace, rows = here.trace, here.rows
    if traffic == 1:
        return np.zeros(len(rows), np.int64)
    sent = np.where(trace.in_bytes[rows] == UNKNOWN, trace.out_bytes[rows], trace.in_bytes[rows])
    if (sent == UNKNOWN).any():
        here.note(f"{int((sent == UNKNOWN).sum()):,} selected calls have no known size and get no traffic")
    return rounded(np.maximum(sent, 0) * (traffic - 1))


def _place(here: Here, on: str, rows: I64) -> dict[str, Any]:
    """Where the work runs: with the rank's compute, on the message's thread if it is on the host, or on a new one."""
    trace = here.trace
    if on == "host":
        return {"stream": np.where(trace.cpu[rows] == 1, UNKNOWN, compute_stream(trace))}
    return {"cpu": 1, "thread": free_thread(trace)}


def _put(here: Here, rows: I64, chain: list[I64], behind: bool) -> None:
    """Puts a chain of nodes before or after the messages."""
    made = here.made
    if behind:
        made.leave(rows, chain[-1])
        made.wait(chain[0], rows)
    else:
        made.enter(rows, chain[0])
        made.wait(rows, chain[-1])
    if len(chain) > 1:
        made.wait(chain[1], chain[0])


EDIT = Definition(
    doc="each message costs work of its driver, before it is sent and after it is received: the rank itself "
    "(`host`, in turn with its compute), or a separate `core` or `dpu`; and memory traffic",
    cannot="caches; the number of messages of a collective: each call costs once; the core that a rank loses",
    parameters={
        "on": Parameter(read=choice("host", "core", "dpu"), doc="driver of messages: host, core or dpu"),
        "cost": Parameter(read=time, doc="time per send, receive and collective: 1us"),
        "traffic": Parameter(read=number(1), default="1", doc="memory bytes touched per byte sent; 1: only its own"),
        "memory": Parameter(read=rate, default="inf", doc="rate of the additional memory traffic: 100GB/s"),
    },
    selects="communication",
    rewrite=rewrite,
)
