"""The operator database: keys that models share, held-out operators of other tools, steps predicted from it.

    python benchmarks/validate_operators.py              # the reference data beside the checkout, or $ETUDE_SHARED
    python benchmarks/validate_operators.py --points points.csv   # other points of an H200

- keys: `etude ops missing` over twelve models, each on 1, 2 and 4 tensor-parallel ranks, in serving.
- Vidur: operators of A100, H100 and A40 (`vidur_ops.csv`), models held out: a database of the models in FITTED (of
  `validate_vidur.py`, as for the cost model) is asked for every row of the others.
- profiles: of each folder of `vllm_profiles` a fifth of the points, by hash, is left out and predicted by the rest,
  and by the cost model, operator by operator.
  Points outside a curve, of a device that the catalogue does not have, are counted: nothing is said of them.
- steps: training steps on one H200, predicted by `etude predict --ops` with the database of `h200_ops_points.csv`,
  which `measure_ops_h200.py` and the worker made in 129 s: those of the reference data (`h200_steps.csv`), three of
  them again on the machine of the database (`h200_steps_again.csv`), and ours (`h200_steps_grid.csv`), whose host was
  faster: their rows for which the host is the limit are counted apart.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from validate_vidur import FITTED

from etude.cost.compute import roofline_ns
from etude.cost.fit import fold_of
from etude.cost.opdb import OpDatabase, Shapes, TimeOrigin, add_rows, read_ops, read_points
from etude.cost.opdb.curves import Curves
from etude.cost.opdb.profiles import read_vidur
from etude.cost.opdb.schema import works_of
from etude.decide.score import score
from etude.machine import Device, device_names, open_device, open_system
from etude.make.generate.model import open_model
from etude.steps.measured.eager import eager_cases
from etude.steps.operators import ModelWorkload, needs_of, open_ops
from etude.steps.step import predict

F64 = NDArray[np.float64]
HERE = Path(__file__).resolve().parent
MODELS = (
    "llama2-7b", "llama2-70b", "llama3-8b", "llama3-70b", "mistral-7b", "mixtral-8x7b", "qwen2.5-7b", "qwen2.5-72b",
    "qwen3-8b", "qwen3-14b", "qwen3-32b", "qwen3-30b-a3b",
)  # fmt: skip


def line(what: str, error: F64) -> str:
    if not len(error):
        return f"{what:52}     0 points"
    size = np.abs(error)
    return f"{what:52} {len(error):5} points   median {np.median(size):6.1%}   mean {size.mean():6.1%}"


def keys() -> None:
    numbers = needs_of(
        [open_model(name) for name in MODELS], [1, 2, 4], ModelWorkload(), open_system("dgx-h200")
    ).summary()
    print(f"{len(MODELS)} models on 1, 2 and 4 ranks: {numbers['keys']} keys, {numbers['distinct']} distinct, "
          f"{numbers['saved_fraction']:.1%} of the keys saved, {numbers['saved_cost_fraction']:.1%} of the measuring "
          f"({numbers['cost_alone_s']:.0f} s model by model, {numbers['cost_s']:.0f} s together)")  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """Held-out points, what the database says of them, and what the roofline does."""

    shapes: Shapes
    error: F64
    origin: NDArray[np.uint8]
    formula: F64

    @classmethod
    def of(cls, known: Curves, shapes: Shapes, time_ns: F64) -> Asked:
        found, origin = known.time_ns(shapes)
        return cls(shapes, found / time_ns - 1, origin, roofline_ns(known.device, works_of(shapes)) / time_ns - 1)

    def at(self, origin: TimeOrigin) -> NDArray[np.bool_]:
        return self.origin == origin


def vidur(path: Path) -> None:
    table = read_vidur(path)
    source = np.array(table["source"].to_pylist(), np.str_)
    fitted, held = (OpDatabase(table.filter(pa.array(np.isin(source, FITTED) == side))) for side in (True, False))
    found = []
    for name in held.devices:
        rows = held.select(device=name)
        time_ns = rows.table["time_us"].to_numpy() * 1000
        found.append(Asked.of(fitted.on(open_device(name)), rows.shapes(), time_ns))
    error, formula = (np.concatenate([getattr(one, part) for one in found]) for part in ("error", "formula"))
    origin, op = np.concatenate([one.origin for one in found]), np.concatenate([one.shapes.op for one in found])
    print(line("Vidur, models held out, by the database", error))
    print(line("... by the cost model alone", formula))
    for kind in (TimeOrigin.MEASURED, TimeOrigin.NEAR):
        words = "keys that a fitted model has too" if kind == TimeOrigin.MEASURED else "keys of their own"
        print(line(f"  {words}", error[origin == kind]))
        print(line("  ... by the cost model alone", formula[origin == kind]))
    for name in np.unique(op).tolist():
        print(line(f"  {name}", error[op == name]))
    shapes, time_ns = fitted.select(device="h100").points()
    at_points = np.rint(fitted.on(open_device("h100")).time_ns(shapes)[0]) - np.rint(time_ns)
    print(f"  at measured points: {np.abs(at_points).max():.0f} ns off at most")


def profiles(folder: Path) -> None:
    for place in sorted(p.parent for p in folder.rglob("meta.yaml")):
        database = open_ops(place)
        name = database.devices[0]
        device = open_device(name) if name in device_names() else Device(name=name)
        shapes, time_ns = database.points()
        keyed = [f"{op} {dims}" for op, dims in zip(shapes.op.tolist(), shapes.dims.tolist(), strict=True)]
        left = fold_of(keyed, 5) == 0
        found = Asked.of(Curves(shapes.take(~left), time_ns[~left], device), shapes.take(left), time_ns[left])
        said = np.isfinite(found.error)
        outside = f"   {int((~said).sum())} outside"
        print(line(f"{place.relative_to(folder).parent}, a fifth left out", found.error[said]) + outside)
        print(line("  ... by the cost model alone", found.formula[said]))
        for op in np.unique(found.shapes.op).tolist():
            mine = said & (found.shapes.op == op)
            print(line(f"  {op}", found.error[mine]))
            print(line("    ... by the cost model alone", found.formula[mine]))


def steps(points: Path, shared: Path) -> None:
    with TemporaryDirectory() as folder:
        add_rows(Path(folder) / "ops.parquet", read_points(points))
        _steps(points, shared, Path(folder) / "ops.parquet")


def _steps(points: Path, shared: Path, file: Path) -> None:
    database = read_ops(file)
    print(f"{points.name}: {len(database.points()[0])} points, host {(database.host_ns() or 0) / 1000:.1f} us an op")
    for path in (shared / "measured" / "h200_steps.csv", HERE / "h200_steps_again.csv", HERE / "h200_steps_grid.csv"):
        if not path.is_file():
            continue
        error, by_host = [], []
        scored = {row["row"]: row["predicted"]["step_s"] for row in score(path, kind="training", ops=file).rows
                  if "predicted" in row}  # fmt: skip
        for case in eager_cases(path):
            step_s = scored[case.row]
            ahead = predict(case.model, case.plan.replace(host_ns=0), case.system, stack=case.stack, ops=database,
                            check=False)  # fmt: skip
            error.append(step_s / case.step_s - 1)
            by_host.append(step_s * 1e9 > 1.05 * ahead.step_time_ns)
            about = f"  {path.stem:18} {case.model.name:12} batch {case.plan.micro_batch:2} x {case.plan.seq:5}"
            host = "   host" if by_host[-1] else ""
            print(f"{about}   measured {case.step_s * 1e3:7.2f} ms   {error[-1]:+6.1%}{host}")
        print(line(f"{path.name}", np.array(error)))
        print(line("  ... the device is the limit", np.array(error)[~np.array(by_host)]))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=Path, default=HERE / "h200_ops_points.csv")
    args = parser.parse_args(argv)
    shared = Path(os.environ.get("ETUDE_SHARED") or HERE.parents[1] / "shared")
    keys()
    if (path := shared / "measured" / "vidur_ops.csv").is_file():
        vidur(path)
    if (path := shared / "measured" / "vllm_profiles").is_dir():
        profiles(path)
    if args.points.is_file():
        steps(args.points, shared)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
