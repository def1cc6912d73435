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

from etude.cost import ops
from etude.cost.compute import MeasuredOps, compute_time_ns
from etude.cost.ops import OpTable, Work
from etude.machine import device_names, open_device

F64 = NDArray[np.float64]
FITTED = ("codellama/CodeLlama-34b-Instruct-hf", "internlm/internlm-20b")
Row = dict[str, str]


@dataclass(frozen=True)
class Rows:
    device: NDArray[np.str_]
    model: NDArray[np.str_]
    op: NDArray[np.str_]
    measured: MeasuredOps

    def take(self, which: NDArray[np.bool_]) -> Rows:
        return Rows(self.device[which], self.model[which], self.op[which], self.measured.take(which))


def work_of(row: Row) -> Work | None:
    """The operator of a row on one of its tensor-parallel ranks; norms, sums and embeddings are not split."""
    tokens, tp, hidden, heads = (int(row[name]) for name in ("tokens", "tp", "hidden", "heads"))
    size, kv_heads, ffn = hidden // heads, int(row["kv_heads"]), int(row["ffn"]) // tp
    gated = row["gated"] == "True"
    projected = (heads + 2 * kv_heads) // tp * size
    match row["op"]:
        case "attn_pre_proj":
            return ops.matmul(tokens, projected, hidden)
        case "attn_post_proj":
            return ops.matmul(tokens, hidden, heads // tp * size)
        case "mlp_up_proj":
            return ops.matmul(tokens, ffn * (2 if gated else 1), hidden)
        case "mlp_down_proj":
            return ops.matmul(tokens, hidden, ffn)
        case "mlp_act":
            # the gated one is a kernel of its own, with a block for each token
            return ops.activation(tokens * ffn, inputs=2 if gated else 1, row_width=ffn if gated else 0)
        case "input_layernorm" | "post_attention_layernorm":
            return ops.normalisation(tokens, hidden)
        case "attn_rope":
            return ops.elementwise(tokens * (heads + kv_heads) // tp * size)
        case "add":
            return ops.elementwise(tokens * hidden, inputs=2)
        case "emb":
            return ops.embedding(tokens, hidden)
    return None


def read(path: Path) -> Rows:
    with path.open(newline="") as file:
        given = [(row, work_of(row)) for row in csv.DictReader(file) if row["device"] in device_names()]
    kept = [(row, work) for row, work in given if work is not None]
    times = np.array([round(float(row["median_us"]) * 1000) for row, _ in kept], np.int64)
    columns = (np.array([row[name] for row, _ in kept]) for name in ("device", "model", "op"))
    return Rows(*columns, MeasuredOps(OpTable.of([work for _, work in kept]), times))


def errors(rows: Rows) -> F64:
    """Relative error of each row, by the device of the catalogue."""
    error = np.full(len(rows.op), np.nan)
    for name in np.unique(rows.device).tolist():
        here = rows.device == name
        predicted = compute_time_ns(open_device(name), rows.measured.ops.take(here))
        error[here] = predicted / rows.measured.time_ns[here] - 1
    return error


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
        print(line(f"  {device}: other ops of less", error[here & ~products & ~_long(rows)]))
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
