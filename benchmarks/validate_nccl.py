"""Collective model against published NCCL times, by GPU type, number of GPUs, size and half.

    python benchmarks/validate_nccl.py                      # the reference data beside the checkout, or $ETUDE_SHARED
    python benchmarks/validate_nccl.py --rows my.csv --all  # every row
    python benchmarks/validate_nccl.py --salt a             # another half

Two sets of constants are compared with every row. `catalogue`: what the catalogue ships, and so what every command
uses. `refit`: fitted now to half of the rows inside one node, those whose sha256 of `system|gpus|bytes` is even; the
other half is held out. The catalogue's figures are those of a fit to that half, rounded; they stay while they are
as near to it as a fit of today. Two measurements of one size on one
number of GPUs are in the same half, and a measurement that two files list counts once.

Fitted is what hardware differs in: steps, rates and the shortest time of a protocol. What starts a collective is NCCL's
own, and comes from its tables. Rows over several nodes are printed, and fit nothing: their network is not stated.

NCCL is no faster with more bytes. A row that took longer than a larger message of the same file on as many GPUs holds
something else than its own cost, most likely that ranks waited for one another; what such rows do to the errors is
printed, but they count in every figure.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.cost.collectives import collective_time_ns, p2p_time_ns
from etude.cost.fit import fit
from etude.decide.score import score
from etude.decide.score.collectives import SYSTEMS, VIDUR_SYSTEMS, on_system
from etude.machine import open_system
from etude.machine.system import Protocol, System
from etude.model.schema import Collective

F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]
Guess = tuple[float, float]
Constants = dict[str, float]
BIG_BYTES: Final = 1_000_000
FILES: Final = ("nccl_allreduce.csv", "vidur_collectives.csv")
KINDS: Final = ("all_reduce", "send_recv")

# NCCL's tuning tables (2.28, src/graph/tuning.cc): base latencies of a ring by protocol; NVLS has that of `simple`.
LAUNCH_NS: Final = {"ll": 6600.0, "ll128": 14000.0, "simple": 8400.0, "in_switch": 8400.0}

# Start and spread of each constant. Steps start from the same tables (NVLink latencies of a ring; NVLS has 25 us for
# launch and two steps), LL and LL128 bandwidths are theirs too (1/4 and 0.92); the rest are guesses, left wide.
RING: Final = {
    "ll_step": (600.0, 1.5),
    "ll128_step": (1900.0, 1.5),
    "simple_step": (3400.0, 1.5),
    "ll_fraction": (0.25, 1.5),
    "ll128_fraction": (0.92, 1.2),
    "ll_most": (1e6, 2.0),
    "least": (30_000.0, 1.5),
    "efficiency_2": (0.8, 1.1),
    "efficiency_4": (0.8, 1.1),
    "efficiency_8": (0.8, 1.1),
    "chunk": (500.0, 3.0),
    "ramp": (100e6, 2.0),
}
SWITCH: Final = {
    "in_switch_step": (8300.0, 1.5),
    "in_switch_efficiency": (0.7, 1.1),
    "in_switch_chunk": (2000.0, 2.0),
    "in_switch_ramp": (100e6, 2.0),
}
MESSAGE: Final = {"p2p_launch": (6600.0, 1.5), "p2p_least": (10_000.0, 1.5)}


@dataclass(frozen=True)
class Row:
    origin: str
    """Who measured."""
    system: str
    """Name in the catalogue, empty where it has none."""
    kind: str
    gpus: int
    per_node: int
    size_bytes: int


@dataclass(frozen=True)
class Rows:
    keys: tuple[Row, ...]
    time_ns: F64
    predicted_ns: F64
    """By the catalogue."""

    def __len__(self) -> int:
        return len(self.keys)

    def column(self, name: str) -> NDArray[Any]:
        return np.array([getattr(row, name) for row in self.keys])

    @property
    def single(self) -> Mask:
        return np.array(self.column("gpus") == self.column("per_node"))

    @property
    def big(self) -> Mask:
        return np.array(self.column("size_bytes") >= BIG_BYTES)


def read(paths: Iterable[Path]) -> Rows:
    """Rows of known machines, and what `etude score` says of each."""
    found: dict[Row, tuple[float, float]] = {}
    for path in paths:
        with open(path, newline="") as file:
            given = list(csv.DictReader(file))
        for r, scored in zip(given, score(path, kind="collectives").rows, strict=True):
            row = key_of(r)
            if row.kind in KINDS and row.system:
                measured_us = float(r["median_us"] if "median_us" in r else r["time_us"])
                found[row] = measured_us * 1e3, scored["predicted"]["time_s"] * 1e9
    measured, predicted = (np.array([pair[k] for pair in found.values()], np.float64) for k in (0, 1))
    return Rows(tuple(found), measured, predicted)


def key_of(r: dict[str, str]) -> Row:
    """What a row of either table is."""
    return _vidur(r) if "median_us" in r else _nccl_tests(r)


def _nccl_tests(r: dict[str, str]) -> Row:
    origin = "/".join(r["source"].split(" ")[0].split("/")[:2])
    system = SYSTEMS.get(r["gpu"].partition("-")[0], "")
    return Row(origin, system, r["collective"], int(r["gpus"]), int(r["gpus_per_node"]), int(r["size_bytes"]))


def _vidur(r: dict[str, str]) -> Row:
    system = VIDUR_SYSTEMS.get(r["system"], "")
    kind, gpus, per_node = r["collective"], int(r["workers"]), int(r["devices_per_node"])
    return Row("microsoft/vidur", system, kind, gpus, per_node, int(r["bytes"]))


def fitted_half(rows: Rows, salt: str = "") -> Mask:
    """Rows to fit: inside one node, and even by hash. Whatever rows there are, a row is in the same half."""
    texts = [f"{salt}{row.system}|{row.gpus}|{row.size_bytes}" for row in rows.keys]
    even = np.array([int(hashlib.sha256(t.encode()).hexdigest(), 16) % 2 == 0 for t in texts], bool)
    return even & rows.single


def overtaken(rows: Rows) -> Mask:
    """Rows that took longer than a larger message of the same origin, system, kind and GPUs."""
    out = np.zeros(len(rows), bool)
    for i, a in enumerate(rows.keys):
        same = [
            rows.time_ns[k]
            for k, b in enumerate(rows.keys)
            if b.size_bytes > a.size_bytes and replace(b, size_bytes=a.size_bytes) == a
        ]
        out[i] = bool(same) and min(same) < rows.time_ns[i]
    return out


def predict(system: System, rows: Rows, which: Mask) -> F64:
    """ns of each row of `which`."""
    time, sizes = np.zeros(len(rows)), rows.column("size_bytes")
    shapes = [(row.kind, row.gpus, row.per_node) for row in rows.keys]
    for kind, gpus, per_node in sorted({shapes[i] for i in np.flatnonzero(which)}):
        same = which & np.array([s == (kind, gpus, per_node) for s in shapes])
        part = on_system(system, gpus, per_node)
        stride = part.levels[0].size
        ranks = [node * stride + k for node in range(gpus // per_node) for k in range(per_node)]
        if kind == "send_recv":
            time[same] = p2p_time_ns(part, ranks[0], ranks[1], sizes[same])
        else:
            time[same] = collective_time_ns(part, Collective.ALL_REDUCE, sizes[same], ranks)
    return time[which]


def with_message(system: System, p: Constants) -> System:
    start = {"p2p_launch_ns": p["p2p_launch"], "p2p_least_ns": p["p2p_least"]}
    return system.replace(collectives=replace(system.collectives, **start))


def with_collectives(system: System, p: Constants) -> System:
    """The system with these constants; a fraction is 1 at most."""
    inner, settings = system.levels[0], system.collectives
    part = {name: min(value, 1.0) for name, value in p.items() if "efficiency" in name or "fraction" in name}
    steps = {name: p[f"{name}_step"] for name in ("ll", "ll128", "simple", "in_switch") if f"{name}_step" in p}
    by_units = {n: part[f"efficiency_{n}"] for n in ("2", "4", "8")}
    pipe: dict[str, Any] = {"least_ns": p["least"], "chunk_ns": p["chunk"], "ramp_bytes": int(p["ramp"])}
    ll = {"bandwidth_fraction": part["ll_fraction"], "most_bytes": int(p["ll_most"])}
    protocols = {
        "ll": Protocol(launch_ns=LAUNCH_NS["ll"], **ll),
        "ll128": Protocol(launch_ns=LAUNCH_NS["ll128"], bandwidth_fraction=part["ll128_fraction"], **pipe),
        "simple": Protocol(launch_ns=LAUNCH_NS["simple"], **pipe),
    }
    if "in_switch_step" in p:
        ramp = {"chunk_ns": p["in_switch_chunk"], "ramp_bytes": int(p["in_switch_ramp"])}
        protocols["in_switch"] = Protocol(launch_ns=LAUNCH_NS["in_switch"], **ramp)
        inner = replace(inner, in_switch_efficiency=part["in_switch_efficiency"])
    inner = replace(inner, step_ns=steps, efficiency=part["efficiency_8"], efficiency_by_units=by_units)
    return system.replace(levels=(inner, *system.levels[1:]), collectives=replace(settings, protocols=protocols))


def refit(system: System, rows: Rows, which: Mask) -> tuple[System, Constants]:
    """Collectives first; then what starts a message, with the rates of the collectives."""
    switch = SWITCH if system.levels[0].in_switch_efficiency else {}
    found: Constants = {}
    for kind, parameters, change in (
        ("all_reduce", RING | switch, with_collectives),
        ("send_recv", MESSAGE, with_message),
    ):
        mine = which & np.array(rows.column("kind") == kind)
        if mine.any():
            found |= _fitted(lambda p, of=system, change=change: change(of, p), parameters, rows, mine)
            system = change(system, found)
    return system, found


def _fitted(change: Callable[[Constants], System], parameters: dict[str, Guess], rows: Rows, which: Mask) -> Constants:
    start, spread = (np.array([v[k] for v in parameters.values()]) for k in (0, 1))

    def tried(values: F64) -> F64:
        return predict(change(dict(zip(parameters, values.tolist(), strict=True))), rows, which)

    values = fit(tried, rows.time_ns[which], start, spread, outlier=2.0)
    return dict(zip(parameters, values.tolist(), strict=True))


@dataclass(frozen=True)
class Result:
    rows: Rows
    fitted: Mask
    overtaken: Mask
    errors: dict[str, F64]
    """Relative error of each row by set of constants."""
    constants: dict[str, Constants]


def validate(rows: Rows, salt: str = "", *, fit: bool = True) -> Result:
    """Errors of the catalogue's constants and, to `fit`, of those that the fitted half gives today."""
    fitted = fitted_half(rows, salt)
    errors = {name: np.full(len(rows), np.nan) for name in ("catalogue", "refit")}
    constants: dict[str, Constants] = {}
    names = rows.column("system")
    for name in sorted(set(names.tolist())):
        mine, system = names == name, open_system(name)
        again = system
        if fit and (mine & fitted).any():
            again, constants[name] = refit(system, rows, mine & fitted)
        errors["catalogue"][mine] = rows.predicted_ns[mine] / rows.time_ns[mine] - 1
        errors["refit"][mine] = predict(again, rows, mine) / rows.time_ns[mine] - 1
    return Result(rows, fitted, overtaken(rows), errors, constants)


