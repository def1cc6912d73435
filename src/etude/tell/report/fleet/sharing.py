"""Jobs that share a cluster: how long they waited, and how many devices were in use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.tell.report import words
from etude.tell.report.fleet.training import duration, str_of, unit_of
from etude.tell.report.served import spread_of
from etude.tell.view.charts import Heading, table
from etude.tell.view.markup import Markup, heading, joined
from etude.tell.view.page import PageSection
from etude.tell.view.plots import Axis, fitted, plot

POINTS: Final = 400


def sharing_verdict(record: dict[str, Any]) -> str:
    wait = record["wait_s"]
    recorded = record.get("recorded_wait_s")
    beside = f" ({duration(recorded['mean'])} as recorded)" if recorded else ""
    return (
        f"{words.plural(record['jobs_done'], 'job')} under `{record['policy']}` waited {duration(wait['mean'])} on "
        f"average{beside}; {record['utilisation']:.1%} of the device time was used."
    )


def beside_section(runs: Sequence[tuple[str, dict[str, Any]]]) -> PageSection:
    """Several runs, a row for each."""
    rows = [
        {
            "run": name, "policy": record.get("policy") or "", "used": record["utilisation"],
            "wait": (record.get("wait_s") or {}).get("mean"), "jct": (record.get("jct_s") or {}).get("mean"),
            "step": record.get("step_s"), "stops": record["interruptions"], "cost": record["cost"],
        }
        for name, record in runs
    ]  # fmt: skip
    columns = [
        Heading("run", "run", str, number=False), Heading("policy", "policy", str, number=False),
        Heading("used", "device time used", words.percent), Heading("wait", "waiting, mean", duration),
        Heading("jct", "arrival to end, mean", duration), Heading("step", "time per step", duration),
        Heading("stops", "preemptions", words.number), Heading("cost", "dollars", lambda v: f"{v:,.2f}"),
    ]  # fmt: skip
    known = [heading for heading in columns if any(row[heading.key] not in (None, "") for row in rows)]
    return PageSection("beside", "Side by side", "", table("beside-table", rows, known))


def sharing_sections(record: dict[str, Any], tables: dict[str, pa.Table]) -> list[PageSection]:
    jobs, states = tables["jobs"], tables["states"]
    spreads = joined(
        spread_of(label, jobs[key].drop_null().to_numpy(), "fraction of the jobs")
        for key, label in (("wait_s", "Waiting"), ("recorded_wait_s", "Waiting, as recorded"), ("duration_s", "Length"))
    )
    rows = jobs.sort_by([("wait_s", "descending")]).slice(0, 50).to_pylist()
    columns = [
        Heading("name", "job", str, number=False), Heading("tenant", "tenant", str, number=False),
        Heading("gpus", "devices", words.number), Heading("wait_s", "waited", duration),
        Heading("recorded_wait_s", "recorded", duration), Heading("duration_s", "length", duration),
        Heading("preemptions", "stopped", words.number),
    ]  # fmt: skip
    return [
        _over_time(states, record),
        PageSection("spread", "How long", "The fraction of the jobs that took no longer; zero times are left out.",
                spreads, "No job waited."),
        PageSection("jobs", "Jobs that waited longest", "", table("job-table", rows, columns, first=16)),
    ]  # fmt: skip


def _over_time(states: pa.Table, record: dict[str, Any]) -> PageSection:
    time = states["time_s"].to_numpy()
    (name, unit), body = unit_of(float(time[-1] - time[0])), Markup()
    for key, label, sort, most in (
        ("devices", "Devices in use", "compute", float(record["devices"])),
        ("waiting", "Waiting jobs", "communication", 1.0),
    ):
        values = states[key].to_numpy().astype(np.float64)
        chosen = np.unique(np.linspace(0, len(time) - 1, POINTS).astype(np.int64))
        held = zip(chosen, np.append(chosen[1:], chosen[-1]), strict=True)
        points = [(float(time[at]) / unit, float(values[k])) for k, until in held for at in (k, until)]
        x = Axis("time", str_of(name), False, float(time[0]) / unit, float(time[-1]) / unit)
        y = fitted(label.lower(), lambda v: f"{v:,.0f}", [max(most, float(values.max()))], log=False)
        body += heading(label) + plot(label, x, y, (), [(f"trend l-{sort}", "", points)], size=(1080, 220))
    return PageSection(
        "time",
        "Over time",
        "Changes at arrivals and ends of jobs; some points are left out if there are very many.",
        body,
    )
