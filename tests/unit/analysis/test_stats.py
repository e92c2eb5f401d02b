"""Statistics, against scipy and values computed by hand."""

from __future__ import annotations

import math
import random
from statistics import stdev

import pytest
from scipy import stats as scipy_stats

from ddpbench.analysis.stats import (
    coefficient_of_variation,
    log_t_interval,
    log_trimmed_ci,
    ratio_of,
    t_interval,
    t_quantile,
    trimmed_ci,
    trimmed_mean,
)


@pytest.mark.parametrize("freedom", [1, 1.3, 2, 3, 4, 4.7, 9, 30, 250.5, 1e4, 1e7, 1e20])
@pytest.mark.parametrize("probability", [0.005, 0.3, 0.5, 0.6, 0.95, 0.975, 0.995, 0.9999])
def test_t_quantile_matches_scipy(probability: float, freedom: float) -> None:
    close = 1e-6 if freedom < 1e5 else 1e-4
    assert t_quantile(probability, freedom) == pytest.approx(scipy_stats.t.ppf(probability, freedom), rel=close, abs=1e-12)


def test_t_quantile_with_infinite_freedom_is_normal() -> None:
    assert t_quantile(0.975, math.inf) == pytest.approx(1.959964, abs=1e-6)


@pytest.mark.parametrize(("probability", "freedom"), [(0.0, 4), (1.0, 4), (0.975, 0.5), (0.975, 0), (math.nan, 4)])
def test_invalid_quantile_arguments_raise(probability: float, freedom: float) -> None:
    with pytest.raises(ValueError, match="no t quantile"):
        t_quantile(probability, freedom)


def test_log_t_interval_matches_scipy_and_is_symmetric_as_a_ratio() -> None:
    values = [4510.0, 4523.0, 4541.0, 4498.0, 4533.0]
    logs = [math.log(value) for value in values]
    low, high = scipy_stats.t.interval(0.95, 4, loc=sum(logs) / 5, scale=scipy_stats.sem(logs))
    found = log_t_interval(values)
    assert (found.low, found.high) == (pytest.approx(math.exp(low)), pytest.approx(math.exp(high)))
    assert found.center == pytest.approx(math.prod(values) ** (1 / 5))
    assert found.high / found.center == pytest.approx(found.center / found.low)


def test_lower_confidence_narrows_the_interval() -> None:
    wide, narrow = log_t_interval([9.0, 10.0, 11.0]), log_t_interval([9.0, 10.0, 11.0], confidence=0.9)
    assert wide.low < narrow.low < narrow.center == wide.center < narrow.high < wide.high


def test_equal_values_have_a_zero_width_interval() -> None:
    found = log_t_interval([5.0, 5.0, 5.0])
    assert (found.low, found.high) == (pytest.approx(5), pytest.approx(5))


def test_single_value_has_no_interval() -> None:
    with pytest.raises(ValueError, match=r"."):
        log_t_interval([5.0])


def test_paired_ratio_cancels_shared_noise() -> None:
    drawn = random.Random(7)
    luck = [drawn.uniform(50, 150) for _ in range(6)]
    found = ratio_of(luck, [2 * value for value in luck])
    assert (found.low, found.center, found.high) == (pytest.approx(2), pytest.approx(2), pytest.approx(2))


def test_unequal_numbers_of_pairs_raise() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratio_of([1.0, 2.0, 3.0], [1.0, 2.0])


def test_interval_coverage_matches_its_confidence() -> None:
    drawn = random.Random(11)
    held = sum(
        found.low <= 100 <= found.high
        for found in (log_t_interval([100 * math.exp(drawn.gauss(0, 0.004)) for _ in range(5)]) for _ in range(400))
    )
    assert 0.92 < held / 400 < 0.98


def test_trimmed_ci_is_centered_on_the_trimmed_mean() -> None:
    """Winsorised, 1 to 9 are 2 2 3 4 5 6 7 8 8: a sum of squares of 46 about 5, over the seven remaining values."""
    values = [5.0, 9.0, 1.0, 4.0, 8.0, 2.0, 6.0, 3.0, 7.0]
    found = trimmed_ci(values)
    assert found.center == trimmed_mean(values) == 5
    assert found.high - 5 == pytest.approx(scipy_stats.t.ppf(0.975, 6) * math.sqrt(46 / (7 * 6)))
    assert found.high - 5 == pytest.approx(5 - found.low)


def test_four_values_are_not_trimmed() -> None:
    values = [3.0, 1.0, 2.0, 9.0]
    assert trimmed_ci(values) == t_interval(values)


def test_one_outlier_in_five_rounds_stays_within_the_trimmed_interval() -> None:
    base, other = [100.0, 100.2, 99.9, 100.1, 100.0], [97.0, 97.1, 97.1, 96.9, 97.0]
    disturbed = [94.0, *base[1:]]
    even, uneven = (log_trimmed_ci([after / before for before, after in zip(each, other, strict=True)]) for each in (base, disturbed))
    assert uneven.low < even.center < uneven.high < 0.98
    assert ratio_of(disturbed, other).high > 0.99


def test_trimmed_ci_covers_the_mean_despite_an_outlier() -> None:
    drawn = random.Random(13)

    def rounds() -> list[float]:
        return [100 + drawn.gauss(0, 0.4) for _ in range(4)] + [100 + drawn.gauss(6, 2)]

    held = sum(found.low <= 100 <= found.high for found in (trimmed_ci(rounds()) for _ in range(400)))
    assert held / 400 > 0.92


def test_coefficient_of_variation_is_sample_deviation_over_mean() -> None:
    values = [98.0, 101.0, 103.0]
    assert coefficient_of_variation(values) == pytest.approx(stdev(values) / (302 / 3))
