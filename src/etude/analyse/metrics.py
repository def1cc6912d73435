"""The metrics that trace benchmarks publish, one number each; docs/analyse/metrics.md has the formulas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etude.analyse.breakdown import breakdown
from etude.analyse.collectives import collectives, summarised
from etude.analyse.engine import of_engine
from etude.analyse.grouping import table
from etude.analyse.peaks import peak_bus_bandwidth
from etude.analyse.roofline import utilisation
from etude.analyse.serving import served
from etude.analyse.steps import step_times
from etude.analyse.traffic import traffic_matrix
from etude.machine.system import Device, System
from etude.model.job import Job
from etude.model.match import WORLD
from etude.model.run import Run
from etude.model.schema import Collective
from etude.model.timing import Origin

__all__ = ["metrics", "shown"]

Row = tuple[str, float, str]


def metrics(run: Run, *, device: Device | None = None) -> pa.Table:
    """Rows of metric, value, unit. Metrics that cannot be computed for a run are left out.

    With a card that gives the model's FLOPs, model-FLOP utilisation; with a system, the fraction of link bandwidth that
    collectives reach; with a device (given, or the system's), the fraction of its peak.

    etude.metrics(run)
    """
    device = device or (run.system.device if run.system else None)
    rows = [*_times(run), *_parts(run), *_used(run, device), *_calls(run), *_traffic(run.job), *served(run)]
    found = [{"metric": metric, "value": float(value), "unit": unit} for metric, value, unit in rows]
    return table(found, {"metric": pa.string(), "value": pa.float64(), "unit": pa.string()})


def step_time_ns(run: Run) -> float | None:
    """Mean over ranks of the time from step to step; for a simulated step its whole time."""
    steps = step_times(run)
    if len(steps):
        return float(np.mean(steps["mean_ns"].to_numpy()))
    span = run.timing.span() if run.timing.origin == Origin.SIMULATED else None
    return float(span[1] - span[0]) if span else None


def _times(run: Run) -> Iterator[Row]:
    step, card = step_time_ns(run), run.card
    if not step or (card is not None and card.plan.workload == "serving"):
        return
    if any(of_engine(trace) for trace in run.job.traces):  # steps are passes, of which there are several kinds
        return
    yield "avg_step_time", step / 1e9, "s"
    if card is not None and card.plan.tokens_per_step:
        yield "tokens_per_second", card.plan.tokens_per_step / (step / 1e9), "1/s"
        yield "tokens_per_second_per_device", card.plan.tokens_per_step / (step / 1e9) / run.job.world_size, "1/s"


def _parts(run: Run) -> Iterator[Row]:
    spent = breakdown(run)
    total = {name: float(pc.sum(spent[name]).as_py() or 0) for name in spent.column_names if name.endswith("_ns")}
    if total["span_ns"] > 0:
        yield "communication_fraction", total["comm_ns"] / total["span_ns"], ""
        yield "exposed_communication_fraction", total["exposed_comm_ns"] / total["span_ns"], ""
        yield "idle_fraction", total["idle_ns"] / total["span_ns"], ""
    if total["comm_ns"] > 0:
        yield "compute_comm_overlap", 1 - total["exposed_comm_ns"] / total["comm_ns"], ""
    if total["compute_ns"] > 0:
        compute = spent["compute_ns"].drop_null().to_numpy()
        yield "load_imbalance_ratio", float(compute.max() / compute.mean()), ""


def _used(run: Run, device: Device | None) -> Iterator[Row]:
    """Utilisation of the devices: by the FLOPs the model needs (MFU), and by those executed (HFU)."""
    if device is None:
        return
    step, card = step_time_ns(run), run.card
    peak = device.peak((card.plan.precision if card else "") or "bf16")
    if card is not None and card.plan.model_flops_per_step and step and peak:
        needed = card.plan.model_flops_per_step
        yield "mfu", needed / (step / 1e9) / (peak * (card.plan.ranks or run.job.world_size)), ""
    done = pc.mean(utilisation(run, device)["hfu"]).as_py()
    if done:
        yield "hfu", done, ""


def _calls(run: Run) -> Iterator[Row]:
    calls = collectives(run)
    found = summarised(calls).to_pylist()
    yield "coll_call_num", sum(row["calls"] for row in found), ""
    for name in sorted({row["collective"] for row in found}):
        known = [(row["busbw_bytes_per_s"], row["calls"]) for row in found if row["collective"] == name]
        known = [(rate, count) for rate, count in known if rate is not None]
        if known:
            mean = np.average([k[0] for k in known], weights=[k[1] for k in known])
            yield f"bus_bandwidth_{name}", float(mean), "B/s"
    if run.system is None:
        return
    for name, reached, possible in reached_of_links(run.job, calls, run.system):
        yield f"bandwidth_utilisation_{name}", reached / possible, ""


def reached_of_links(job: Job, calls: pa.Table, system: System) -> Iterator[tuple[str, float, float]]:
    """(collective, bytes over its links, bytes that they could have carried in that time), over all calls with both."""
    peaks: dict[tuple[int, str], float | None] = {}
    total: dict[str, list[float]] = {}
    names = ("group", "collective", "transfer_ns", "busbw_bytes_per_s")
    for group, name, lasted, rate in zip(*(calls[n].to_pylist() for n in names), strict=True):
        if (group, name) not in peaks:
            members = np.arange(job.world_size) if group == WORLD else job.groups.ranks(group)
            kind = Collective[name.upper()]
            peaks[group, name] = None if members is None else peak_bus_bandwidth(system, members, kind)
        peak = peaks[group, name]
        if peak and rate is not None:
            both = total.setdefault(name, [0.0, 0.0])
            both[0] += rate * lasted
            both[1] += peak * lasted
    for name in sorted(total):
        yield name, total[name][0], total[name][1]


def _traffic(job: Job) -> Iterator[Row]:
    matrix, _ = traffic_matrix(job)
    if matrix.sum() > 0:
        yield "traffic_bytes", float(matrix.sum()), "B"
        sent = matrix.sum(axis=1)
        yield "traffic_imbalance_ratio", float(sent.max() / sent.mean()), ""


def shown(found: pa.Table) -> list[dict[str, Any]]:
    """The rows for people: figures with their units, fractions as percentages."""
    from etude.base.units import format_bandwidth, format_bytes, format_time

    def one(metric: str, value: float, unit: str) -> str:
        if unit == "s":
            return format_time(round(value * 1e9))
        if unit == "B/s":
            return format_bandwidth(round(value))
        if unit == "B":
            return format_bytes(round(value))
        if "_fraction" in metric or "utilisation" in metric or metric in ("mfu", "hfu", "compute_comm_overlap"):
            return f"{100 * value:.1f} %"
        return f"{value:.4g}" + (f" {unit}" if unit else "") if value != round(value) else f"{value:,.0f}"

    return [{"metric": r["metric"], "value": one(r["metric"], r["value"], r["unit"])} for r in found.to_pylist()]
