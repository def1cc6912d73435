"""The tables that a page about a run is made of, by name: what its numbers are worked out from.

Each is an analysis of the run, or one row of figures about it. `etude evaluate` knows them by the same names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etude.analyse.breakdown import breakdown, not_counted
from etude.analyse.collectives import collectives, summarised
from etude.analyse.completions import completions, link_sums
from etude.analyse.critical_path import by_kind, by_name, length_ns
from etude.analyse.energy import Energy, energy
from etude.analyse.graphs import graph_replays
from etude.analyse.idle import idle
from etude.analyse.late_hosts import stages
from etude.analyse.launches import untied
from etude.analyse.memory import copies, peaks
from etude.analyse.operations import messages
from etude.analyse.operators import kernels, operators
from etude.analyse.program_figures import ESTIMATED, program_figures, times_of
from etude.analyse.roofline import not_known, roofline, utilisation
from etude.analyse.steps import steps
from etude.analyse.stragglers import stragglers
from etude.analyse.waiting import waiting
from etude.cost.aten_families import FAMILIES
from etude.model.frames import SEGMENT
from etude.model.job import Job, Note
from etude.model.schema import UNKNOWN
from etude.tell.report import words

if TYPE_CHECKING:
    from etude.tell.report.subject import Subject

__all__ = ["TABLES", "energy_of", "facts", "inside_of", "said_once"]

OWN = "(code between operators)"
BETWEEN = "host code between operators"
PATH_ROWS: Final = 300
HALVED: Final = 20
"""Rows of the critical path for which the gain of halving is computed."""


def one_row(values: dict[str, Any]) -> pa.Table:
    return pa.table({name: [value] for name, value in values.items()})


def with_own_time(found: pa.Table) -> pa.Table:
    """Segments under a name that says what they are."""
    names = pc.if_else(pc.equal(found["name"], SEGMENT), OWN, found["name"])
    return found.set_column(found.column_names.index("name"), "name", names)


def _run(subject: Subject) -> pa.Table:
    job = subject.run.job
    rows = {
        "name": subject.name,
        "job": job.name,
        "span_ns": subject.span_ns,
        "ranks": len(job),
        "world_size": job.world_size,
        "nodes": job.nodes,
    }
    return one_row(rows)


def _device(subject: Subject) -> pa.Table:
    found = subject.device
    if found is None:
        return pa.table({"name": pa.array([], pa.string()), "cache_bytes": pa.array([], pa.int64())})
    return one_row({"name": found.name, "cache_bytes": found.cache_bytes})


def _host(subject: Subject) -> pa.Table:
    rows = {
        "launches": subject.launches,
        "replayed_kernels": sum(graph_replays(subject.run)["kernels"].to_pylist()),
        "first_work_ns": subject.first_work_ns,
        "loading_ns": subject.loading_ns,
        "waits_ns": subject.host_waits_ns,
    }
    return one_row(rows)


def _stages(subject: Subject) -> pa.Table:
    """What each rank computes, with its pipeline stage."""
    found = subject.table("breakdown").select(["rank", "compute_ns"])
    return found.append_column("stage", pa.array(stages(subject.run), pa.int64()))


def _program(subject: Subject) -> pa.Table:
    """The figures of the program of which this is a recording, with their range where they are estimated."""
    found = program_figures(subject.run)
    rows = {name: found.get(name) for name in ("step_ns", "busy_share", "recorded_step_ns")}
    for side in ("low", "high"):
        rows |= {f"{side}_{name}": found.get(side, {}).get(name) for name in ("step_ns", "busy_share")}
    return one_row(rows | {"estimated": times_of(subject.run.job) == ESTIMATED})


def _step_means(subject: Subject) -> pa.Table:
    """One row per step: means over its ranks."""
    found = subject.table("steps")
    if not len(found):
        return found.append_column("ranks", pa.array([], pa.int64()))
    by = [name for name in found.column_names if name.endswith("_ns")]
    summed = found.group_by("step", use_threads=False).aggregate([*((name, "mean") for name in by), ("step", "count")])
    names = {"step": "step", "step_count": "ranks"} | {f"{name}_mean": name for name in by}
    return summed.rename_columns([names[name] for name in summed.column_names]).sort_by("step")


def _waiting(subject: Subject) -> pa.Table:
    """In collectives, and waiting for others in them: means over the ranks that are in any."""
    found = waiting(subject.run)
    total, wait = (found[name].to_numpy() for name in ("in_collectives_ns", "wait_ns"))
    ranks = max(int((total > 0).sum()), 1)
    rows = {"in_collectives_ns": round(total.sum() / ranks), "wait_ns": round(wait.sum() / ranks)}
    return one_row(rows)


def _met(subject: Subject) -> pa.Table:
    """Collectives of which more than one member was recorded."""
    found = subject.table("collectives")
    return found.filter(pc.greater(found["ranks_seen"], 1))


def _collective_sums(subject: Subject) -> pa.Table:
    """By kind of collective: transfer and waiting, the longest first."""
    by: dict[str, list[int]] = {}
    for row in subject.table("collective_kinds").to_pylist():
        entry = by.setdefault(str(row["collective"]), [0, 0])
        entry[0] += row["total_transfer_ns"] or 0
        entry[1] += row["total_wait_ns"] or 0
    rows = sorted(by.items(), key=lambda item: -sum(item[1]))
    return pa.table(
        {
            "collective": pa.array([name for name, _ in rows], pa.string()),
            "transfer_ns": pa.array([both[0] for _, both in rows], pa.int64()),
            "wait_ns": pa.array([both[1] for _, both in rows], pa.int64()),
        }
    )


def _kernels(subject: Subject) -> pa.Table:
    return with_own_time(kernels(subject.run))


def _kernel_kinds(subject: Subject) -> pa.Table:
    total: dict[str, int] = {}
    for row in subject.table("kernels").to_pylist():
        total[row["kind"]] = total.get(row["kind"], 0) + row["total_ns"]
    rows = sorted(total.items(), key=lambda item: -item[1])
    return pa.table(
        {
            "kind": pa.array([kind for kind, _ in rows], pa.string()),
            "total_ns": pa.array([ns for _, ns in rows], pa.int64()),
        }
    )


def _host_operators(subject: Subject) -> pa.Table:
    """Operators of the host that take time, themselves or on a device."""
    found = operators(subject.run)
    some = pc.or_(pc.greater(found["device_total_ns"], 0), pc.greater(found["self_ns"], 0))
    return found.filter(some)


def _roofline(subject: Subject) -> pa.Table:
    found = with_own_time(roofline(subject.run, subject.device))
    if subject.has_device:
        return found
    # On a host an operator's work is assigned to the longest of its pieces, not to an `aten::empty` that it calls.
    own = pc.or_(pc.not_equal(found["op_class"], "other"), pc.is_in(found["name"], pa.array(list(FAMILIES))))
    return found.filter(own)


def _utilisation(subject: Subject) -> pa.Table:
    if subject.device is None:
        return pa.table({"rank": pa.array([], pa.int32()), "hfu": pa.array([], pa.float64())})
    return utilisation(subject.run, subject.device)


def _path_figures(subject: Subject) -> pa.Table:
    kinds, length = by_kind(subject.path), length_ns(subject.path)
    whole = max(length, subject.span_ns, 1)
    names = ("compute", "communication", "memory", "host", "launch", "gap", "other")
    rows = {"length_ns": length, "whole_ns": whole} | {f"{name}_ns": kinds.get(name, 0) for name in names}
    return one_row(rows)


def _path_kinds(subject: Subject) -> pa.Table:
    kinds = by_kind(subject.path)
    return pa.table({"kind": pa.array(list(kinds), pa.string()), "time_ns": pa.array(list(kinds.values()), pa.int64())})


def _path_operations(subject: Subject) -> pa.Table:
    """Operations on the path, and what the run gains, as a share, if they take half as long; of the longest. An
    operator's own time is not a class, so that is left open."""
    found = subject.table("path_names").slice(0, PATH_ROWS)
    buys = []
    for number, row in enumerate(found.slice(0, HALVED).to_pylist()):
        known = number < HALVED and row["kind"] not in ("launch", "gap") and row["name"]
        known = known and row["name"] != BETWEEN and not row["name"].endswith(", itself")
        gain = subject.gain(row["kind"], name=row["name"]) if known else None
        buys.append(None if gain is None else gain / max(subject.span_ns, 1))
    buys += [None] * (len(found) - len(buys))
    return found.append_column("buys", pa.array(buys, pa.float64()))


