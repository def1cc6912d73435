"""Post-training by reinforcement: what each tenant did when, and what was produced at a time."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.tell.report import words
from etude.tell.report.fleet.training import duration, str_of, unit_of
from etude.tell.view.charts import Heading, legend, table
from etude.tell.view.markup import Markup, heading
from etude.tell.view.page import Figure, PageSection
from etude.tell.view.plots import Axis, StripInterval, fitted, plot, strip

POINTS: Final = 400
SHOWN: Final = 8
"""Most tenants shown."""
SORTS: Final = {
    "explore": ("memory", "explores"),
    "rollout": ("compute", "rollouts"),
    "train": ("communication", "update"),
    "sync": ("copy", "weights are sent"),
}


def rl_verdict(record: dict[str, Any]) -> str:
    who, took = words.plural(record["tenants"], "tenant"), record.get("rl_s", record["duration_s"])
    return (
        f"{words.plural(record['updates'], 'update')} of {who} in {duration(took)}, "
        f"{record['updates_per_h']:,.3g} per hour; {record['utilisation']:.1%} of the device time was used."
    )


def rl_cards(record: dict[str, Any]) -> list[Figure]:
    found = [
        Figure("Time per step", duration(record["step_s"]), f"{duration(record['rollout_s'])} of rollouts"),
        Figure("Tokens generated", f"{record['goodput_tokens_per_s']:,.0f} /s", f"{record['lost_tokens']:,.0f} lost"),
        Figure("Largest staleness", f"{record['staleness']:,}", "updates"),
    ]
    for name, served in record.get("streams", {}).items():
        if served.get("within_limits") is not None:
            found.append(Figure("Within limits", f"{served['within_limits']:.1%}", f"of the requests of {name}"))
    return found


def rl_sections(record: dict[str, Any], tables: dict[str, pa.Table]) -> list[PageSection]:
    found = [_bands(tables["stages"], record["duration_s"]), _over_time(tables["states"])]
    if "lent" in tables:
        found.append(_lent(tables["lent"]))
    by = tables["stages"].append_column(
        "took_s", pa.array(tables["stages"]["end_s"].to_numpy() - tables["stages"]["start_s"].to_numpy())
    )
    rows = by.group_by("stage").aggregate([("took_s", "count"), ("took_s", "mean"), ("took_s", "max"), ("lag", "max")])
    columns = [
        Heading("stage", "stage", str, number=False),
        Heading("took_s_count", "times", words.number),
        Heading("took_s_mean", "took, mean", duration),
        Heading("took_s_max", "longest", duration),
        Heading("lag_max", "largest staleness", words.number),
    ]
    return [*found, PageSection("stages", "Stages", "", table("stage-table", rows.to_pylist(), columns))]


def _bands(stages: pa.Table, whole: float) -> PageSection:
    name, unit = unit_of(whole)
    tenant, start, end = (stages[key].to_numpy() for key in ("tenant", "start_s", "end_s"))
    kind, body = np.array(stages["stage"].to_pylist()), Markup()
    for number in range(min(int(tenant.max()) + 1, SHOWN)):
        body += heading(f"Tenant {number}")
        for stage in SORTS:
            mine = np.flatnonzero((tenant == number) & (kind == stage))
            if not len(mine):
                continue
            sort, label = SORTS[stage]
            stretches = [
                StripInterval(float(start[k]) / unit, float(end[k]) / unit, sort,
                        f"tenant {number}: {label}\\n{duration(float(start[k]))} to {duration(float(end[k]))}")
                for k in mine[:POINTS].tolist()
            ]  # fmt: skip
            body += strip(f"tenant {number}: {label}", stretches, 0.0, whole / unit, str_of(name))
    seen = [SORTS[stage] for stage in SORTS if (kind == stage).any()]
    return PageSection("bands", "Timeline", f"Stages of the first {SHOWN} tenants.", legend(seen) + body)


def _steps(title: str, what: str, time: Any, values: Any, sort: str) -> Markup:
    name, unit = unit_of(float(time[-1] - time[0]) or 1.0)
    chosen = np.unique(np.linspace(0, len(time) - 1, POINTS).astype(np.int64))
    held = zip(chosen, np.append(chosen[1:], chosen[-1]), strict=True)
    points = [(float(time[at]) / unit, float(values[k])) for k, until in held for at in (k, until)]
    x = Axis("time", str_of(name), False, float(time[0]) / unit, float(time[-1]) / unit)
    y = fitted(what, lambda v: f"{v:,.3g}", [max(1.0, float(values.max()))], log=False)
    return heading(title) + plot(title, x, y, (), [(f"trend l-{sort}", "", points)], size=(1080, 200))


def _over_time(states: pa.Table) -> PageSection:
    time = states["time_s"].to_numpy()
    body = _steps("Samples being generated", "samples", time, states["made"].to_numpy(), "compute")
    body += _steps("Samples waiting for a replica", "samples", time, states["waiting"].to_numpy(), "communication")
    return PageSection("time", "Over time", "Some points are left out if there are very many.", body)


def _lent(lent: pa.Table) -> PageSection:
    time = lent["time_s"].to_numpy()
    body = _steps("Lent devices", "devices", time, lent["devices"].to_numpy(), "compute")
    body += _steps("Requests being served", "requests", time, lent["requests"].to_numpy(), "communication")
    return PageSection(
        "lent", "Devices of the stream", "Devices used by rollouts, and requests served meanwhile.", body
    )
