"""Load, breakdown, overlap and critical path of large traces: Etude against HolisticTraceAnalysis.

    python benchmarks/bench_analyse.py --hta VENV/bin/python      # an environment with HolisticTraceAnalysis, pandas<3
    python benchmarks/bench_analyse.py --hta ... TRACE [TRACE]    # ranks of one run

Both do the same in processes of their own, on the same files, one after the other: read the traces, time breakdown and
overlap of every rank, critical path of rank 0 over all of its steps (Etude's goes over all ranks). Both take the times
of the files; Etude does it again with the times of the program without its profiler, which it estimates by default and
HTA does not have. Printed are CPU seconds (of all processes), peak memory above imports, and the ratios; Etude has
compiled its kernels before.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OURS = {"recorded": "recorded times", "ours": "times of programs"}
FASTER, SMALLER = 10, 1 / 3


def tree_mb(pid: int) -> float:
    """Resident memory of a process and its children, in MB."""
    total = 0.0
    pending = [pid]
    while pending:
        one = pending.pop()
        try:
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
            for task in Path(f"/proc/{one}/task").iterdir():
                pending += [int(child) for child in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


class Peak:
    """The most memory that this process and its children hold, looked at fifty times a second."""

    def __init__(self) -> None:
        self.mb, self.done = 0.0, False
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        while not self.done:
            self.mb = max(self.mb, tree_mb(os.getpid()))
            time.sleep(0.02)


def cpu_s() -> float:
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)


def measure(prepare: Callable[[], Callable[[list[Path]], dict[str, Any]]], paths: list[Path]) -> dict[str, Any]:
    run = prepare()  # imports
    before = tree_mb(os.getpid())
    peak, start, wall = Peak(), cpu_s(), time.monotonic()
    found = run(paths)
    peak.done = True
    peak.thread.join()
    return found | {"cpu_s": cpu_s() - start, "wall_s": time.monotonic() - wall, "peak_mb": max(peak.mb - before, 0.0)}


def ours(as_recorded: bool) -> Callable[[list[Path]], dict[str, Any]]:
    import etude
    from etude.analyse.breakdown import breakdown, overlap
    from etude.analyse.critical_path import critical_path, length_ns
    from etude.capture.ingest import causal, runs
    from etude.model.run import recorded

    assert etude

    def run(paths: list[Path]) -> dict[str, Any]:
        times = runs.WantedTimes(as_recorded=as_recorded)
        files = [runs.RankFiles(rank=rank, device=path, times=times) for rank, path in enumerate(paths)]
        found = recorded(causal.to_job("bench", runs.link_run(files)))  # what `etude.open_run` does
        row = breakdown(found).to_pylist()[0]
        overlap(found)
        path = critical_path(found)
        return {"compute_us": row["compute_ns"] / 1e3, "idle_us": row["idle_ns"] / 1e3, "path_ns": length_ns(path)}

    return run


def theirs() -> Callable[[list[Path]], dict[str, Any]]:
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    def run(paths: list[Path]) -> dict[str, Any]:
        files = {rank: str(path) for rank, path in enumerate(paths)}
        analyzer = TraceAnalysis(trace_files=files, trace_dir=str(paths[0].parent))
        failed = []
        try:
            compute = float(analyzer.get_temporal_breakdown(visualize=False).iloc[0]["compute_time(us)"])
        except AssertionError:  # its own check, that what is not compute is not less than nothing
            compute = 0.0
            failed.append("breakdown")
        analyzer.get_comm_comp_overlap(visualize=False)
        _, good = analyzer.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=(0, 11))
        return {"compute_us": compute, "failed": failed if good else [*failed, "critical path"]}

    return run


def child(python: str, which: str, paths: list[Path]) -> dict[str, Any]:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"HTA_DISABLE_NS_ROUNDING": "1"}
    argv = [python, __file__, "--run", which, *map(str, paths)]
    done = subprocess.run(argv, capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(f"{which} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def compile_kernels(paths: list[Path]) -> None:
    for name in OURS:
        child(sys.executable, name, paths)


def shown(found: dict[str, Any]) -> str:
    return f"{found['cpu_s']:8.1f} s CPU {found['wall_s']:8.1f} s wall {found['peak_mb']:8,.0f} MB above imports"


def compare(label: str, hta: str, paths: list[Path]) -> bool:
    """Whether it is fast and small enough with the times that HTA has."""
    print(f"{label}: {len(paths)} ranks")
    quick = {name: child(sys.executable, name, paths) for name in OURS}
    for name, found in quick.items():
        print(f"  etude, {OURS[name]:<19}{shown(found)}")
    if not hta:
        return True
    slow = child(hta, "theirs", paths)
    print(f"  {'hta':<26}{shown(slow)}" + "".join(f"; its {what} fails" for what in slow["failed"]))
    for name, found in quick.items():
        speed, memory = slow["cpu_s"] / found["cpu_s"], found["peak_mb"] / slow["peak_mb"]
        print(f"  {OURS[name]}: {speed:.1f} times as fast, {memory:.2f} of the memory")
    same = quick["recorded"]
    if slow["compute_us"]:
        off = 100 * abs(slow["compute_us"] - same["compute_us"]) / slow["compute_us"]
        print(f"  compute time of rank 0 differs by {off:.3f}%")
    return slow["cpu_s"] / same["cpu_s"] >= FASTER and same["peak_mb"] / slow["peak_mb"] <= SMALLER


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="*")
    parser.add_argument("--hta", default="", help="Python of an environment that has HolisticTraceAnalysis")
    parser.add_argument("--run", choices=[*OURS, "theirs"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        print(
            json.dumps(
                measure(theirs if given.run == "theirs" else partial(ours, given.run == "recorded"), given.traces)
            )
        )
        return 0
    if given.traces:
        compile_kernels(given.traces)
        return 0 if compare("given", given.hta, given.traces) else 1
    big = Path(os.environ.get("ETUDE_SHARED", HERE.parent.parent / "shared")) / "traces/h200/big_kineto.json.gz"
    if not big.exists():
        print(f"{big} is not there: nothing to measure")
        return 0
    compile_kernels([big])
    good = compare("big_kineto", given.hta, [big])
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder) / f"big.rank{rank}.json.gz" for rank in range(4)]
        for copy in copies:
            shutil.copyfile(big, copy)
        good &= compare("four copies of it", given.hta, copies)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