def summary(errors: F64) -> tuple[int, float, float]:
    """(rows, mean |error|, median |error|) of those that have one."""
    known = np.abs(errors[np.isfinite(errors)])
    return (len(known), float(known.mean()), float(np.median(known))) if len(known) else (0, np.nan, np.nan)


def by_gpus(result: Result, name: str, which: Mask) -> dict[tuple[str, str, int], tuple[int, float, float]]:
    """Summary for each (kind, system, GPUs) inside one node, among `which`."""
    rows, out = result.rows, {}
    for key in sorted({(row.kind, row.system, row.gpus) for row in rows.keys if row.gpus == row.per_node}):
        mine = np.array([(row.kind, row.system, row.gpus) == key for row in rows.keys])
        out[key] = summary(result.errors[name][mine & which & rows.single])
    return out


def report(result: Result, *, every: bool) -> None:
    for system, values in result.constants.items():
        print(f"{system} refit:", ", ".join(f"{k} {v:.4g}" for k, v in values.items()))
    for name in result.errors:
        _print_errors(result, name)
    print("\nrow: origin, what, system, gpus, per node, bytes, measured us, error of catalogue and refit, which half")
    for i, row in enumerate(result.rows.keys):
        one = row.gpus == row.per_node
        if every or not one:
            state = ("fitted" if result.fitted[i] else "held") if one else "several nodes"
            what = f"{row.origin} {row.kind} {row.system} {row.gpus:3} {row.per_node:3} {row.size_bytes:12}"
            both = "  ".join(f"{result.errors[k][i]:+7.1%}" for k in result.errors)
            late = "  slower than a larger one" if result.overtaken[i] else ""
            print(f"  {what} {result.rows.time_ns[i] / 1e3:10.1f}  {both}  {state}{late}")


