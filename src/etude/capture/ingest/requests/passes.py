"""Passes of a profiler's trace in the time of each request, where spans were written during the recording.

A pass is the engine's annotation on the host (`execute_context_..._generation_...`, `step[DECODE bs=14]`). It does not
name its requests: all passes of the engine in a request's time are counted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from etude.base.errors import UsageError
from etude.capture.ingest.engine_passes import engine_passes
from etude.capture.ingest.reading import load_device
from etude.capture.ingest.requests.measured import MeasuredRequests, floats
from etude.kernels.arrays import F64

UNIX: Final = 10**17
"""Times above this are ns since 1970: it is a date in 1973."""
READ: Final = ("prefill", "mixed")
MADE: Final = ("decode", "mixed", "verify")


def with_passes(found: MeasuredRequests, trace: Path) -> pa.Table:
    """The table, with `prefill_passes` (that read prompts and start after the request was scheduled and before its
    first token) and `decode_passes` (that make tokens and start after its first token, before its end); null if outside
    of the recording."""
    device = load_device(trace)
    passes = engine_passes(device)
    if not len(passes):
        raise UsageError("no annotation of a pass in it", where=str(trace), hint="a trace of vLLM or SGLang")
    start = device.start_ns[passes.row] + device.base_ns
    if found.begin_ns is None or found.begin_ns < UNIX or start[0] < UNIX:
        raise UsageError("its times are not since 1970", where=str(trace), hint="spans, and a trace with a base time")
    end = int((start + np.maximum(device.duration_ns[passes.row], 0)).max())
    recorded = (int(start[0]) - found.begin_ns) / 1e9, (end - found.begin_ns) / 1e9
    phase = np.array([one.phase for one in passes.what])
    at = (start - found.begin_ns) / 1e9
    arrival, first, last = (floats(found.table, name) for name in ("arrival_s", "first_token_s", "finish_s"))
    scheduled = arrival + np.nan_to_num(floats(found.table, "queue_s"))
    table = found.table
    for name, kinds, begin, until in (("prefill_passes", READ, scheduled, first), ("decode_passes", MADE, first, last)):
        table = table.append_column(name, _counted(at[np.isin(phase, kinds)], begin, until, recorded))
    if all(table[name].null_count == len(table) for name in ("prefill_passes", "decode_passes")):
        raise UsageError("no request is within the recording", where=str(trace), hint="both of the same run")
    return table


def _counted(at: F64, begin: F64, until: F64, recorded: tuple[float, float]) -> pa.Array:
    """How many are in each interval; null outside of the recording."""
    count = np.searchsorted(at, until, side="left") - np.searchsorted(at, begin, side="left")
    inside = (begin >= recorded[0]) & (until <= recorded[1])  # NaN: no
    return pa.array(np.where(inside, count, 0), pa.int64(), mask=~inside)
