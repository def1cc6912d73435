"""Records a program, runs it again with known delays, and compares what these changed with what its graph says."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.files import writing
from etude.base.outputs import Place as OutputPlace
from etude.base.talk import progress
from etude.capture import opening
from etude.capture.collect import CollectOptions, Delay, DelayPlan, LaunchedProgram, launch, launch_delayed
from etude.capture.collect.delays import NONE, Block
from etude.decide.validate.graphs import DelayedGraph, moments_of
from etude.decide.validate.pairs import MeasuredChange, Pair, measured_change, pairs_of, turns, undelayed_step_ns
from etude.decide.validate.places import AskedPlace, Place, choose_places
from etude.decide.validate.scoring import PlaceResult, Validated
from etude.model.job import Job

RECORDING: Final = "run"
RESULT: Final = "validate.json"
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


def validate(
    command: Sequence[str], options: ValidateOptions | None = None, keep: OutputPlace | None = None
) -> Validated:
    """Records `command`, runs it again with delays, and scores its graph. `keep`: a folder for the recording and the
    result."""
    options = options or ValidateOptions()
    with _folder(keep) as folder:
        job = _recorded(command, folder / RECORDING, options)
        moments = moments_of(job, options.steps)
        if not any(moments.values()):
            raise UsageError("no torch.nn.Module is called in each step", hint="delays are put before modules")
        places = choose_places(moments, options.places)
        graph = DelayedGraph(job)
        step_ns = int(job.provenance.get("unprofiled_step_ns", "0")) or graph.length_ns // options.steps
        lengths = [length.of_step(step_ns) for length in options.delays]
        asked = [(place, place.delay(length)) for length in lengths for place in places]
        found = _measured(command, [delay for _, delay in asked], options)
        result = _compared(graph, [place for place, _ in asked], found, options)
        (folder / RESULT).write_text(json.dumps(result.record(), indent=1) + "\n")
    return result


def predicted_again(record: Mapping[str, Any], job: Job) -> Validated:
    """What was measured, as `--json` has it, against another graph of the same recording."""
    graph, results = DelayedGraph(job), []
    steps = max(len(nodes) for marks in graph.marks.values() for nodes in marks.values())
    moments = moments_of(job, steps)
    for row in record["places"]:
        place = choose_places(moments, [AskedPlace.parse(row["where"])])[0]
        measured = MeasuredChange(row["injected_ns"], row["measured_ns"], row["spread_ns"], row["pairs"])
        results.append(PlaceResult(row["where"], measured, graph.change_ns(place, measured.injected_ns)))
    step_ns = {**record["step_ns"], "predicted": graph.length_ns // steps}
    return Validated(tuple(results), step_ns, len(job.ranks), record["runs"])


@contextmanager
def _folder(keep: OutputPlace | None) -> Iterator[Path]:
    """A folder that is there in full at the end, or gone."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="etude-validate-") as place:
            yield Path(place)
        return
    with writing(keep.path, force=keep.force) as place:
        place.mkdir(parents=True)
        yield place


def _recorded(command: Sequence[str], folder: Path, options: ValidateOptions) -> Job:
    names = list(dict.fromkeys(asked.module for asked in options.places))
    collect = CollectOptions(steps=options.steps, warmup=options.warmup)
    with progress("recording"):
        done = launch(command, folder, collect, marked={"count": options.modules, "names": names})
    check_recorded(command, done)
    with progress("linking"):
        return opening.open(folder)


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
class _Found:
    """What runs with delays have measured so far."""

    pairs: list[list[Pair]]
    blocks: list[Block]
    runs: int = 0


def _measured(command: Sequence[str], delays: Sequence[Delay], options: ValidateOptions) -> _Found:
    """Runs the program until every delay has its pairs: once, if it has enough steps."""
    found = _Found([[] for _ in delays], [])
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


def check_progress(plan: DelayPlan, blocks: Sequence[Block], measured: Set[int], steps: int) -> None:
    """Refuses what another run would not measure either."""
    for block in blocks:
        if block.delay != NONE and block.delay not in measured:
            named = plan.delays[block.delay].moment.module
            raise UsageError(f"`{named}` was reached in {block.count} of {plan.steps} steps",
                             hint="a delay is put into every step: name another module")  # fmt: skip
    if not measured:
        raise UsageError(f"the program has {steps} steps, and a run with delays needs {plan.warmup + 2 * plan.steps}",
                         hint="take fewer: --warmup 3 --steps 2")  # fmt: skip


def _compared(graph: DelayedGraph, places: Sequence[Place], found: _Found, options: ValidateOptions) -> Validated:
    results = []
    with progress("simulating", len(places)) as advance:
        for place, pairs in zip(places, found.pairs, strict=True):
            measured = measured_change(pairs)
            results.append(PlaceResult(place.where, measured, graph.change_ns(place, measured.injected_ns)))
            advance(1)
    step_ns = {
        "measured": undelayed_step_ns(found.blocks, options.steps),
        "predicted": graph.length_ns // options.steps,
    }
    return Validated(tuple(results), step_ns, len(graph.job.ranks), found.runs)
