"""Values of HolisticTraceAnalysis on any traces, as files that `validate_analyse.py --hta` compares with.

    VENV/bin/python benchmarks/hta_values.py OUT [--whole-us] NAME=TRACE[,TRACE...] ...     # ranks 0, 1, ... of one run

Runs in an environment of its own with HolisticTraceAnalysis and pandas<3 (0.5.0). Times are exact, and sets
then called NAME_ns, unless --whole-us leaves HTA its default, which cuts fractions of microseconds.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

TABLES = {
    "temporal_breakdown": lambda t, ranks: t.get_temporal_breakdown(visualize=False),
    "comm_comp_overlap": lambda t, ranks: t.get_comm_comp_overlap(visualize=False),
    "kernel_type_breakdown": lambda t, ranks: t.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True)[
        0
    ],
    "kernel_breakdown_top10": lambda t, ranks: t.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True)[
        1
    ],
    "idle_time_breakdown": lambda t, ranks: gaps(t, ranks),
    "queue_length_summary": lambda t, ranks: described(t.get_queue_length_summary(ranks=ranks), "queue_length"),
    "memory_bw_summary": lambda t, ranks: described(t.get_memory_bw_summary(ranks=ranks), "memory_bw_gbps"),
    "launch_stats_summary": lambda t, ranks: launches(t.get_cuda_kernel_launch_stats(ranks=ranks, visualize=False)),
}


def kernels(t: Any) -> Any:
    return t.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True)


def gaps(t: Any, ranks: list[int]) -> Any:
    import pandas as pd

    return pd.concat([t.get_idle_time_breakdown(ranks=[rank], visualize=False)[0] for rank in ranks])


def described(table: Any, name: str) -> Any:
    """What pandas' `describe` says, with a first row of the names of its columns."""
    import pandas as pd

    table = pd.DataFrame() if table is None else table
    values = [[column[-1] for column in table.columns], *table.to_numpy().tolist()]
    names = [name, *(f"{name}.{i}" for i in range(1, len(values[0])))] if values[0] else []
    return pd.DataFrame(values if names else [], columns=names)


def launches(by_rank: dict[int, Any]) -> Any:
    import pandas as pd

    rows = []
    for rank, table in by_rank.items():
        host, device, delay = table.cpu_duration, table.gpu_duration, table.launch_delay
        rows.append({
            "rank": rank, "launches": len(table), "sum_cpu_us": host.sum(), "sum_gpu_us": device.sum(),
            "sum_launch_delay_us": delay.sum(), "median_launch_delay_us": delay.median(),
            "delay_gt_100us": int((delay > 100).sum()), "runtime_gt_50us": int((host > 50).sum()),
            "gpu_shorter_than_cpu": int((device < host).sum()),
        })  # fmt: skip
    return pd.DataFrame(rows)


def add(out: Path, table: str, name: str, found: Any) -> None:
    found = found.copy()
    found.insert(0, "set", name)
    file = out / f"{table}.csv"
    found.to_csv(file, mode="a", header=not file.exists(), index=False)


def values(out: Path, name: str, traces: list[str]) -> None:
    import pandas as pd
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    logging.disable(logging.CRITICAL)
    stem = name.removesuffix("_ns")
    rows = []
    for rank, path in enumerate(traces):
        copy = out / "inputs" / (f"{stem}.rank{rank}.json.gz" if len(traces) > 1 else f"{stem}.json.gz")
        shutil.copyfile(path, copy)
        rows.append({"file": f"inputs/{copy.name}", "rank": rank})
    add(out, "inputs", stem, pd.DataFrame(rows))
    ranks = list(range(len(traces)))
    t = TraceAnalysis(trace_files=dict(enumerate(traces)), include_last_profiler_step=True)
    for table, compute in TABLES.items():
        try:
            add(out, table, name, compute(t, ranks))
        except Exception as problem:  # whatever HTA stumbles over
            print(f"{name}: {table}: {type(problem).__name__}: {problem}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", nargs="+", metavar="NAME=TRACE")
    parser.add_argument("--whole-us", action="store_true", help="HTA's default: cut times to whole microseconds")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "0" if given.whole_us else "1"
    (given.out / "inputs").mkdir(parents=True)
    for run in given.runs:
        name, _, traces = run.partition("=")
        values(given.out, name if given.whole_us else f"{name}_ns", traces.split(","))


if __name__ == "__main__":
    main()
