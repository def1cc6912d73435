"""Ratios with intervals: against the definition, tables of statistics, and simulated noise with fixed seeds."""

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from etude.analyse.noise import shift
from noisy_steps import noise

F64 = NDArray[np.float64]


def test_three_samples_by_hand() -> None:
    """Student's t with 4 degrees of freedom: 2.776 · s · sqrt(2/3), of logarithms with s = 0.01."""
    base = np.exp(np.array([-0.01, 0.0, 0.01]))
    found = shift(100 * base, 110 * base)
    wide = 2.776 * 0.01 * np.sqrt(2 / 3)
    assert found.method == "t"
    assert found.ratio == pytest.approx(1.1)
    assert found.interval == pytest.approx((1.1 * np.exp(-wide), 1.1 * np.exp(wide)))


def test_four_samples_by_hand() -> None:
    """With four of each, only the order in which all are apart is rare enough: all 16 ratios are in the interval."""
    found = shift(np.array([100.0, 101, 102, 103]), np.array([200.0, 202, 204, 206]))
    assert found.method == "ranks"
    assert found.interval == pytest.approx((200 / 103, 206 / 100))


def naive_interval(a: F64, b: F64) -> tuple[float, float]:
    """All ratios that a rank-sum test does not reject, by listing every order of the samples."""
    m, n = len(a), len(b)
    orders = [sum(p - i for i, p in enumerate(places)) for places in combinations(range(m + n), m)]
    kept = []
    for ratio in sorted(y / x for x in a for y in b):
        for theta in (ratio * (1 - 1e-9), ratio * (1 + 1e-9)):
            pairs = sum(y / theta < x for x in a for y in b)
            tail = min(sum(u <= pairs for u in orders), sum(u >= pairs for u in orders)) / len(orders)
            if tail > 0.025:
                kept.append(theta)
    return min(kept), max(kept)


@pytest.mark.parametrize(("m", "n"), [(4, 4), (3, 5), (5, 6), (6, 6)])
def test_the_interval_is_what_the_test_does_not_reject(m: int, n: int) -> None:
    rng = np.random.default_rng(m * n)
    a, b = rng.lognormal(0, 0.1, m), rng.lognormal(0.05, 0.1, n)
    assert shift(a, b).interval == pytest.approx(naive_interval(a, b), rel=1e-6)


def test_what_does_not_vary_has_no_width() -> None:
    found = shift(np.full(6, 275.0), np.full(6, 360.0))
    assert found.interval == pytest.approx((360 / 275, 360 / 275))


def test_one_sample_each_has_no_interval_and_a_simulation_has_no_noise() -> None:
    one, two = np.array([100.0]), np.array([110.0])
    assert (shift(one, two).ratio, shift(one, two).interval, shift(one, two).method) == (1.1, None, "single")
    assert shift(one, two, exact=True).interval == (1.1, 1.1)


def test_one_sample_against_several_uses_their_spread() -> None:
    found = shift(np.array([100.0, 101, 99, 100]), np.array([150.0]))
    assert found.method == "t" and found.interval is not None
    assert 1.4 < found.interval[0] < 1.5 < found.interval[1] < 1.6


def test_zeros_are_compared_by_difference() -> None:
    found = shift(np.array([0.0, 10, 20, 10, 10]), np.array([20.0, 30, 20, 20, 20]))
    assert found.ratio == pytest.approx(2.0)
    assert shift(np.zeros(5), np.zeros(5)).ratio == 1.0
    assert shift(np.zeros(5), np.full(5, 3.0)).ratio is None


@pytest.mark.parametrize("kind", ["normal", "skewed", "hiccups"])
@pytest.mark.parametrize("count", [3, 5, 8, 12, 40])
def test_false_alarms_are_rare(kind: str, count: int) -> None:
    """Without a change, the lower end of the interval is above 1 in no more than 2.5% of cases; of 600 that is 15,
    and 27 is three standard deviations more."""
    rng = np.random.default_rng(20 + count)
    alarms = 0
    for _ in range(600):
        interval = shift(noise(rng, count, kind), noise(rng, count, kind)).interval
        assert interval is not None
        alarms += interval[0] > 1
    assert alarms <= 27


def test_neighbours_that_are_alike_raise_few_alarms() -> None:
    """Steps taken as independent would raise three times as many as they should."""
    rng = np.random.default_rng(3)
    alarms = sum(shift(noise(rng, 60, "alike"), noise(rng, 60, "alike")).interval[0] > 1 for _ in range(500))  # type: ignore[index]
    assert alarms <= 25


@pytest.mark.parametrize(
    ("count", "change", "least"), [(5, 1.06, 0.9), (8, 1.05, 0.95), (12, 1.03, 0.8), (40, 1.02, 0.9)]
)
def test_a_change_is_seen(count: int, change: float, least: float) -> None:
    """With 2% of noise; the share of cases in which the interval is above 1."""
    rng = np.random.default_rng(7)
    cases = [shift(noise(rng, count, "normal"), change * noise(rng, count, "normal")) for _ in range(300)]
    assert np.mean([c.interval is not None and c.interval[0] > 1 for c in cases]) >= least
    assert np.mean([c.interval is not None and c.interval[0] <= change <= c.interval[1] for c in cases]) >= 0.9
