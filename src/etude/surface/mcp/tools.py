"""What can be asked of a server. The first argument is its access; the others, with their docstring, are what a client
sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from etude.base.errors import UsageError
from etude.surface.mcp.access import Access, check_model, check_names
from etude.surface.mcp.bounds import ROWS, rows_of

if TYPE_CHECKING:
    from etude.machine.system import System
    from etude.model.run import Run
    from etude.steps import Prediction

SECONDS: Final = 30.0
"""What a query may take."""
TOP: Final = 20


def info(access: Access, path: str) -> dict[str, Any]:
    """What is in a job: ranks, nodes by kind, bytes by collective, groups, time span, which program wrote it.

    path: a folder of `name.{rank}.et` files, one such file, JSON, an Etude Parquet folder, or a trace of PyTorch's
    profiler; relative to the root of the server.
    """
    from etude.capture import opening

    return opening.summary(access.readable(path))


def query(access: Access, path: str, sql: str) -> dict[str, Any]:
    """One SELECT over the tables of a job: nodes, deps, attrs, groups, members, ranks, traces.

    `DESCRIBE nodes` lists the columns. Times are in nanoseconds, sizes in bytes. SQL cannot open files or write.
    """
    from etude.capture import opening
    from etude.store.sql import query as run

    place = access.readable(path)
    source = place if opening.is_columns(place) else opening.open(place)
    wanted = f"SELECT * FROM (\n{sql.strip().rstrip(';')}\n) LIMIT {ROWS + 1}"
    found = run(source, wanted, seconds=SECONDS)
    made = rows_of(found)
    if len(found) > ROWS:
        made |= {"rows_in_all": None, "note": f"the first {ROWS} rows; there are more: aggregate, or use LIMIT, OFFSET"}
    return made


def breakdown(access: Access, path: str, system: str = "", steps: bool = False) -> dict[str, Any]:
    """Where each device's time goes: compute, exposed communication, exposed memory, idle. One row a rank.

    system: analyse the job as simulated on this system of the catalogue; leave it empty for recorded times.
    steps: one row for every step of every rank instead.
    """
    from etude.analyse.breakdown import breakdown as by_rank
    from etude.analyse.steps import steps as by_step

    run = _run(access, path, system)
    return rows_of(by_step(run) if steps else by_rank(run))


def critical_path(access: Access, path: str, system: str = "", top: int = TOP) -> dict[str, Any]:
    """What the end of the run waited for: length of the path, its time by kind, and its longest operations.

    buys_50_ns is how much shorter the run is if all nodes of that name take 50% less time.
    """
    from etude.analyse import critical_path as analyse
    from etude.analyse.what_if import MOST_NODES, what_if

    run = _run(access, path, system)
    found = analyse.critical_path(run)
    names = analyse.by_name(found).slice(0, max(1, min(top, ROWS)))
    if len(names) and run.job.nodes <= MOST_NODES:
        chosen = [(row["kind"], row["name"]) for row in names.select(["kind", "name"]).to_pylist()]
        bought = what_if(run, chosen)
        names = names.append_column("buys_50_ns", bought["buys_50_ns"])
    return {"length_ns": analyse.length_ns(found), "by_kind_ns": analyse.by_kind(found), "longest": rows_of(names)}


def compare(access: Access, a: str, b: str, system_a: str = "", system_b: str = "", top: int = TOP) -> dict[str, Any]:
    """Two runs side by side: their breakdowns, the ranked reasons why one takes longer, and the operations that differ.

    system_a, system_b: take a run as simulated on this system of the catalogue instead of as recorded.
    """
    from etude.analyse import compare as analyse
    from etude.analyse.reasons import reasons

    first, second = _run(access, a, system_a), _run(access, b, system_b)
    rows = max(1, min(top, ROWS))
    found = analyse.compare(first, second)
    return {
        "similarity": analyse.similarity(found),
        "breakdown": rows_of(analyse.breakdowns(first, second)),
        "reasons": rows_of(reasons(first, second), rows),
        "operations": rows_of(found, rows),
    }


def predict(
    access: Access, model: str, system: str, plan: dict[str, Any] | None = None, stack: str = "",
    edits: list[str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """How long a training step of a model takes on a system: step time, tokens/s, utilisation, memory, expected error.

    model: a name of the catalogue (llama3-8b) or a Hugging Face id. system: a name of the catalogue (dgx-h100).
    plan: {"gpus": 64, "tp": 2, "pp": 4, "zero": 1, "global_batch": 512, ...}. edits: what-if changes, such as
    ["compress group=dp ratio=2"], whose effect is given too.
    """
    found = _predicted(access, model, system, plan or {}, stack)
    if not edits:
        return found.summary()
    from etude.steps.what_if import findings, what_if

    pair = what_if(found, list(edits), check=True)
    return pair.summary() | {"findings": findings([pair])}


def edit(access: Access, path: str, edits: list[str], system: str = "", out: str = "") -> dict[str, Any]:
    """A what-if copy of a job: what each edit selects and how communication changes; with `system`, the simulated time
    before and after.

    edits: such as ["speed op=aten::mm by=1.3", "drop op=aten::copy_"]. out: the name under which the copy is written,
    which only a server with a writing folder does.
    """
    from etude.capture import opening
    from etude.make.transform.edits import apply_edits

    place = access.writable(out) if out else None
    job = opening.open(access.readable(path))
    machine = access.system(system).for_ranks(job.world_size) if system else None
    found = apply_edits(job, list(edits), system=machine)
    made: dict[str, Any] = {"edits": [step.record() for step in found.steps], "notes": list(found.notes)}
    if machine is not None:
        made["before_ns"], made["after_ns"] = (_span_ns(one, machine) for one in (job, found.job))
    if place is not None:
        _write(found.job, place)
        made["written"] = place.name
    return made


TOOLS: Final[tuple[Callable[..., dict[str, Any]], ...]] = (
    info, query, breakdown, critical_path, compare, predict, edit,
)  # fmt: skip


def _run(access: Access, path: str, system: str) -> Run:
    """The run at `path`, as recorded or as simulated on a system."""
    from etude.capture import opening
    from etude.model.run import Run
    from etude.run.simulate import simulate
    from etude.store import cards

    place = access.readable(path)
    job, card = opening.open(place), cards.find(place)
    if system:
        return replace(simulate(job, access.system(system).for_ranks(job.world_size)), card=card)
    if job.timing is None:
        raise UsageError(
            "no times were recorded in this job", where=path, hint='give `system`, such as "dgx-h100", to simulate it'
        )
    return Run(job, job.timing, card=card)


def _predicted(access: Access, model: str, system: str, plan: dict[str, Any], stack: str) -> Prediction:
    from etude.cost.stacks import open_stack, stack_names
    from etude.make.generate import Plan
    from etude.make.generate.model import open_model
    from etude.steps import predict as run
    from etude.steps.measured import Said, completed

    check_model(model)
    check_names(plan)
    if stack and stack not in (*stack_names(), "none"):
        raise UsageError(f"`{stack[:100]}` is not a stack of the catalogue", hint=f"known: {', '.join(stack_names())}")
    network, machine, software = open_model(model), access.system(system), open_stack(stack or "default")
    if stack in ("", "none"):
        return run(network, Plan.from_dict(plan, "plan"), machine, stack=software)
    wanted, assumed = completed(Said(model=network, given=plan, system=machine), software)
    found = run(network, wanted, machine, stack=software)
    return replace(found, assumed=(*assumed, *found.assumed))


def _span_ns(job: Any, machine: System) -> int | None:
    from etude.run.simulate import simulate

    span = simulate(job, machine.for_ranks(job.world_size)).timing.span()
    return None if span is None else span[1] - span[0]


def _write(job: Any, place: Path) -> None:
    from etude.base.files import writing
    from etude.model.fold import fold
    from etude.store import columns

    with writing(place) as folder:
        folder.mkdir()
        columns.write_job(fold(job), folder)
