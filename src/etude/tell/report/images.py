"""The page of images and videos that were served: how long they took, and how many devices worked on them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.tell.report import words
from etude.tell.report.words import seconds
from etude.tell.view.charts import Heading, table
from etude.tell.view.markup import Markup
from etude.tell.view.page import Figure, Page, PageSection
from etude.tell.view.plots import Axis, fitted, plot

POINTS: Final = 200


def images_page(
    record: dict[str, Any], tables: dict[str, pa.Table], *, title: str, spreads: Markup, made_by: str
) -> Page:
    """`record` and tables of `etude serve images -o FOLDER`; `spreads`: its times as a picture."""
    asked, took, spent = record.get("asked", {}), record["latency_s"], record["device_s"]
    lead = "Fraction of the requests that took no longer."
    return Page(
        title=title,
        subtitle=f"{asked.get('model', 'a model')} on {asked.get('gpus', 'some')} devices, simulated",
        verdict=f"{words.plural(record['finished'], 'request')} took {seconds(took['p50'])} at the median and "
        f"{seconds(took['p99'])} at the 99th percentile, {record['within_limits']:.1%} within their limits.",
        cards=(
            Figure("Within limits", f"{record['within_limits']:.1%}", f"{record['goodput_rps']:.3g} per second"),
            Figure("Degree, mean", f"{record['mean_degree']:.2f}", "devices per step"),
            Figure("Devices in use", f"{spent['busy'] / spent['all']:.1%}", "of the time", "compute"),
            Figure("Set-ups", f"{record['set_ups']:,}", f"{spent['set_up'] / spent['all']:.2%} of the time"),
        ),
        sections=(PageSection("times", "Times", lead, spreads), _in_use(tables["tasks"]), _sizes(tables["requests"])),
        facts=tuple((str(name), str(value)) for name, value in asked.items() if value != ""),
        made_by=made_by,
    )


def _in_use(tasks: pa.Table) -> PageSection:
    """Devices in groups with a task."""
    start, end, degree = (tasks[name].to_numpy() for name in ("start_s", "end_s", "degree"))
    at = np.linspace(0.0, float(end.max()), POINTS + 1)
    begun, over = np.argsort(start, kind="stable"), np.argsort(end, kind="stable")
    so_far = [np.concatenate([[0], np.cumsum(degree[order])]) for order in (begun, over)]
    used = so_far[0][np.searchsorted(start[begun], at, "right")] - so_far[1][np.searchsorted(end[over], at, "right")]
    x = Axis("time", seconds, False, 0.0, float(at[-1]))
    y = fitted("devices", lambda v: f"{v:,.0f}", [1.0, float(used.max())], log=False)
    points = list(zip(at.tolist(), used.astype(np.float64).tolist(), strict=True))
    body = plot("devices in active groups", x, y, (), [("trend l-compute", "", points)], size=(1080, 260))
    return PageSection("use", "Active devices", "Devices in groups that have a task.", body)


def _sizes(requests: pa.Table) -> PageSection:
    by = requests.group_by(["frames", "height", "width", "steps"]).aggregate(
        [("latency_s", "count"), ("latency_s", "mean"), ("latency_s", "max")]
    )
    columns = [
        Heading("frames", "frames", words.number), Heading("height", "height", words.number),
        Heading("width", "width", words.number), Heading("steps", "steps", words.number),
        Heading("latency_s_count", "requests", words.number), Heading("latency_s_mean", "took, mean", seconds),
        Heading("latency_s_max", "longest", seconds),
    ]  # fmt: skip
    rows = by.sort_by([("latency_s_count", "descending")]).to_pylist()
    return PageSection("sizes", "By size", "", table("size-table", rows, columns, first=20))
