"""How often the gate of `etude compare --fail-if` is wrong: false alarms without a change, regressions that it misses.

    python benchmarks/validate_gate.py [--cases 2000]

Step times are drawn with fixed seeds: normal noise, skewed noise, hiccups (one step in ten takes three times as long),
and steps that are like the one before them. A false alarm is a failure of `step > +0%`, the limit that raises most.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from etude.analyse.noise import shift
from noisy_steps import noise

COUNTS = (3, 5, 8, 12, 40, 100)


def failures(kind: str, count: int, change: float, limit: float, cases: int) -> float:
    """Share of cases in which `step > limit` fails."""
    rng = np.random.default_rng(count)
    failed = 0
    for _ in range(cases):
        found = shift(
            noise(rng, count, kind.removesuffix(", 2%")), change * noise(rng, count, kind.removesuffix(", 2%"))
        )
        beyond = found.ratio is not None and found.ratio > 1 + limit
        failed += beyond and found.interval is not None and found.interval[0] > 1
    return failed / cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000)
    cases = parser.parse_args().cases
    alarms: dict[str, float] = {}
    seen: list[float] = []
    print(f"{'noise':16} {'change':>8} {'limit':>6}  " + " ".join(f"{n:>4} steps" for n in COUNTS))
    for kind in ("normal, 2%", "skewed, 2%", "hiccups", "alike, 2%"):
        for change, limit in ((1.0, 0.0), (1.0, 0.03), (1.05, 0.03), (1.1, 0.03)):
            shares = [failures(kind, n, change, limit, cases) for n in COUNTS]
            print(f"{kind:16} {change - 1:>+8.0%} {limit:>+6.0%}  " + " ".join(f"{s:>10.1%}" for s in shares))
            if (change, limit) == (1.0, 0.0):
                alarms[kind] = max(shares)
            seen += shares[COUNTS.index(40) :] if (change, limit) == (1.05, 0.03) else []
    alike = alarms.pop("alike, 2%")
    print(f"false alarms at `step > +0%`: at most {max(alarms.values()):.1%}, of noise that is alike {alike:.1%}; "
          f"+5% is seen from 40 steps on in {min(seen):.1%} at least")  # fmt: skip


if __name__ == "__main__":
    main()
