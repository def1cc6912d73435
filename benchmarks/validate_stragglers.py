"""Injected truth: is the right one named, and nobody when nothing is wrong?

    python benchmarks/validate_stragglers.py [--jobs 500] [--seed 0]

Prints who was named against what was wrong, by size of the job, and the shares that count.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from etude.analyse.stragglers import LEAST, stragglers
from straggling_jobs import FACTORS, KINDS, SIZES, Truth, straggling


def named(truth: Truth, found: list[dict[str, object]]) -> str:
    """What the findings say: the kind of the surest one, `none`, or `other` where it names somebody else."""
    if not found:
        return "none"
    first = found[0]
    if first["kind"] == truth.kind and set(truth.ranks) <= set(first["ranks"]):  # type: ignore[call-overload]
        return truth.kind
    return f"other ({first['kind']})"


def cases(jobs: int, seed: int) -> list[tuple[int, int, str, float]]:
    """(seed, ranks, what is wrong, factor): every fifth job is clean; sizes, kinds and factors in turn."""
    found = []
    for i in range(jobs):
        ranks = SIZES[i % len(SIZES)]
        number = i // len(SIZES)
        kind = KINDS[number % len(KINDS)]
        factor = FACTORS[number // len(KINDS) % len(FACTORS)] if kind not in ("none", "missing_participant") else 1.0
        found.append((seed + i, ranks, kind, factor))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--least", type=float, default=LEAST, help="slow-down from which one is named")
    parser.add_argument("--show", action="store_true", help="say which jobs were wrong")
    given = parser.parse_args()
    table: Counter[tuple[int, str, float, str]] = Counter()
    for seed, ranks, kind, factor in cases(given.jobs, given.seed):
        run, truth = straggling(seed, ranks, kind, factor)
        found = stragglers(run, least=given.least).to_pylist()
        answer = named(truth, found)
        table[ranks, kind, factor, answer] += 1
        if given.show and answer != kind:
            print(
                f"seed {seed}, {ranks} ranks, {truth}: {answer}: {[f['evidence'] for f in found[:2]]}", file=sys.stderr
            )
    for ranks in SIZES:
        print(f"\n{ranks} ranks")
        for kind in KINDS:
            for factor in sorted({f for (r, k, f, _) in table if (r, k) == (ranks, kind)}):
                answers = {a: n for (r, k, f, a), n in table.items() if (r, k, f) == (ranks, kind, factor)}
                label = kind if factor == 1 else f"{kind} +{100 * (factor - 1):.0f}%"
                print(f"  {label:16} -> " + ", ".join(f"{a}: {n}" for a, n in sorted(answers.items())))
    wrong = {
        key: n for key, n in table.items() if key[1] != "none" and (key[2] >= 1.1 or key[1] == "missing_participant")
    }
    right, whole = sum(n for key, n in wrong.items() if key[3] == key[1]), sum(wrong.values())
    clean = {key: n for key, n in table.items() if key[1] == "none"}
    quiet, clean_jobs = sum(n for key, n in clean.items() if key[3] == "none"), sum(clean.values())
    small = {key: n for key, n in table.items() if key[2] == 1.05}
    caught, others = (sum(n for key, n in small.items() if test(key)) for test in (_right, _somebody_else))
    print(f"\nfrom 10% up: {right} of {whole} named ({100 * right / max(whole, 1):.1f}%)")
    print(f"clean: nobody accused in {quiet} of {clean_jobs} ({100 * quiet / max(clean_jobs, 1):.1f}%)")
    print(f"at 5%: {caught} of {sum(small.values())} named, somebody else in {others}")
    return 0 if right >= 0.95 * whole and quiet >= 0.95 * clean_jobs else 1


def _right(key: tuple[int, str, float, str]) -> bool:
    return key[3] == key[1]


def _somebody_else(key: tuple[int, str, float, str]) -> bool:
    return key[3].startswith("other")


if __name__ == "__main__":
    raise SystemExit(main())
