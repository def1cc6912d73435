"""overlap: moves selected communication to a stream of its own."""

from __future__ import annotations

import numpy as np

from etude.base.errors import UsageError
from etude.make.transform.edits.definition import Definition, Here, Parameter, whole
from etude.model.schema import UNKNOWN, Kind, Why


def rewrite(here: Here, stream: int) -> None:
    trace, rows = here.trace, here.rows
    rows = rows[trace.stream[rows] != stream]
    if (trace.cpu[rows] == 1).any():
        raise UsageError("communication of the host cannot be moved to a stream", hint="kind=collective of a device")
    if not len(rows):
        return
    chosen = np.zeros(len(trace), bool)
    chosen[rows] = True
    owner = np.repeat(np.arange(len(trace)), np.diff(trace.ctrl_start))
    waited = np.maximum(trace.ctrl, 0)
    order = (trace.ctrl >= 0) & np.isin(trace.ctrl_why, (int(Why.PROGRAM), int(Why.STREAM)))
    shared = (trace.lane[owner] == trace.lane[waited]) & (chosen[owner] != chosen[waited])
    if (order & shared).any():
        here.made.cut("ctrl", order & shared)
    sends = rows[(trace.kind[rows] != Kind.RECV) | (trace.stream[rows] != UNKNOWN)]
    here.made.set("stream", sends, stream)


EDIT = Definition(
    doc="selected communication moves to its own stream; order edges to its former stream are removed",
    cannot="the slowdown of both on the device: `etude simulate --overlap` has factors for that",
    parameters={"stream": Parameter(read=whole(0), doc="number of the stream: 30")},
    selects="collective",
    rewrite=rewrite,
)
