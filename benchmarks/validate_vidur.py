"""Cost model of operators against those that Vidur measured on A100, H100 and A40, models held out.

    python benchmarks/validate_vidur.py                  # the reference data beside the checkout, or $ETUDE_SHARED
    python benchmarks/validate_vidur.py --rows my.csv    # other rows of the same columns

The constants of these devices in the catalogue were fitted (benchmarks/fit_devices.py) to the rows of the models in
FITTED and to no others: of the models of the reference data in the order of the sha256 of their names, the first half;
fixed before the first fit. Every other model is held out. Times there are those of kernels in whole or half
microseconds, so that an op of 2 us may be off by a quarter for that alone.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.cost.compute import MeasuredOps
from etude.cost.ops import OpTable
from etude.decide.score import score
from etude.decide.score.operators import vidur_work
from etude.machine import device_names

F64 = NDArray[np.float64]
ROUNDED_NS = 500
ROTARY = "attn_rope"
FITTED = ("codellama/CodeLlama-34b-Instruct-hf", "internlm/internlm-20b")


@dataclass(frozen=True)
class Rows:
    device: NDArray[np.str_]
    model: NDArray[np.str_]
    op: NDArray[np.str_]
    measured: MeasuredOps
    path: Path
    number: NDArray[np.int64]
    """Places in the file, from 1."""

    def take(self, which: NDArray[np.bool_]) -> Rows:
        columns = self.device[which], self.model[which], self.op[which], self.measured.take(which)
        return Rows(*columns, self.path, self.number[which])


def read(path: Path) -> Rows:
    """Rows whose device and operator are known."""
    with path.open(newline="") as file:
        given = list(csv.DictReader(file))
    kept, works, number = [], [], []
    for place, row in enumerate(given, 1):
        try:
            works.append(vidur_work(row))
        except UsageError:
            continue
        if row["device"] not in device_names():
            works.pop()
            continue
        kept.append(row)
        number.append(place)
    times = np.array([round(float(row["median_us"]) * 1000) for row in kept], np.int64)
    columns = (np.array([row[name] for row in kept]) for name in ("device", "model", "op"))
    return Rows(*columns, MeasuredOps(OpTable.of(works), times), path, np.array(number))


def errors(rows: Rows) -> F64:
    """Relative error of each row, by the device of the catalogue."""
    found = {r["row"]: r["predicted"]["time_s"] / r["measured"]["time_s"] - 1
             for r in score(rows.path, kind="operators").rows if "predicted" in r}  # fmt: skip
    return np.array([found[number] for number in rows.number.tolist()])


def beyond_rounding(rows: Rows, error: F64) -> F64:
    """What is left of errors where a time may be half a microsecond more or less than it was written down as."""
    written = rows.measured.time_ns
    predicted = (1 + error) * written
    return predicted / np.clip(predicted, written - ROUNDED_NS, written + ROUNDED_NS) - 1


def line(what: str, error: F64) -> str:
    if not len(error):
        return f"{what:52}     0 rows"
    size = np.abs(error)
    return (f"{what:52} {len(error):5} rows   median {np.median(size):6.1%}   mean {size.mean():6.1%}   "
            f"bias {error.mean():+6.1%}")  # fmt: skip


def report(rows: Rows, error: F64) -> None:
    held = ~np.isin(rows.model, FITTED)
    print(line("all, models held out", error[held]))
    products = np.char.endswith(rows.op, "_proj")
    for device in np.unique(rows.device).tolist():
        here = held & (rows.device == device)
        print(line(f"{device}, models held out", error[here]))
        print(line(f"  {device}: products", error[here & products]))
        print(line(f"  {device}: other ops of 5 us and more", error[here & ~products & _long(rows)]))
        short = here & ~products & ~_long(rows)
        print(line(f"  {device}: other ops of less", error[short]))
        kept = short & (rows.op != ROTARY)
        print(line(f"  {device}: ... but for rotary embeddings", error[kept]))
        print(line(f"  {device}: ... ... beyond half a microsecond", beyond_rounding(rows.take(kept), error[kept])))
    for name in np.unique(rows.model).tolist():
        print(line(f"{name}{'' if name not in FITTED else ' (fitted)'}", error[rows.model == name]))
    for name in np.unique(rows.op).tolist():
        print(line(f"{name}, models held out", error[held & (rows.op == name)]))


def _long(rows: Rows) -> NDArray[np.bool_]:
    return rows.measured.time_ns >= 5000


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("ETUDE_SHARED") or Path(__file__).resolve().parents[2] / "shared")
    parser.add_argument("--rows", type=Path, default=shared / "measured" / "vidur_ops.csv")
    args = parser.parse_args(argv)
    if not args.rows.is_file():
        print(f"skipped: {args.rows} is not there", file=sys.stderr)
        return 0
    rows = read(args.rows)
    report(rows, errors(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
