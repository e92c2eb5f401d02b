"""Crossover of two devices, on times with a known crossover."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from random import Random
from statistics import median

import pytest
import sweeps

from ddpbench.published.crossing import CrossoverPoint, crossing_of, describe_crossing, find_crossing
from ddpbench.published.crossover_page import crossover_findings
from ddpbench.record.roles import side_role


def points(ratios: dict[int, float], spread: float = 0.01, rounds: int = 5) -> list[CrossoverPoint]:
    """Models with the given time ratios of second to first device, one layer each."""
    first = [1.0] * rounds
    return [
        CrossoverPoint(parameters, layer, first, [ratio * (1 + spread * (place - (rounds - 1) / 2)) for place in range(rounds)])
        for layer, (parameters, ratio) in enumerate(ratios.items(), start=2)
    ]


def test_single_round_crossover_has_no_interval() -> None:
    once = find_crossing("CPU", "GPU", points({1_000: 4.0, 10_000: 2.0, 100_000: 0.5}, rounds=1))
    assert describe_crossing(once) == "GPU is faster than CPU from 31,600 parameters (no interval) on, 3.5 layers"


MODELS = {1_000: 4.0, 10_000: 1.5, 100_000: 0.6, 1_000_000: 0.3}


@pytest.mark.parametrize(
    ("rounds", "said"),
    [
        ((5, 5, 5, 2), "26,400 to 29,100)"),
        ((2, 2, 2, 5), "range of the rounds: 2"),
        ((5, 2, 5, 5), "partly the range of too few rounds: 2"),
        ((5, 1, 5, 5), "partly the range of too few rounds: 2"),
        ((5, 1, 1, 5), "no interval)"),
    ],
)
def test_interval_label_depends_on_the_rounds_around_the_crossover(rounds: Sequence[int], said: str) -> None:
    measured = [each for (size, ratio), count in zip(MODELS.items(), rounds, strict=True) for each in points({size: ratio}, rounds=count)]
    assert f"from 27,700 parameters ({said}" in describe_crossing(find_crossing("CPU", "GPU", measured))


def test_crossover_is_interpolated_on_log_scales() -> None:
    found = find_crossing("CPU", "GPU", points({100: 4.0, 10_000: 0.25}, spread=0.0))
    assert (found.winner, found.loser) == ("GPU", "CPU")
    assert found.parameters == pytest.approx(1000)
    assert found.layers_at(1000) == pytest.approx(2.5)
    assert not found.has_interval


def test_interval_contains_the_crossover_and_narrows_with_less_noise() -> None:
    wide, narrow = (find_crossing("CPU", "GPU", points({100: 2.0, 1000: 1.1, 10_000: 0.5}, spread=spread)) for spread in (0.05, 0.01))
    for found in (wide, narrow):
        assert found.low is not None
        assert found.high is not None
        assert found.parameters is not None
        assert found.low < found.parameters < found.high
    assert wide.high / wide.low > narrow.high / narrow.low  # type: ignore[operator]


def test_interval_ends_where_the_ratio_interval_touches_one() -> None:
    ours = points({100: 1.5, 10_000: 1 / 1.5}, spread=0.02)
    found = find_crossing("CPU", "GPU", ours)
    reach = sqrt(ours[0].ratio.high / ours[0].ratio.low)
    assert reach > 1
    low, high = (find_crossing("CPU", "GPU", points({100: 1.5 * shift, 10_000: shift / 1.5}, spread=0.0)) for shift in (1 / reach, reach))
    assert found.low == pytest.approx(low.parameters, rel=0.01)
    assert found.high == pytest.approx(high.parameters, rel=0.01)


def test_device_that_always_wins_has_no_crossover() -> None:
    found = find_crossing("CPU", "GPU", points({100: 0.9, 1000: 0.5}))
    assert (found.winner, found.parameters) == ("GPU", None)
    found = find_crossing("CPU", "GPU", points({100: 1.5, 1000: 1.4}))
    assert (found.winner, found.parameters) == ("CPU", None)


def test_winner_is_the_faster_device_at_the_largest_model() -> None:
    falling = find_crossing("CPU", "GPU", points({100: 2.0, 10_000: 0.5}, spread=0.0))
    rising = find_crossing("GPU", "CPU", points({100: 0.5, 10_000: 2.0}, spread=0.0))
    assert (falling.winner, rising.winner) == ("GPU", "GPU")
    assert falling.parameters == pytest.approx(rising.parameters)


def test_last_of_several_crossovers_counts() -> None:
    found = find_crossing("CPU", "GPU", points({1: 2.0, 10: 0.5, 100: 2.0, 1000: 0.5}, spread=0.0))
    assert found.parameters == pytest.approx(sqrt(100 * 1000))


def test_interval_end_beyond_the_models_is_open() -> None:
    found = find_crossing("CPU", "GPU", points({100: 1.5, 1000: 0.99}, spread=0.05))
    assert found.parameters is not None
    assert found.low is not None
    assert found.high is None


def test_interval_beyond_all_models_claims_no_crossover() -> None:
    found = find_crossing("CPU", "GPU", points({100: 1.1, 1000: 0.9}, spread=0.1))
    text = describe_crossing(found)
    assert text.startswith("no clear crossing: GPU looks faster than CPU from ")
    assert text.endswith(" on, but the interval covers all models, 100 to 1,000 parameters")


def test_published_crossover_is_not_shown_beside_numbers_of_threads() -> None:
    texts = [" ".join(crossover_findings(job)) for job in (sweeps.crossing_threads(), sweeps.crossing_disc())]
    assert ["published: GPU is faster" in text for text in texts] == [False, True]


def test_interval_covers_the_true_crossover_with_noisy_rounds() -> None:
    """Eleven depths, three rounds with shared noise, and 1% noise: the interval is narrow and nearly always correct."""
    noise = Random(1)
    sizes = {depth: sweeps.disc_parameters(depth) for depth in range(2, 13)}
    first_s = {depth: 0.4 + 4.5e-6 * parameters for depth, parameters in sizes.items()}
    second_s = {depth: 1.1 + 0.29 * depth + 2e-8 * parameters for depth, parameters in sizes.items()}
    exact = find_crossing(
        "CPU", "GPU", [CrossoverPoint(sizes[depth], depth, [first_s[depth]], [second_s[depth]]) for depth in sizes]
    ).parameters
    assert exact is not None
    held, widths = 0, []
    for _ in range(200):
        measured = []
        for depth, parameters in sizes.items():
            luck = [noise.lognormvariate(0, 0.02) for _ in range(3)]
            mine, theirs = ([each[depth] * turn * noise.lognormvariate(0, 0.01) for turn in luck] for each in (first_s, second_s))
            measured.append(CrossoverPoint(parameters, depth, mine, theirs))
        found = find_crossing("CPU", "GPU", measured)
        assert found.low is not None
        assert found.high is not None
        assert found.parameters is not None
        assert found.low <= found.parameters <= found.high
        held += found.low <= exact <= found.high
        widths.append(found.high / found.low)
    assert held >= 180
    assert median(widths) < 1.25


def test_crossover_rounds_are_paired_by_index() -> None:
    job = sweeps.crossing_disc()
    whole = crossing_of(job)
    for record in job.records:
        record.rounds = record.rounds[1:] if record.role == side_role("CPU") else record.rounds[::-1]
    paired = crossing_of(job)
    assert whole is not None
    assert paired is not None
    assert paired.points[0].first_s == whole.points[0].first_s[1:]
    assert paired.points[0].second_s == whole.points[0].second_s[1:]


def test_single_rounds_give_no_interval() -> None:
    found = find_crossing("CPU", "GPU", points({100: 2.0, 10_000: 0.5}, rounds=1))
    assert found.parameters == pytest.approx(1000)
    assert (found.low, found.high) == (None, None)


def test_crossover_is_read_from_sides_and_depths() -> None:
    assert sweeps.disc_parameters(10) == 703_142
    found = crossing_of(sweeps.crossing_disc())
    assert found is not None
    assert (found.loser, found.winner, len(found.points)) == ("CPU", "GPU", 11)
    assert found.parameters is not None
    assert 176_806 < found.parameters < 703_142
    assert 9 < found.layers_at(found.parameters) < 10


def test_model_unfinished_on_one_device_is_omitted() -> None:
    job = sweeps.crossing_disc()
    job.records[-1].rounds = []
    found = crossing_of(job)
    assert found is not None
    assert found.points[-1].layers == 11


def test_single_device_and_other_workloads_have_no_crossover() -> None:
    assert crossing_of(sweeps.t4()) is None
    job = sweeps.crossing_disc()
    job.records = [record for record in job.records if record.role == side_role("CPU")]
    assert crossing_of(job) is None
