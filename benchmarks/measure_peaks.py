"""Measures the peak of memory of programs of `foreign_programs.py` on this machine's GPU, and writes what its caching
allocator was asked for.

    python benchmarks/measure_peaks.py -o peaks/ [--only llama gpt2] [--batch 1 2] [--jobs 4]

Needs PyTorch, NumPy, the programs' libraries and a GPU. A process for each program and batch. `NAME.peaks.json`
(`NAME-b2.peaks.json` of twice the batch): bytes allocated and reserved at most after the first steps and after ten, and
the step without a profiler, timed while the other processes wait. `NAME.events.npz`: allocations, frees and segments
from the start to the end of the third step, which `validate_allocator.py` gives to Etude's model of the allocator.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

TRACED, STEPS, TIMED = 3, 10, 20
COUNTED = ("requested", "allocated", "active", "reserved")


def counted(torch) -> dict[str, int]:
    """Bytes now and at most since the start, as the allocator counts them."""
    torch.cuda.synchronize()
    known = torch.cuda.memory_stats()
    found = {f"peak_{name}_bytes": known.get(f"{name}_bytes.all.peak", 0) for name in COUNTED}
    return found | {f"{name}_bytes": known.get(f"{name}_bytes.all.current", 0) for name in COUNTED}


def history(torch) -> list[dict]:
    return torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]


def columns(events: list[dict], ends: list[int]) -> dict[str, np.ndarray]:
    """`ends` are the numbers of events up to the end of the building and of each step."""
    names, code = np.unique([e["action"] for e in events], return_inverse=True)
    return {
        "actions": names,
        "action": code.astype(np.uint8),
        "address": np.array([e.get("addr", e.get("device_free", 0)) for e in events], np.uint64),
        "size_bytes": np.array([e["size"] for e in events], np.int64),
        "stream": np.array([e["stream"] for e in events], np.uint64),
        "time_us": np.array([e.get("time_us", 0) for e in events], np.int64),
        "ends": np.array(ends, np.int64),
    }


def step_times_ns(torch, step) -> list[int]:
    """Each from an idle device to an idle device."""
    found = []
    for _ in range(TIMED):
        torch.cuda.synchronize()
        since = time.perf_counter_ns()
        step()
        torch.cuda.synchronize()
        found.append(time.perf_counter_ns() - since)
    return found


def measure(name: str, batch: int, folder: Path) -> None:
    import torch
    from foreign_programs import PROGRAMS
    from record_foreign import timed_ns

    turn = (folder / "turn.lock").open("w")
    fcntl.flock(turn, fcntl.LOCK_SH)
    torch.manual_seed(0)
    torch.cuda.init()
    torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=4_000_000)
    step = PROGRAMS[name](batch)
    after, ends = {"build": counted(torch)}, [len(history(torch))]
    for number in range(1, TRACED + 1):
        step()
        after[f"step_{number}"] = counted(torch)
        ends.append(len(events := history(torch)))
    torch.cuda.memory._record_memory_history(None)
    for _ in range(TRACED, STEPS):
        step()
    after[f"step_{STEPS}"] = counted(torch)
    known = torch.cuda.memory_stats()
    fcntl.flock(turn, fcntl.LOCK_UN)
    fcntl.flock(turn, fcntl.LOCK_EX)
    found = {
        "name": name,
        "batch": batch,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "step_ns": timed_ns(torch, step),
        "step_median_ns": int(statistics.median(step_times_ns(torch, step))),
        "segments": known.get("segment.all.peak", 0),
        "alloc_retries": known.get("num_alloc_retries", 0),
        "events": len(events),
        "after": after,
    }
    stem = name if batch == 1 else f"{name}-b{batch}"
    np.savez_compressed(folder / f"{stem}.events.npz", **columns(events, ends))
    (folder / f"{stem}.peaks.json").write_text(json.dumps(found, indent=1) + "\n")
    peak = after[f"step_{STEPS}"]
    print(f"{stem:26} {peak['peak_allocated_bytes']:>15,} allocated {peak['peak_reserved_bytes']:>15,} reserved "
          f"{found['step_ns'] / 1e6:9.2f} ms {len(events):>8,} events", flush=True)  # fmt: skip


def run_alone(name: str, batch: int, folder: Path) -> None:
    command = [sys.executable, __file__, "-o", str(folder), "--one", name, "--batch", str(batch)]
    try:
        code = subprocess.run(command, timeout=300, check=False).returncode
    except subprocess.TimeoutExpired:
        code = 124
    if code:
        print(f"{name}, batch {batch}: exit code {code}", flush=True)


def main() -> None:
    from foreign_programs import PROGRAMS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 2], help="times the batch of each program")
    parser.add_argument("--jobs", type=int, default=4, help="processes at the same time; one alone while it is timed")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.one:
        measure(given.one, given.batch[0], given.out)
        return
    # Programs that are compiled take longest: they go first, so that the others fill the room beside them.
    names = sorted(given.only, key=lambda name: not name.endswith("_compiled"))
    with ThreadPoolExecutor(given.jobs) as pool:
        for batch in given.batch:
            for name in names:
                pool.submit(run_alone, name, batch, given.out)
    (given.out / "turn.lock").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
