"""Injected truth of many kinds: are exactly the culprits named, and nobody when nothing is wrong?

    python benchmarks/validate_faults.py [--each 6] [--seed 0] [--kinds half,periodic] [--show]

Runs come from a simulator of their own (injected_faults.py) and through files: timed `.et`, every fourth a profiler's
trace. A run counts as named if all culprits are among the ranks of its findings, the right kind comes first, and nobody
else is accused.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from injected_faults import FACTORS, KINDS, Fault, faulty
from injected_runs import write

import etude
from etude.analyse.stragglers import LEAST, stragglers
from etude.model.run import recorded


def answer(fault: Fault, found: list[dict[str, Any]]) -> str:
    """named, part (some culprits, nobody else), missed, or accused (somebody who is none)."""
    said = {rank for row in found for rank in row["ranks"]}
    meant = set(fault.truth.ranks)
    if fault.truth.kind == "slow_link" and found:
        said = set(found[0]["ranks"])  # a link may be named by its group; both ends must be in it
        return "named" if found[0]["kind"] == "slow_link" and meant <= said else "accused"
    if not said:
        return "missed" if meant else "silent"
    if said - meant or (found and found[0]["kind"] != fault.truth.kind):
        return "accused"
    return "named" if said == meant else "part"


def run_of(seed: int, kind: str, factor: float, folder: Path, least: float) -> tuple[Fault, list[dict[str, Any]]]:
    machine, fault = faulty(seed, kind, factor)
    form = "kineto" if seed % 4 == 3 and "uneven" not in kind and fault.ranks <= 16 else "et"
    write(folder, machine, fault.truth, form, seed)
    return fault, stragglers(recorded(etude.open(folder)), least=least).to_pylist()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=6, help="runs of each kind, factors in turn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--factors", default=",".join(map(str, FACTORS)), help="how slow, in turn")
    parser.add_argument("--least", type=float, default=LEAST, help="slow-down from which one is named")
    parser.add_argument("--show", action="store_true", help="say which runs were wrong")
    given = parser.parse_args()
    factors = [float(text) for text in given.factors.split(",")]
    table: Counter[tuple[str, str]] = Counter()
    for kind in given.kinds.split(","):
        for i in range(given.each):
            factor = factors[i % len(factors)]
            with tempfile.TemporaryDirectory() as folder:
                fault, found = run_of(given.seed + i, kind, factor, Path(folder), given.least)
            said = answer(fault, found)
            table[kind, said] += 1
            if given.show and said not in ("named", "silent"):
                told = [(f["rank"], f["kind"], round(f["confidence"], 2), f["evidence"][:100]) for f in found[:3]]
                print(f"  {kind} seed {given.seed + i} {fault.ranks} ranks {fault.jitter} {fault.truth}: {said} {told}",
                      file=sys.stderr)  # fmt: skip
        answers = {a: n for (k, a), n in table.items() if k == kind}
        print(f"{kind:18} -> " + ", ".join(f"{a}: {n}" for a, n in sorted(answers.items())), flush=True)
    wrong = {key: n for key, n in table.items() if not key[0].startswith("none")}
    clean = {key: n for key, n in table.items() if key[0].startswith("none")}
    right, quiet = (
        sum(n for key, n in part.items() if key[1] == w) for part, w in ((wrong, "named"), (clean, "silent"))
    )
    least = f"{100 * (min(factors) - 1):.0f}%"
    print(
        f"\nfrom {least} up: {right} of {sum(wrong.values())} named; clean: nobody in {quiet} of {sum(clean.values())}"
    )
    return 0 if right >= 0.95 * sum(wrong.values()) and quiet >= 0.95 * sum(clean.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
