"""A study, from its file to its outcome."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from etude.base.errors import EtudeError, UsageError
from etude.decide.study import functions
from etude.decide.study.checks import checked
from etude.decide.study.claims import compare_claims
from etude.decide.study.compare import compared
from etude.decide.study.functions import Function
from etude.decide.study.library import find, is_own
from etude.decide.study.names import Options, check_names
from etude.decide.study.own import OwnInputs
from etude.decide.study.points import Point, points_of
from etude.decide.study.results import Results, forget, kept_in, settle
from etude.decide.study.space import Space
from etude.decide.study.spec import StudySpec, read_spec, spec_of
from etude.decide.study.sweep import carry_out, metric_of, table_of
from etude.decide.study.tasks import Execute, TaskAnswers
from etude.decide.study.trust import check
from etude.decide.study.workers import Run, here, processes

if TYPE_CHECKING:
    import pyarrow as pa

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a study found."""

    spec: StudySpec
    points: list[dict[str, Any]]
    """A row for every point: variant, place in the sweep, seed, metrics, error, commands."""
    rows: list[dict[str, Any]]
    """Variants against the baseline; without variants, the points."""
    checks: list[dict[str, Any]]
    claims: list[dict[str, Any]]
    notes: list[str]
    ran: int
    """Tasks that were carried out now; the others were known."""
    folder: Path | None = None

    @property
    def ok(self) -> bool:
        """No check fails, and some point has an answer."""
        return all(check["ok"] is not False for check in self.checks) and any(not row["error"] for row in self.points)

    def __repr__(self) -> str:
        held = sum(bool(check["ok"]) for check in self.checks)
        return f"Outcome(`{self.spec.name}`: {len(self.points)} points, {held} of {len(self.checks)} checks hold)"

    def _repr_html_(self) -> str:
        from etude.decide.study.shown import outcome_html

        return outcome_html(self)

    def record(self) -> dict[str, Any]:
        return {
            "name": self.spec.name,
            **self.spec.facts,
            "rows": self.rows,
            "checks": self.checks,
            "claims": self.claims,
            "notes": self.notes,
            "points": self.points,
        }

    def table(self) -> "pa.Table":
        return table_of(self.rows)


@dataclass(frozen=True, slots=True)
class Study:
    """A study that can be run.

    study: etude.extend.Study = etude.study("my.yaml")
    """

    spec: StudySpec

    def __repr__(self) -> str:
        return f"Study(`{self.spec.name}`: {self.spec.facts.get('title', '')}; {len(self.spec.checks)} checks)"

    def _repr_html_(self) -> str:
        from etude.decide.study.shown import study_html

        return study_html(self)

    def admit(self, options: Options | None = None) -> None:
        """Raises UsageError if it would do what it is not trusted with, or gives a command what it does not have."""
        tries, points = _asked(self.spec)
        if options is not None:
            check_names(self.spec, [*(point for _, some in tries for point in some), *points], options)

    def run(self, **options: Any) -> "pa.Table":
        """Variants against the baseline as a table; without variants, its points. Takes what `outcome` takes."""
        return self.outcome(**options).table()

    def outcome(
        self,
        *,
        out: str | PathLike[str] | None = None,
        workers: int = 1,
        ray: str = "",
        again: bool = False,
        fresh: bool = False,
        execute: Execute | None = None,
        said: TaskAnswers | None = None,
        progress: Progress = lambda what, total: nullcontext(lambda n: None),
    ) -> Outcome:
        """All points, each run once, and what comes of them.

        `out`: a folder for numbers, files and a page, from which a run that was cut off goes on; `workers`: processes,
        0 as many as cores; `ray`: `auto`, or the address of a cluster; `again`: try what failed before once more;
        `fresh`: run all;
        `execute`: runs a command in this process; `said`: what commands of other studies said there.
        """
        tries, points = _asked(self.spec)
        folder = Path(out) if out is not None else None
        if folder is not None:
            from etude.decide.study.folder import prepare

            prepare(folder, self.spec)
            if fresh:
                forget(folder)
        run = _runner(workers, ray, execute, said)
        with kept_in(folder, again) as results:
            points, ran = _all(self.spec, tries, points, results, run, progress)
            found = _outcome(self.spec, points, results, ran, folder)
            if folder is not None:
                settle(folder, results)
        if folder is not None:
            from etude.decide.study.folder import write

            write(folder, found, points)
        return found


