"""Tests and intervals, against figures worked out by hand."""

import warnings

import numpy as np
import pytest

from etude.decide.study.stats import bootstrap_ratio, holm, sign_test, t_ratio, wilcoxon


@pytest.mark.parametrize("n", [1, 2, 5, 10, 20])
def test_n_of_one_sign(n: int) -> None:
    assert sign_test([0.5] * n) == 2.0 ** (1 - n)
    assert sign_test([-3.0] * n) == 2.0 ** (1 - n)


def test_ties_are_dropped_and_with_none_left_p_is_one() -> None:
    assert sign_test([0.0] * 8) == 1.0
    assert wilcoxon([0.0] * 8) == 1.0
    assert sign_test([0.0, 0.0, 1.0, 1.0, 1.0]) == 0.25


def test_the_sign_test_by_counting() -> None:
    # 1 of 5 below: (1 + 5) of 32 outcomes on each side
    assert sign_test([1, 1, 1, 1, -1]) == 12 / 32
    assert sign_test([1, -1]) == 1.0


def test_wilcoxon_by_counting() -> None:
    # ranks 1..5 all above: 1 of 32 sign patterns on each side; with the smallest below: 2 of 32
    assert wilcoxon([1, 2, 3, 4, 5]) == pytest.approx(2 / 32)
    assert wilcoxon([-1, 2, 3, 4, 5]) == pytest.approx(4 / 32)


def test_holm_goes_on_until_the_first_that_fails() -> None:
    # against 0.05/4, 0.05/3, 0.05/2, 0.05: 0.02 fails the second, so 0.024 and 0.04 do too
    assert holm([0.04, 0.01, 0.02, 0.024]) == [False, True, False, False]
    assert holm([0.01, 0.04, 0.015, 0.02]) == [True, True, True, True]
    assert holm([0.05]) == [True]
    assert holm([0.0501]) == [False]
    assert holm([]) == []


def test_holm_does_not_depend_on_the_order() -> None:
    p = [0.2, 0.001, 0.013, 0.03, 0.0001]
    for order in ([4, 3, 2, 1, 0], [1, 0, 3, 2, 4]):
        moved = holm([p[i] for i in order])
        assert [moved[order.index(i)] for i in range(5)] == holm(p)


def test_intervals() -> None:
    base = np.array([10.0, 20.0, 30.0, 40.0])
    assert bootstrap_ratio(base, 2 * base) == (2.0, 2.0)
    assert t_ratio(base, 2 * base) == pytest.approx((2.0, 2.0))
    # differences 1 and 3 from a base that does not vary: mean 2, standard error 1, t of one degree of freedom 12.7062
    low, high = t_ratio(np.array([10.0, 10.0]), np.array([11.0, 13.0]))
    assert (low, high) == pytest.approx((1.2 - 1.27062, 1.2 + 1.27062), abs=1e-5)
    # both ends are where Student's test of other - r * base is just not rejected: t of three degrees 3.182446
    other = np.array([13.0, 21.0, 38.0, 41.0])
    for end in t_ratio(base, other):
        rest = other - end * base
        assert abs(rest.mean()) / (rest.std(ddof=1) / 2) == pytest.approx(3.182446, abs=1e-5)
    low, high = bootstrap_ratio(base, base[::-1].copy())
    assert low < 1 < high


@pytest.mark.parametrize("seeds", [2, 3, 5, 8, 14])
def test_the_interval_of_few_seeds_holds_what_it_says(seeds: int) -> None:
    """Of pairs that are drawn with a ratio of 0.9; a bootstrap holds it in 49% to 92% of such studies."""
    draw, held = np.random.default_rng(seeds), 0
    for _ in range(600):
        base = draw.normal(10, 1, seeds)
        low, high = t_ratio(base, 0.9 * base + draw.normal(0, 0.5, seeds)) or (-np.inf, np.inf)
        held += low <= 0.9 <= high
    assert 0.92 <= held / 600 <= 0.98


def test_a_base_that_may_be_0_has_no_interval():
    base, other = np.array([0.0, 0.0, 3.0]), np.array([1.0, 2.0, 3.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bootstrap_ratio(base, other) is None  # a draw may be of the first two alone
        assert t_ratio(np.array([-1.0, 1.0]), np.array([1.0, 2.0])) is None
        assert bootstrap_ratio(base + 1, other) is not None
