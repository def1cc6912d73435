"""The analyses against values that HolisticTraceAnalysis and TraceLens computed on the same traces.

    python benchmarks/validate_analyse.py [--shared ../shared] [--set nccl_data_ns]
    python benchmarks/validate_analyse.py --hta FOLDER      # values that benchmarks/hta_values.py made

Etude counts what the other tool does (`--as hta`, `--as tracelens` of the commands). Printed is for each set how many
quantities agree within 0.5%, and each that does not: theirs, ours, and why. A difference is explained only if it can be
worked out by hand from the raw events (`by_hand.py`, which knows nothing of Etude): ours is what they say, and theirs
is what comes out with a mistake that HTA makes. Anything else is off, and the exit code is 1.

Sets named `_ns` have exact times. Where HTA was left to cut fractions of microseconds, the trace is cut the same way
before it is given to Etude.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

import by_hand
import etude
from etude.analyse.breakdown import breakdown, kernel_types
from etude.analyse.counting import counting_of
from etude.analyse.idle import stream_gaps
from etude.analyse.launches import launches, queue_depth
from etude.analyse.memory import copies
from etude.analyse.operators import kernels, operators
from etude.analyse.roofline import roofline
from etude.capture.ingest.runs import WantedTimes
from etude.model.run import recorded

AS_RECORDED = WantedTimes(as_recorded=True)
"""Other tools show times under the profiler."""

LIMIT_PCT = 0.5
HTA, TRACELENS = counting_of("hta"), counting_of("tracelens")
TIES = "events tie at a whole µs, and HTA's sort leaves their order to chance: its value lies between the two possible"


@dataclass(frozen=True)
class Compared:
    what: str
    theirs: float
    ours: float
    why: str = ""
    """Where the other tool is wrong: how, as shown by hand."""

    @property
    def off_pct(self) -> float:
        return off_pct(self.theirs, self.ours)

    @property
    def agrees(self) -> bool:
        return self.off_pct <= LIMIT_PCT

    @property
    def good(self) -> bool:
        """Within the limit, or explained."""
        return self.agrees or bool(self.why)


def off_pct(theirs: float, ours: float) -> float:
    if theirs == ours:
        return 0.0
    return 100 * abs(ours - theirs) / abs(theirs) if theirs else float("inf")


def compared(
    what: str, theirs: float, ours: float, by_hand_with: Callable[[Sequence[str]], float | None], *mistakes: str
) -> Compared:
    """A quantity, explained if it is off: by hand, ours must come out without a mistake, and theirs with one or several
    of these."""
    if off_pct(theirs, ours) <= LIMIT_PCT or not _near(ours, by_hand_with(())):
        return Compared(what, theirs, ours)
    for made in (c for n in range(1, len(mistakes) + 1) for c in combinations(mistakes, n)):
        if _near(theirs, by_hand_with(made)):
            return Compared(what, theirs, ours, "; ".join(by_hand.MISTAKES[m] for m in made))
    return Compared(what, theirs, ours)


def _near(a: float, b: float | None) -> bool:
    return b is not None and off_pct(a, b) <= LIMIT_PCT


class Hand:
    """A trace's raw events and what counts of them, for each mistake."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = cache(self._work)

    @property
    def events(self) -> list[by_hand.Event]:
        return _events(self.path)

    def _work(self, *mistakes: str) -> list[by_hand.Event]:
        return by_hand.device_work(self.events, mistakes)


@cache
def _events(path: Path) -> list[by_hand.Event]:
    return by_hand.read(path)


# -- the files of values -----------------------------------------------------------------------------------------------


def rows(path: Path, name: str) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with open(path) as file:
        return [row for row in csv.DictReader(file) if row["set"] == name]


def described(path: Path, name: str) -> list[list[float]]:
    """Tables written by pandas' `describe`: count, mean, std, min, quartiles, max."""
    if not path.exists():
        return []
    with open(path) as file:
        found = [row[1:] for row in csv.reader(file) if row[0] == name]
    return [[float(x) if x else 0.0 for x in row] for row in found if row and row[0] != "count"]


def sets(hta: Path) -> list[str]:
    """Names of the sets whose traces are there; of those in two forms the exact one."""
    with open(hta / "temporal_breakdown.csv") as file:
        names = list(dict.fromkeys(row["set"] for row in csv.DictReader(file)))
    return [name for name in names if f"{name}_ns" not in names and inputs(hta, name)]


def inputs(hta: Path, name: str) -> list[tuple[int, Path]]:
    found = [(int(row["rank"]), hta / row["file"]) for row in rows(hta / "inputs.csv", name.removesuffix("_ns"))]
    return [(rank, path) for rank, path in found if path.exists()]