def study(
    path: str | PathLike[str], *, quick: bool = False, neutral: bool = False, trust: bool = False, job: str = "",
    system: str = "", values: Mapping[str, Any] | None = None,
) -> Study:  # fmt: skip
    """The study in a file, or the entry of the gallery with that name. Without `trust` a file may not run programs or
    Python code, nor write outside its folder. `job`, `system` and `values` take the place of the study's own.

    etude.study("my.yaml").run()
    """
    file = find(path)
    spec = read_spec(file, quick=quick, neutral=neutral, own=OwnInputs(job, system, values or {}))
    return Study(replace(spec, trusted=trust or is_own(file)))


def evaluate(
    space: Space, what: str | Function, metrics: Mapping[str, str] | None = None, *,
    shared: Mapping[str, Any] | None = None, trust: bool = True, where: str = "sweep", **options: Any,
) -> "pa.Table":  # fmt: skip
    """A command or a function over a space of points: a column for each axis and each metric, and `error` where a point
    failed.

    evaluate(Space(axes={"tp": [1, 2, 4]}), "predict llama3-8b --gpus 8 --system dgx-h100 --json {flags}",
             {"step": "step_time_ns"}, workers=8)

    Metrics are expressions over the JSON that the command prints. A function is called with each point as keywords,
    and with what is `shared`; it returns a number, or columns as a mapping, of which `metrics` are expressions if there
    are some. Takes what `Study.outcome` takes: workers, ray, out, again, progress. `trust=False`: the command comes
    from a file, `where`, that may not run programs or code.
    """
    if callable(what):
        return _evaluated(space, what, metrics or {}, shared or {}, **options)
    if shared:
        hint = "files of commands are next to them; `shared` applies only to functions"
        raise UsageError("`shared` does not apply to commands", hint=hint)
    given = {"run": {"command": what}, "metrics": dict(metrics or {})}
    spec = replace(spec_of(given, "sweep", where, Path.cwd()), space=space, trusted=trust)
    rows = Study(spec).outcome(**options).points
    return table_of([{k: v for k, v in row.items() if k not in ("variant", "commands")} for row in rows])


def _evaluated(
    space: Space, function: Function, metrics: Mapping[str, str], shared: Mapping[str, Any], *,
    out: str | PathLike[str] | None = None, workers: int = 1, ray: str = "", again: bool = False,
    progress: Progress = lambda what, total: nullcontext(lambda n: None),
) -> "pa.Table":  # fmt: skip
    folder = Path(out) if out is not None else None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    count = workers or os.cpu_count() or 1
    if ray:
        run = functions.on_ray(function, shared, ray, workers)
    elif count == 1:
        run = functions.here(function, shared)
    else:
        run = functions.in_processes(function, shared, count)
    asked = functions.calls(function, space.points(), shared)
    with kept_in(folder, again) as results, progress("running", len(asked)) as advance:
        carry_out(asked, results, run, advance)
        if folder is not None:
            settle(folder, results)
    said = [_columns(results[call.key], metrics) for call in asked]
    names = dict.fromkeys(name for columns, _ in said for name in columns)
    return table_of(
        [
            {**call.at, **{name: columns.get(name) for name in names}, "error": error}
            for call, (columns, error) in zip(asked, said, strict=True)
        ]
    )


