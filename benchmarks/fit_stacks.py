"""Fits the stacks of the catalogue to published training steps, and writes them.

    python benchmarks/fit_stacks.py --outcomes /tmp/outcomes.json     # all of it; nothing is simulated twice
    python benchmarks/fit_stacks.py --outcomes /tmp/outcomes.json --dry   # prints the tables, writes nothing

Each row is a model and a plan by the rules of `etude predict --rows`, which see neither its value nor its source. The
factors that are shipped are fitted to the rows of all sources. Every error that is printed is of rows predicted by
factors to which no row of the same source contributed: each fold of `benchmarks/published_split.csv` is held out once.
`fit_bands.py` makes the ranges of predictions of these errors. Steps in eager PyTorch are fitted to our own
(`h200_steps_grid.csv`), each left out once.

Outcomes hold for one state of the cost model and the generator: take another file after a change of either.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from etude.cost.stacks import Efficiency, open_stack, stack_names
from etude.cost.stacks.open import DEFAULT
from etude.cost.stacks.stack import ANY
from etude.steps.measured.eager import eager_cases
from etude.steps.measured.outcomes import OutcomeFile
from etude.steps.measured.rows import Case, Refused, cases_of, read_rows, row_stack
from etude.steps.measured.stack_fit import (
    FitSample,
    Groups,
    centre,
    efficiency_under,
    error_of,
    expert_groups,
    fit_effects,
    held_out,
    of_generation,
    of_stack,
    stack_groups,
    years_from,
)

HERE = Path(__file__).parent
STACKS = HERE.parent / "src" / "etude" / "cost" / "stacks"
GENERATIONS = ("ampere", "hopper", "blackwell")
EAGER = [("own", "")]
OWN_STEPS = ("eager", "transformers")
"""Families with the kernels of our own steps."""


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Samples, effects from all of them, and the error of each under effects without its source."""

    samples: list[FitSample]
    effects: dict[tuple[str, str], Any]
    errors: np.ndarray


def fitted(rows: list[dict[str, str]], folds: dict[str, str], kept: OutcomeFile, workers: int, *, default: bool) -> Fit:
    """With the stacks that rows name, or with none."""
    found = list(cases_of(rows, open_stack(DEFAULT) if default else None))
    for refused in (c for c in found if isinstance(c, Refused)):
        print(f"row {refused.row} is refused: {refused.why}")
    cases = [c for c in found if isinstance(c, Case)]
    outcomes = kept.all(cases, workers=workers)
    sources = [rows[c.row - 1].get("source", "") for c in cases]
    samples = [
        FitSample(c, o, folds.get(s, s)) for c, o, s in zip(cases, outcomes, sources, strict=True) if o is not None
    ]
    groups = of_generation if default else of_stack
    return Fit(samples, fit_effects(samples, groups), np.array(held_out(samples, groups)))


def eager(kept: OutcomeFile, workers: int, path: Path) -> Fit:
    """Steps of one GPU in eager PyTorch; each is held out once."""
    cases = eager_cases(path)
    samples = [
        FitSample(c, o, c.row) for c, o in zip(cases, kept.all(cases, workers=workers), strict=True) if o is not None
    ]
    own: Groups = lambda case: EAGER  # noqa: E731
    return Fit(samples, fit_effects(samples, own), np.array(held_out(samples, own)))


def write(known: Fit, unknown: Fit, own: Fit) -> None:
    """The factors into the catalogue's files."""
    for name in stack_names():
        stack = open_stack(name)
        if stack.family in OWN_STEPS:
            efficiency = {ANY: efficiency_under(own.effects, EAGER)}
            experts, years = Efficiency(), {}
        elif name == DEFAULT:
            efficiency = {
                g: efficiency_under(unknown.effects, [("all", ""), ("generation", g)]) for g in (*GENERATIONS, ANY)
            }
            experts, years = factor(unknown.effects, [("experts", "")]), years_of(unknown.effects)
        else:
            efficiency = {
                g: efficiency_under(known.effects, stack_groups(stack, g), centre(stack, g))
                for g in (*GENERATIONS, ANY)
            }
            experts, years = factor(known.effects, expert_groups(stack)), years_of(known.effects)
        further = {g: e for g, e in stack.efficiency.items() if g not in efficiency}  # of fit_generations.py
        made = replace(
            stack,
            efficiency=efficiency | further,
            experts=experts,
            years=years,
            source="fitted by benchmarks/fit_stacks.py",
        )
        dump(STACKS / "catalogue" / f"{name}.yaml", made.to_dict())