def _first_use(subject: Subject) -> pa.Table:
    rows = subject.first_use
    return pa.table(
        {
            "name": pa.array([name for name, _, _ in rows], pa.string()),
            "count": pa.array([count for _, count, _ in rows], pa.int64()),
            "time_ns": pa.array([ns for _, _, ns in rows], pa.int64()),
        }
    )


def _retiming(subject: Subject) -> pa.Table:
    """What re-timing does not cover: ns of the run, and the share of the device's time without a known launch."""
    fixed = subject.retimed.fixed_ns if subject.retimed else 0
    return one_row({"fixed_ns": fixed, "untied_share": untied(subject.run)})


def _timeline(subject: Subject) -> pa.Table:
    packed = subject.packed
    rows = {
        "drawn": len(subject.drawn()),
        "kept": len(subject.kept()),
        "ranks": len(subject.run.job),
        "slices": packed.slices,
        "merged_below_ns": packed.merged_below_ns,
    }
    return one_row(rows)


def _messages(subject: Subject) -> pa.Table:
    """Sends and receives by pair of ranks, the most bytes first; medians of their times."""
    run = subject.run
    sent = messages(run.job)
    names = ("from", "to", "count", "bytes", "send_ns", "receive_ns")
    kinds = (pa.int64(),) * 4 + (pa.float64(),) * 2
    found: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    blocks = [run.timing.block(at) for at in range(len(run.job))] if len(sent.src_at) else []
    for a, i, b, j, size in zip(
        sent.src_at.tolist(),
        sent.src_row.tolist(),
        sent.dst_at.tolist(),
        sent.dst_row.tolist(),
        sent.size_bytes.tolist(),
        strict=True,
    ):
        (start, end), (begin, done) = blocks[a], blocks[b]
        if UNKNOWN not in (start[i], end[i], begin[j], done[j]):
            found.setdefault((a, b), []).append((max(size, 0), int(end[i] - start[i]), int(done[j] - begin[j])))
    ranks, rows = run.job.ranks.tolist(), []
    for (a, b), all_of in found.items():
        sizes, send, receive = np.array(all_of, np.int64).T
        middle = float(np.median(send)), float(np.median(receive))
        rows.append((ranks[a], ranks[b], len(sizes), int(sizes.sum()), *middle))
    rows.sort(key=lambda row: (-row[3], row[0], row[1]))
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    return pa.table({n: pa.array(list(c), kind) for n, kind, c in zip(names, kinds, columns, strict=True)})


