"""Constants of the devices of the catalogue from measured ops.

    python benchmarks/fit_devices.py            # prints them
    python benchmarks/fit_devices.py --write    # and puts them into the catalogue's files

The H200's come from our own measurements (h200_ops_*.csv beside this script: the grid on two machines, other shapes,
and half of the products of experts, by a hash of op and shape), those of A100, H100 and A40 from what Vidur measured of
the models in `validate_vidur.FITTED`. Neither h200_ops.csv nor any other model of Vidur's is looked at. Devices of
which no op was measured take those of the H200.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import validate_vidur

import etude.machine
from etude.cost.calibrate import calibrate, described, read_measured
from etude.cost.compute import MeasuredOps
from etude.cost.fit import fold_of
from etude.cost.ops import OpClass, OpTable
from etude.machine import open_device
from etude.machine.system import Device, OpCost

HERE = Path(__file__).resolve().parent
OURS = ("h200_ops_grid.csv", "h200_ops_again.csv", "h200_ops_more.csv")
EXPERTS = HERE / "h200_ops_experts.csv"
UNEVEN = (EXPERTS, HERE / "h200_ops_uneven.csv")
"""Experts that are not equally full: no constant is fitted to them."""
OF_VIDUR = ("a100", "h100", "a40")
ALIKE = ("b200", "gb200", "gb300", "v100", "mi300x")
"""Without a measured op: as the H200. At its limit a GPU works as much as it may draw, so where another GPU of the
generation has another limit, `sustained_fraction` is that of the GB200 by power and peak."""
ROTATION = "attn_rope"
"""Heads lie apart in memory: no usual elementwise op, and no word about its constants."""


def bare(device: Device) -> Device:
    """Nothing known before."""
    return replace(device, ops={}, cache_speedup=1.0, sustained_fraction=1.0, sustained_after_ns=200_000.0)


def of_experts() -> tuple[MeasuredOps, MeasuredOps]:
    """Products of experts: the half that constants are fitted to, and the half held out. Experts as full as others."""
    names, measured = read_measured(EXPERTS)
    grouped = measured.ops.op_class == int(OpClass.GROUPED_GEMM)
    fitted = fold_of(names, 2) == 0
    return measured.take(grouped & fitted), measured.take(grouped & ~fitted)


def our_ops() -> MeasuredOps:
    tables = [*(read_measured(HERE / name)[1] for name in OURS), of_experts()[0]]
    return MeasuredOps(OpTable.joined([t.ops for t in tables]), np.concatenate([t.time_ns for t in tables]))


def of_ours() -> Device:
    found = calibrate(bare(open_device("h200")), our_ops())
    return replace(found, ops=completed(found.ops, {}))


def of_vidur(name: str, path: Path, like: Device) -> Device:
    rows = validate_vidur.read(path)
    fits = np.isin(rows.model, validate_vidur.FITTED) & (rows.op != ROTATION)
    found = calibrate(bare(open_device(name)), rows.measured.take(fits & (rows.device == name)))
    return replace(found, ops=completed(found.ops, dict(like.ops)))


def completed(found: dict[str, OpCost], others: dict[str, OpCost]) -> dict[str, OpCost]:
    """Classes that were not measured: as on another device where one is given, else as those nearest to them."""
    every = {**others, **found}
    gemm, plain = every["gemm"], every["elementwise"]
    near = {"convolution": gemm, "optimizer": plain, "default": replace(plain, flop_efficiency=gemm.flop_efficiency)}
    order = [
        "gemm",
        "grouped_gemm",
        "convolution",
        "attention",
        "attention_decode",
        "normalisation",
        "softmax",
        "activation",
    ]
    order += ["elementwise", "copy", "embedding", "optimizer", "default"]
    every |= {"convolution": gemm} if others else near
    return {name: every[name] for name in order if name in every}


def limited(name: str, like: Device) -> float:
    """Sustained fraction of a device like another."""
    if name not in ("b200", "gb300"):
        return like.sustained_fraction
    this, gb200 = open_device(name), open_device("gb200")
    drawn, peak = this.power_w / gb200.power_w, gb200.peak("bf16") / this.peak("bf16")
    return like.sustained_fraction * drawn * peak


def put(name: str, device: Device) -> None:
    path = Path(etude.machine.__file__).parent / "catalogue" / "devices" / f"{name}.yaml"
    text = re.sub(r"^(cache_speedup|sustained_fraction|sustained_after): .*\n", "", path.read_text(), flags=re.M)
    text = re.sub(r"^ops:\n(  .*\n)+", "", text, flags=re.M)
    head, tail = text.split("source:\n")
    path.write_text(head + "\n".join(described(device)) + "\nsource:\n" + tail)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("ETUDE_SHARED") or HERE.parents[1] / "shared")
    parser.add_argument("--vidur", type=Path, default=shared / "measured" / "vidur_ops.csv")
    parser.add_argument("--write", action="store_true", help="write the catalogue's files")
    args = parser.parse_args(argv)
    if not args.vidur.is_file():
        print(f"skipped: {args.vidur} is not there", file=sys.stderr)
        return 0
    h200 = of_ours()
    found = {"h200": h200, **{name: of_vidur(name, args.vidur, h200) for name in OF_VIDUR}}
    for name in ALIKE:
        found[name] = replace(h200, sustained_fraction=limited(name, h200))
    for name, device in found.items():
        print("\n".join([f"{name}:", *described(device)]))
        if args.write:
            put(name, device)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
