"""The page of a workflow that was run: how long sessions took, and which tasks they spent it in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from etude.tell.report import words
from etude.tell.report.served import PARTS, spread_of
from etude.tell.report.words import seconds
from etude.tell.view.charts import Bar, BarPiece, Heading, bars, legend, table
from etude.tell.view.markup import joined
from etude.tell.view.page import Figure, Page, PageSection

SPENT = (PARTS[0], ("communication", "in tools"), PARTS[2])
TIMES = (("latency_s", "Session"), ("sum_s", "Sum of its calls"), ("critical_path_s", "Its longest chain"))


def workflow_page(record: dict[str, Any], tables: dict[str, pa.Table], *, title: str, made_by: str = "Etude") -> Page:
    """`record` and tables of `etude serve workflow -o FOLDER`."""
    sessions, tasks = tables["sessions"], tables["tasks"]
    asked = record.get("asked", {})
    return Page(
        title=title,
        subtitle=f"{record['workflow']}: {words.plural(record['sessions'], 'session')}, simulated",
        verdict=_verdict(record),
        cards=_cards(record),
        sections=(_spread(sessions), _spent(tasks), _tasks(tasks)),
        facts=tuple((str(name), str(value)) for name, value in asked.items()),
        made_by=made_by,
    )


def _verdict(record: dict[str, Any]) -> str:
    took = record["latency_s"]
    return (
        f"{words.plural(record['sessions'], 'session')} of {words.plural(record['calls'], 'call')} ended in "
        f"{seconds(record['duration_s'])}: {seconds(took['p50'])} each at the median and {seconds(took['p99'])} at the "
        "99th percentile."
    )


def _cards(record: dict[str, Any]) -> tuple[Figure, ...]:
    found = [
        Figure(f"{label}, p50", seconds(record[key]["p50"]), f"p99 {seconds(record[key]['p99'])}")
        for key, label in TIMES
    ]
    found.append(
        Figure("Largest parallel speed-up", f"{record['bound']:.2f} x", "sum of calls over their longest chain")
    )
    for name, one in record["models"].items():
        share = one["cache_hit_tokens"] / max(one["prompt_tokens"], 1)
        found.append(
            Figure(name, words.plural(one["calls"], "call"), f"{words.percent(share)} of prompt tokens cached")
        )
    if record["broken"]:
        found.append(Figure("Over the budget", str(record["violations"]), f"of {record['sessions']:,}"))
    return tuple(found)


def _spread(sessions: pa.Table) -> PageSection:
    body = joined(spread_of(label, sessions[key].to_numpy(), "fraction of the sessions") for key, label in TIMES)
    return PageSection("times", "Times", "The fraction of the sessions that took no longer.", body)


def _by_task(tasks: pa.Table) -> list[dict[str, Any]]:
    names, number = np.unique(np.array(tasks["task"].to_pylist()), return_inverse=True)
    column = {name: tasks[name].to_numpy() for name in ("ready_s", "begin_s", "end_s", "prompt", "output")}
    model = tasks["model"].to_numpy(zero_copy_only=False)
    columns = {
        "calls": np.ones(len(number)),
        "waited": column["begin_s"] - column["ready_s"],
        "in_models": (column["end_s"] - column["begin_s"]) * model,
        "in_tools": (column["end_s"] - column["begin_s"]) * ~model,
        "prompt": column["prompt"],
        "output": column["output"] * model,
        "found": tasks["cache_hit_tokens"].to_numpy(),
    }
    sums = {name: np.bincount(number, values, len(names)) for name, values in columns.items()}
    return [{"task": str(n), **{name: float(v[k]) for name, v in sums.items()}} for k, n in enumerate(names)]


def _spent(tasks: pa.Table) -> PageSection:
    rows = []
    for one in _by_task(tasks):
        parts = (one["waited"], one["in_tools"], one["in_models"])
        pieces = tuple(BarPiece(s, t, value) for (s, t), value in zip(SPENT, parts, strict=True))
        rows.append(Bar(one["task"], pieces))
    lead = "Sums over all sessions: waiting at an endpoint, in tools, in models."
    return PageSection("spent", "Where the time goes", lead, legend(SPENT) + bars(rows, seconds))


def _tasks(tasks: pa.Table) -> PageSection:
    columns = [
        Heading("task", "task", number=False), Heading("calls", "calls", words.number),
        Heading("waited", "waited", seconds),
        Heading("in_models", "in models", seconds), Heading("in_tools", "in tools", seconds),
        Heading("prompt", "tokens in", words.number), Heading("found", "found", words.number),
        Heading("output", "tokens out", words.number),
    ]  # fmt: skip
    return PageSection("tasks", "Tasks", "", table("task-table", _by_task(tasks), columns, first=16))