def years_of(effects: dict[tuple[str, str], Any]) -> dict[str, Efficiency]:
    """Of runs in earlier years, over those of now."""
    found = sorted(name for level, name in effects if level == "generation, year")
    since = {name: years_from(name.rpartition(" ")[0], int(name.rpartition(" ")[2])) for name in found}
    return {name: efficiency_under(effects, since[name], Efficiency(), least=0.0) for name in found}


def factor(effects: dict[tuple[str, str], Any], groups: list[tuple[str, str]]) -> Efficiency:
    """Over those of dense models."""
    by = efficiency_under(effects, groups, Efficiency(), least=0.0)
    return replace(by, overlap=max(by.overlap, 1.0))


def dump(path: Path, value: Any) -> None:
    path.write_text(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120))


# -- tables ------------------------------------------------------------------------------------------------------------


def line(name: str, errors: np.ndarray) -> str:
    size = np.abs(errors)
    return (f"{name:44s} {len(size):4d} rows   median {np.median(size):6.1%}   mean {size.mean():6.1%}   "
            f"90th percentile {np.percentile(size, 90):6.1%}   bias {np.median(errors):+6.1%}")  # fmt: skip


def table(fit: Fit, rows: list[dict[str, str]]) -> str:
    """Errors by family, kind and stack."""
    stacks = [
        row_stack(rows[s.case.row - 1], int(float(rows[s.case.row - 1].get("year") or 2025)), []) for s in fit.samples
    ]
    family = np.array([s.family or "none" for s in stacks])
    names = np.array([s.name for s in stacks])
    experts = np.array([bool(s.case.model.experts) for s in fit.samples])
    out = [line("all rows", fit.errors)]
    out += [line(f"family {f}", fit.errors[family == f]) for f in sorted(set(family))]
    out += [line("mixtures of experts", fit.errors[experts]), line("dense", fit.errors[~experts])]
    out += [line(f"  {n}", fit.errors[names == n]) for n in sorted(set(names))]
    return "\n".join(out)


def detail(fit: Fit) -> None:
    for s, error in zip(fit.samples, fit.errors, strict=True):
        p = s.case.plan
        print(f"{s.case.row:4d} {s.case.stack.name:16s} {s.case.model.name:16s} {p.precision:4s} n{p.gpus:<5d} "
              f"tp{p.tp} pp{p.pp:<2d} cp{p.cp} ep{p.ep:<2d} measured {s.case.step_s:8.3f} s, "
              f"held out {error:+6.1%}")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("ETUDE_SHARED", HERE.parent.parent / "shared"))
    parser.add_argument("--rows", type=Path, default=shared / "measured" / "published_train.csv")
    parser.add_argument("--outcomes", type=Path, help="keep simulated times here, and take those that are there")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--dry", action="store_true", help="print, write nothing")
    parser.add_argument("--detail", action="store_true", help="print every row")
    options = parser.parse_args()
    rows, kept = read_rows(options.rows), OutcomeFile(options.outcomes)
    folds = {r["source"]: r["fold"] for r in csv.DictReader((HERE / "published_split.csv").open())}
    known = fitted(rows, folds, kept, options.workers, default=False)
    unknown = fitted(rows, folds, kept, options.workers, default=True)
    own = eager(kept, options.workers, HERE / "h200_steps_grid.csv")
    print("\nstack named, held out by source:\n" + table(known, rows))
    print("\nno stack named, held out by source:\n" + table(unknown, rows))
    print("\neager PyTorch on one H200:\n" + line("h200_steps_grid.csv, each held out", own.errors))
    by = efficiency_under(own.effects, EAGER)
    steps = shared / "measured" / "h200_steps.csv"
    if steps.exists():
        cases = eager_cases(steps)
        there = [error_of(FitSample(c, o), by) for c, o in zip(cases, kept.all(cases), strict=True) if o is not None]
        print(line("h200_steps.csv, no row of it fitted", np.array(there)), [f"{e:+.1%}" for e in there])
    if options.detail:
        detail(known)
    if not options.dry:
        write(known, unknown, own)
        print(f"wrote {STACKS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
