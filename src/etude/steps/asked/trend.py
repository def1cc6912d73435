"""Step time over a run: what `etude trend` asks for."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part, switch, text
from etude.base.outputs import OutputPlace, Printed, Written
from etude.base.talk import progress, say
from etude.steps.asked.runs import RunInput, RunSource, times_of
from etude.steps.asked.times import times_wanted

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.analyse.samples import Samples
    from etude.analyse.trend import Trend
    from etude.model.run import Run


NONE = "none"
AUTO = "auto"
STEP_TIME = "step_time"
DETECTED = ("value", "period", "change_points", "residual_spread", "findings", "signals")
"""Keys of the record that `--detect` keeps."""


@dataclass(frozen=True, kw_only=True)
class TrendOf(Written):
    """Step time over a run or many recordings: trend, cycle, changes of ranks relative to their own history, forecast

    etude trend run/
    etude trend windows/*/ --forecast 7d
    etude trend run/ -o trend.json             for etude simulate --jitter @trend.json
    etude trend metrics.parquet --value step_time --detect
    etude trend run/ --signals dcgm.csv
    etude trend run/ --checkpoints
    """

    paths: tuple[str, ...] = argument(
        "paths",
        "a run, whose steps are analysed; several recordings of one job, in the order of their start; or one CSV or "
        "Parquet file of values",
        like="run2/",
    )
    value: str = figure(
        "text",
        "the value to analyse: `step_time`, `compute`, `idle`, ...; for a table, a column",
        STEP_TIME,
        like="idle",
        plain=True,
    )
    period: str = figure("text", "steps per cycle; `auto` searches for a cycle, `none` does not", AUTO, like="10")
    forecast: str = text("forecast `20` steps, or a time, `7d`", like="20")
    work: str = figure(
        "noun",
        "amount of work: `auto` takes the trace's FLOPs, `none` ignores work, or a CSV file: step,rank,tokens",
        AUTO,
        like=["none", "work.csv"],
    )
    signals: str | None = figure(
        "path",
        "CSV or Parquet file of power, clocks, errors, ...: time, rank (or host and gpu), one column per signal",
        None,
    )
    checkpoints: bool = switch("show the write bandwidth of each rank to storage, by step, instead")
    least: float = figure("number", "smallest change of level that is reported", 0.03, zero=True)
    detect: bool = switch("print the findings alone")
    out: str | None = figure("out", "write the whole result as JSON, for `--jitter @FILE`", None, names=("-o",))
    reading: RunInput = part(RunInput, but=("path", "groups"))
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class TrendInputs:
    sources: tuple[RunSource, ...]
    """A table is a source without a system or a file of times."""
    value: str
    period: int | None
    least: float
    work: str
    forecast: str
    signals: Path | None
    place: OutputPlace | None
    detect: bool


def inputs(asked: TrendOf) -> TrendInputs | RunSource:
    """What a trend is computed of; for checkpoints the run alone."""
    sources = _sources(asked)
    if asked.checkpoints:
        if len(sources) > 1:
            raise UsageError(f"{len(sources)} runs", hint="--checkpoints needs exactly one run")
        return sources[0]
    place, detect = OutputPlace.of(asked), asked.detect
    signals = None if asked.signals is None else Path(asked.signals)
    forecast = asked.forecast if place is not None or not detect else ""
    return TrendInputs(
        sources, asked.value, _period(asked.period), asked.least, asked.work, forecast, signals, place, detect
    )


def _sources(asked: TrendOf) -> tuple[RunSource, ...]:
    from etude.store.tables import is_table

    paths, reading = [Path(path) for path in asked.paths], asked.reading
    if any(is_table(path) for path in paths):
        if len(paths) > 1:
            raise UsageError(f"{len(paths)} files, of which one is a table", hint="give one table, or runs")
        return (RunSource(paths[0]),)
    system, timing = times_of(reading)
    if timing is not None and len(paths) > 1:
        raise UsageError(f"one file of times for {len(paths)} recordings", hint="--timing needs exactly one run")
    workers, wanted = reading.workers, times_wanted(reading)
    return tuple(RunSource(path, system, timing, workers=workers, times=wanted) for path in paths)


def _period(text: str) -> int | None:
    if text in (AUTO, NONE):
        return None if text == AUTO else 0
    if not text.isdecimal():
        raise UsageError(f"--period: `{text}` is not a number of steps", hint="10, auto, none")
    return int(text)


def run(given: TrendInputs | RunSource) -> "pa.Table | dict[str, Any]":
    from etude.analyse.checkpoints import checkpoints
    from etude.analyse.diagnose import LEAST, faults
    from etude.analyse.trend import forecast, record, trend, with_verdicts

    if isinstance(given, RunSource):
        written = checkpoints(given.open())
        if not len(written):
            say("no node of this run stores to memory or storage with a known size")
        return written
    samples, measured = _samples(given)
    samples = _with_work(samples, given.work)
    with progress("following"):
        found = trend(samples, period=given.period, least=given.least, use_work=given.work != NONE)
        if measured is not None and given.value == STEP_TIME:
            found = with_verdicts(found, faults(measured, least=given.least or LEAST))
    made: dict[str, Any] = record(found)
    if given.forecast:
        made["forecast"] = forecast(found, given.forecast)
    if given.signals is not None:
        made["signals"] = _signals(found, given.signals)
    if given.place is not None:
        _write(made, given.place)
    return {name: made[name] for name in DETECTED if name in made} if given.detect else made


def _write(made: dict[str, Any], place: OutputPlace) -> None:
    import msgspec

    from etude.base.files import writing

    with writing(place.path, force=place.force) as temporary:
        temporary.write_bytes(msgspec.json.encode(made, enc_hook=lambda value: value.item()))  # numbers of NumPy
    say(f"wrote {place.path}")


def _samples(given: TrendInputs) -> "tuple[Samples, Run | None]":
    """The samples, and the run if they are steps of a single one."""
    from etude.analyse.samples import from_table, of_run, of_runs
    from etude.store.tables import is_table, read_table

    first, value = given.sources[0], given.value
    if is_table(first.path):
        return from_table(read_table(first.path), value, where=str(first.path)), None
    if len(given.sources) == 1:
        measured = first.open()
        return of_run(measured, value), measured
    runs: list[Run] = []
    with progress("reading recordings", len(given.sources)) as advance:
        for source in given.sources:
            runs.append(source.open())
            advance(1)
    found = of_runs(runs, value)
    if len(set(found.start_ns.tolist())) < len(runs):
        say("note: recordings that begin at one time are taken in the order given")
    return found, None


def _signals(found: "Trend", path: Path) -> dict[str, Any]:
    from etude.analyse.signals import correlated, joined
    from etude.store.tables import read_table

    beside = joined(found.samples, read_table(path), where=str(path))
    if beside.note:
        say(f"note: {beside.note}")
    return correlated(found, beside)


def _with_work(samples: "Samples", work: str) -> "Samples":
    from etude.analyse.samples import with_work, work_of_table
    from etude.store.tables import read_table

    if work in (AUTO, NONE):
        return samples
    return with_work(samples, work_of_table(samples, read_table(Path(work)), where=work))


def _summary(shown: dict[str, Any]) -> dict[str, Any]:
    from etude.base.units import format_time

    def said(value: float) -> str:
        return format_time(round(value)) if shown["unit"] == "ns" else f"{value:.6g}"

    series = shown["series"]
    found = {"value": shown["value"], "steps": f"{len(series):,}", "ranks": f"{len(shown['ranks']):,}"}
    found["mean"] = said(sum(series) / len(series))
    found["level at the end"] = said(shown["level"])
    found["drift per step"] = said(shown["slope"]) if shown["slope"] else "none"
    found["period"] = f"{shown['period']} steps" if shown["period"] else "none"
    found["changes"] = f"{len(shown['change_points'])}"
    found["residual spread"] = f"{shown['residual_spread']:.2%}"
    return found


def reads(made: Any) -> Iterator[Any]:
    """A summary, the forecast, the findings; of checkpoints the table."""
    if not isinstance(made, dict):
        yield made
        return
    yield from (_summary(made) if "series" in made else None, made.get("forecast"))
    rows = [{"finding": found["kind"], "text": found["text"]} for found in made["findings"]]
    rows += [{"finding": "signal", "text": text} for text in made.get("signals", {}).get("texts", ())]
    yield rows or None
    if not made["findings"]:
        say("no change, cycle, drift or slow rank found")
