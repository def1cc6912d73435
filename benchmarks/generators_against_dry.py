"""Do generated jobs do what the same model does in plain PyTorch? Each is compared with a dry run of `plain_models.py`.

    nice python benchmarks/generators_against_dry.py [--only gpt2] [--seq 1024] [-o differences.csv]

Needs PyTorch and no GPU; about 20 s for each of 12 dry runs. Models of the catalogue with 4 layers; one rank, data
parallelism on 4, FSDP on 4 and 8. Of rank 0: operations of matrix products and of attention, forward and backward;
input bytes of collectives by kind, and their order (the sizes one after the other, of each kind: kinds have streams of
their own). Calls of up to 1 kB (the norm of gradients) are counted apart. Differences are explained in docs/dry.md.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plain_models import LAYERS, MODELS

from etude.capture.dry import dry_program
from etude.make.generate import Plan, generate
from etude.make.generate.model import open_model
from etude.model.schema import Collective, Kind

PROGRAM = Path(__file__).resolve().parent / "plain_models.py"
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")
SMALL_BYTES = 1024
"""Up to here a collective is one of single numbers, or of the weight of one norm."""


@dataclass(frozen=True)
class Case:
    name: str
    gpus: int
    zero: int


CASES = (Case("one rank", 1, 0), Case("DDP on 4", 4, 0), Case("FSDP on 4", 4, 3), Case("FSDP on 8", 8, 3))


def figures(trace: Any) -> dict[str, Any]:
    """What is compared, of one rank."""
    names = [trace.text("name", i) for i in range(len(trace))]
    phases = [trace.text("phase", i) for i in range(len(trace))]

    def operations(forward: bool, attention: bool) -> int:
        return sum(
            int(trace.flops[i])
            for i, name in enumerate(names)
            if (phases[i] == "forward") == forward and ("dot_product" in name if attention else name in PRODUCTS)
        )

    found: dict[str, Any] = {
        "products forward": operations(True, False),
        "products backward": operations(False, False),
        "attention forward": operations(True, True),
        "attention backward": operations(False, True),
    }
    calls = [i for i in range(len(trace)) if trace.kind[i] == Kind.COLL]
    large = [i for i in calls if trace.in_bytes[i] > SMALL_BYTES]
    for kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE):
        sizes = tuple(int(trace.in_bytes[i]) for i in large if trace.collective[i] == kind)
        found[f"{kind.name.lower()} bytes"] = sum(sizes)
        found[f"{kind.name.lower()} order"] = sizes
    found["small calls"] = len(calls) - len(large)
    return found


def rows(name: str, case: Case, seq: int) -> Iterator[dict[str, Any]]:
    model = open_model(name).replace(layers=LAYERS)
    made = figures(generate(model, Plan(gpus=case.gpus, zero=case.zero, seq=seq)).job.trace(0))
    command = [sys.executable, str(PROGRAM), name, "fsdp" if case.zero else "ddp", str(seq)]
    run = dry_program(command, name=name, world=case.gpus, device="h100")
    dry = figures(run.job.trace(0))
    for figure, value in made.items():
        other = dry[figure]
        if not value and not other:
            continue
        about = {"model": name, "plan": case.name, "figure": figure}
        if isinstance(value, tuple):
            shown = "the same" if value == other else f"{len(value)} calls against {len(other)}"
            yield about | {"generated": len(value), "dry": len(other), "difference": shown}
        else:
            shown = "the same" if value == other else f"{value - other:+,}"
            shown += f" ({(value - other) / other:+.2%})" if other and value != other else ""
            yield about | {"generated": value, "dry": other, "difference": shown}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("-o", "--out", type=Path, help="the rows, as CSV")
    given = parser.parse_args()
    found: list[dict[str, Any]] = []
    print(f"{'model':12} {'plan':10} {'figure':24} {'generated':>20} {'dry':>20}  difference")
    for name in given.only:
        for case in CASES:
            for row in rows(name, case, given.seq):
                found.append(row)
                print(
                    f"{name:12} {case.name:10} {row['figure']:24} {row['generated']:20,} {row['dry']:20,}  "
                    f"{row['difference']}",
                    flush=True,
                )
    same = sum(row["difference"] == "the same" for row in found)
    flops = [row["difference"] == "the same" for row in found if row["figure"].startswith(("products", "attention"))]
    print(f"{same} of {len(found)} figures are the same; {sum(flops)} of {len(flops)} of FLOPs")
    if given.out is not None:
        with given.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(found[0]))
            writer.writeheader()
            writer.writerows(found)


if __name__ == "__main__":
    main()
