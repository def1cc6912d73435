"""The stretch of a run that all of its ranks recorded.

Collectives and messages are matched by their order: the k-th of one rank with the k-th of another. Ranks that began to
record at different steps (a rank that ran a profiler of its own, a learner that counts optimizer steps beside actors
that have none) would be matched wrongly, so each is cut to what all have:

    by step   where all count the same: the steps that all recorded
    by time   else: from the latest beginning to the earliest end, if every call there is seen to be the same on its
              members (`window_time`)

Ranks that have no such stretch are refused. Ranks that begin together and end at different steps stay as they are: what
is missing at the end is seen to be missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from etude.base.errors import MismatchError
from etude.capture.ingest.linked import Linked, cut
from etude.capture.ingest.window_time import by_time
from etude.kernels.arrays import distinct_values
from etude.model.job import ranges

NOTHING = "nothing"
"""How a rank without known steps is counted."""
_HINT = "`etude collect --whole` records all of each rank; `etude link --any-window` accepts them as they are"


class _Counted(NamedTuple):
    by: str
    """How steps were counted; "" if unknown."""
    steps: tuple[int, ...]


def agreed(ranks: Sequence[Linked], said: Mapping[int, Mapping[str, Any]], where: str) -> list[Linked]:
    """The ranks, cut to what all of them recorded; `said` are the manifests, if any."""
    counted = {one.part.rank: _counted(one, said.get(one.part.rank, {})) for one in ranks}
    begins = {(c.by, c.steps[:1]) for c in counted.values() if c.by == NOTHING or c.steps}
    if len(begins) < 2:
        return list(ranks)
    if len({c.by for c in counted.values()}) == 1 and all(c.steps for c in counted.values()):
        shared = set.intersection(*(set(c.steps) for c in counted.values()))
        if shared:
            return [_by_step(one, counted[one.part.rank].steps, sorted(shared)) for one in ranks]
    elif any(c.by for c in counted.values()) and (found := by_time(ranks)) is not None:
        return found
    raise MismatchError(f"the ranks recorded different parts of the run: {_shown(counted)}", where=where, hint=_HINT)


def _counted(one: Linked, manifest: Mapping[str, Any]) -> _Counted:
    steps = manifest.get("steps")
    if isinstance(steps, dict) and isinstance(numbers := steps.get("numbers"), list):
        return _Counted(str(steps.get("counted_by") or ""), tuple(n for n in numbers if type(n) is int))
    step = one.part.trace.step
    return _Counted("", tuple(distinct_values(step[step >= 0]).tolist()))


def _by_step(one: Linked, own: tuple[int, ...], shared: list[int]) -> Linked:
    """A rank without the steps that others lack. What is in no step belongs to the interval in which it began."""
    if list(own) == shared:
        return one
    trace = one.part.trace
    inside = np.isin(trace.step, shared)
    began = one.start_ns[inside & (trace.cpu == 1)] if (inside & (trace.cpu == 1)).any() else one.start_ns[inside]
    if len(began):
        inside |= (trace.step < 0) & (one.start_ns >= began.min()) & (one.start_ns <= began.max())
    what = f"recorded {_steps(own)}, cut to {_steps(shared)}, which all ranks recorded"
    if not inside.any():
        raise MismatchError(f"{what}; it has nothing of these steps", where=f"rank {one.part.rank}", hint=_HINT)
    return cut(one, inside, what)


def _shown(counted: Mapping[int, _Counted]) -> str:
    begins: dict[str, list[int]] = {}
    for rank, (by, steps) in counted.items():
        text = "everything, without steps" if by == NOTHING else f"from step {steps[0]} on" if steps else ""
        if text:
            begins.setdefault(text, []).append(rank)
    return "; ".join(f"rank {_ranks(ranks)} {text}" for text, ranks in begins.items())


def _steps(numbers: Sequence[int]) -> str:
    return f"step{'s' if len(numbers) > 1 else ''} {ranges(np.array(sorted(numbers)))}"


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, sorted(ranks)[:8]))
    return shown if len(ranks) <= 8 else f"{shown} and {len(ranks) - 8} more"
