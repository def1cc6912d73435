"""Studies: what the verbs of `etude study` ask for."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part, switch, text
from etude.base.outputs import OutputPlace, Printed
from etude.base.parameters import spelled
from etude.base.talk import progress, say
from etude.decide.study.own import OwnInputs

if TYPE_CHECKING:
    from etude.decide.study import Outcome, Study
    from etude.decide.study.names import Options
    from etude.decide.study.tasks import Execute


FEW = 16
"""Points up to which one process, this one, is quicker than starting others."""
WHAT, WHERE, OWN = "What is run", "Where it runs", "Your own in it"


@dataclass(frozen=True, kw_only=True)
class RunStudy:
    """Run a study: a table, checks, and a folder with its numbers and a page; exit code 1 if a check fails

    etude study run zipccl
    etude study run my.yaml -j 8
    etude study run my.yaml --ray auto
    etude study run --all --quick
    etude study run theirs.yaml --trust
    etude study run zipccl --set gbit=200,400
    """

    names: tuple[str, ...] = argument(
        "paths", "a YAML file, or a name that `etude study list` has", (), like=["zipccl", "my.yaml"]
    )
    out: str = figure("out", "folder of studies; each study has its own folder in it", "studies", names=("-o",))
    workers: int = figure(
        "count",
        "number of processes; 0: one per core if there are many points, one with --quick",
        0,
        names=("-j",),
        panel=WHERE,
    )
    ray: str = text("run on Ray: `auto`, or the address of a cluster", like="auto", panel=WHERE)
    job: str = figure("path", "your job or recording in the place of the one that the study generates", "", panel=OWN)
    system: str = text(
        "simulate on your system in the place of the study's: a file or a name", like="dgx-a100", panel=OWN
    )
    values: tuple[str, ...] = figure(
        "several",
        "other values: NAME=VALUE[,VALUE] of an axis, a parameter, `seeds` or `model`",
        (),
        key="set",
        like="gbit=200",
        panel=OWN,
    )
    all_of_them: bool = switch("run every entry of the gallery", key="all", panel=WHAT)
    quick: bool = switch("use the smaller settings that the study defines for it", panel=WHAT)
    neutral: bool = switch("switch the mechanism off: a check of the shape should then fail", panel=WHAT)
    again: bool = switch("run points that failed before again", panel=WHAT)
    trust: bool = switch("let the file run programs and Python code, and write outside its folder", panel=WHAT)
    force: bool = switch("run all points again, also those that are known", names=("-f",), panel=WHAT)
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class StudyInputs:
    names: tuple[str, ...]
    """Empty: the whole gallery."""
    own: "OwnInputs"
    quick: bool
    neutral: bool
    trust: bool
    out: Path
    workers: int
    ray: str
    again: bool
    force: bool

    def studies(self) -> "list[Study]":
        from etude.decide.study import entries, study

        names = self.names or [str(entry["name"]) for entry in entries()]
        how: dict[str, Any] = {"quick": self.quick, "neutral": self.neutral, "trust": self.trust}
        return [study(n, **how, job=self.own.job, system=self.own.system, values=self.own.values) for n in names]

    def folder(self, name: str) -> Path:
        parts = (name, "quick" if self.quick else "", "neutral" if self.neutral else "", "own" if self.own else "")
        return self.out / ".".join(filter(None, parts))


def inputs(asked: RunStudy) -> StudyInputs:
    from etude.decide.study import study

    if asked.all_of_them == bool(asked.names):
        both = f"only one of NAMES and {spelled(asked, 'all')} can be given"
        hint = "a file, a name of `etude study list`, or --all"
        raise UsageError(both if asked.names else "no study is given", hint=hint)
    if asked.again and asked.force:
        raise UsageError(f"{spelled(asked, 'force')} runs all points, also those of {spelled(asked, 'again')}")
    for name, value in (("job", asked.job), ("system", asked.system), ("set", asked.values)):
        if not asked.names and value:
            what = f"{spelled(asked, 'all')} runs every entry as it is, without {spelled(asked, name)}"
            raise UsageError(what, hint="name the entries that take it")
    own = OwnInputs(asked.job, asked.system, _values(asked.values))
    is_own_code = all(study(name).spec.trusted for name in asked.names)  # entries of the gallery are trusted
    found = StudyInputs(
        asked.names, own, asked.quick, asked.neutral, not is_own_code and asked.trust, Path(asked.out), asked.workers,
        asked.ray, asked.again, asked.force,
    )  # fmt: skip
    _check_defined(asked, "quick", "smaller settings: quick: {...}")
    _check_defined(asked, "neutral", "how its mechanism is switched off: neutral: {...}")
    if asked.names:
        found.studies()
    return found


def _values(given: tuple[str, ...]) -> dict[str, Any]:
    """NAME=VALUE as in the study's file; several values are a list."""
    found: dict[str, Any] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not (name and equals and value):
            raise UsageError(f"`{one}` is not a name and a value", where="--set", hint="--set gbit=200")
        if name in found:
            raise UsageError(f"`{name}` is given twice", where="--set", hint=f"--set {name}=A,B is a list")
        values = [_value(part) for part in value.split(",")]
        found[name] = values[0] if len(values) == 1 else values
    return found


def _value(given: str) -> Any:
    for kind in (int, float):
        try:
            return kind(given)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(given, given)


def _check_defined(asked: RunStudy, key: str, what: str) -> None:
    """Refuses a switch that none of the given studies defines."""
    from etude.decide.study import study

    if getattr(asked, key) and asked.names and not any(key in study(name).spec.text for name in asked.names):
        where = f"{spelled(asked, key)}: {asked.names[0]}"
        raise UsageError(f"does not define {what.partition(':')[0]}", where=where, hint=what.partition(": ")[2])


