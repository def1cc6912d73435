"""Retries: after a fault the job is restarted until an attempt succeeds.

    parse_retries("auto:p=0.055,every=11min,tries=6;manual:p=0.125,every=1h")

Every fault has a chain of attempts: the stages in order, each with the success probability of an attempt, the time
between two attempts and the largest number of them. All draws are made before the job runs, one for each fault and
stage, so that the same seed gives the same chains for every plan, interval and storage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.base.figures import figure
from etude.base.grammar import terms
from etude.world.fleet.events import EFFECTS, FleetEvents
from etude.world.fleet.faults import Effect

HINT: Final = "auto:p=0.055,every=11min,tries=6;manual:p=0.125,every=1h"
STREAM: Final = 1 << 31
"""Random stream, separate from those of the kinds of faults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryStage:
    """Attempts of one kind."""

    name: str = figure("text", "name")
    p: float = figure("fraction", "probability that an attempt succeeds")
    every_ns: float = figure("time", "time between attempts")
    tries: int = figure("count", "largest number of attempts; 0: until one succeeds", 0)
    first_ns: float | None = figure("time", "time until the first attempt; default: `every`", None, zero=True)

    @property
    def until_first_ns(self) -> float:
        return self.every_ns if self.first_ns is None else self.first_ns


class Chains(NamedTuple):
    """Chains of attempts, one for each fault."""

    wait_ns: NDArray[np.float64]
    """Time from the notice of the fault to the successful attempt."""
    tries: NDArray[np.int64]
    ended: NDArray[np.int64]
    """Index into `names`; -1: no attempt succeeded, and the job stays down."""
    names: tuple[str, ...]

    def record(self, felt: NDArray[np.bool_]) -> dict[str, Any]:
        """Record of the faults that affected the job. Chains count in full, even if the end or another fault interrupts
        one."""
        ended = self.ended[felt]
        done = ended >= 0
        return {
            "chains": int(felt.sum()),
            "tries": int(self.tries[felt].sum()),
            "ended": {name: int((ended == k).sum()) for k, name in enumerate(self.names)},
            "never": int((~done).sum()),
            "wait_s": float(self.wait_ns[felt][done].mean() / 1e9) if done.any() else None,
        }


def parse_retries(text: str) -> tuple[RetryStage, ...]:
    """Reads stages from one line; empty or `none`: the first attempt succeeds at once. Raises UsageError."""
    if text in ("", "none"):
        return ()
    found = tuple(term.read(RetryStage, {"name": term.name.text}) for term in terms(text, "--retry", HINT))
    if len({stage.name for stage in found}) < len(found):
        raise UsageError("--retry: two stages have the same name", hint=HINT)
    endless = [stage.name for stage in found[:-1] if not stage.tries]
    if endless:
        raise UsageError(f"--retry: no stage can follow `{endless[0]}`, which has no limit", hint="tries=6")
    return found


def chains(stages: tuple[RetryStage, ...], count: int, *, most_ns: int, seed: int = 0) -> Chains:
    """Draws `count` chains. A wait is at most `most_ns`, and exactly that if no attempt succeeds."""
    draws = np.random.default_rng((seed, STREAM)).random((count, len(stages)))
    wait, tries = np.zeros(count), np.zeros(count, np.int64)
    ended, open_ = np.full(count, -1, np.int64), np.ones(count, bool)
    for number, stage in enumerate(stages):
        with np.errstate(divide="ignore"):  # p = 1: the first succeeds
            until = np.maximum(np.ceil(np.log1p(-draws[:, number]) / np.log1p(-stage.p)), 1.0)
        made = np.minimum(until, stage.tries or until)
        won = open_ & (made == until)
        wait[open_] += stage.until_first_ns + (made[open_] - 1) * stage.every_ns
        tries[open_] += made[open_].astype(np.int64)
        ended[won] = number
        open_ &= ~won
    wait[open_] = most_ns
    return Chains(np.minimum(wait, most_ns), tries, ended, tuple(stage.name for stage in stages))


def stops(events: FleetEvents) -> NDArray[np.bool_]:
    """Faults after which a job must be restarted; nodes that are given up beforehand have no chain."""
    found: NDArray[np.bool_] = events.effect == EFFECTS.index(Effect.STOP)
    return found


def held_down(events: FleetEvents, found: Chains, *, detect_ns: int) -> FleetEvents:
    """The same faults with the wait of each chain added to its detection time, before the successful restart."""
    noticed = np.where(events.detect_ns >= 0, events.detect_ns, detect_ns)
    later = np.where(stops(events), noticed + np.round(found.wait_ns).astype(np.int64), events.detect_ns)
    return FleetEvents(**events._asdict() | {"detect_ns": later})  # its len() is rows, so `_replace` fails
