"""Recorded passes of an inference engine: how long they take, and how far apart tokens are.

An engine's annotation gives the number of requests whose prompts a pass reads, and of those for which it makes a token.
It does not name requests or their arrival times, so there is no time to first token. The time between tokens of a
request is the time between the passes that make them:

    tpot = Σ min(n_j, n_i) · (end_j - end_i) / Σ min(n_j, n_i)

over the passes j that make tokens, of n_j requests each, and i, the pass before that does so, with the passes that only
read prompts between i and j in it, and requests that cannot have been in both left out. A pass ends with its last
activity on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from etude.analyse.device_work import on_device
from etude.kernels.arrays import I64
from etude.model.run import Run, RunPart
from etude.model.schema import PASS, UNKNOWN
from etude.model.totals import known
from etude.model.trace import Trace
from etude.model.use import uses

__all__ = ["RunPasses", "engine_metrics", "engine_passes", "of_engine"]

Row = tuple[str, float, str]

PHASES: Final = ("prefill", "decode", "mixed", "draft", "verify")
_SEVERAL: Final = ("draft", "verify")
"""Phases that make any number of tokens per pass."""


@dataclass(frozen=True, slots=True, eq=False)
class RunPasses:
    """The passes of a part of a run, in order; UNKNOWN where not recorded."""

    phase: tuple[str, ...]
    """Empty where it is not known."""
    start_ns: I64
    """First activity on the device."""
    end_ns: I64
    context_requests: I64
    context_tokens: I64
    generation_requests: I64
    generation_tokens: I64

    def __len__(self) -> int:
        return len(self.phase)


def of_engine(trace: Trace) -> bool:
    """Did an engine annotate its passes?"""
    return any(attr.name.startswith(PASS) for layout in trace.layouts for attr in layout)


def engine_passes(part: RunPart) -> RunPasses:
    """The passes that ran on the device; `step` numbers them."""
    trace = part.trace
    rows = np.flatnonzero(on_device(part, uses(trace)) & (trace.step != UNKNOWN))
    steps, at = np.unique(trace.step[rows], return_inverse=True)
    start, end = np.full(len(steps), np.iinfo(np.int64).max), np.full(len(steps), UNKNOWN)
    np.minimum.at(start, at.reshape(-1), part.start_ns[rows])
    np.maximum.at(end, at.reshape(-1), part.end_ns[rows])
    codes, words = trace.coded("phase")
    phase = np.full(len(steps), -1, np.int64)
    phase[at.reshape(-1)] = codes[rows]
    said = {}
    cells = {name: found for (name, _), found in trace.attr_cells().items()}
    for name in ("context_requests", "context_tokens", "generation_requests", "generation_tokens"):
        said[name] = np.full(len(steps), UNKNOWN, np.int64)
        nodes, values = cells.get(PASS + name, (rows[:0], rows[:0]))
        place = np.searchsorted(steps, trace.step[nodes])
        there = np.append(steps, UNKNOWN)[place] == trace.step[nodes]
        said[name][place[there]] = values[there]
    named = tuple(words[code] if code >= 0 and words[code] in PHASES else "" for code in phase.tolist())
    return RunPasses(named, start, end, **said)


def engine_metrics(run: Run) -> Iterator[Row]:
    """(metric, value, unit) of passes, means over ranks; empty for a run without them."""
    found = [(engine_passes(part), len(part.at)) for part in run.parts() if _numbered(part.trace)]
    found = [(one, ranks) for one, ranks in found if len(one)]
    values: dict[str, list[tuple[float, int]]] = {}
    units: dict[str, str] = {}
    for one, ranks in found:
        for name, value, unit in _metrics(one):
            values.setdefault(name, []).append((value, ranks))
            units[name] = unit
    for name, pairs in values.items():
        yield name, float(np.average([v for v, _ in pairs], weights=[n for _, n in pairs])), units[name]


def _numbered(trace: Trace) -> bool:
    """Whether each pass has its own step; not so where one profiler step holds several passes."""
    nodes = [rows for (name, _), (rows, _) in trace.attr_cells().items() if name.startswith(PASS)]
    steps = trace.step[np.unique(np.concatenate(nodes))] if nodes else np.zeros(0, np.int64)
    return len(steps) > 0 and len(np.unique(steps)) == len(steps)


def _metrics(found: RunPasses) -> Iterator[Row]:
    phase = np.array(found.phase)
    for name in PHASES:
        mine = phase == name
        if mine.any():
            yield f"{name}_passes", float(mine.sum()), ""
            yield f"{name}_pass_time", float((found.end_ns - found.start_ns)[mine].mean()) / 1e9, "s"
    batch = known(found.context_requests) + known(found.generation_requests)
    if batch.any():
        yield "max_batch", float(batch.max()), ""
    span_s = (found.end_ns.max() - found.start_ns.min()) / 1e9
    for name, tokens in (("prompt", found.context_tokens), ("generated", found.generation_tokens)):
        if (tokens > 0).any() and span_s > 0 and not (tokens == UNKNOWN).any():
            yield f"{name}_tokens_per_second", float(tokens.sum() / span_s), "1/s"
    if (interval := decode_interval_ns(found)) is not None:
        yield "decode_pass_interval", interval / 1e9, "s"
    if (pace := tpot_ns(found)) is not None:
        yield "tpot", pace / 1e9, "s"


def decode_interval_ns(found: RunPasses) -> float | None:
    """Mean time between the ends of two consecutive passes that make tokens; None if fewer than two do, or if some
    passes are of unknown kind. Each pass counts once, whatever its number of requests and tokens."""
    if not all(found.phase):
        return None
    ends = found.end_ns[np.isin(np.array(found.phase), ("decode", "mixed", "verify"))]
    return float(np.diff(ends).mean()) if len(ends) > 1 else None


def tpot_ns(found: RunPasses) -> float | None:
    """Mean time between tokens of a request; None if fewer than two passes make tokens, if a pass may make several for
    one request, or if some passes are of unknown kind."""
    makes = found.generation_requests
    if not all(found.phase) or any(phase in _SEVERAL for phase in found.phase) or (makes == UNKNOWN).any():
        return None
    tokens = np.where(found.generation_tokens == UNKNOWN, makes, found.generation_tokens)
    if (tokens != makes).any():
        return None
    at = np.flatnonzero(makes > 0)
    both = np.minimum(makes[at[1:]], makes[at[:-1]])
    return float((both * np.diff(found.end_ns[at])).sum() / both.sum()) if len(both) else None
