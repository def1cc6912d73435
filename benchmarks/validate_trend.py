"""How often `etude.analyse.series` is wrong: false alarms on noise, changes and periods found, forecasts against naive.

    python benchmarks/validate_trend.py                 # all parts, about two minutes
    python benchmarks/validate_trend.py --series 1000   # more series for each row

Every series is made here, from a seed, by code that the package does not share.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from numpy.typing import NDArray

from etude.analyse.series import decompose, forecast

F64 = NDArray[np.float64]
LEVEL_NS = 1e8
LENGTHS = (10, 20, 50, 200, 1000)


def noise(rng: np.random.Generator, kind: str, count: int) -> F64:
    """Standardised noise: normal, skewed, with heavy tails, or with neighbours that are alike."""
    if kind == "normal":
        return rng.standard_normal(count)
    if kind == "lognormal":
        drawn = np.exp(0.8 * rng.standard_normal(count))
        return (drawn - np.exp(0.32)) / (np.exp(0.32) * np.sqrt(np.exp(0.64) - 1))
    if kind == "heavy tails":
        return rng.standard_t(3, count) / np.sqrt(3)
    found, last = np.empty(count), rng.standard_normal()
    for i in range(count):
        last = found[i] = 0.5 * last + np.sqrt(0.75) * rng.standard_normal()
    return found


def series(rng: np.random.Generator, kind: str, count: int, sigma: float) -> F64:
    return LEVEL_NS * (1 + sigma * noise(rng, kind, count))


def whole(values: F64) -> NDArray[np.int64]:
    return np.rint(values).astype(np.int64)


def false_alarms(count: int) -> None:
    alarms = 0
    print(f"\nnoise of 3% and nothing else: series of {count} in which a change, a period or a drift is found")
    print(f"{'noise':12} {'samples':>8} {'change':>8} {'period':>8} {'drift':>8}")
    for kind in ("normal", "lognormal", "heavy tails", "neighbours"):
        for length in LENGTHS:
            rng = np.random.default_rng(length)
            found = [decompose(whole(series(rng, kind, length, 0.03))) for _ in range(count)]
            told = [sum(map(bool, seen)) for seen in zip(*((p.changes, p.period, p.slope) for p in found), strict=True)]
            alarms += sum(bool(p.changes or p.period or p.slope) for p in found)
            print(f"{kind:12} {length:8} " + " ".join(f"{n:8}" for n in told))
    print(f"false alarms: {alarms} of {4 * len(LENGTHS) * count:,} series")


def truths(count: int) -> None:
    print(f"\none thing wrong, noise of 2%: found of {count} (right place, nothing else told)")
    print(f"{'what':34} " + " ".join(f"{n:>6}" for n in LENGTHS[1:]))
    for factor in (1.05, 1.1, 1.3):
        cells = []
        for length in LENGTHS[1:]:
            rng, right = np.random.default_rng(length), 0
            for _ in range(count):
                x, at = series(rng, "normal", length, 0.02), int(rng.integers(length // 4, 3 * length // 4))
                x[at:] *= factor
                p = decompose(whole(x))
                right += len(p.changes) == 1 and abs(p.changes[0].at - at) <= 1 and not p.period
            cells.append(right)
        print(f"{f'from a step on {factor - 1:.0%} slower':34} " + " ".join(f"{n:6}" for n in cells))
    for factor in (1.05, 1.1, 1.3):
        cells = []
        for length in LENGTHS[1:]:
            rng, right = np.random.default_rng(length), 0
            for _ in range(count):
                x = series(rng, "normal", length, 0.02)
                x[int(rng.integers(10)) :: 10] *= factor
                p = decompose(whole(x))
                right += p.period == 10 and not p.changes
            cells.append(right)
        print(f"{f'every tenth step {factor - 1:.0%} slower':34} " + " ".join(f"{n:6}" for n in cells))
    cells = []
    for length in LENGTHS[1:]:
        rng, right = np.random.default_rng(length), 0
        for _ in range(count):
            p = decompose(whole(series(rng, "normal", length, 0.02) * np.linspace(1, 1.2, length)))
            right += p.slope > 0 and not p.changes and not p.period
        cells.append(right)
    print(f"{'drift, 20% over the run':34} " + " ".join(f"{n:6}" for n in cells))


def forecasts(count: int) -> None:
    print("\nforecast of 56 days after 728, weekly and quarterly cycles of 10% and 15%: mean absolute error, percent")
    print(f"{'residual':>9} {'trend':>8} {'last':>8} {'mean':>8} {'last week':>10} {'best possible':>14}")
    t = np.arange(728 + 56)
    for sigma in (0.01, 0.025, 0.05):
        errors = []
        rng = np.random.default_rng(1)
        for _ in range(count):
            cycles = 1 + 0.1 * np.sin(2 * np.pi * t / 7) + 0.15 * np.sin(2 * np.pi * t / 91)
            x = LEVEL_NS * cycles * (1 + sigma * noise(rng, "normal", len(t)))
            past, future = x[:728], x[728:]
            ways = (
                forecast(decompose(whole(past)), 56), past[-1], past.mean(), np.resize(past[-7:], 56),
                LEVEL_NS * cycles[728:],
            )  # fmt: skip
            errors.append([100 * np.mean(np.abs(way - future) / future) for way in ways])
        mean = np.mean(errors, axis=0)
        print(f"{sigma:9.1%} {mean[0]:8.2f} {mean[1]:8.2f} {mean[2]:8.2f} {mean[3]:10.2f} {mean[4]:14.2f}")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=100, help="series in each row")
    asked = parser.parse_args(argv)
    false_alarms(asked.series)
    truths(asked.series)
    forecasts(max(asked.series // 5, 1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
