"""The analyses against values that HolisticTraceAnalysis and TraceLens computed on the same traces.

    python benchmarks/validate_analyse.py [--shared ../shared] [--set nccl_data_ns]

Prints a row a quantity: theirs, ours, difference in percent. Times of sets named `_ns` are exact; HTA rounds the others
unless their timestamps are whole µs anyway.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import etude
from etude.analyse.breakdown import breakdown, kernel_types, overlap
from etude.analyse.launches import launches, queue_depth, queue_series
from etude.analyse.memory import copies
from etude.analyse.operators import kernels, operators
from etude.analyse.roofline import roofline
from etude.analyse.runs import runs

LIMIT_PCT = 0.5
SETS = (
    "nccl_data_ns", "negq", "dlrm8", "amd", "cuda_event_sync", "cuda_event_sync_multi_stream", "alexnet", "simple_add",
)  # fmt: skip
CALLS = "^(cudaLaunchKernel(ExC)?|cudaMemcpyAsync|cudaMemsetAsync)$"
"""The calls that HTA counts as launches."""


@dataclass(frozen=True)
class Compared:
    what: str
    theirs: float
    ours: float
    excuse: str = ""
    """Why the two may differ, where the other tool is wrong."""

    @property
    def off_pct(self) -> float:
        if self.theirs == self.ours:
            return 0.0
        return 100 * abs(self.ours - self.theirs) / abs(self.theirs) if self.theirs else float("inf")

    @property
    def good(self) -> bool:
        """Within the limit, or excused."""
        return self.off_pct <= LIMIT_PCT or bool(self.excuse)


def rows(path: Path, name: str) -> list[dict[str, str]]:
    with open(path) as file:
        return [row for row in csv.DictReader(file) if row["set"] == name]


def described(path: Path, name: str) -> list[list[float]]:
    """Tables written by pandas' `describe`: count, mean, std, min, quartiles, max."""
    with open(path) as file:
        found = [row[1:] for row in csv.reader(file) if row[0] == name]
    return [[float(x) if x else 0.0 for x in row] for row in found if row[0] != "count"]


def inputs(hta: Path, name: str) -> list[tuple[int, Path]]:
    stem = name.removesuffix("_ns")
    if stem == "dlrm8":
        return [(rank, hta / "inputs" / f"dlrm8.rank{rank}.json.gz") for rank in range(8)]
    return [(0, hta / "inputs" / f"{stem}.json.gz")]


ROUNDED = "HTA cuts these intervals to whole µs, and contradicts its own temporal breakdown"
CUT = "HTA cuts times to whole µs unless told not to, and was not for this set"
TIES = "in this file of whole µs launches and starts tie, and HTA's sort leaves their order to chance"
WHOLE = "in this file of whole µs a copy's length is rounded; HTA takes the rate that the profiler wrote"
WITH_SYNCS = ("alexnet", "simple_add", "cuda_event_sync", "cuda_event_sync_multi_stream")
SYNCS = "HTA counts records of synchronisation as time on the device"


def compare_hta(hta: Path, name: str, ranks: list[int] | None = None) -> Iterator[Compared]:
    types: dict[str, float] = {}
    queue = described(hta / "queue_length_summary.csv", name)
    bandwidth = described(hta / "memory_bw_summary.csv", name)
    for rank, path in inputs(hta, name):
        if ranks is not None and rank not in ranks:
            continue
        job = etude.open(path)
        timing = job.timing
        assert timing is not None
        where = f"{name} rank {rank}"
        ours = breakdown(job, timing).to_pylist()[0]
        busy = ours["exposed_comm_ns"] + ours["exposed_memory_ns"]
        for row in rows(hta / "temporal_breakdown.csv", name):
            if int(row["rank"]) == rank:
                wrong = (
                    SYNCS
                    if name in ("alexnet", "simple_add", "cuda_event_sync", "cuda_event_sync_multi_stream")
                    else ""
                )
                yield Compared(f"{where} compute", float(row["compute_time(us)"]), ours["compute_ns"] / 1e3)
                yield Compared(f"{where} non-compute", float(row["non_compute_time(us)"]), busy / 1e3, wrong)
                yield Compared(f"{where} idle", float(row["idle_time(us)"]), ours["idle_ns"] / 1e3, wrong)
                yield Compared(f"{where} span", float(row["kernel_time(us)"]), ours["span_ns"] / 1e3, wrong)
        for row in rows(hta / "comm_comp_overlap.csv", name):
            if int(row["rank"]) == rank and row["comp_comm_overlap_pctg"]:
                pct = overlap(job, timing).to_pylist()[0]["b_hidden_pct"]
                yield Compared(f"{where} overlap %", float(row["comp_comm_overlap_pctg"]), round(pct, 2))
        for row in kernel_types(job, timing).to_pylist():
            types[row["running"]] = types.get(row["running"], 0) + row["time_ns"] / 1e3
        yield from compare_kernels(hta, name, rank, job, where)
        yield from compare_launches(hta, name, rank, job, where)
        yield from compare_queues(queue, job, where)
        yield from compare_bandwidth(bandwidth, job, where)
    if ranks is None:
        words = {"COMPUTATION": "compute", "COMMUNICATION": "communication", "MEMORY": "memory"}
        for row in rows(hta / "kernel_type_breakdown.csv", name):
            key = " + ".join(words[w] for w in row["kernel_type"].split(" overlapping "))
            wrong = ROUNDED if name.endswith("_ns") else ""
            yield Compared(f"{name} {key}", float(row["sum"]), float(np.round(types.get(key, 0.0))), wrong)


