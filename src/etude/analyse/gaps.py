"""Power of a long run: repeated steps, with gaps for checkpoints and failures.

A checkpoint is taken at the end of the first repetition after the given amount of work, and devices idle while it is
written. Failures come after an exponentially distributed time of work; devices idle until the job has restarted, and
the work since the last checkpoint, or since the start, is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from etude.analyse.energy import Energy, PowerCurve
from etude.base.errors import UsageError
from etude.base.grammar import line, pairs

__all__ = ["Gaps", "LongRun", "long_run"]

NEVER: Final = 1 << 62
MOST_GAPS: Final = 100_000
MOST_ROWS: Final = 20_000_000
HINT: Final = "checkpoint=every:60s,for:5s;failure=mtbf:3h,for:10min"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """Times in nanoseconds; an interval of 0 means never."""

    checkpoint_every_ns: int = 0
    checkpoint_ns: int = 0
    failure_every_ns: int = 0
    failure_ns: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.checkpoint_every_ns, self.checkpoint_ns, self.failure_every_ns, self.failure_ns) < 0:
            raise UsageError("a gap of negative time", hint=HINT)

    @classmethod
    def parse(cls, text: str, *, seed: int = 0) -> Gaps:
        """`checkpoint=every:60s,for:5s;failure=mtbf:3h,for:10min`, or only one of them."""
        known = {"checkpoint": ("every", "for"), "failure": ("mtbf", "for")}
        found: dict[str, int] = {}
        for name, rest in pairs(line(text, "--gaps", HINT).split(";"), known).items() if text.strip() else ():
            times = {key.text: time for key, time in (part.cut(":") for part in rest.split(",")) if time is not None}
            if set(times) != set(known[name]):
                raise rest.wrong(f"`{rest.text}` does not give `{known[name][0]}` and `for`")
            found[f"{name}_every_ns"] = times[known[name][0]].time_ns()
            found[f"{name}_ns"] = times["for"].time_ns(zero=True)
        return cls(**found, seed=seed)


@dataclass(frozen=True, slots=True, eq=False)
class LongRun:
    """`by_class` adds up to the energy of the curve: classes of the work that counts, what was lost, and gaps."""

    curve: PowerCurve
    by_class: dict[str, float]
    repeat: int
    checkpoints: int
    failures: int
    lost_ns: int
    """Work lost in failures."""


def long_run(found: Energy, gaps: Gaps, *, repeat: int) -> LongRun:
    """A run `repeat` times, with gaps in which every device draws its idle power."""
    if repeat < 1:
        raise UsageError(f"a run {repeat} times")
    once = found.curve
    span = once.span_ns
    if span < 1:
        raise UsageError("a run that takes no time has no gaps")
    work = _schedule(span, gaps, repeat, len(once.watts))
    idle_w = found.by_class.get("idle", 0.0) * 1e9 / span
    times, watts, clock, lost_j = [np.zeros(0, np.int64)], [np.zeros(0)], 0, 0.0
    for part in work:
        time, power = _stretch(once, part.first, part.last)
        length = part.last - part.first
        times += [time + clock, np.full(1, clock + length)]
        watts += [power, np.full(1, idle_w)]
        clock += length + part.gap_ns
        lost_j += float((power * np.diff(time, append=length)).sum()) / 1e9 if part.fails else 0.0
    time = np.append(np.concatenate(times), clock)
    keep = np.diff(time) > 0
    curve = PowerCurve(np.append(time[:-1][keep], clock) + once.time_ns[0], np.concatenate(watts)[keep])
    by_class = {name: joules * repeat for name, joules in found.by_class.items()}
    by_class |= {"gaps": idle_w * sum(part.gap_ns for part in work) / 1e9, "lost": lost_j}
    failures = [part for part in work if part.fails]
    lost_ns = sum(part.last - part.first for part in failures)
    return LongRun(curve, by_class, repeat, len(work) - len(failures) - 1, len(failures), lost_ns)


class _Part(NamedTuple):
    """A stretch of work, which ends with a checkpoint, a failure, or the run."""

    first: int
    last: int
    gap_ns: int
    fails: bool


def _schedule(span: int, gaps: Gaps, repeat: int, rows: int) -> list[_Part]:
    rng, whole = np.random.default_rng(gaps.seed), repeat * span
    # Checkpoints are at ends of repetitions: the first at or after each interval.
    each = -(-gaps.checkpoint_every_ns // span) * span if gaps.checkpoint_every_ns else whole
    left, parts, saved, done = _drawn(rng, gaps), list[_Part](), 0, 0
    while saved < whole:
        goal = min(saved + each, whole)
        if left < goal - saved:
            parts.append(_Part(saved, saved + left, gaps.failure_ns, True))
            left = _drawn(rng, gaps)
        else:
            parts.append(_Part(saved, goal, gaps.checkpoint_ns if goal < whole else 0, False))
            left, saved = left - (goal - saved), goal
        done += parts[-1].last - parts[-1].first
        if len(parts) > MOST_GAPS or done // span * rows > MOST_ROWS:
            hint = "repeat less; checkpoints must be more frequent than failures"
            raise UsageError(f"a timeline of more than {MOST_GAPS:,} gaps or {MOST_ROWS:,} changes of power", hint=hint)
    return parts


def _drawn(rng: np.random.Generator, gaps: Gaps) -> int:
    """Work until the next failure."""
    return round(rng.exponential(gaps.failure_every_ns)) if gaps.failure_every_ns else NEVER


def _stretch(once: PowerCurve, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Power of a repeating run between two times of work: starts (from 0) and values."""
    span, begins = once.span_ns, once.time_ns[:-1] - once.time_ns[0]
    turns = np.arange(first // span, -(-last // span))
    time = (turns[:, None] * span + begins).reshape(-1)
    at = int(np.searchsorted(time, first, side="right")) - 1
    to = int(np.searchsorted(time, last, side="left"))
    return np.maximum(time[at:to], first) - first, np.tile(once.watts, len(turns))[at:to]
