"""Entries of the gallery with measured rates in the place of assumed ones, and the range of each gain.

    python benchmarks/study_measured.py [--shared FOLDER] [NAME ...]

For every entry the command that a user would type is printed, once for each of the measured values (a low, a middle and
a high one where a rate was measured often), with the gain of each variant over the baseline, of the entry's first
metric, over all places of its smaller sweep. The last lines are the range over the measured values.
"""

import argparse
import csv
import gzip
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from etude.decide.study import study
from etude.decide.study.tasks import TaskAnswers
from etude.surface.cli.executing import executed

SHARED = Path(__file__).resolve().parents[2] / "shared"


@dataclass(frozen=True)
class Case:
    """A study, what is put in for each run, and what was measured."""

    name: str
    values: Callable[[Path], list[dict[str, Any]]]
    measured: str


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def spread_of(values: Sequence[float]) -> list[float]:
    """The lowest, the median and the highest."""
    return [float(np.quantile(values, q)) for q in (0, 0.5, 1)]


def bus(shared: Path, gpu: str, gpus: int) -> list[float]:
    """Gigabytes a second on the bus of all-reduces of 1 MB and more, measured with NCCL."""
    found = [
        float(row["busbw_GBps"])
        for row in rows(shared / "measured/nccl_allreduce.csv")
        if row["gpu"].startswith(gpu) and int(row["gpus"]) == gpus and float(row["size_bytes"]) >= 2**20
    ]
    return spread_of(found)


def copies(shared: Path) -> list[float]:
    return spread_of(
        [
            float(row["bytes_per_s"]) / 1e9
            for row in rows(shared / "measured/h200_extra/offload/transfer.csv")
            if row["direction"] == "h2d" and row["memory"] == "pinned" and int(row["bytes"]) >= 2**26
        ]
    )


def disk(shared: Path) -> list[float]:
    return spread_of(
        [
            float(row["bytes_per_s"]) / 1e9
            for row in rows(shared / "measured/h200_extra/offload/disk.csv")
            if row["place"] == "disk" and row["op"] == "read" and int(row["block_bytes"]) >= 2**20
        ]
    )


def steps(shared: Path) -> list[float]:
    """How much longer the median step of a program is than its shortest."""
    table = [row for row in rows(shared / "measured/h200_steps.csv") if row["train_step_ms_min"]]
    return spread_of([float(r["train_step_ms_median"]) / float(r["train_step_ms_min"]) - 1 for r in table])


def mixes(tokens: Sequence[int], unit: int, most: int) -> list[str]:
    """Each third of a stream in its order as three lengths: those of its quarters, half and last quarter."""
    found = []
    for part in np.array_split(np.array(tokens), 3):
        least = [int(np.clip(-(-q // unit) * unit, unit, most)) for q in np.quantile(part, [0.25, 0.5, 0.9])]
        found.append(f"{least[0]}:0.4,{least[1]}:0.4,{least[2]}:0.2")
    return found


def azure(shared: Path, name: str) -> list[int]:
    return [
        int(row["ContextTokens"]) + int(row["GeneratedTokens"])
        for row in rows(shared / f"requests/azure_2023_{name}.csv")
    ]


def mooncake(shared: Path) -> list[int]:
    with gzip.open(shared / "requests/mooncake_conversation.jsonl.gz", "rt", encoding="utf-8") as file:
        return [one["input_length"] + one["output_length"] for one in map(json.loads, file)]


def each(name: str, values: Sequence[float], unit: str = "") -> list[dict[str, Any]]:
    return [{name: f"{v:.4g}{unit}" if unit else float(f"{v:.4g}")} for v in sorted(set(values))]


def texts(name: str, values: Sequence[str], **more: str) -> list[dict[str, str]]:
    return [{name: value, **more} for value in values]


CASES = (
    Case("zipccl", lambda s: each("gbit", [8 * b for b in bus(s, "A100", 16)]), "NCCL on 16 A100 in two nodes"),
    Case("taco", lambda s: each("gbit", [8 * b for b in bus(s, "H100", 8)]), "NCCL on 8 H100"),
    Case("kvserve", lambda s: each("gbit", [8 * b for b in bus(s, "A100", 16)]), "NCCL on 16 A100 in two nodes"),
    Case("piper-moe", lambda s: each("gbyte", bus(s, "A100", 16)), "NCCL on 16 A100 in two nodes"),
    Case("floatsom", lambda s: each("rate", disk(s)), "reads of a disk in blocks of 1 MiB and more"),
    Case("hetero-cg", lambda s: [{"gpu": "h200", **v} for v in each("link", copies(s), "GB/s")], "copies to an H200"),
    Case("rrfp", lambda s: each("spread", steps(s)), "median over shortest step of programs on an H200"),
    Case("flashcp", lambda s: texts("lengths", mixes(mooncake(s), 1024, 32768)), "conversations of Mooncake"),
    Case("fcp", lambda s: texts("lengths", mixes(mooncake(s), 2048, 65536)), "conversations of Mooncake"),
    Case("odb", lambda s: texts("lengths", mixes(azure(s, "code"), 128, 4096)), "requests for code of Azure"),
)


def gains(name: str, values: dict[str, Any], said: TaskAnswers) -> dict[str, tuple[float, float]]:
    """Lowest and highest gain of each variant over the places of the study."""
    found = study(name, quick=True, values=values).outcome(out=None, execute=executed, said=said)
    metric = next((m for m in found.spec.metrics if m.better), found.spec.metrics[0])
    of: dict[str, list[float]] = {}
    for row in found.rows:
        if row["metric"] == metric.name and row["ratio"]:
            of.setdefault(row["variant"], []).append(row["ratio"] if metric.better == "higher" else 1 / row["ratio"])
    return {variant: (min(all_of), max(all_of)) for variant, all_of in of.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--shared", type=Path, default=SHARED)
    given = parser.parse_args()
    done = 0
    for case in CASES:
        if given.names and case.name not in given.names:
            continue
        said, before, band = TaskAnswers(), sum(os.times()[:2]), dict[str, list[float]]()
        for values in case.values(given.shared):
            sets = " ".join(f"--set {name}={value}" for name, value in values.items())
            print(f"etude study run {case.name} --quick {sets}")
            for variant, (low, high) in gains(case.name, values, said).items():
                print(f"  {variant:20} {low:.3f} to {high:.3f}")
                band.setdefault(variant, []).extend([low, high])
        for variant, ends in band.items():
            print(f"{case.name:12} {variant:20} gain {min(ends):.3f} to {max(ends):.3f} ({case.measured})")
        print(f"{case.name:12} {sum(os.times()[:2]) - before:.1f} CPU s", flush=True)
        done += 1
    print(f"{done} entries on measured data")


if __name__ == "__main__":
    main()
