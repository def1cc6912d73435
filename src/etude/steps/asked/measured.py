"""What is asked of measured steps: a stack fitted to them, and their predictions."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part, switch, text
from etude.base.outputs import OutputPlace, Printed
from etude.base.parameters import spelled
from etude.base.talk import progress, say
from etude.steps.asked.times import TimesInput, TimesWanted, times_wanted

if TYPE_CHECKING:
    from etude.cost.stacks import Stack
    from etude.machine.system import System
    from etude.steps.measured.calibration import Calibrated


@dataclass(frozen=True, kw_only=True)
class Calibrate(TimesInput):
    """Your own software stack, from measured steps or a recorded run

    etude calibrate measured.csv --from nemo -o my-stack.yaml
    etude calibrate run/ --ran-on dgx-h100 -o my-stack.yaml

    A CSV has the columns that `etude predict rows` reads; a run is what PyTorch recorded, with shapes. The
    error before is that of the stack it starts from; the error after is that of each row with a stack fitted to all
    others. `etude predict llama3-8b --gpus 64 --stack my-stack.yaml` uses the stack.
    """

    path: str = argument("path", "CSV file of measured steps, or a recorded run", like="job/")
    out: str = figure("out", "YAML file of the stack", names=("-o",), like="new-stack.yaml")
    base: str = figure("text", "stack to start from: a name, or a YAML file", "default", key="from", like="eager")
    ran_on: str = text("system that a recorded run ran on", names=("--system", "-s"), like="dgx-a100", metavar="NAME")
    force: bool = switch("replace what is there", names=("-f",))
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class CalibrateInputs:
    path: Path
    start: "Stack"
    ran_on: "System | None"
    """None: the steps of a CSV, which name their systems."""
    place: OutputPlace
    times: TimesWanted = None


def calibrate_inputs(asked: Calibrate) -> CalibrateInputs:
    from etude.cost.stacks import open_stack
    from etude.machine import open_system

    path, place = Path(asked.path), OutputPlace.of(asked)
    if place is None or place.path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{spelled(asked, 'out')}: `{asked.out}` is not the name of a YAML file", hint="my-stack.yaml")
    start = open_stack(asked.base)
    if path.suffix.lower() == ".csv":
        return CalibrateInputs(path, start, None, place)
    if not asked.ran_on:
        said = spelled(asked, "ran_on")
        raise UsageError(
            "a recorded run needs the system that it ran on", where=f"PATH {asked.path}", hint=f"{said} dgx-h100"
        )
    return CalibrateInputs(path, start, open_system(asked.ran_on), place, times_wanted(asked))


def calibrated(given: CalibrateInputs) -> "Calibrated":
    import yaml

    from etude.base.files import writing

    found = _calibrated(given)
    with writing(given.place.path, force=given.place.force) as temporary:
        temporary.write_text(yaml.safe_dump(found.stack.to_dict(), sort_keys=False, allow_unicode=True), "utf-8")
    for refused in found.refused:
        say(f"row {refused.row} is rejected: {refused.why}")
    say(f"wrote {given.place.path}")
    if found.worse:
        say(f"note: what was left out is farther off than with the stack {given.start.name} that it started from")
    return found


def _calibrated(given: CalibrateInputs) -> "Calibrated":
    from etude.steps.asked.runs import RunSource
    from etude.steps.measured.calibration import calibrate, calibrate_run
    from etude.steps.measured.rows import read_rows

    name = given.place.path.stem
    if given.ran_on is not None:
        run = RunSource(given.path, workers=1, times=given.times).open()
        return calibrate_run(run, given.ran_on, given.start, name)
    rows = read_rows(given.path)
    with progress("simulating rows", len(rows)) as advance:
        return calibrate(rows, given.start, name, advance=advance)


def calibrated_record(found: "Calibrated") -> dict[str, Any]:
    return {
        "stack": found.stack.name,
        "rows": found.rows,
        "before": _middle(found, found.before),
        "after": _middle(found, found.after),
        "worse": found.worse,
    }


def _middle(found: "Calibrated", errors: tuple[float, ...]) -> dict[str, float]:
    half, most = found.quantiles(errors)
    return {"p50": round(half, 4), "p90": round(most, 4)}


def calibrated_figures(found: "Calibrated") -> dict[str, Any]:
    before, after = _middle(found, found.before), _middle(found, found.after)
    each, by_time = ("op", ", by time") if found.weights else ("row", "")
    return {
        "distinct ops" if found.weights else "rows": found.rows,
        f"error before{by_time}": f"{before['p50']:.1%}, 9 of 10 below {before['p90']:.1%}",
        f"error after, each {each} left out": f"{after['p50']:.1%}, 9 of 10 below {after['p90']:.1%}",
    }


@dataclass(frozen=True, kw_only=True)
class PredictRows:
    """Every training row of a table of measured steps, measured and predicted

    etude predict rows measured.csv
    etude predict rows measured.csv --stack none --json
    """

    rows: str = argument("path", "CSV file of measured steps", like="other.csv")
    stack: str = text(
        "software stack of all rows: a name that `etude stacks` lists, or a YAML file; default: that of each row",
        like="nemo",
        panel="Machine",
    )
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class RowsInputs:
    path: Path
    stack: "Stack | None"


def rows_inputs(asked: PredictRows) -> RowsInputs:
    from etude.cost.stacks import open_stack

    return RowsInputs(Path(asked.rows), open_stack(asked.stack) if asked.stack else None)


def predicted_rows(given: RowsInputs) -> list[dict[str, Any]]:
    from etude.steps.measured.rows import predict_rows, read_rows, unread_columns

    rows = read_rows(given.path)
    if unread := unread_columns(rows):
        say(f"columns that are not read: {', '.join(f'`{name}`' for name in unread)}")
    with progress("predicting rows", len(rows)) as advance:
        found = predict_rows(rows, given.stack, advance=advance)
    errors = [abs(r["predicted"]["step"] / r["measured"]["step"] - 1) for r in found if "predicted" in r]
    if errors:
        import numpy as np

        half, most = np.percentile(errors, [50, 90])
        say(
            f"{len(errors)} rows predicted, {len(found) - len(errors)} rejected, {len(rows) - len(found)} not "
            "training;"
            f" error {half:.1%} at the median, {most:.1%} at the 90th percentile"
        )
    for note, count in Counter(note for r in found for note in r.get("assumed", ())).most_common():
        say(f"assumed, {count} row{'s' if count > 1 else ''}: {note}")
    return found


def rows_table(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line per row, for a reader."""
    return [_row(one) for one in found]


def _range(record: dict[str, Any]) -> str | None:
    low, high = record["low"]["step"], record["high"]["step"]
    return "no evidence" if low is None else f"{low:.3g}–{high:.3g}"


def _row(record: dict[str, Any]) -> dict[str, Any]:
    row = {"row": record["row"], "stack": None, "measured s": None, "predicted s": None, "9 of 10 s": None}
    if "refused" in record:
        return {**row, "error": record["refused"]}
    measured, time_s = record["measured"]["step"], record["predicted"]["step"]
    return {
        **row,
        "stack": record["stack"],
        "measured s": round(measured, 3),
        "predicted s": round(time_s, 3),
        "9 of 10 s": _range(record),
        "error": f"{time_s / measured - 1:+.1%}",
    }
