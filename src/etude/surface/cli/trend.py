from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from etude.base.errors import UsageError
from etude.surface.cli.app import ANALYSE, app
from etude.surface.cli.inputs import Workers
from etude.surface.cli.output import AsJson, emit, progress, say
from etude.surface.cli.runs import OnSystem, TimesFile, open_run

if TYPE_CHECKING:
    from etude.analyse.samples import Samples
    from etude.analyse.trend import Trend
    from etude.model.run import Run

NONE = "none"
AUTO = "auto"
MOST_AHEAD = 1_000_000
"""Steps that can be forecast."""


@app.command(rich_help_panel=ANALYSE)
def trend(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="A run, whose steps are analysed; several recordings of one job, in the order of their start; or one "
            "CSV or Parquet file of values.",
            show_default=False,
        ),
    ],
    value: Annotated[
        str, typer.Option(help="The value to analyse: `step_time`, `compute`, `idle`, ...; for a table, a column.")
    ] = "step_time",
    period: Annotated[str, typer.Option(help="Steps per cycle; `auto` searches for a cycle, `none` does not.")] = AUTO,
    forecast: Annotated[str, typer.Option(help="Forecast `20` steps, or a time, `7d`.")] = "",
    work: Annotated[
        str,
        typer.Option(
            help="Amount of work: `auto` takes the trace's FLOPs, `none` ignores work, or a CSV file: step,rank,tokens."
        ),
    ] = AUTO,
    signals: Annotated[
        Path | None,
        typer.Option(
            help="CSV or Parquet file of power, clocks, errors, ...: time, rank (or host and gpu), one column per "
            "signal."
        ),
    ] = None,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Show the write bandwidth of each rank to storage, by step, instead.")
    ] = False,
    least: Annotated[float, typer.Option(min=0, help="Smallest change of level that is reported.")] = 0.03,
    detect: Annotated[bool, typer.Option("--detect", help="Print the findings alone.")] = False,
    system: OnSystem = "",
    timing: TimesFile = None,
    workers: Workers = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the whole result as JSON, for `--jitter @FILE`.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace existing output.")] = False,
    json: AsJson = False,
) -> None:
    """Step time over a run or many recordings: trend, cycle, changes of ranks relative to their own history, forecast

    etude trend run/
    etude trend windows/*/ --forecast 7d
    etude trend run/ -o trend.json; etude simulate job/ --system dgx-h100 --jitter @trend.json
    etude trend metrics.parquet --value step_time --detect
    etude trend run/ --signals dcgm.csv
    """
    from etude.analyse.trend import record
    from etude.analyse.trend import trend as analyse

    if checkpoints:
        if out is not None:
            raise UsageError("--out does not apply to --checkpoints", hint="--checkpoints --json > FILE")
        _checkpoints(paths, _Source(system, timing, workers), json=json)
        return
    samples = _samples(paths, value, _Source(system, timing, workers))
    samples = _with_work(samples, work)
    with progress("following"):
        found = analyse(samples, period=_period(period), least=least, use_work=work != NONE)
    shown: dict[str, Any] = record(found)
    if forecast:
        shown["forecast"] = _forecast(found, forecast)
    if signals is not None:
        shown["signals"] = _signals(found, signals)
    if out is not None:
        _write(shown, out, force)
    _show(shown, detect=detect, json=json)


def _write(shown: dict[str, Any], path: Path, force: bool) -> None:
    import msgspec

    from etude.base.files import writing

    with writing(path, force=force) as place:
        place.write_bytes(msgspec.json.encode(shown, enc_hook=lambda value: value.item()))  # numbers of NumPy
    say(f"wrote {path}")


class _Source(NamedTuple):
    """The source of times, if they do not come from the recording."""

    system: str
    timing: Path | None
    workers: int

    def open(self, path: Path) -> "Run":
        return open_run(path, None, self.workers, self.system, self.timing)


