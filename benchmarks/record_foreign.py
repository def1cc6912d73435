"""Records programs of `foreign_programs.py` on this machine's GPU, with steps timed without a profiler around it.

    python benchmarks/record_foreign.py -o recorded/ [--only llama gpt2 | --held-out] [--batch 2]

A folder for each, as `etude collect` writes it, and `reference.json`: the step without a profiler just before and just
after (20 steps, from an idle device to an idle device), and the share of a step that the device is busy, recorded with
the activities of the device alone. `program_times.py` compares what Etude makes of the folders with these.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

STEPS = 20


def timed_ns(torch, step) -> int:
    torch.cuda.synchronize()
    since = time.perf_counter_ns()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter_ns() - since) // STEPS


def busy_share(torch, step, folder: Path) -> float:
    """Time in which some stream works, of that of five steps, under a profiler of device activities alone; steps before
    them, in which it starts, do not count."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        since = time.time_ns()
        for _ in range(5):
            step()
        torch.cuda.synchronize()
        took = time.time_ns() - since
    file = folder / "busy.json"
    profiler.export_chrome_trace(str(file))
    written = json.loads(file.read_bytes())
    file.unlink()
    kinds, base = ("kernel", "gpu_memcpy", "gpu_memset"), written["baseTimeNanoseconds"]
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in written["traceEvents"]
                   if e.get("cat") in kinds and base + 1000 * e["ts"] >= since)  # fmt: skip
    busy, until = 0.0, 0.0
    for begin, end in spans:
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return 1000 * busy / took


def record(name: str, folder: Path, batch: int) -> None:
    import torch
    from foreign_programs import PROGRAMS

    from etude.capture.collect.torch import trace

    torch.manual_seed(0)
    step = PROGRAMS[name](batch)
    for _ in range(10):
        step()
    before = timed_ns(torch, step)
    with trace(folder, steps=3, warmup=6, detect_steps=False) as recording:
        for _ in range(36):
            step()
            recording.step()
    after = timed_ns(torch, step)
    found = {
        "name": name,
        "batch": batch,
        "before_ns": before,
        "after_ns": after,
        "busy_share": busy_share(torch, step, folder),
    }
    (folder / "reference.json").write_text(json.dumps(found))
    windows = json.loads(next(folder.glob("*manifest.json")).read_text())["windows"]
    print(json.dumps(found | {w["kind"]: w["step_ns"] for w in windows}), flush=True)


def main() -> None:
    from foreign_programs import HELD_OUT, SEEN

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--held-out", action="store_true", help="those that nothing was tried on")
    parser.add_argument("--batch", type=int, default=1, help="times the batch of each program")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        record(given.one, given.out / given.one, given.batch)
        return
    programs = HELD_OUT if given.held_out else SEEN
    for name in given.only or [
        program.__name__ for program in programs
    ]:  # a process for each: caches and allocators start anew
        command = [sys.executable, __file__, "-o", str(given.out), "--batch", str(given.batch), "--one", name]
        try:
            code = subprocess.run(command, timeout=100, check=False).returncode
        except subprocess.TimeoutExpired:
            code = 124
        if code:
            print(f"{name}: exit code {code}", flush=True)


if __name__ == "__main__":
    main()
