import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.base.errors import UsageError
from etude.surface.cli.app import RUN, app
from etude.surface.cli.groups import Group
from etude.surface.cli.output import AsJson, emit, progress, say

if TYPE_CHECKING:
    from etude.decide.study import Outcome

HELP = "Baseline against variants from one file: points run once, pairs, intervals, checks, a page; a gallery"
study = typer.Typer(cls=Group, help=HELP, no_args_is_help=True)
app.add_typer(study, name="study", rich_help_panel=RUN)

OUT = Path("studies")
FEW = 16
"""Points up to which one process, this one, is quicker than starting others."""


@study.command("run")
def run_study(
    names: Annotated[
        list[str] | None, typer.Argument(help="A YAML file, or a name that `etude study list` has.", show_default=False)
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of studies; each study has its own folder in it.")
    ] = OUT,
    workers: Annotated[
        int,
        typer.Option(
            "--workers",
            "-j",
            min=0,
            help="Number of processes; 0: one per core if there are many points, one with --quick.",
        ),
    ] = 0,
    ray: Annotated[str, typer.Option(help="Run on Ray: `auto`, or the address of a cluster.")] = "",
    all_of_them: Annotated[bool, typer.Option("--all", help="Run every entry of the gallery.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use the smaller settings that the study defines for it.")
    ] = False,
    neutral: Annotated[
        bool, typer.Option("--neutral", help="Switch the mechanism off: a check of the shape should then fail.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Run points that failed before again.")] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Let the file run programs and Python code, and write outside its folder.")
    ] = False,
    json: AsJson = False,
) -> int:
    """Run a study: a table, checks, and a folder with its numbers and a page; exit code 1 if a check fails

    etude study run zipccl
    etude study run my.yaml -j 8
    etude study run my.yaml --ray auto
    etude study run --all --quick
    etude study run theirs.yaml --trust
    """
    from etude.decide.study import entries
    from etude.decide.study import study as opened

    if all_of_them == bool(names):
        raise UsageError("no study is given", hint="a file, a name of `etude study list`, or --all")
    found: list[Outcome] = []
    began_s = _cpu_s()
    named = [entry["name"] for entry in entries()] if all_of_them else names or []
    studies = [opened(name, quick=quick, neutral=neutral, trust=trust) for name in named]
    for one in studies if len(studies) > 1 else ():  # all of them before the first runs
        one.admit()
    for one in studies:
        before_s = _cpu_s()
        points = len(one.spec.space.points()) * len(one.spec.variants) * max(1, len(one.spec.seeds))
        outcome = one.outcome(
            out=out / (one.spec.name + (".quick" if quick else "") + (".neutral" if neutral else "")),
            workers=workers or (1 if quick or points <= FEW else 0),
            ray=ray,
            again=again,
            execute=executed,
            progress=_progress,
        )
        found.append(outcome)
        if not json:
            _show(outcome, brief=all_of_them, cpu_s=_cpu_s() - before_s)
    if json:
        records = [outcome.record() for outcome in found]
        emit(records if all_of_them or len(records) > 1 else records[0], json=True)
    if all_of_them:
        say(_summary(found, _cpu_s() - began_s))
    return 0 if all(outcome.ok for outcome in found) else 1


@study.command("list")
def list_studies(json: AsJson = False) -> None:
    """The gallery: published systems as studies"""
    from etude.decide.study import entries

    emit(entries(), json=json)


@study.command()
def show(name: Annotated[str, typer.Argument(help="A name that `etude study list` has, or a file.")]) -> None:
    """The file of a study, to be changed and run, and the commands of its points"""
    from etude.decide.study import study as opened

    one = opened(name)
    print(Path(one.spec.where).read_text("utf-8"), end="")


@study.command()
def new(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("study.yaml"),
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace existing output.")] = False,
) -> None:
    """Write a small study that runs, to be changed into your own"""
    from etude.base.files import writing
    from etude.decide.study import template

    with writing(path, force=force) as temporary:
        temporary.write_text(template(), "utf-8")
    say(f"wrote {path}; etude study run {path}")


@study.command(hidden=True)
def worker() -> None:
    """Carry out tasks that come as lines of JSON"""
    from etude.decide.study import serve

    out = sys.stdout

    def write(line: str) -> None:
        out.write(line)
        out.flush()

    serve(sys.stdin, write, executed)


def executed(words: list[str]) -> tuple[int, str, str]:
    """A command of Etude, run in this process: exit code, stdout, stderr."""
    from etude.surface.cli import main

    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(words)
    return code, out.getvalue(), err.getvalue()


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
    failed = sum(not check["ok"] for _, check in checks)
    where = [outcome.spec.name for outcome in found if not outcome.ok]
    return (
        f"{len(found)} entries, {whole} whole; {len(checks)} checks, {failed} failed"
        + (f" ({', '.join(where)})" if where else "")
        + f"; {cpu_s:,.0f} CPU s"
    )


def _show(found: "Outcome", *, brief: bool, cpu_s: float) -> None:
    rows = [{k: v for k, v in row.items() if k != "commands"} for row in found.rows]
    if not brief:
        for command in dict.fromkeys(row["commands"] for row in found.points[:3]):
            say(f"runs: {command}")
        if len(found.points) > 3:
            say(f"      and so on, {len(found.points):,} points; all are in {found.folder}/commands.sh")
        emit(rows)
        print()
    emit([{"study": found.spec.name} | _said(check) for check in found.checks] or [{"study": found.spec.name}])
    for note in found.notes:
        say(f"note: {note}")
    known = len({row["commands"] for row in found.points}) - found.ran
    ran = f"{found.ran:,} points run" + (f", {known:,} known" if known > 0 else "")
    say(f"{found.folder}/page.html; {ran}, {cpu_s:.1f} CPU s")


def _said(check: dict[str, Any]) -> dict[str, Any]:
    return {"check": check["name"], "kind": check["kind"], "holds": check["ok"], "detail": check["detail"][:150]}
