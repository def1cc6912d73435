"""Records programs of `foreign_programs.py` on this machine's GPU, with steps timed without a profiler around it.

    python benchmarks/record_foreign.py -o recorded/ [--only llama gpt2 | --held-out] [--batch 2] [--beside 1]

A folder for each, as `etude collect` writes it, and `reference.json`: the step without a profiler just before and just
after (20 steps, from an idle device to an idle device), and the share of a step that the device is busy, recorded with
the activities of the device alone. With `--beside` also steps of another batch in the same process, for
`validate_dry_steps.py`: the host of a virtual machine runs one process a third faster than the next.
`program_times.py` compares what Etude makes of the folders with these.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

STEPS = 20
TURN = ".turn"
WARM_S = 3.0
"""A device's clock rises for some seconds; steps before that are no reference for those after it."""


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


def busy_alone(torch, step) -> float:
    """The same with kernels, copies and sets recorded, and no calls: those make a step longer. It comes before any
    other profiler, which would stay in the process."""
    from etude.capture.collect.device_alone import DeviceCapture

    window = DeviceCapture(torch)
    for _ in range(STEPS):
        window.mark()
        step()
    window.stop()
    found = window.events()
    since = found["marks_ns"][1][0] - found["base_ns"]
    busy, last = 0, since
    for begin, end in zip(found["start_ns"], found["end_ns"], strict=True):
        busy += max(0, end - max(begin, last))
        last = max(last, end)
    return busy / (max(last, found["marks_ns"][-1][1] - found["base_ns"]) - since)


def warm(torch, step) -> None:
    since = time.perf_counter()
    for done in range(10_000):
        if done >= 10 and time.perf_counter() - since > WARM_S:
            break
        step()
        torch.cuda.synchronize()


def record(name: str, folder: Path, batch: int, beside: int) -> None:
    """One program has the device at a time; the next one is loading its libraries meanwhile."""
    import torch
    import torchvision  # noqa: F401
    import transformers  # noqa: F401
    from foreign_programs import PROGRAMS

    with (folder.parent / TURN).open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        _record(torch, PROGRAMS[name], folder, batch, beside)


def _record(torch, program, folder: Path, batch: int, beside: int) -> None:
    from etude.capture.collect.torch import trace

    torch.manual_seed(0)
    step, other = program(batch), program(beside) if beside else None
    beside_ns = []
    for each in (other, step):
        if each is not None:
            warm(torch, each)
    if other is not None:
        beside_ns.append(timed_ns(torch, other))
    before = timed_ns(torch, step)
    with trace(folder, steps=3, warmup=6, detect_steps=False) as recording:
        for _ in range(60):
            step()
            recording.step()
    after = timed_ns(torch, step)
    if other is not None:
        beside_ns.append(timed_ns(torch, other))
    found = {
        "name": folder.name,
        "batch": batch,
        "before_ns": before,
        "after_ns": after,
        "beside": dict(zip(("before_ns", "after_ns"), beside_ns, strict=False)) | {"batch": beside},
        "busy_alone": busy_alone(torch, step),
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
    parser.add_argument("--beside", type=int, default=0, help="times the batch of steps that are timed as well")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        record(given.one, given.out / given.one, given.batch, given.beside)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    names = given.only or [program.__name__ for program in (HELD_OUT if given.held_out else SEEN)]

    def recorded(name: str) -> None:  # a process for each: caches and allocators start anew
        command = [sys.executable, __file__, "-o", str(given.out), "--batch", str(given.batch), "--one", name]
        command += ["--beside", str(given.beside)]
        try:
            code = subprocess.run(command, timeout=200, check=False).returncode
        except subprocess.TimeoutExpired:
            code = 124
        if code:
            print(f"{name}: exit code {code}", flush=True)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(recorded, names))
    (given.out / TURN).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