def _columns(found: dict[str, Any], metrics: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """(columns, error) of a call."""
    if found["error"] or not metrics:
        return functions.columns_of(found), found["error"]
    try:
        return {name: metric_of(text, ["of"], found, "metrics") for name, text in metrics.items()}, ""
    except EtudeError as problem:
        return {}, str(problem).replace("\n", "; ")


def _runner(workers: int, ray: str, execute: Execute | None, said: TaskAnswers | None) -> Run:
    if ray:
        from etude.decide.study.on_ray import on_ray

        return on_ray(ray, workers)
    count = workers or os.cpu_count() or 1
    return here(execute, said) if execute is not None and count == 1 else processes(count)


Tries: TypeAlias = list[tuple[dict[str, Any], list[Point]]]
"""Settings over which variants are tuned, and the points of each."""


def _tuned(spec: StudySpec) -> list[str]:
    """Variants that are tuned."""
    return [] if spec.tune is None else list(spec.variants) if spec.tune_all else [spec.baseline]


def _asked(spec: StudySpec) -> tuple[Tries, list[Point]]:
    """What may run: points of tuning, and those of variants that are not tuned. Refused here if it may not."""
    variants = _tuned(spec)
    settings = spec.tune.points() if spec.tune is not None else []
    tries = [(setting, points_of(spec, variants, _same(spec, variants, setting))) for setting in settings]
    points = points_of(spec, [name for name in spec.variants if name not in variants])
    if not spec.trusted:
        for point in [*(point for _, some in tries for point in some), *points]:
            check(point.task, list(spec.commands), spec.where)
    return tries, points


def _all(
    spec: StudySpec, tries: Tries, points: list[Point], results: Results, run: Run, progress: Progress
) -> tuple[list[Point], int]:
    """Tunes first, where asked, then runs the rest."""
    ran = 0
    if tries:
        tasks = [point.task for _, some in tries for point in some]
        with progress("tuning", len(tasks)) as advance:
            ran += carry_out(tasks, results, run, advance)
        points = points_of(spec, list(spec.variants), _best(spec, tries, results))
    with progress("running", len(points)) as advance:
        ran += carry_out([point.task for point in points], results, run, advance)
    return points, ran


def _same(spec: StudySpec, variants: list[str], setting: Mapping[str, Any]) -> dict[tuple[str, int], Mapping[str, Any]]:
    return {(variant, i): setting for variant in variants for i in range(len(spec.space.points()))}


def _best(
    spec: StudySpec, tries: list[tuple[dict[str, Any], list[Point]]], results: Results
) -> dict[tuple[str, int], Mapping[str, Any]]:
    """The setting with the best mean of the first metric, at each place; the first of equals."""
    metric, size = spec.metrics[0], max(1, len(spec.seeds))
    names = list(spec.commands)
    best: dict[tuple[str, int], tuple[float, Mapping[str, Any]]] = {}
    for setting, points in tries:
        for start in range(0, len(points), size):
            some = points[start : start + size]
            values = [_value(metric.value, names, results[p.task.key])[0] for p in some]
            if not all(isinstance(v, int | float) for v in values):
                continue
            score = sum(values) / len(values) * (-1 if metric.better == "higher" else 1)
            key = (some[0].variant, (start // size) % len(spec.space.points()))
            if key not in best or score < best[key][0]:
                best[key] = (score, setting)
    return {key: setting for key, (_, setting) in best.items()}


def _outcome(spec: StudySpec, points: list[Point], results: Results, ran: int, folder: Path | None) -> Outcome:
    undefined: dict[str, str] = {}
    rows = [_row(spec, point, results, undefined) for point in points]
    failed = [row for row in rows if row["error"]]
    notes = list(spec.changed)
    if failed:
        notes.append(f"{len(failed)} of {len(rows)} points failed; the first: {failed[0]['error']}")
    if spec.own:
        notes += dict.fromkeys(note for point in points for note in _notes(results[point.task.key]))
    notes += [f"`{name}` has no value at some points: {why}" for name, why in undefined.items()]
    if spec.tune is not None:
        told = {f"{p.variant}{_at(p.at)}: {_at(p.tuned) or 'nothing fits'}" for p in points if p.tuned}
        notes += [f"tuned: {text}" for text in sorted(told)]
    pairs = compared(spec, rows) if len(spec.variants) > 1 else rows
    checks, claims = checked(spec, rows), compare_claims(spec, rows)
    return Outcome(
        spec=spec, points=rows, rows=pairs, checks=checks, claims=claims, notes=notes, ran=ran, folder=folder
    )


def _notes(found: Mapping[str, Any]) -> list[str]:
    """What the commands of a point said besides: of a user's own job that is news."""
    said = []
    for one in found["answers"]:
        try:
            record = json.loads(one["out"])
        except ValueError:
            continue
        notes = record.get("notes") if isinstance(record, dict) else None
        said += [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []
    return said


def _at(place: Mapping[str, Any]) -> str:
    return "".join(f" {k}={v}" for k, v in place.items())


def _row(spec: StudySpec, point: Point, results: Results, undefined: dict[str, str]) -> dict[str, Any]:
    """A metric without a value leaves the others as they are; with none that has one, the point has failed."""
    found = results[point.task.key]
    row: dict[str, Any] = {"variant": point.variant, **point.at}
    if point.seed is not None:
        row["seed"] = point.seed
    problems: dict[str, str] = {}
    for metric in spec.metrics:
        row[metric.name], problem = _value(metric.value, list(spec.commands), found)
        if problem:
            problems[metric.name] = problem
    error = found["error"]
    if not error and len(problems) == len(spec.metrics):
        error = next(iter(problems.values()))
    elif not error:
        undefined |= problems
    return {**row, "error": error, "commands": point.task.shown()}


def _value(expression: str, names: list[str], found: dict[str, Any]) -> tuple[Any, str]:
    if found["error"]:
        return None, found["error"]
    try:
        return metric_of(expression, names, found, "metrics"), ""
    except EtudeError as problem:
        return None, str(problem).replace("\n", "; ")
