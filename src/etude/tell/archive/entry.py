"""What an archive keeps of a run: its figures, steps, collectives, findings and card, and who it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from etude.analyse.card_changes import entries
from etude.analyse.causes import kernel_times
from etude.analyse.collectives import collectives, summarised
from etude.analyse.diagnose import diagnose
from etude.analyse.metrics import metrics
from etude.analyse.steps import steps
from etude.machine.system import Device
from etude.model.fingerprint import Fingerprint
from etude.model.run import Run
from etude.tell.archive.changes import KERNEL
from etude.tell.archive.schema import TABLES
from etude.tell.report import findings

MOST_KERNELS: Final = 60
"""Kinds of kernels of a run that are kept, the longest."""


@dataclass(frozen=True, slots=True, eq=False)
class LakeEntry:
    """The rows of one run, by table."""

    run: str
    """Its fingerprint."""
    tables: Mapping[str, pa.Table]


def fingerprint(run: Run) -> str:
    """32 hexadecimal digits that are the same for the same run: its ranks, what their nodes are, when they ran. The
    format and the folder it was read from do not enter."""
    ranks = [b""] * len(run.job.ranks)
    for part in run.parts():
        trace = part.trace
        of = Fingerprint(trace.kind, trace.collective, trace.in_bytes, trace.step, part.start_ns, part.end_ns).digest()
        for at in part.at.tolist():
            ranks[at] = of
    whole = Fingerprint(run.job.world_size, np.asarray(run.job.ranks, np.int64), int(run.timing.origin), *ranks)
    return whole.digest()[:16].hex()


def entry_of(
    run: Run, *, path: str = "", version: str = "", device: Device | None = None,
    advance: Callable[[int], None] = lambda amount: None,
) -> LakeEntry:  # fmt: skip
    """All that is kept of a run. `advance` is called for each table that is done."""
    key = fingerprint(run)
    step_rows = steps(run)
    made: dict[str, Callable[[], pa.Table]] = {
        "metrics": lambda: _metrics(run, device),
        "steps": lambda: step_rows,
        "collectives": lambda: summarised(collectives(run), by_group=True),
        "findings": lambda: _findings(run, device),
        "cards": lambda: _card(run),
        "runs": lambda: _about(run, path, version, len(set(step_rows["step"].to_pylist()))),
    }
    tables = {}
    for name, make in made.items():
        tables[name] = shaped(name, key, make())
        advance(1)
    return LakeEntry(key, tables)


def shaped(name: str, run: str, rows: pa.Table) -> pa.Table:
    """Rows with the columns of a table of the archive, and whose they are."""
    schema = TABLES[name]
    columns = [pa.array([run] * len(rows), pa.string())]
    for field in list(schema)[1:]:
        there = field.name in rows.column_names
        columns.append(rows[field.name].cast(field.type) if there else pa.nulls(len(rows), field.type))
    return pa.table(columns, schema=schema)


def _about(run: Run, path: str, version: str, num_steps: int) -> pa.Table:
    job, span = run.job, run.timing.span()
    card = run.card
    about = {
        "name": job.name, "path": path, "origin": run.timing.origin.name.lower(),
        "start_ns": span[0] if span else None, "span_ns": span[1] - span[0] if span else None,
        "ranks": len(job.ranks), "world_size": job.world_size, "nodes": job.nodes, "steps": num_steps,
        "system": run.system.name if run.system else (card.hardware.system if card else "") or None,
        "model": (card.model.name if card else "") or None, "etude": version,
    }  # fmt: skip
    fields = [field for field in TABLES["runs"] if field.name in about]
    return pa.Table.from_pylist([about], pa.schema(fields))


def _metrics(run: Run, device: Device | None) -> pa.Table:
    """The metrics of a run, and the time per step of its longest kernels, which changes are explained by."""
    found = metrics(run, device=device)
    longest = sorted(kernel_times(run).items(), key=lambda one: (-one[1], one[0]))[:MOST_KERNELS]
    rows = [{"metric": f"{KERNEL}{operator}/{kernel}", "value": ns, "unit": "ns"} for (operator, kernel), ns in longest]
    columns = ["metric", "value", "unit"]
    schema = pa.schema([TABLES["metrics"].field(name) for name in columns])
    return pa.concat_tables([found.select(columns).cast(schema), pa.Table.from_pylist(rows, schema)])


def _findings(run: Run, device: Device | None) -> pa.Table:
    """Sentences of the report, and those of `etude diagnose`, of which `what` is the kind and `tone` the level."""
    names = ("tone", "what", "why", "section", "cost_ns")
    rows = [{name: getattr(told, name) for name in names} for told in findings(run, device=device)]
    rows += [
        {"tone": one.level, "what": one.kind, "why": one.words, "section": "diagnose", "cost_ns": one.cost_ns}
        for one in diagnose(run)
    ]
    return pa.Table.from_pylist(rows, pa.schema([TABLES["findings"].field(name) for name in names]))


def _card(run: Run) -> pa.Table:
    rows = list(entries(run).items())
    return pa.table(
        {"key": pa.array([k for k, _ in rows], pa.string()), "value": pa.array([v for _, v in rows], pa.string())}
    )
