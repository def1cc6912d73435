"""Collective model against published nccl-tests all-reduce times, by GPU type, size and half.

    python benchmarks/validate_nccl.py                      # the reference data beside the checkout, or $ETUDE_SHARED
    python benchmarks/validate_nccl.py --rows my.csv --all  # every row

Two sets of constants are compared with every row. `catalogue`: what the catalogue ships. `refit`: fitted now to half of
the single-node rows of each GPU type, those whose sha256 of `source|gpu|gpus|size` is in the lower half; the other half
is held out. Fitted is what hardware differs in: steps and rates. What starts a collective is NCCL's own, and comes from
its tables. The catalogue's figures are those of such a fit. Rows over several nodes are printed, and fit nothing: their
network is not stated.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from etude.cost.collectives import collective_time_ns
from etude.cost.fit import fit
from etude.machine import open_system
from etude.machine.system import Protocol, System
from etude.model.schema import Collective

F64 = NDArray[np.float64]
BIG_BYTES = 1_000_000
SYSTEMS = {"V100": "dgx-2", "A100": "dgx-a100", "H100": "dgx-h100", "H200": "dgx-h200", "B200": "dgx-b200"}

# NCCL's tuning tables (2.28, src/graph/tuning.cc): base latencies of a ring by protocol.
LAUNCH_NS = {"ll": 6600.0, "ll128": 14000.0, "simple": 8400.0}

# Start and spread of each constant. Steps start from the same tables (NVLink latencies of a ring; NVLS has 25 us for
# launch and two steps), LL and LL128 bandwidths are theirs too (1/4 and 0.92); the rest are guesses, left wide.
PARAMETERS = {
    "ll_step": (600.0, 1.5),
    "ll128_step": (1900.0, 1.5),
    "simple_step": (3400.0, 1.5),
    "in_switch_step": (8300.0, 1.5),
    "efficiency": (0.8, 1.1),
    "in_switch_efficiency": (0.7, 1.1),
    "chunk_ns": (2000.0, 2.0),
    "ramp_bytes": (100e6, 2.0),
}


@dataclass(frozen=True)
class Rows:
    source: list[str]
    gpu: list[str]
    gpus: NDArray[np.int64]
    per_node: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    time_ns: F64

    def __len__(self) -> int:
        return len(self.gpu)


def read(path: Path) -> Rows:
    with open(path, newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["collective"] == "all_reduce"]
    ints = {k: np.array([int(r[k]) for r in rows], np.int64) for k in ("gpus", "gpus_per_node", "size_bytes")}
    time_ns = np.array([float(r["time_us"]) * 1e3 for r in rows])
    gpu = [r["gpu"].partition("-")[0] for r in rows]
    return Rows([r["source"] for r in rows], gpu, ints["gpus"], ints["gpus_per_node"], ints["size_bytes"], time_ns)


def fitted_half(rows: Rows, among: NDArray[np.bool_], salt: str = "") -> NDArray[np.bool_]:
    """The lower half, by hash, of the rows `among`; another half with another salt."""
    keys = [
        f"{salt}{s}|{g}|{n}|{b}" for s, g, n, b in zip(rows.source, rows.gpu, rows.gpus, rows.size_bytes, strict=True)
    ]
    digest = np.array([int(hashlib.sha256(k.encode()).hexdigest()[:15], 16) for k in keys], np.int64)
    chosen = np.zeros(len(rows), bool)
    places = np.flatnonzero(among)
    chosen[places[np.argsort(digest[places], kind="stable")][: len(places) // 2]] = True
    return chosen


def on_system(system: System, gpus: int, per_node: int) -> System:
    """As much of the system as the row used."""
    inner = replace(system.levels[0], size=max(per_node, system.levels[0].size))
    outer = replace(system.levels[1], size=max(gpus // per_node, 1))
    return system.replace(levels=(inner, outer), placement=())


def predict(system: System, rows: Rows, which: NDArray[np.bool_]) -> F64:
    """ns of each row of `which`."""
    time = np.zeros(len(rows))
    for gpus, per_node in sorted({(int(rows.gpus[i]), int(rows.per_node[i])) for i in np.flatnonzero(which)}):
        same = which & (rows.gpus == gpus) & (rows.per_node == per_node)
        part = on_system(system, gpus, per_node)
        stride = part.levels[0].size
        ranks = [node * stride + k for node in range(gpus // per_node) for k in range(per_node)]
        time[same] = collective_time_ns(part, Collective.ALL_REDUCE, rows.size_bytes[same], ranks)
    return time[which]


def with_constants(system: System, values: F64) -> System:
    p = dict(zip(PARAMETERS, values.tolist(), strict=True))
    inner = system.levels[0]
    steps = {k: p[f"{k}_step"] for k in ("ll", "ll128", "simple", "in_switch")}
    switch = min(p["in_switch_efficiency"], 1.0) if inner.in_switch_efficiency else 0.0
    inner = replace(inner, step_ns=steps, efficiency=min(p["efficiency"], 1.0), in_switch_efficiency=switch)
    ramp = {"chunk_ns": p["chunk_ns"], "ramp_bytes": int(p["ramp_bytes"])}
    protocols = {
        "ll": Protocol(launch_ns=LAUNCH_NS["ll"], bandwidth_fraction=0.25),
        "ll128": Protocol(launch_ns=LAUNCH_NS["ll128"], bandwidth_fraction=0.92, **ramp),
        "simple": Protocol(launch_ns=LAUNCH_NS["simple"], **ramp),
    }
    settings = replace(system.collectives, protocols=protocols)
    return system.replace(levels=(inner, *system.levels[1:]), collectives=settings)


def refit(system: System, rows: Rows, which: NDArray[np.bool_]) -> tuple[System, F64]:
    start, spread = (np.array([v[k] for v in PARAMETERS.values()]) for k in (0, 1))
    values = fit(
        lambda v: predict(with_constants(system, v), rows, which), rows.time_ns[which], start, spread, outlier=2.0
    )
    return with_constants(system, values), values


@dataclass(frozen=True)
class Result:
    rows: Rows
    single: NDArray[np.bool_]
    fitted: NDArray[np.bool_]
    errors: dict[str, F64]
    """Relative error of each row by set of constants; NaN where the GPU is not in the catalogue."""
    constants: dict[str, F64]


def validate(rows: Rows, salt: str = "") -> Result:
    single = rows.gpus == rows.per_node
    fitted = np.zeros(len(rows), bool)
    errors = {name: np.full(len(rows), np.nan) for name in ("catalogue", "refit")}
    constants = {}
    for gpu in sorted(set(rows.gpu) & set(SYSTEMS)):
        mine = np.array([g == gpu for g in rows.gpu])
        system = open_system(SYSTEMS[gpu])
        half = fitted_half(rows, mine & single, salt)
        fitted |= half
        again, constants[gpu] = refit(system, rows, half) if half.any() else (system, np.zeros(0))
        for name, used in (("catalogue", system), ("refit", again)):
            errors[name][mine] = predict(used, rows, mine) / rows.time_ns[mine] - 1
    return Result(rows, single, fitted, errors, constants)


def summary(errors: F64) -> tuple[int, float, float]:
    """(rows, mean |error|, median |error|) of those that have one."""
    known = np.abs(errors[np.isfinite(errors)])
    return (len(known), float(known.mean()), float(np.median(known))) if len(known) else (0, np.nan, np.nan)


def bars(result: Result, name: str) -> tuple[float, float]:
    """(mean |error| of single-node rows of 1 MB and more, median |error| of the smaller ones)."""
    big = result.rows.size_bytes >= BIG_BYTES
    error = result.errors[name]
    return summary(error[result.single & big])[1], summary(error[result.single & ~big])[2]


def report(result: Result, *, every: bool) -> None:
    rows, big = result.rows, result.rows.size_bytes >= BIG_BYTES
    for gpu, values in result.constants.items():
        print(f"{gpu} refit:", ", ".join(f"{k} {v:.4g}" for k, v in zip(PARAMETERS, values, strict=False)))
    for name, error in result.errors.items():
        print(f"\n{name}: |error|, single node")
        for what, which in (
            ("1 MB and up", big),
            ("1 MB and up, fitted half", big & result.fitted),
            ("1 MB and up, held out", big & ~result.fitted),
            ("smaller", ~big),
            ("smaller, held out", ~big & ~result.fitted),
        ):
            count, mean, median = summary(error[result.single & which])
            print(f"  {what:28} {count:4} rows   mean {mean:6.1%}   median {median:6.1%}")
        decades = np.floor(np.log10(np.maximum(rows.size_bytes, 1))).astype(int)
        for several, title in ((False, "single node"), (True, "several nodes (network not stated)")):
            print(f"  by decade of bytes, {title}")
            for decade in sorted(set(decades.tolist())):
                count, mean, median = summary(error[(result.single != several) & (decades == decade)])
                if count:
                    print(f"    1e{decade:<2} {count:4} rows   mean {mean:6.1%}   median {median:6.1%}")
    print("\nrow: gpu, gpus, per node, bytes, measured us, error of catalogue and refit, fitted or held")
    for i in range(len(rows)):
        if every or not result.single[i]:
            state = "fitted" if result.fitted[i] else "held" if result.single[i] else "several nodes"
            figures = f"{rows.gpus[i]:4} {rows.per_node[i]:3} {rows.size_bytes[i]:12} {rows.time_ns[i] / 1e3:10.1f}"
            both = "  ".join(f"{result.errors[k][i]:+7.1%}" for k in ("catalogue", "refit"))
            print(f"  {rows.gpu[i]} {figures}  {both}  {state}")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("ETUDE_SHARED") or Path(__file__).resolve().parents[2] / "shared")
    parser.add_argument("--rows", type=Path, default=shared / "measured" / "nccl_allreduce.csv")
    parser.add_argument("--all", action="store_true", help="print every row, not only those over several nodes")
    parser.add_argument(
        "--salt", default="", help="hold out another half: a refit that holds for one half alone is luck"
    )
    args = parser.parse_args(argv)
    if not args.rows.is_file():
        print(f"skipped: {args.rows} is not there", file=sys.stderr)
        return 0
    report(validate(read(args.rows), args.salt), every=args.all)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
