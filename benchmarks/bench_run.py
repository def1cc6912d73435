"""A run of 64 ranks and more than 10 GB of JSON, analysed by the commands that a user has; memory and time of each.

    python benchmarks/bench_run.py FOLDER                      # 64 ranks; makes them there first
    python benchmarks/bench_run.py FOLDER --ranks 8 -j 2 --only report

Each rank is `traces/h200/big_kineto` with two thirds of its steps once more behind it, gradients reduced over all ranks
(one rank comes late to it), a rank and groups, and a clock of its own. What ranks have in common is packed once: a gzip
file is members one after the other. Memory is that of all processes of a command, pages that they share counted once;
`anonymous` is the part that the system cannot take back, the rest lies in files.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

HERE = Path(__file__).resolve().parent
LIMIT_MB = 10_000
LATE_RANK, LATE_US = 37, 3_000.0
BUCKETS = 24
"""All-reduces of a step."""
LENGTH_US, ELEMENTS = 1_500.0, 25_000_000
COMMANDS = ("breakdown", "collectives", "stragglers", "critical-path", "report")


# -- the run -----------------------------------------------------------------------------------------------------------


def shifted(event: dict[str, Any], by_us: float, steps: int) -> dict[str, Any]:
    """The same event in a later round: ids go on counting."""
    event = copy.copy(event)
    event["ts"] = round(event["ts"] + by_us, 3)
    if "id" in event:
        event["id"] += 10_000_000
    if str(event["name"]).startswith("ProfilerStep#"):
        event["name"] = f"ProfilerStep#{int(event['name'].partition('#')[2]) + steps}"
    if "args" in event:
        event["args"] = args = dict(event["args"])
        for key in ("External id", "Record function id", "Sequence number", "Ev Idx", "correlation"):
            if key in args:
                args[key] += 10_000_000
    return event


def packed(events: list[dict[str, Any]]) -> tuple[bytes, int]:
    """Events as a member of a gzip file, each behind a comma; and their size as text."""
    text = "".join(",\n" + json.dumps(event) for event in events).encode()
    return gzip.compress(text, 4, mtime=0), len(text)


def reductions(rank: int, ranks: int, steps: list[tuple[float, float]], tid: int) -> Iterator[dict[str, Any]]:
    """What a rank records of the all-reduces of its gradients."""
    arrives = random.Random(rank)
    everyone = [random.Random(other) for other in range(ranks) if other != rank]
    number = 0
    for start, length in steps:
        for bucket in range(BUCKETS):
            planned = start + length * (0.4 + 0.58 * bucket / BUCKETS)
            late = [r.uniform(0, 50) for r in everyone]
            own = arrives.uniform(0, 50) + (LATE_US if rank == LATE_RANK else 0)
            end = planned + 20 + max(*late, own, LATE_US if ranks > LATE_RANK else 0) + LENGTH_US
            at, number = planned + own, number + 1
            key, correlation = 50_000_000 + number, 60_000_000 + number
            about = {
                "Collective name": "allreduce", "In msg nelems": ELEMENTS, "Out msg nelems": ELEMENTS,
                "Group size": ranks, "dtype": "BFloat16", "In split size": "[]", "Out split size": "[]",
                "Process Group Name": "0", "Process Group Description": "default_pg",
                "Process Group Ranks": json.dumps(list(range(ranks))),
            }  # fmt: skip
            host = {"ph": "X", "pid": 706, "tid": tid}
            yield host | {"cat": "cpu_op", "name": "record_param_comms", "ts": round(at, 3), "dur": 15.0,
                          "args": {"External id": key, "Record function id": key, "Rank": rank} | about}  # fmt: skip
            yield host | {"cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "ts": round(at + 5, 3), "dur": 6.0,
                          "args": {"External id": key, "cbid": 430, "correlation": correlation}}  # fmt: skip
            kernel = {"External id": key, "device": 0, "context": 1, "stream": 25, "correlation": correlation}
            yield {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "pid": 0, "tid": 25,
                   "ts": round(at + 20, 3), "dur": round(end - at - 20, 3), "args": kernel | about}  # fmt: skip


def make(big: Path, folder: Path, ranks: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(big) as f:
        trace = msgspec.json.decode(f.read())
    events = trace.pop("traceEvents")
    steps = sorted((e["ts"], e["dur"]) for e in events if str(e["name"]).startswith("ProfilerStep#")
                   and e["cat"] == "user_annotation")  # fmt: skip
    more = 2 * len(steps) // 3
    until, whole = steps[more][0], steps[-1][0] + steps[-1][1] - steps[0][0] + 20_000
    again = [shifted(e, whole, len(steps)) for e in events if e.get("dur") is not None or e["ph"] in "sf"
             if e["ts"] + e.get("dur", 0) < until]  # fmt: skip
    common, size = packed(events + again)
    steps += [(start + whole, length) for start, length in steps[:more]]
    base, total = trace.pop("baseTimeNanoseconds"), 0
    end = gzip.compress(b"\n]}\n", mtime=0)
    for rank in range(ranks):
        group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": ranks,
                 "ranks": list(range(ranks))}  # fmt: skip
        info = {"backend": "nccl", "rank": rank, "world_size": ranks, "pg_count": 1, "pg_config": [group]}
        skew = random.Random(-1 - rank).randint(-1_000_000, 1_000_000)
        top = trace | {"distributedInfo": info, "baseTimeNanoseconds": base + skew}
        first = {"ph": "M", "name": "process_name", "pid": 706, "tid": 0, "ts": 0, "args": {"name": "python"}}
        head = json.dumps(top)[:-1] + ', "traceEvents": [\n' + json.dumps(first)
        own, own_size = packed(list(reductions(rank, ranks, steps, 999)))
        place = folder / f"big.rank{rank}.kineto.json.gz"
        place.write_bytes(gzip.compress(head.encode(), mtime=0) + common + own + end)
        total += len(head) + size + own_size + 4
    print(f"{ranks} ranks in {folder}: {total / 1e9:.2f} GB of JSON, {len(steps)} steps", flush=True)
    (folder / "size.txt").write_text(f"{total}\n")


# -- the commands ------------------------------------------------------------------------------------------------------


def processes(pid: int) -> list[int]:
    found, pending = [], [pid]
    while pending:
        found.append(pending.pop())
        try:
            for task in Path(f"/proc/{found[-1]}/task").iterdir():
                pending += [int(child) for child in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def memory_mb(pid: int) -> tuple[float, float]:
    """(All, anonymous) memory of a process and its children, shared pages once."""
    total = {"Pss": 0, "Pss_Anon": 0}
    for one in processes(pid):
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        for line in lines:
            name, _, value = line.partition(":")
            if name in total:
                total[name] += int(value.split()[0])
    return total["Pss"] * 1.024e-3, total["Pss_Anon"] * 1.024e-3


def watched(argv: list[str], out: Path) -> tuple[float, float, float, float]:
    """Runs a command; (wall s, CPU s, peak MB, peak MB anonymous)."""
    before, start = os.times(), time.monotonic()
    most = anonymous = 0.0
    with out.open("w") as f:
        child = subprocess.Popen(argv, stdout=f)
        while child.poll() is None:
            now = memory_mb(child.pid)
            most, anonymous = max(most, now[0]), max(anonymous, now[1])
            time.sleep(0.25)
    if child.returncode:
        raise SystemExit(f"{' '.join(argv)} gave {child.returncode}")
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.monotonic() - start, cpu, most, anonymous


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--workers", "-j", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", action="append", choices=COMMANDS)
    given = parser.parse_args()
    big = Path(os.environ.get("ETUDE_SHARED", HERE.parent.parent / "shared")) / "traces/h200/big_kineto.json.gz"
    if not big.exists():
        print(f"{big} is not there: nothing to measure")
        return 0
    run = given.folder / f"run{given.ranks}"
    if not (run / "size.txt").exists():
        make(big, run, given.ranks)
    good = True
    print(f"{given.ranks} ranks, {int((run / 'size.txt').read_text()) / 1e9:.2f} GB of JSON, {given.workers} workers")
    for command in given.only or COMMANDS:
        out = given.folder / f"{command}.out"
        argv = [sys.executable, "-m", "etude", command, str(run), "-j", str(given.workers)]
        argv += ["-o", str(given.folder / "report.html"), "--force"] if command == "report" else ["--json"]
        wall, cpu, most, anonymous = watched(argv, out)
        size = (given.folder / "report.html" if command == "report" else out).stat().st_size
        print(
            f"  {command:14} {wall:8.1f} s wall {cpu:8.1f} s CPU {most:8,.0f} MB, {anonymous:8,.0f} anonymous"
            f"{size / 1e6:10.2f} MB out",
            flush=True,
        )
        good &= most < LIMIT_MB and (command != "report" or size < 5e6)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