def _print_errors(result: Result, name: str) -> None:
    big, held = result.rows.big, ~result.fitted
    parts = (
        ("1 MB and up, fitted", big & ~held),
        ("1 MB and up, held out", big & held),
        ("... not slower than a larger one", big & held & ~result.overtaken),
        ("below 1 MB, held out", ~big & held),
        ("... not slower than a larger one", ~big & held & ~result.overtaken),
    )
    print(f"\n{name}: |error| inside one node")
    for title, which in parts:
        for (kind, system, gpus), (count, mean, median) in by_gpus(result, name, which).items():
            if count:
                line = f"{kind:10} {system:9} {gpus:2} GPUs {count:4} rows   mean {mean:6.1%}   median {median:6.1%}"
                print(f"  {title:34} {line}")
        reduce = np.array(result.rows.column("kind") == "all_reduce") & result.rows.single
        count, mean, median = summary(result.errors[name][which & reduce])
        print(f"  {title:34} all-reduce, together {count:6} rows   mean {mean:6.1%}   median {median:6.1%}")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("ETUDE_SHARED") or Path(__file__).resolve().parents[2] / "shared")
    parser.add_argument("--rows", type=Path, action="append", help="may be given several times")
    parser.add_argument("--all", action="store_true", help="print every row, not only those over several nodes")
    parser.add_argument(
        "--salt", default="", help="hold out another half: a refit that holds for one half alone is luck"
    )
    args = parser.parse_args(argv)
    paths = args.rows or [shared / "measured" / name for name in FILES]
    there = [path for path in paths if path.is_file()]
    for path in paths:
        if path not in there:
            print(f"skipped: {path} is not there", file=sys.stderr)
    if there:
        report(validate(read(there), args.salt), every=args.all)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
