"""Why devices are idle."""

from __future__ import annotations

from etude.reporting import words
from etude.reporting.study import Study
from etude.view.charts import Bar, Column, Piece, bars, legend, table
from etude.view.page import Told

CAUSE = {
    "host": ("host", "the host had not launched yet"),
    "synchronisation": ("critical", "the host was waiting for the device"),
    "launch": ("memory", "launched, but not started"),
    "communication": ("communication", "waiting for others"),
    "dependency": ("compute", "waiting for work of the host"),
    "other": ("other", "nothing recorded says why"),
}
MUCH, MAIN = 0.25, 0.5
RANKS = 16


def told(study: Study, share: float) -> list[Told]:
    """One finding about idle time, with its main cause."""
    if share < MUCH:
        return []
    total: dict[str, int] = {}
    for row in study.idle.to_pylist():
        total[row["cause"]] = total.get(row["cause"], 0) + row["time_ns"]
    whole = sum(total.values()) or 1
    cause, ns = max(total.items(), key=lambda i: i[1], default=("other", 0))
    advice = {
        "host": "The host is too slow to keep the device busy: larger batches, torch.compile, CUDA graphs or fewer "
        "small operators help.",
        "synchronisation": "The host stops to wait for the device (.item(), .cpu(), synchronize) and then has nothing "
        "queued: remove or delay these.",
        "launch": "Kernels were launched in time and started late.",
        "communication": "The devices wait for other ranks.",
        "dependency": "Device work waits for work that runs on the host.",
        "other": "Nothing that was recorded says why.",
    }[cause]
    who = f"The {study.noun} is" if len(study.job) == 1 else f"The {study.noun}s are"
    mainly = f" {words.percent(ns / whole)} of that is because {_because(cause)}." if ns >= MAIN * whole else ""
    tone = "bad" if share >= 2 * MUCH else "warn"
    return [Told(tone, f"{who} idle {words.percent(share)} of the time.{mainly}", advice, "time")]


def _because(cause: str) -> str:
    return {
        "host": "the host had not launched the next kernel",
        "synchronisation": "the host was waiting for the device",
        "launch": "launched kernels took long to start",
        "communication": "others had not come yet",
        "dependency": "the host had not done its part",
        "other": "of something that was not recorded",
    }[cause]


def figures(study: Study) -> str:
    """Bars by cause, and a table."""
    rows = study.idle.to_pylist()
    if not rows:
        return ""
    by_rank: dict[int, dict[str, int]] = {}
    for row in rows:
        by_rank.setdefault(row["rank"], {})[row["cause"]] = row["time_ns"]
    drawn = [
        Bar(f"rank {rank}", tuple(Piece(CAUSE[c][0], CAUSE[c][1], causes.get(c, 0)) for c in CAUSE))
        for rank, causes in list(by_rank.items())[:RANKS]
    ]
    used = [c for c in CAUSE if any(c in causes for causes in by_rank.values())]
    columns = [
        Column("rank", "rank"), Column("cause", "cause", lambda c: CAUSE[c][1], number=False),
        Column("gaps", "gaps", words.number), Column("time_ns", "time", words.time),
        Column("share", "share of idle", words.percent, meter=1.0), Column("longest_ns", "longest", words.time),
    ]  # fmt: skip
    return (
        "<h3>Why devices are idle</h3>" + legend([CAUSE[c] for c in used]) + bars(drawn, words.time)
        + table("t-idle", rows[:512], columns)
    )  # fmt: skip
