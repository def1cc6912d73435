"""Damaged folders of results (`serve -o`, `fleet -o`, `federate -o`, studies, ...) against every verb that reads them.

    python benchmarks/fuzz_results.py --cases 300            # of each folder
    python benchmarks/fuzz_results.py --cases 0 --only jobs  # all of them

A case is one value of the JSON, one column or one file of a folder of `tests/golden/results`, as an earlier version
wrote it or as it is written today, damaged. Every verb that
takes such a folder answers or refuses it with an error of Etude's; anything else fails. Exit code 1 if there is a
failure. What is damaged and how is in `tests/fuzz_results.py`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=200, help="of each folder; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--golden", action="store_true", help="only folders as an earlier version wrote them")
    parser.add_argument("--only", default="", help="folders, with commas between them")
    asked = parser.parse_args()
    import fuzz_results as fuzz

    kinds: Counter[str] = Counter()
    first: dict[str, str] = {}
    total = failed = 0
    print(f"{'folder':26} {'cases':>7} {'failed':>7}")
    with tempfile.TemporaryDirectory() as work:
        every = sorted(fuzz.GOLDEN.iterdir()) if asked.golden else fuzz.folders(Path(work))
        for folder in [one for one in every if not asked.only or one.name in asked.only.split(",")]:
            some = fuzz.sample(folder, asked.cases or sys.maxsize, asked.seed)
            wrong = 0
            for damage in some:
                found = fuzz.failures(folder, damage, Path(work))
                wrong += bool(found)
                for verb, problem in found.items():
                    kind = f"{verb}: {problem[:70]}"
                    kinds[kind] += 1
                    first.setdefault(kind, f"{folder.name}: {damage.name}")
            total, failed = total + len(some), failed + wrong
            print(f"{folder.name:26} {len(some):7,} {wrong:7,}", flush=True)
    print(f"{total:,} damaged folders, {failed:,} with an error that has no type, {len(kinds):,} different ones")
    for kind, count in kinds.most_common(60):
        print(f"  {count} x {kind} ({first[kind]})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
