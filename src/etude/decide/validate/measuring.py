"""Records a program, and runs it again with known delays.

It needs PyTorch and NumPy alone: a program can be measured on one machine, and its graph compared on another.
"""

import tempfile
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from etude.base.errors import UsageError
from etude.base.talk import progress
from etude.capture.collect import CollectOptions, Delay, DelayPlan, LaunchedProgram, launch, launch_delayed
from etude.capture.collect.delays import NONE, StepBlock
from etude.decide.validate.pairs import Pair, pairs_of, turns
from etude.decide.validate.places import AskedPlace

LEAST_NS: Final = 100_000
"""A shorter delay is lost in what a hook costs."""
LEAST_WARMUP: Final = 3
"""Steps until the modules of a step are known."""
MOST_RUNS: Final = 40
LINES: Final = 8
"""Of what a program that failed has printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayLength:
    """A time, or a share of a step."""

    time_ns: int = 0
    share: float = 0.0

    def of_step(self, step_ns: int) -> int:
        return max(self.time_ns or round(self.share * step_ns), LEAST_NS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateOptions:
    places: tuple[AskedPlace, ...] = ()
    """None: they are chosen."""
    modules: int = 3
    """How many modules are chosen."""
    delays: tuple[DelayLength, ...] = (DelayLength(share=0.5),)
    repeats: int = 8
    """Blocks of each delay at each place."""
    steps: int = 3
    """Of the recording, and of a block."""
    warmup: int = 8


def record_marked(command: Sequence[str], folder: Path, options: ValidateOptions) -> None:
    """Records it with marks before modules: those that places name, and as many others as are asked for."""
    names = list(dict.fromkeys(asked.module for asked in options.places))
    collect = CollectOptions(steps=options.steps, warmup=options.warmup)
    with progress("recording"):
        done = launch(command, folder, collect, marked={"count": options.modules, "names": names})
    check_recorded(command, done)


def check_recorded(command: Sequence[str], done: LaunchedProgram) -> None:
    """Refuses a recording without the steps that were asked for, of all ranks."""
    if done.exit_code:
        raise _failed(command, "the program", done.exit_code, done.printed)
    if done.failures:
        raise _told(done.failures)
    for about in done.manifests:
        if about["steps"]["counted_by"] == "nothing":
            raise UsageError("no steps were counted", hint="a step ends with that of an optimizer: it must have one")
        if about["partial"]:
            raise UsageError(f"rank {about['rank']}: {about['reason']}", hint="take fewer: --warmup 3 --steps 2")
    if done.problems:
        raise UsageError(done.problems[0])


def _failed(command: Sequence[str], what: str, exit_code: int, printed: str) -> UsageError:
    last = "\n".join(printed.splitlines()[-LINES:])
    return UsageError(f"{what} ended with exit code {exit_code}", where=" ".join(command), hint=last)


def _told(failures: Sequence[str]) -> UsageError:
    """What a process of the program noted, as an error of the command."""
    problem, _, hint = failures[0].removeprefix("UsageError: ").partition("\nhint: ")
    return UsageError(problem, hint=hint)


@dataclass(slots=True)
class MeasuredRuns:
    """What runs with delays have measured so far."""

    pairs: list[list[Pair]]
    blocks: list[StepBlock]
    runs: int = 0


def run_with_delays(command: Sequence[str], delays: Sequence[Delay], options: ValidateOptions) -> MeasuredRuns:
    """Runs the program until every delay has its pairs: once, if it has enough steps."""
    found = MeasuredRuns([[] for _ in delays], [])
    with progress("measuring", len(delays) * options.repeats) as advance:
        while any(missing := [max(options.repeats - len(pairs), 0) for pairs in found.pairs]):
            if found.runs >= MOST_RUNS and all(found.pairs):
                break
            plan = DelayPlan(tuple(delays), turns(missing), options.steps, options.warmup)
            with tempfile.TemporaryDirectory(prefix="etude-delays-") as place:
                done = launch_delayed(command, Path(place), plan)
            if done.exit_code:
                raise _failed(command, "with delays the program", done.exit_code, done.printed)
            if done.failures:
                raise _told(done.failures)
            blocks = done.blocks()
            new = pairs_of(blocks, options.steps)
            check_progress(plan, blocks, {delay for delay, _ in new}, done.steps)
            for delay, pair in new:
                found.pairs[delay].append(pair)
            found.blocks += blocks
            found.runs += 1
            advance(len(new))
    return found


def check_progress(plan: DelayPlan, blocks: Sequence[StepBlock], measured: Set[int], steps: int) -> None:
    """Refuses what another run would not measure either."""
    for block in blocks:
        if block.delay != NONE and block.delay not in measured:
            named = plan.delays[block.delay].moment.module
            hint = "a delay is put into every step: name another module"
            raise UsageError(f"`{named}` was reached in {block.count} of {plan.steps} steps", hint=hint)
    if not measured:
        problem = f"the program has {steps} steps, and a run with delays needs {plan.warmup + 2 * plan.steps}"
        raise UsageError(problem, hint="take fewer: --warmup 3 --steps 2")
