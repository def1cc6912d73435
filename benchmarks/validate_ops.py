"""Cost model of operators against measured op times on one H200, by class and by decade of time.

    python benchmarks/validate_ops.py                    # the reference data beside the checkout, or $ETUDE_SHARED
    python benchmarks/validate_ops.py --rows my.csv --all

Two models are compared with every row. `catalogue`: the H200 of the catalogue, whose constants were fitted to our own
measurements (benchmarks/fit_devices.py) and to no row of the reference data, so that every row is held out. `refit`:
constants fitted anew, five times, to four fifths of the rows; each row is predicted by the fit that did not see it
(fold = sha256 of `op shape`, modulo 5). A refit starts from the constants of the catalogue.

`sdpa_decode` rows of the reference data count the bytes of keys and values, but were measured with one tensor for both
(64x8x8192x128 would need 8.1 TB/s of a memory that has 4.8); with two tensors, as in the grid, they take longer.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from etude.cost.calibrate import calibrate, read_measured
from etude.cost.compute import MeasuredOps, compute_time_ns, roofline_ns
from etude.cost.fit import fold_of
from etude.cost.ops import OpClass
from etude.decide.score import score
from etude.machine import device_names, open_device
from etude.machine.system import Device

F64 = NDArray[np.float64]
FOLDS = 5


@dataclass(frozen=True)
class Result:
    names: list[str]
    measured: MeasuredOps
    errors: dict[str, F64]
    """Relative error of each row, by model; no row was fitted to itself."""


def cross_validated(device: Device, names: list[str], measured: MeasuredOps, folds: int = FOLDS) -> F64:
    """Relative error of each row under the fit that did not see it."""
    fold = fold_of(names, folds)
    error = np.full(len(names), np.nan)
    for k in sorted(set(fold.tolist())):
        held = fold == k
        fitted = calibrate(device, MeasuredOps(measured.ops.take(~held), measured.time_ns[~held]))
        error[held] = roofline_ns(fitted, measured.ops.take(held)) / measured.time_ns[held] - 1
    return error


def scored(path: Path, device: Device) -> F64:
    """Relative error of each row under the catalogue."""
    name = next(name for name in device_names() if open_device(name) == device)
    rows = score(path, kind="operators", system=name).rows
    return np.array([row["predicted"]["time_s"] / row["measured"]["time_s"] - 1 for row in rows])


def validate(path: Path, device: Device, *, refit: bool = True) -> Result:
    names, measured = read_measured(path)
    errors = {"catalogue": scored(path, device)}
    if refit:
        errors["refit"] = cross_validated(device, names, measured)
    return Result(names, measured, errors)


def summary(errors: F64) -> tuple[int, float, float]:
    """(rows, mean |error|, median |error|)."""
    known = np.abs(errors[np.isfinite(errors)])
    return (len(known), float(known.mean()), float(np.median(known))) if len(known) else (0, np.nan, np.nan)


def report(result: Result, *, every: bool) -> None:
    op_class, time_ns = result.measured.ops.op_class, result.measured.time_ns
    decade = np.floor(np.log10(np.maximum(time_ns, 1) / 1000)).astype(int)
    for model, error in result.errors.items():
        print(f"\n{model}: |error| on rows held out of the fit")
        parts = [("all", np.ones(len(error), bool))]
        parts += [(OpClass(c).name.lower(), op_class == c) for c in np.unique(op_class).tolist()]
        parts += [(f"1e{d} to 1e{d + 1} us", decade == d) for d in np.unique(decade).tolist()]
        for what, which in parts:
            count, mean, median = summary(error[which])
            print(f"  {what:20} {count:4} rows   mean {mean:6.1%}   median {median:6.1%}")
    for i, name in enumerate(result.names):
        if every:
            shown = "  ".join(f"{model} {error[i]:+7.1%}" for model, error in result.errors.items())
            print(f"  {name:36} {time_ns[i] / 1000:10.2f} us   {shown}")


def report_table(path: Path, device: Device) -> None:
    """What `--compute table=benchmarks/h200_ops_grid.csv` gives: shapes that are in that table gain, others do not."""
    names, measured = read_measured(path)
    known, table = read_measured(Path(__file__).parent / "h200_ops_grid.csv")
    error = compute_time_ns(device, measured.ops, mode="table", table=table) / measured.time_ns - 1
    there = np.isin(names, known)
    print("\ncorrected by our own grid (mode `table`)")
    for what, which in (("shapes of the grid", there), ("other shapes", ~there)):
        count, mean, median = summary(error[which])
        print(f"  {what:20} {count:4} rows   mean {mean:6.1%}   median {median:6.1%}")


def report_experts(device: Device) -> None:
    """The half of our own products of experts that no constant was fitted to; and if they cost what others do."""
    from fit_devices import of_experts

    _, held = of_experts()
    plain = replace(device, ops={name: cost for name, cost in device.ops.items() if name != "grouped_gemm"})
    print("\nproducts of experts, half held out of the fit")
    for what, model in (("catalogue", device), ("as one product", plain)):
        count, mean, median = summary(roofline_ns(model, held.ops) / held.time_ns - 1)
        print(f"  {what:20} {count:4} rows   mean {mean:6.1%}   median {median:6.1%}")


def report_uneven(device: Device) -> None:
    """Experts that are not equally full, to which no constant was fitted; and as if they were."""
    from fit_devices import UNEVEN

    print("\nproducts of experts that are not equally full, all held out")
    for path in filter(Path.is_file, UNEVEN):
        names, measured = read_measured(path)
        families = np.array([name.split()[0] for name in names])
        for family in sorted({name for name in families.tolist() if "uneven" in name or "zipf" in name}):
            rows = measured.take(families == family)
            even = replace(rows.ops, op_class=np.full(len(rows.ops), int(OpClass.GROUPED_GEMM), np.uint8))
            for what, ops in ((family.removesuffix("_bf16"), rows.ops), ("  as equally full", even)):
                count, mean, median = summary(roofline_ns(device, ops) / rows.time_ns - 1)
                print(f"  {what:22} {count:4} rows   mean {mean:6.1%}   median {median:6.1%}")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("ETUDE_SHARED") or Path(__file__).resolve().parents[2] / "shared")
    parser.add_argument("--rows", type=Path, default=shared / "measured" / "h200_ops.csv")
    parser.add_argument("--device", default="h200", help="a device of the catalogue")
    parser.add_argument("--all", action="store_true", help="print every row")
    args = parser.parse_args(argv)
    if not args.rows.is_file():
        print(f"skipped: {args.rows} is not there", file=sys.stderr)
        return 0
    report(validate(args.rows, open_device(args.device)), every=args.all)
    if args.device == "h200":
        report_table(args.rows, open_device(args.device))
        report_experts(open_device(args.device))
        report_uneven(open_device(args.device))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