def _samples(paths: list[Path], value: str, source: _Source) -> "Samples":
    from etude.analyse.samples import from_table, of_run, of_runs
    from etude.store.tables import is_table, read_table

    if any(is_table(path) for path in paths):
        if len(paths) > 1:
            raise UsageError(f"{len(paths)} files, of which one is a table", hint="give one table, or runs")
        if source.system or source.timing is not None:
            raise UsageError(
                "a table has its values in it", where=str(paths[0]), hint="leave out --system and --timing"
            )
        return from_table(read_table(paths[0]), value, where=str(paths[0]))
    if len(paths) == 1:
        return of_run(source.open(paths[0]), value)
    if source.timing is not None:
        raise UsageError(f"one file of times for {len(paths)} recordings", hint="--timing needs exactly one run")
    with progress("reading recordings", len(paths)) as advance:
        runs = []
        for path in paths:
            runs.append(source.open(path))
            advance(1)
    found = of_runs(runs, value)
    if len(set(found.start_ns.tolist())) < len(paths):
        say("note: recordings that begin at one time are taken in the order given")
    return found


def _signals(found: "Trend", path: Path) -> dict[str, Any]:
    from etude.analyse.signals import correlated, joined
    from etude.store.tables import read_table

    beside = joined(found.samples, read_table(path), where=str(path))
    if beside.note:
        say(f"note: {beside.note}")
    return correlated(found, beside)


def _checkpoints(paths: list[Path], source: _Source, *, json: bool) -> None:
    from etude.analyse.checkpoints import checkpoints

    if len(paths) > 1:
        raise UsageError(f"{len(paths)} runs", hint="--checkpoints needs exactly one run")
    found = checkpoints(source.open(paths[0]))
    emit(found, json=json)
    if not len(found):
        say("no node of this run stores to memory or storage with a known size")


def _with_work(samples: "Samples", work: str) -> "Samples":
    from etude.analyse.samples import with_work, work_of_table
    from etude.store.tables import read_table

    if work in (AUTO, NONE):
        return samples
    return with_work(samples, work_of_table(samples, read_table(Path(work)), where=work))


def _period(text: str) -> int | None:
    if text in (AUTO, NONE):
        return None if text == AUTO else 0
    if not text.isdecimal():
        raise UsageError(f"--period: `{text}` is not a number of steps", hint="10, auto, none")
    return int(text)


def _forecast(found: "Trend", text: str) -> list[dict[str, Any]]:
    """The next steps: their numbers and values, and their start times if times are known."""
    import numpy as np

    from etude.analyse.series import forecast
    from etude.base.units import parse_time

    steps, start = found.samples.steps, found.samples.start_ns
    known = len(start) > 1 and int(start.min()) > np.iinfo(np.int64).min
    apart_ns = int(np.median(np.diff(start))) if known else 0
    if text.isdecimal():
        ahead = int(text)
    elif apart_ns > 0:
        ahead = -(-parse_time(text) // apart_ns)
    else:
        raise UsageError(
            f"--forecast: the number of steps in `{text}` is not known", hint="a number of steps, or a time column"
        )
    if not 1 <= ahead <= MOST_AHEAD:
        raise UsageError(f"--forecast: {ahead:,} steps", hint=f"1 to {MOST_AHEAD:,}")
    values = forecast(found.parts, ahead)
    numbers = int(steps[-1]) + 1 + np.arange(ahead)
    whole = found.samples.whole
    rows: list[dict[str, Any]] = [
        {"step": n, "value": round(v) if whole else v} for n, v in zip(numbers.tolist(), values.tolist(), strict=True)
    ]
    if apart_ns > 0:
        for i, row in enumerate(rows):
            row["start_ns"] = int(start[-1]) + (i + 1) * apart_ns
    return rows


def _show(shown: dict[str, Any], *, detect: bool, json: bool) -> None:
    if json:
        kept = ("value", "period", "change_points", "residual_spread", "findings", "signals")
        emit({name: shown[name] for name in kept if name in shown} if detect else shown, json=True)
        return
    if not detect:
        emit(_summary(shown))
        if "forecast" in shown:
            emit(shown["forecast"])
    rows = [{"finding": found["kind"], "text": found["text"]} for found in shown["findings"]]
    rows += [{"finding": "signal", "text": text} for text in shown.get("signals", {}).get("texts", ())]
    if rows:
        emit(rows)
    if not shown["findings"]:
        say("no change, cycle, drift or slow rank found")


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