def compare_kernels(hta: Path, name: str, rank: int, job: Any, where: str) -> Iterator[Compared]:
    found = {row["name"]: row for row in kernels(job, job.timing).to_pylist()}
    for row in rows(hta / "kernel_breakdown_top10.csv", name):
        if int(row["rank"]) != rank or row["name"] == "others":
            continue
        ours = found.get(row["name"])
        label = f"{where} kernel {row['name'][:32]}"
        for theirs, mine in (("sum (us)", "total_ns"), ("max (us)", "max_ns"), ("mean (us)", "mean_ns")):
            one = row["sum (us)"] == row["max (us)"] == row["mean (us)"] and ours is not None and ours["count"] > 1
            wrong = f"HTA takes {ours['count']} kernels for one" if one and ours and mine != "total_ns" else ""
            yield Compared(f"{label} {mine}", float(row[theirs]), ours[mine] / 1e3 if ours else 0.0, wrong)


def compare_launches(hta: Path, name: str, rank: int, job: Any, where: str) -> Iterator[Compared]:
    ours = launches(job, job.timing, CALLS).to_pylist()[0]
    names = {
        "launches": ("launches", 1), "sum_cpu_us": ("host_ns", 1e3), "sum_gpu_us": ("device_ns", 1e3),
        "sum_launch_delay_us": ("delay_ns", 1e3), "median_launch_delay_us": ("median_delay_ns", 1e3),
        "delay_gt_100us": ("long_delays", 1), "runtime_gt_50us": ("slow_calls", 1),
        "gpu_shorter_than_cpu": ("device_shorter", 1),
    }  # fmt: skip
    for row in rows(hta / "launch_stats_summary.csv", name):
        if int(row["rank"]) == rank:
            for theirs, (mine, scale) in names.items():
                yield Compared(f"{where} {mine}", float(row[theirs]), (ours[mine] or 0) / scale)


def compare_queues(theirs: list[list[float]], job: Any, where: str) -> Iterator[Compared]:
    """HTA's rows do not say which stream they are of, so ours must be among them."""
    for row in queue_depth(job, job.timing, CALLS).to_pylist():
        near = [t for t in theirs if t[0] == row["events"]]
        best = min(near, key=lambda t: abs(t[1] - row["mean_depth"]), default=None)
        label = f"{where} queue of stream {row['stream']}"
        if best:
            least, most = bounds(job, row["stream"])
            wrong = TIES if least[0] <= best[1] <= most[0] and least[1] <= best[-1] <= most[1] else ""
            yield Compared(f"{label} mean", best[1], row["mean_depth"], wrong)
            yield Compared(f"{label} most", best[-1], row["most"], wrong)
        elif theirs:
            yield Compared(f"{label} mean", float("nan"), row["mean_depth"])


def bounds(job: Any, stream: int) -> list[tuple[float, float]]:
    """Mean and most depth if of the events of one time all starts come first, and if all launches do."""
    time, depth = queue_series(next(runs(job, job.timing)), CALLS)[stream]
    change = np.diff(depth, prepend=0)
    both = []
    for sign in (1, -1):
        series = np.cumsum(change[np.lexsort((sign * change, time))])
        both.append((float(series.mean()), float(series.max())))
    return both


