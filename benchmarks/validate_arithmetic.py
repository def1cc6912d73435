"""Random decoders and plans against arithmetic by hand, tensor by tensor (`tests/hand_arithmetic.py`): parameters,
model operations, operations of products, weights, gradients, optimizer and peak of memory of every pipeline rank; every
collective and message, by group and bytes, and the members of its group, of every rank.

python benchmarks/validate_arithmetic.py --count 2000 --seed 0

Prints how many agree in every quantity, and what does not agree in the first that differ.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from hand_cases import cases, differences

SHOWN = 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="plans that can be")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start, wrong = time.process_time(), 0
    kinds, ranks = Counter[str](), 0
    for seed, found, hand in islice(cases(options.seed), options.count):
        kinds[found.model.name] += 1
        ranks += found.plan.gpus
        problems = differences(found, hand)
        wrong += bool(problems)
        if problems and wrong <= SHOWN:
            print(f"seed {seed}: " + "\n  ".join(problems))
    print(f"{options.count - wrong} of {options.count} plans ({ranks:,} ranks) agree in every quantity, "
          f"{time.process_time() - start:.0f} CPU s")  # fmt: skip
    print("models:", ", ".join(f"{k} {v}" for k, v in kinds.most_common()))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