def cut_to_us(path: Path, folder: Path) -> Path:
    """The trace as HTA takes it by default: if times have fractions, starts go up and ends down to whole µs."""
    with gzip.open(path) as file:
        document = json.load(file)
    timed = [e for e in document["traceEvents"] if e.get("ts") is not None]
    if not any(isinstance(e["ts"], float) for e in timed):
        return path
    for e in timed:
        end = math.floor(e["ts"] + e.get("dur", 0))
        e["ts"] = math.ceil(e["ts"])
        if "dur" in e:
            e["dur"] = end - e["ts"]
    with gzip.open(folder / path.name, "wt") as file:
        json.dump(document, file)
    return folder / path.name


# -- HTA ---------------------------------------------------------------------------------------------------------------


def compare_hta(hta: Path, name: str, ranks: list[int] | None = None) -> Iterator[Compared]:
    with tempfile.TemporaryDirectory() as folder:
        opened = {}
        for rank, path in inputs(hta, name):
            if ranks is None or rank in ranks:
                taken = path if name.endswith("_ns") else cut_to_us(path, Path(folder))
                opened[rank] = etude.open(taken, times=AS_RECORDED), Hand(taken)
        for rank, (job, hand) in opened.items():
            where = f"{name} rank {rank}"
            yield from compare_times(hta, name, rank, job, hand, where)
            yield from compare_kernels(hta, name, rank, job, hand, where)
            yield from compare_launches(hta, name, rank, job, where)
            yield from compare_gaps(hta, name, rank, job, hand, where)
            yield from compare_queues(described(hta / "queue_length_summary.csv", name), job, hand, where)
            yield from compare_rates(described(hta / "memory_bw_summary.csv", name), job, hand, where)
        if ranks is None:
            yield from compare_types(hta, name, opened)
        _events.cache_clear()


def compare_times(hta: Path, name: str, rank: int, job: Any, hand: Hand, where: str) -> Iterator[Compared]:
    ours = breakdown(recorded(job), HTA).to_pylist()[0]
    busy = ours["exposed_comm_ns"] + ours["exposed_memory_ns"]
    names = {
        "compute": ("compute_time(us)", ours["compute_ns"]), "other": ("non_compute_time(us)", busy),
        "idle": ("idle_time(us)", ours["idle_ns"]), "span": ("kernel_time(us)", ours["span_ns"]),
    }  # fmt: skip
    mistakes = ("streams", "waits")
    for row in rows(hta / "temporal_breakdown.csv", name):
        if int(row["rank"]) == rank:
            for what, (column, value) in names.items():
                yield compared(
                    f"{where} {what}", float(row[column]), value / 1e3,
                    lambda made, what=what: by_hand.temporal(hand.work(*made))[what] / 1e3, *mistakes,
                )  # fmt: skip
    for row in rows(hta / "comm_comp_overlap.csv", name):
        if int(row["rank"]) == rank and row["comp_comm_overlap_pctg"]:
            pct = round(ours["overlap_pct"] or 0.0, 2)
            shares = lambda made: round(by_hand.overlap_pct(hand.work(*made)) or 0.0, 2)  # noqa: E731
            yield compared(f"{where} overlap %", float(row["comp_comm_overlap_pctg"]), pct, shares, *mistakes)


def compare_types(hta: Path, name: str, opened: dict[int, Any]) -> Iterator[Compared]:
    words = {"COMPUTATION": "compute", "COMMUNICATION": "communication", "MEMORY": "memory"}
    ours = defaultdict[str, float](float)
    for job, _ in opened.values():
        for row in kernel_types(recorded(job), HTA).to_pylist():
            ours[row["running"]] += row["time_ns"] / 1e3

    @cache
    def sums(*made: str) -> dict[str, float]:
        found = defaultdict[str, float](float)
        for _, hand in opened.values():
            for kinds, lasted in by_hand.types(hand.work(*(m for m in made if m != "pieces")), made).items():
                found[kinds] += lasted
        return found

    for row in rows(hta / "kernel_type_breakdown.csv", name):
        kinds = " + ".join(words[w] for w in row["kernel_type"].split(" overlapping "))
        yield compared(
            f"{name} {kinds}", float(row["sum"]), ours[kinds],
            lambda made, kinds=kinds: sums(*made)[kinds], "pieces", "streams", "waits",
        )  # fmt: skip