def compare_bandwidth(theirs: list[list[float]], job: Any, where: str) -> Iterator[Compared]:
    for row in copies(job, job.timing).to_pylist():
        if theirs and row["mean_rate_bytes_per_s"] is not None:
            near = [t for t in theirs if t[0] == row["events"]]
            best = min(near, key=lambda t: abs(t[1] - row["mean_rate_bytes_per_s"] / 1e9), default=None)
            label = f"{where} {row['name']} GB/s"
            yield Compared(label, best[1] if best else float("nan"), row["mean_rate_bytes_per_s"] / 1e9)


def compare_tracelens(folder: Path) -> Iterator[Compared]:
    job = etude.open(folder / "input_h100_qwen15_05b.json.gz")
    timing = job.timing
    assert timing is not None
    ours = breakdown(job, timing).to_pylist()[0]
    # TraceLens counts memsets as compute
    computing = overlap(job, timing, "compute|name:^Memset", "name:^Memcpy").to_pylist()[0]
    with open(folder / "gpu_timeline.csv") as file:
        theirs = {row["type"]: float(row["time ms"]) for row in csv.DictReader(file)}
    yield Compared("tracelens total", theirs["total_time"], ours["span_ns"] / 1e6)
    yield Compared("tracelens idle", theirs["idle_time"], ours["idle_ns"] / 1e6)
    yield Compared("tracelens computation", theirs["computation_time"], computing["a_ns"] / 1e6)
    yield Compared("tracelens memcpy", theirs["total_memcpy_time"], computing["b_ns"] / 1e6)
    found = {row["name"]: row for row in operators(job, timing).to_pylist()}
    with open(folder / "ops_summary.csv") as file:
        for row in csv.DictReader(file):
            mine = found[row["name"]]
            yield Compared(
                f"tracelens {row['name']} direct",
                float(row["total_direct_kernel_time_sum"]),
                mine["device_self_ns"] / 1e3,
            )
            yield Compared(
                f"tracelens {row['name']} below",
                float(row["total_subtree_kernel_time_sum"]),
                mine["device_total_ns"] / 1e3,
            )
    by_shape = {(row["name"], row["shapes"]): row for row in roofline(job, timing).to_pylist()}
    with open(folder / "GEMM.csv") as file:
        for row in csv.DictReader(file):
            gemm = by_shape[row["name"], row["Input Dims_first"]]
            label = f"tracelens {row['name']} {row['param: M']}x{row['param: N']}x{row['param: K']}"
            yield Compared(f"{label} count", float(row["name_count"]), gemm["count"])
            yield Compared(f"{label} GFLOP", float(row["GFLOPS_first"]), gemm["flops"] / 1e9)
            yield Compared(f"{label} MiB", float(row["Data Moved (MB)_first"]), gemm["size_bytes"] / 2**20)
            rate = float(row["GFLOPS_first"]) * float(row["name_count"]) / float(row["Kernel Time (µs)_sum"])
            yield Compared(f"{label} PFLOP/s", rate, gemm["flop_per_s"] / 1e15)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path(os.environ.get("ETUDE_SHARED", "../shared")))
    parser.add_argument("--set", action="append", help="only this set; `tracelens` is one")
    parser.add_argument("--all", action="store_true", help="every quantity, not only those that are off")
    given = parser.parse_args()
    oracle = given.shared / "oracle"
    wrong = 0
    for name in given.set or (*SETS, "tracelens"):
        compared = compare_tracelens(oracle / "tracelens") if name == "tracelens" else compare_hta(oracle / "hta", name)
        found = [replace(c, excuse=c.excuse or CUT) if name == "amd" else c for c in compared]
        off = [c for c in found if not c.good]
        wrong += len(off)
        excused = [c for c in found if c.excuse and c.off_pct > LIMIT_PCT]
        print(f"{name}: {len(found)} quantities, {len(found) - len(off) - len(excused)} within {LIMIT_PCT}%, "
              f"{len(excused)} excused, {len(off)} off")  # fmt: skip
        for c in found if given.all else [*off, *excused]:
            print(f"  {c.what}: theirs {c.theirs:g}, ours {c.ours:g}, {c.off_pct:.3f}% {c.excuse}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
