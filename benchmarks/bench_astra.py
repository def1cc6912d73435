"""Speed and memory of the ASTRA-sim mode, beside ASTRA-sim's own figures.

    python benchmarks/bench_astra.py [--traces FOLDER] [--repeat N]

CPU seconds of loading (configuration, groups, traces) and simulating, without start-up and compilation, the best of N
runs, each in a process of its own; memory is the process's peak above what it held after the imports and a first small
run.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from parity_astra import unpack

from astra_oracle import Case, collective_cases, llm_cases, oracle, read_job
from etude.run import astra

PURE_NETWORK = "collectives_extra"


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(case: Case, warm: Case) -> dict[str, float]:
    """One timed run, from the files to the result, after a small one that compiles or loads the kernels."""
    for each in (warm, case):
        before, start = _peak_bytes(), time.process_time()
        network, system = astra.read_network(each.network), replace(astra.read_system(each.system), **each.overrides)
        options = astra.AstraOptions(
            groups=astra.read_groups(each.groups) if each.groups else {},
            backend=each.backend,
            num_queues_per_dim=each.queues,
            is_one_for_all=len(set(each.files)) == 1 < len(each.files),
        )
        job = read_job(each.files)
        loaded = time.process_time()
        result = astra.run(job, network, system, options)
    return {
        "nodes": result.job.nodes,
        "load_s": loaded - start,
        "run_s": time.process_time() - loaded,
        "bytes": _peak_bytes() - before,
    }


def _in_a_process(table: str, name: str, traces: Path, repeat: int) -> dict[str, float]:
    """The best of several runs, each in a fresh process."""
    best: dict[str, float] = {}
    for _ in range(repeat):
        out = subprocess.run(
            [sys.executable, __file__, "--one", table, name, "--traces", str(traces)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        found = json.loads(out)
        if not best or found["load_s"] + found["run_s"] < best["load_s"] + best["run_s"]:
            best = found
    return best


def _cases(root: Path, traces: Path, table: str) -> list[Case]:
    if table == "llm_traces":
        return [c for c in llm_cases(root, traces) if c.finishes]
    return [c for c in collective_cases(root, table) if c.row["experiment"] == "scale"]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--one", nargs=2, metavar=("TABLE", "ROW"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    root = oracle()
    if root is None:
        print("the oracle folder is not at hand", file=sys.stderr)
        return 2
    if args.one:
        cases = _cases(root, args.traces, args.one[0])
        case = next(c for c in cases if c.name == args.one[1])
        print(json.dumps(measure(case, min(cases, key=lambda c: len(c.files)))))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        traces = args.traces or unpack(root, Path(scratch))
        print(
            f"{'run':62} {'nodes':>7} {'load s':>7} {'run s':>7} {'knodes/s':>8} {'B/node':>7} {'ASTRA s':>8} {'x':>6}"
        )
        for table in ("llm_traces", PURE_NETWORK):
            times: list[float] = []
            for case in _cases(root, traces, table):
                found = _in_a_process(table, case.name, traces, args.repeat)
                total = found["load_s"] + found["run_s"]
                times.append(case.user_s / total)
                rate, each = found["nodes"] / total / 1e3, found["bytes"] / found["nodes"]
                print(
                    f"{case.name[:62]:62} {found['nodes']:7} {found['load_s']:7.3f} {found['run_s']:7.3f} {rate:8.0f} "
                    f"{each if table == 'llm_traces' else 0:7.0f} {case.user_s:8.2f} {case.user_s / total:6.1f}",
                    flush=True,
                )
            print(
                f"{table}: {min(times):.1f} to {max(times):.1f} times ASTRA-sim's speed, {len(times)} runs", flush=True
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
