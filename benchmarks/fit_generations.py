"""Factors of stacks on further generations of accelerators, over those that are shipped, from published steps.

    python benchmarks/fit_generations.py --outcomes FILE           # prints the factors and the errors left
    python benchmarks/fit_generations.py --outcomes FILE --write   # and writes them into the catalogue

`fit_stacks.py` fits all stacks at once. A generation that came later (`--generation`, one or more) has one effect for
each factor, held near 1 by the spread that `fit_stacks.py` gives a generation, on top of what each stack has for `any`
device: what its compiler and its units reach beside those that were fitted. Errors of rows are printed with the factors
of before, with those fitted to all, and with those fitted to the other half of the rows (every second one).
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml

from etude.cost.stacks import Efficiency, generation_of, open_stack, stack_names
from etude.cost.stacks.stack import ANY, KNOBS, NEUTRAL
from etude.steps.measured import read_rows
from etude.steps.measured.outcomes import OutcomeFile
from etude.steps.measured.rows import Case, cases_of
from etude.steps.measured.stack_fit import FitSample, efficiency_under, fit_effects

HERE = Path(__file__).parent
CATALOGUE = HERE.parent / "src" / "etude" / "cost" / "stacks" / "catalogue"
KINDS = ("tpu-v5", "tpu-v6", "trainium1")
SOURCE = "fitted by benchmarks/fit_stacks.py, further generations by benchmarks/fit_generations.py"
LEFT = ("eager", "transformers")
"""Stacks of one kind of device."""


def plain_efficiency(case: Case) -> Efficiency:
    """Of the case's stack on any device."""
    return case.stack.on(ANY, experts=bool(case.model.experts))


def generation(case: Case) -> list[tuple[str, str]]:
    return [("generation", generation_of(case.system.device.name))]


def errors(samples: list[FitSample], fitted: list[FitSample]) -> np.ndarray:
    """Of samples, under effects fitted to others; none: with the factors that are shipped."""
    effects = fit_effects(fitted, generation, plain_efficiency) if fitted else {}
    found = []
    for sample in samples:
        by = efficiency_under(effects, generation(sample.case), plain_efficiency(sample.case))
        found.append(sample.outcome.at(by) / sample.case.step_s - 1)
    return np.array(found)


def line(name: str, found: np.ndarray) -> str:
    size = np.abs(found)
    return (f"{name:40s} {len(found):4d} rows   median {np.median(size):6.1%}   "
            f"90th percentile {np.percentile(size, 90):6.1%}   bias {np.median(found):+6.1%}")  # fmt: skip


def write(by: dict[str, Efficiency]) -> None:
    for name in stack_names():
        if name in LEFT:
            continue
        stack = open_stack(name)
        known = stack.efficiency.get(ANY, NEUTRAL)
        more = {kind: known.times(effect) for kind, effect in by.items()}
        more = {kind: replace(e, overlap=max(e.overlap, 1.0)) for kind, e in more.items()}
        more = {kind: Efficiency(**{k: round(getattr(e, k), 3) for k in KNOBS}) for kind, e in more.items()}
        made = replace(stack, efficiency={**stack.efficiency, **more}, source=SOURCE)
        text = yaml.safe_dump(made.to_dict(), sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)
        (CATALOGUE / f"{name}.yaml").write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("ETUDE_SHARED", HERE.parent.parent / "shared")) / "measured"
    parser.add_argument("--rows", type=Path, default=shared / "published_train_more.csv")
    parser.add_argument("--generation", nargs="+", default=list(KINDS))
    parser.add_argument("--outcomes", type=Path, help="keep simulated times here, and take those that are there")
    parser.add_argument("--write", action="store_true", help="write the factors into the catalogue")
    options = parser.parse_args()
    rows, by = read_rows(options.rows), {}
    cases = [c for c in cases_of(rows) if isinstance(c, Case)]
    for kind in options.generation:
        mine = [c for c in cases if generation_of(c.system.device.name) == kind]
        mine = [c for c in mine if not rows[c.row - 1].get("confidence", "").startswith("INCOMPLETE")]
        outcomes = OutcomeFile(options.outcomes).all(mine)
        samples = [FitSample(c, o) for c, o in zip(mine, outcomes, strict=True) if o is not None]
        if not samples:
            print(f"{kind}: no rows")
            continue
        effects = fit_effects(samples, generation, plain_efficiency)
        by[kind] = efficiency_under(effects, [("generation", kind)], Efficiency(), least=0.0)
        print(f"{kind}: {by[kind]}")
        halves = np.concatenate([errors(samples[k::2], samples[1 - k :: 2]) for k in (0, 1)])
        print(line("  as any device", errors(samples, [])))
        print(line("  fitted to the other half", halves))
        print(line("  fitted to all", errors(samples, samples)), flush=True)
    if options.write:
        write(by)
        print(f"wrote {CATALOGUE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