def compare_kernels(hta: Path, name: str, rank: int, job: Any, hand: Hand, where: str) -> Iterator[Compared]:
    found = {row["name"]: row for row in kernels(recorded(job), counting=HTA).to_pylist()}

    @cache
    def counted(*made: str) -> dict[str, dict[str, float]]:
        return by_hand.kernels(hand.work(*(m for m in made if m != "sums")), made)

    for row in rows(hta / "kernel_breakdown_top10.csv", name):
        if int(row["rank"]) == rank and row["name"] != "others":
            ours = found.get(row["name"], {})
            for column, what in (("sum (us)", "total"), ("max (us)", "max"), ("mean (us)", "mean")):
                yield compared(
                    f"{where} kernel {row['name'][:32]} {what}", float(row[column]), ours.get(f"{what}_ns", 0) / 1e3,
                    lambda made, key=row["name"], what=what: counted(*made).get(key, {}).get(what, 0.0),
                    "sums", "streams", "waits",
                )  # fmt: skip


def compare_launches(hta: Path, name: str, rank: int, job: Any, where: str) -> Iterator[Compared]:
    ours = launches(recorded(job), HTA.launches).to_pylist()[0]
    names = {
        "launches": ("launches", 1), "sum_cpu_us": ("host_ns", 1e3), "sum_gpu_us": ("device_ns", 1e3),
        "sum_launch_delay_us": ("delay_ns", 1e3), "median_launch_delay_us": ("median_delay_ns", 1e3),
        "delay_gt_100us": ("long_delays", 1), "runtime_gt_50us": ("slow_calls", 1),
        "gpu_shorter_than_cpu": ("device_shorter", 1),
    }  # fmt: skip
    for row in rows(hta / "launch_stats_summary.csv", name):
        if int(row["rank"]) == rank:
            for theirs, (mine, scale) in names.items():
                yield Compared(f"{where} {mine}", float(row[theirs] or 0), (ours[mine] or 0) / scale)


def compare_gaps(hta: Path, name: str, rank: int, job: Any, hand: Hand, where: str) -> Iterator[Compared]:
    ours = {(row["stream"], row["cause"]): row["time_ns"] for row in stream_gaps(recorded(job), HTA).to_pylist()}

    @cache
    def apart(*made: str) -> dict[tuple[int, str], float]:
        return by_hand.gaps(hand.events, hand.work(*(m for m in made if m != "first")), made)

    for row in rows(hta / "idle_time_breakdown.csv", name):
        if int(row["rank"]) == rank:
            key = int(row["stream"]), row["idle_category"]
            mine = round(ours.get(key, 0) / 1e3, 2)  # as HTA rounds it
            label = f"{where} stream {key[0]} {key[1]}"
            why = lambda made, key=key: apart(*made).get(key, 0.0)  # noqa: E731
            yield compared(label, float(row["idle_time"]), mine, why, "first", "waits")


def compare_queues(theirs: list[list[float]], job: Any, hand: Hand, where: str) -> Iterator[Compared]:
    """HTA's rows do not say which stream they are of, so each of ours must be among them."""
    for row in queue_depth(recorded(job), HTA.enqueues).to_pylist() if theirs else []:
        label, ours = f"{where} queue of stream {row['stream']}", (row["events"], row["mean_depth"], row["most"])
        yield from between(label, theirs, ours, lambda s=row["stream"]: by_hand.queues(hand.events, hand.work())[s])


def compare_rates(theirs: list[list[float]], job: Any, hand: Hand, where: str) -> Iterator[Compared]:
    for row in copies(recorded(job), HTA).to_pylist() if theirs else []:
        if row["mean_rate_bytes_per_s"] is not None:
            rates = row["mean_rate_bytes_per_s"] / 1e9, row["most_rate_bytes_per_s"] / 1e9
            label, ours = f"{where} {row['name']} GB/s", (row["events"], *rates)
            yield from between(label, theirs, ours, lambda n=row["name"]: by_hand.rates(hand.work())[n])


def between(
    label: str, theirs: list[list[float]], ours: tuple[float, ...], both: Callable[[], list[tuple[int, float, float]]]
) -> Iterator[Compared]:
    """Events, mean and most of a level that goes up and down. Of `both` ways to order what ties, worked out by hand,
    ours is the first, and theirs must lie between them."""
    best = min(theirs, key=lambda t: (off_pct(t[0], ours[0]) > 2, abs(t[1] - ours[1])))
    columns = {"events": 0, "mean": 1, "most": -1}
    found = [Compared(f"{label} {what}", best[k], own) for (what, k), own in zip(columns.items(), ours, strict=True)]
    if all(c.agrees for c in found):
        yield from found
        return
    first, second = both()
    exact = all(off_pct(a, b) <= LIMIT_PCT for a, b in zip(first, ours, strict=True))
    for i, c in enumerate(found):
        low, high = sorted((first[i], second[i]))
        yield Compared(c.what, c.theirs, c.ours, TIES if exact and low - 1e-6 <= c.theirs <= high + 1e-6 else "")


# -- TraceLens ---------------------------------------------------------------------------------------------------------