def _allocated(subject: Subject) -> pa.Table:
    return peaks(subject.allocated) if subject.allocated is not None and len(subject.allocated) else pa.table({})


def _copies(subject: Subject) -> pa.Table:
    return copies(subject.run)


def _noted(subject: Subject) -> pa.Table:
    """What was noted when the run was read, each once; of what begins or ends outside of the recording nothing, where
    there is more."""
    job = subject.run.job
    return pa.table({"text": pa.array(said_once(inside_of(job) or list(job.notes)), pa.string())})


def _notes(subject: Subject) -> pa.Table:
    return pa.table({"text": pa.array(said_once(subject.run.job.notes), pa.string())})


def inside_of(job: Job) -> list[Note]:
    """Notes that are not about the edges of the recording."""
    return [note for note in job.notes if not note.at_edge]


def said_once(notes: Sequence[Note]) -> list[str]:
    """Merges notes that differ only in their figures, with their sources."""
    ranks: dict[str, list[int]] = {}
    first: dict[str, str] = {}
    for note in notes:
        alike = re.sub(r"[\d,]+", "#", note.what)
        ranks.setdefault(alike, []).append(note.rank)
        first.setdefault(alike, note.what)
    return [
        what if len(of) < 2 else f"{what} (rank {of[0]}; the same on {words.plural(len(of) - 1, 'other')})"
        for alike, what in first.items()
        for of in [sorted(set(ranks[alike]))]
    ]


