"""How often the 95% intervals of a study hold the true ratio, by number of seeds.

    python benchmarks/study_intervals.py

Pairs are drawn whose variant takes 0.9 of the baseline's time on average: normal, and with a heavy tail (lognormal).
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from etude.decide.study.stats import INTERVALS

STUDIES, RATIO = 2000, 0.9
Draw = Callable[[np.random.Generator, int], tuple[NDArray[np.float64], NDArray[np.float64]]]


def normal(draw: np.random.Generator, n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    base = draw.normal(10, 1, n)
    return base, RATIO * base + draw.normal(0, 0.5, n)


def heavy(draw: np.random.Generator, n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    base = 10 * draw.lognormal(0, 0.3, n)
    return base, RATIO * base * draw.lognormal(-0.005, 0.1, n)


def coverage(name: str, of: Draw, seeds: int) -> float:
    draw, held = np.random.default_rng(seeds), 0
    for _ in range(STUDIES):
        low, high = INTERVALS[name](*of(draw, seeds)) or (-np.inf, np.inf)
        held += low <= RATIO <= high
    return held / STUDIES


def main() -> None:
    print("seeds  " + "  ".join(f"{name:>9} {kind:>6}" for name in INTERVALS for kind in ("normal", "heavy")))
    for seeds in (2, 3, 5, 8, 14, 30, 60):
        found = [coverage(name, of, seeds) for name in INTERVALS for of in (normal, heavy)]
        print(f"{seeds:5}  " + "  ".join(f"{value:16.1%}" for value in found))


if __name__ == "__main__":
    main()
