"""Injected truth from files: is the right one named, and nobody when nothing is wrong?

    python benchmarks/validate_injected.py [--jobs 200] [--seed 0] [--largest 64]

Unlike validate_stragglers.py the runs come from a simulator of their own (injected_runs.py), and through files:
profiler traces, one a rank, or timed `.et`. Prints answers by what was wrong and how, and how often a confidence was
right.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from injected_runs import FORMS, Truth, injected, write

import etude
from etude.analyse.stragglers import LEAST, stragglers
from etude.model.run import recorded

KINDS = ("none", "slow_rank", "slow_link", "late_host", "missing_participant")
FACTORS = (1.05, 1.1, 1.2, 1.5)
SIZES = (8, 16, 32, 64, 128, 256)
SURE = (0.5, 0.9, 0.95, 0.99)


def named(truth: Truth, found: list[dict[str, object]]) -> str:
    """The kind of the surest finding if it is the right one; a link counts if both of its ends are among the ranks."""
    if not found:
        return "none"
    first = found[0]
    right = first["kind"] == truth.kind and set(truth.ranks) <= set(first["ranks"])  # type: ignore[call-overload]
    return truth.kind if right else f"other ({first['kind']})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--largest", type=int, default=64)
    parser.add_argument("--least", type=float, default=LEAST, help="slow-down from which one is named")
    parser.add_argument("--show", action="store_true", help="say which runs were wrong")
    given = parser.parse_args()
    sizes = [size for size in SIZES if size <= given.largest]
    table: Counter[tuple[str, str, float, str]] = Counter()
    sure: list[tuple[float, bool]] = []
    for i in range(given.jobs):
        ranks, kind, form = sizes[i % len(sizes)], KINDS[i // len(sizes) % len(KINDS)], FORMS[i % 7 % len(FORMS)]
        factor = FACTORS[i // (len(sizes) * len(KINDS)) % len(FACTORS)] if kind in KINDS[1:4] else 1.0
        machine, truth = injected(given.seed + i, ranks, kind, factor, form)
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), machine, truth, form, given.seed + i)
            job = etude.open(folder)
            found = stragglers(recorded(job), least=given.least).to_pylist()
        answer = named(truth, found)
        table[form, f"{kind} {truth.how}".strip(), factor, answer] += 1
        if found and factor != FACTORS[0]:
            sure.append((found[0]["confidence"], answer == kind))
        if given.show and answer != kind:
            told = [(f["rank"], f["kind"], f["evidence"]) for f in found[:2]]
            print(f"seed {given.seed + i}, {ranks} ranks, {form}, {truth}: {answer} {told}", file=sys.stderr)
    for form, what, factor in sorted({key[:3] for key in table}):
        answers = {key[3]: count for key, count in table.items() if key[:3] == (form, what, factor)}
        label = what if factor == 1 else f"{what} +{100 * (factor - 1):.0f}%"
        print(f"{form:7} {label:30} -> " + ", ".join(f"{a}: {n}" for a, n in sorted(answers.items())))
    wrong = {key: n for key, n in table.items() if not key[1].startswith("none") and key[2] != FACTORS[0]}
    right = sum(n for key, n in wrong.items() if key[3] == key[1].split()[0])
    clean = {key: n for key, n in table.items() if key[1].startswith("none")}
    quiet = sum(n for key, n in clean.items() if key[3] == "none")
    print(f"\nfrom 10% up: {right} of {sum(wrong.values())} named; clean: nobody in {quiet} of {sum(clean.values())}")
    small = {key: n for key, n in table.items() if key[2] == FACTORS[0]}
    other = sum(n for key, n in small.items() if key[3].startswith("other"))
    print(f"at 5%: {sum(n for k, n in small.items() if k[3] in KINDS[1:])} of {sum(small.values())}, else in {other}")
    for least in SURE:
        told = [ok for confidence, ok in sure if confidence >= least]
        print(f"confidence from {least}: {sum(told)} of {len(told)} right")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
