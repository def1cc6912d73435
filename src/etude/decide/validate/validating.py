"""Records a program, runs it again with known delays, and compares what these changed with what its graph says."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.files import writing
from etude.base.outputs import OutputPlace as OutputPlace
from etude.base.talk import progress
from etude.capture import opening
from etude.decide.validate.graphs import DelayedGraph, moments_of
from etude.decide.validate.measuring import MeasuredRuns, ValidateOptions, record_marked, run_with_delays
from etude.decide.validate.pairs import MeasuredChange, measured_change, undelayed_step_ns
from etude.decide.validate.places import AskedPlace, Place, choose_places
from etude.decide.validate.scoring import PlaceResult, Validated
from etude.model.job import Job

RECORDING: Final = "run"
RESULT: Final = "validate.json"


def validate(
    command: Sequence[str], options: ValidateOptions | None = None, keep: OutputPlace | None = None
) -> Validated:
    """Records `command`, runs it again with delays, and scores its graph. `keep`: a folder for the recording and the
    result."""
    options = options or ValidateOptions()
    with _folder(keep) as folder:
        record_marked(command, folder / RECORDING, options)
        with progress("linking"):
            job = opening.open(folder / RECORDING)
        moments = moments_of(job, options.steps)
        if not any(moments.values()):
            raise UsageError("no torch.nn.Module is called in each step", hint="delays are put before modules")
        places = choose_places(moments, options.places)
        graph = DelayedGraph(job)
        step_ns = int(job.provenance.get("unprofiled_step_ns", "0")) or graph.length_ns // options.steps
        lengths = [length.of_step(step_ns) for length in options.delays]
        asked = [(place, place.delay(length)) for length in lengths for place in places]
        found = run_with_delays(command, [delay for _, delay in asked], options)
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


def _compared(graph: DelayedGraph, places: Sequence[Place], found: MeasuredRuns, options: ValidateOptions) -> Validated:
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