def facts(subject: Subject) -> list[tuple[str, str]]:
    """What the recording says of itself."""
    return [(key.replace("_", " ").capitalize(), value) for key, value in subject.run.job.provenance.items()]


def _facts(subject: Subject) -> pa.Table:
    rows = facts(subject)
    return pa.table(
        {
            "name": pa.array([name for name, _ in rows], pa.string()),
            "value": pa.array([value for _, value in rows], pa.string()),
        }
    )


def energy_of(subject: Subject) -> Energy | None:
    """Modelled energy, where the power of the run's device is known."""
    device = subject.device or (subject.run.system.device if subject.run.system is not None else None)
    if device is None or not device.power_w or not subject.has_device or not subject.span_ns:
        return None
    return energy(subject.run, device=device)


def _energy(subject: Subject) -> pa.Table:
    found = energy_of(subject)
    if found is None:
        return pa.table({})
    return one_row({"energy_j": found.curve.energy_j, "mean_w": found.curve.mean_w / found.ranks})


def _energy_classes(subject: Subject) -> pa.Table:
    found = energy_of(subject)
    if found is None:
        return pa.table({})
    total = found.curve.energy_j or 1.0
    rows = sorted(found.by_class.items(), key=lambda item: -item[1])
    return pa.table(
        {
            "class": [name for name, _ in rows],
            "joules": [joules for _, joules in rows],
            "share": [joules / total for _, joules in rows],
        }
    )


TABLES: Final[dict[str, Callable[[Subject], pa.Table]]] = {
    "run": _run,
    "device": _device,
    "host": _host,
    "program": _program,
    "not_counted": lambda subject: not_counted(subject.run),
    "stages": _stages,
    "breakdown": lambda subject: breakdown(subject.run),
    "steps": lambda subject: steps(subject.run),
    "step_means": _step_means,
    "idle": lambda subject: idle(subject.run),
    "kernels": _kernels,
    "kernel_kinds": _kernel_kinds,
    "phases": lambda subject: kernels(subject.run, ("phase",)),
    "modules": lambda subject: kernels(subject.run, ("module",)),
    "operators": _host_operators,
    "collectives": lambda subject: collectives(subject.run),
    "met": _met,
    "collective_kinds": lambda subject: summarised(subject.table("collectives")),
    "collective_sums": _collective_sums,
    "waiting": _waiting,
    "messages": _messages,
    "stragglers": lambda subject: stragglers(subject.run),
    "roofline": _roofline,
    "not_known": lambda subject: not_known(subject.run),
    "utilisation": _utilisation,
    "path": lambda subject: subject.path,
    "path_figures": _path_figures,
    "path_kinds": _path_kinds,
    "path_names": lambda subject: by_name(subject.path),
    "path_operations": _path_operations,
    "first_use": _first_use,
    "retiming": _retiming,
    "timeline": _timeline,
    "allocated": _allocated,
    "copies": _copies,
    "notes": _notes,
    "noted": _noted,
    "facts": _facts,
    "energy": _energy,
    "energy_classes": _energy_classes,
    "link_sums": lambda subject: link_sums(subject.links["links"]) if subject.links else pa.table({}),
    "tails": lambda subject: completions(subject.links) if subject.links else pa.table({}),
}