def compare_tracelens(folder: Path) -> Iterator[Compared]:
    job = etude.open(folder / "input_h100_qwen15_05b.json.gz", times=AS_RECORDED)
    ours = breakdown(recorded(job), TRACELENS).to_pylist()[0]
    names = {
        "computation_time": "compute_ns", "exposed_comm_time": "exposed_comm_ns", "idle_time": "idle_ns",
        "exposed_memcpy_time": "exposed_memory_ns", "total_time": "span_ns", "total_comm_time": "comm_ns",
        "total_memcpy_time": "memory_ns",
    }  # fmt: skip
    timeline = {row["type"]: float(row["time ms"]) for row in table(folder / "gpu_timeline.csv")}
    for theirs, mine in names.items():
        yield Compared(f"tracelens {theirs}", timeline[theirs], ours[mine] / 1e6)
    yield Compared("tracelens busy_time", timeline["busy_time"], (ours["span_ns"] - ours["idle_ns"]) / 1e6)
    found = {row["name"]: row for row in operators(recorded(job)).to_pylist()}
    for row in table(folder / "ops_summary.csv"):
        op, label = found[row["name"]], f"tracelens {row['name']}"
        yield Compared(f"{label} direct", float(row["total_direct_kernel_time_sum"]), op["device_self_ns"] / 1e3)
        yield Compared(f"{label} below", float(row["total_subtree_kernel_time_sum"]), op["device_total_ns"] / 1e3)
        yield Compared(f"{label} count", float(row["Count"]), op["launching"])
    reached = roofline(recorded(job)).to_pylist()
    for row in table(folder / "GEMM.csv"):
        gemm = next(r for r in reached if (r["name"], r["shapes"]) == (row["name"], row["Input Dims_first"]))
        yield from compare_reached(f"{row['param: M']}x{row['param: N']}x{row['param: K']}", row, gemm)
    for row in table(folder / "SDPA_fwd.csv"):
        heads = "x".join(row[f"param: {key}"] for key in ("B", "H_Q", "N_Q", "d_h_qk"))
        attention = next(r for r in reached if r["op_class"] == "attention")
        yield from compare_reached(heads, row, attention)


def compare_reached(shape: str, row: dict[str, str], ours: dict[str, Any]) -> Iterator[Compared]:
    label = f"tracelens {row['name']} {shape}"
    yield Compared(f"{label} count", float(row["name_count"]), ours["count"])
    yield Compared(f"{label} GFLOP", float(row["GFLOPS_first"]), ours["flops"] / 1e9)
    yield Compared(f"{label} MiB", float(row["Data Moved (MB)_first"]), ours["size_bytes"] / 2**20)
    yield Compared(f"{label} FLOP/byte", float(row["FLOPS/Byte_first"]), ours["intensity"])
    yield Compared(f"{label} µs", float(row["Kernel Time (µs)_sum"]), ours["time_ns"] / 1e3)
    yield Compared(f"{label} TFLOP/s", float(row["TFLOPS/s_mean"]), ours["flop_per_s"] / 1e12)
    yield Compared(f"{label} TB/s", float(row["TB/s_mean"]), ours["bytes_per_s"] / 1e12)


def table(path: Path) -> list[dict[str, str]]:
    with open(path) as file:
        return list(csv.DictReader(file))


def counts(what: str, total: int, good: int, why: int) -> str:
    return f"{what}: {total} quantities, {good} within {LIMIT_PCT}%, {why} explained, {total - good - why} off"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path(os.environ.get("ETUDE_SHARED", "../shared")))
    parser.add_argument("--hta", type=Path, help="a folder of HTA's values other than oracle/hta")
    parser.add_argument("--set", action="append", help="only this set; `tracelens` is one")
    parser.add_argument("--all", action="store_true", help="every quantity, not only those that differ")
    given = parser.parse_args()
    oracle = given.shared / "oracle"
    hta = given.hta or oracle / "hta"
    total = agree = explained = 0
    for name in given.set or (*sets(hta), *(() if given.hta else ("tracelens",))):
        found = list(compare_tracelens(oracle / "tracelens") if name == "tracelens" else compare_hta(hta, name))
        good, why = sum(c.agrees for c in found), sum(c.good and not c.agrees for c in found)
        total, agree, explained = total + len(found), agree + good, explained + why
        print(counts(name, len(found), good, why))
        for c in found:
            if given.all or not c.agrees:
                print(f"  {c.what}: theirs {c.theirs:g}, ours {c.ours:g}, {c.off_pct:.3f}% {c.why}", flush=True)
    print(counts("in all", total, agree, explained))
    return 0 if total == agree + explained else 1


if __name__ == "__main__":
    raise SystemExit(main())
