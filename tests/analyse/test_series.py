"""Series as trend + cycle + residual, changes of level, forecasts: worked by hand, or made here with a known truth."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.analyse.changes import change_points, noise
from etude.analyse.series import decompose, forecast, spread
from etude.base.errors import UsageError

LEVEL = 100_000_000


def sine(period: int, cycles: int) -> np.ndarray:
    t = np.arange(period * cycles)
    return np.rint(LEVEL + LEVEL / 10 * np.sin(2 * np.pi * t / period)).astype(np.int64)


def noisy(count: int, seed: int, sigma: float = 0.01) -> np.ndarray:
    return LEVEL * (1 + sigma * np.random.default_rng(seed).standard_normal(count))


def whole(values: np.ndarray) -> np.ndarray:
    return np.rint(values).astype(np.int64)


@pytest.mark.parametrize(("period", "cycles"), [(3, 2), (3, 4), (5, 2), (7, 3), (10, 2), (24, 10), (50, 2), (97, 4)])
def test_a_pure_sine_is_its_cycle_and_nothing_is_left(period: int, cycles: int):
    found = decompose(sine(period, cycles))
    assert abs(found.period - period) <= 1
    assert not found.residual.any() and len(np.unique(found.trend)) == 1
    assert found.changes == () and found.slope == 0


@given(st.lists(st.integers(0, 10**12), max_size=60), st.sampled_from([None, 0, 2, 5]))
@settings(max_examples=60)
def test_parts_add_up_to_the_nanosecond(values: list[int], period: int | None):
    series = np.array(values, np.int64)
    if period and 2 * period > len(values):
        with pytest.raises(UsageError, match="a cycle of"):
            decompose(series, period=period)
        return
    found = decompose(series, period=period)
    assert found.residual.dtype == np.int64
    assert (found.trend + found.cycle + found.residual).tolist() == values


def test_a_level_that_changes_is_placed_and_measured():
    x = noisy(60, 1)
    x[40:] *= 1.3
    found = decompose(whole(x))
    assert [c.at for c in found.changes] == [40] and found.changes[0].ratio == pytest.approx(1.3, abs=0.01)
    assert found.period == 0 and spread(found) == pytest.approx(0.01, rel=0.3)


def test_slow_for_a_while_is_two_changes():
    x = noisy(100, 2)
    x[60:75] *= 1.2
    assert [c.at for c in change_points(x)] == [60, 75]


def test_every_tenth_step_is_a_period_and_no_change():
    x = noisy(50, 3)
    x[9::10] *= 1.3
    found = decompose(whole(x))
    assert found.period == 10 and not found.changes
    slow = np.flatnonzero(found.cycle > LEVEL / 10)
    assert slow.tolist() == [9, 19, 29, 39, 49]


def test_a_period_and_a_change_at_a_time():
    x = noisy(100, 4)
    x[9::10] *= 1.3
    x[50:] *= 1.2
    found = decompose(whole(x))
    assert found.period == 10 and [c.at for c in found.changes] == [50]


def test_a_ramp_drifts_and_does_not_change():
    x = noisy(80, 5) * np.linspace(1, 1.2, 80)
    found = decompose(whole(x))
    assert not found.changes and not found.period
    assert found.slope == pytest.approx(0.2 * LEVEL / 79, rel=0.15)


def test_single_samples_far_off_are_residual():
    x = noisy(60, 6)
    x[[7, 31]] *= 5
    found = decompose(whole(x))
    assert not found.changes and not found.period
    assert set(np.argsort(-np.abs(found.residual))[:2]) == {7, 31}


def test_noise_is_left_alone():
    told = [bool(p.changes or p.period or p.slope) for p in (decompose(whole(noisy(40, seed))) for seed in range(40))]
    assert sum(told) <= 1


def test_a_constant_series_has_a_trend_alone():
    found = decompose(np.full(20, 7))
    assert set(found.trend.tolist()) == {7} and not found.cycle.any() and not found.residual.any()
    assert forecast(found, 3).tolist() == [7, 7, 7]


def test_a_small_change_of_many_series_is_not_named_by_chance():
    x = noisy(20, 8, 0.02)
    x[10:] *= 1.06
    assert change_points(x) and not change_points(x, among=10**6)


def test_noise_does_not_count_changes():
    x = noisy(400, 9)
    x[200:] += LEVEL
    assert noise(x) == pytest.approx(0.01 * LEVEL, rel=0.15)


def test_a_forecast_goes_on_with_the_cycle():
    series = sine(12, 5)
    assert np.rint(forecast(decompose(series), 24)).tolist() == sine(12, 7)[60:].tolist()


def test_a_forecast_beats_the_last_value_and_the_mean():
    t = np.arange(7 * 40)
    rng = np.random.default_rng(10)
    x = (
        LEVEL
        * (1 + 0.1 * np.sin(2 * np.pi * t / 7))
        * np.linspace(1, 1.1, len(t))
        * (1 + 0.02 * rng.standard_normal(len(t)))
    )
    past, future = x[:-21], x[-21:]

    def error(told: np.ndarray | float) -> float:
        return float(np.mean(np.abs(told - future) / future))

    found = error(forecast(decompose(whole(past)), 21))
    assert found < 0.03 < min(error(past[-1]), error(past.mean()))


@pytest.mark.parametrize("values", [[1.0, np.nan], [1.0, np.inf], [[1, 2], [3, 4]]])
def test_what_is_no_series_is_refused(values: list):
    with pytest.raises(UsageError, match="a series must be one-dimensional"):
        decompose(np.array(values))


def test_nothing_follows_nothing():
    with pytest.raises(UsageError, match="no forecast"):
        forecast(decompose(np.zeros(0, np.int64)), 1)