@dataclass(slots=True)
class Running:
    """Studies that run one after the other, as they are asked for: what is done can be shown while others run."""

    given: StudyInputs
    execute: "Execute | None" = None
    """Runs a command in this process."""
    options: "Options | None" = None
    """Which command words call, and its options."""
    done: "list[Outcome]" = field(default_factory=list)

    def __iter__(self) -> "Iterator[tuple[Outcome, float]]":
        """Outcomes, and the CPU time of each in seconds."""
        given, studies = self.given, self.given.studies()
        for one in studies:  # all of them before the first runs
            one.admit(self.options)
        for one in studies:
            before_s, folder = _cpu_s(), given.folder(one.spec.name)
            points = len(one.spec.space.points()) * len(one.spec.variants) * max(1, len(one.spec.seeds))
            workers = given.workers or (1 if given.quick or points <= FEW else 0)
            outcome = one.outcome(
                out=folder,
                workers=workers,
                ray=given.ray,
                again=given.again,
                fresh=given.force,
                execute=self.execute,
                progress=_progress,
            )
            self.done.append(outcome)
            yield outcome, _cpu_s() - before_s


def record(running: Running) -> Any:
    records = [outcome.record() for outcome, _ in running]
    return records if len(records) > 1 or not running.given.names else records[0]


def reads(running: Running) -> Iterator[Any]:
    is_all, cpu_s = not running.given.names, 0.0
    for outcome, one_s in running:
        yield from _read(outcome, brief=is_all, cpu_s=one_s)
        cpu_s += one_s
    if is_all:
        say(_summary(running.done, cpu_s))


def code(running: Running) -> int:
    """1: a check fails."""
    return 0 if all(outcome.ok for outcome in running.done) else 1


@dataclass(frozen=True, kw_only=True)
class ListStudies:
    """The gallery: published systems as studies

    etude study list
    """

    output: Printed = part(Printed)


def listed(_: None) -> list[dict[str, Any]]:
    from etude.decide.study import entries

    return list(entries())


@dataclass(frozen=True, kw_only=True)
class ShowStudy:
    """The file of a study, to be changed and run

    etude study show zipccl
    """

    name: str = argument("text", "a name that `etude study list` has, or a file", like="my.yaml")


def text_of(path: Path) -> str:
    from etude.decide.study import study

    return Path(study(path).spec.where).read_text("utf-8")


def study_file(asked: ShowStudy) -> Path:
    from etude.decide.study import study

    return Path(study(asked.name).spec.where)


@dataclass(frozen=True, kw_only=True)
class NewStudy:
    """Write a small study that runs, to be changed into your own

    etude study new
    """

    path: str = argument("path", "file to write", "study.yaml", like="new-study.yaml")
    force: bool = switch("replace what is there", names=("-f",))


def place_of(asked: NewStudy) -> OutputPlace:
    place = OutputPlace.at(asked.path, asked.force)
    assert place is not None
    return place


def new(place: OutputPlace) -> Path:
    from etude.base.files import writing
    from etude.decide.study import template

    with writing(place.path, force=place.force) as temporary:
        temporary.write_text(template(), "utf-8")
    say(f"wrote {place.path}; etude study run {place.path}")
    return place.path


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    with progress(what, total) as advance:
        yield lambda amount: advance(amount)


def _cpu_s() -> float:
    """CPU time in seconds of this process and of its child processes that have ended, without those of Ray."""
    return sum(os.times()[:4])


def _summary(found: "list[Outcome]", cpu_s: float) -> str:
    """One line with the number of entries, how many are whole, the number of checks, and which entries failed."""
    checks = [(outcome.spec.name, check) for outcome in found for check in outcome.checks]
    whole = sum(outcome.spec.facts.get("status") == "whole" for outcome in found)
    failed = sum(check["ok"] is False for _, check in checks)
    where = [outcome.spec.name for outcome in found if not outcome.ok]
    return (
        f"{len(found)} entries, {whole} whole; {len(checks)} checks, {failed} failed"
        + (f" ({', '.join(where)})" if where else "")
        + f"; {cpu_s:,.0f} CPU s"
    )


def _read(found: "Outcome", *, brief: bool, cpu_s: float) -> Iterator[Any]:
    rows = [{k: v for k, v in row.items() if k != "commands"} for row in found.rows]
    if not brief:
        for command in dict.fromkeys(row["commands"] for row in found.points[:3]):
            say(f"runs: {command}")
        if len(found.points) > 3:
            say(f"      and so on, {len(found.points):,} points; all are in {found.folder}/commands.sh")
        yield rows
        yield ""
    yield [{"study": found.spec.name} | _said(check) for check in found.checks] or [{"study": found.spec.name}]
    if found.claims and not brief:
        yield ""
        yield [_claim(claim) for claim in found.claims]
    for note in found.notes:
        say(f"note: {note}")
    known = len({row["commands"] for row in found.points}) - found.ran
    ran = f"{found.ran:,} points run" + (f", {known:,} known" if known > 0 else "")
    say(f"{found.folder}/page.html; {ran}, {cpu_s:.1f} CPU s")


def _said(check: dict[str, Any]) -> dict[str, Any]:
    holds = "not asked" if check["ok"] is None else check["ok"]
    return {"check": check["name"], "kind": check["kind"], "holds": holds, "detail": check["detail"][:150]}


def _claim(claim: dict[str, Any]) -> dict[str, Any]:
    ours = claim["ours"]
    if claim["low"] is not None:
        ours = f"{ours:.4g} ({claim['low']:.4g} to {claim['high']:.4g})"
    return {"claim": claim["figure"], "published": claim["published"], "ours": ours, "verdict": claim["verdict"]}
