"""Where two devices cross, on times whose crossing is known beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from random import Random
from statistics import median

import pytest
import sweeps

from ddpbench.published.crossing import CrossoverPoint, crossing_of, describe_crossing, find_crossing
from ddpbench.record.roles import side_role


def points(ratios: dict[int, float], spread: float = 0.01, rounds: int = 5) -> list[CrossoverPoint]:
    """Models whose time on the second device is that many times the time on the first, a layer each factor of four."""
    first = [1.0] * rounds
    return [
        CrossoverPoint(parameters, layer, first, [ratio * (1 + spread * (place - (rounds - 1) / 2)) for place in range(rounds)])
        for layer, (parameters, ratio) in enumerate(ratios.items(), start=2)
    ]


def test_one_round_has_no_interval_and_says_so() -> None:
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
def test_the_interval_is_called_what_the_models_around_it_give(rounds: Sequence[int], said: str) -> None:
    measured = [each for (size, ratio), count in zip(MODELS.items(), rounds, strict=True) for each in points({size: ratio}, rounds=count)]
    assert f"from 27,700 parameters ({said}" in describe_crossing(find_crossing("CPU", "GPU", measured))


def test_it_lies_where_the_logs_meet() -> None:
    found = find_crossing("CPU", "GPU", points({100: 4.0, 10_000: 0.25}, spread=0.0))
    assert (found.winner, found.loser) == ("GPU", "CPU")
    assert found.parameters == pytest.approx(1000)
    assert found.layers_at(1000) == pytest.approx(2.5)
    assert not found.has_interval


def test_the_interval_holds_it_and_narrows_with_the_rounds_spread() -> None:
    wide, narrow = (find_crossing("CPU", "GPU", points({100: 2.0, 1000: 1.1, 10_000: 0.5}, spread=spread)) for spread in (0.05, 0.01))
    for found in (wide, narrow):
        assert found.low is not None
        assert found.high is not None
        assert found.parameters is not None
        assert found.low < found.parameters < found.high
    assert wide.high / wide.low > narrow.high / narrow.low  # type: ignore[operator]


def test_the_interval_is_where_the_band_of_the_ratio_touches_one() -> None:
    ours = points({100: 1.5, 10_000: 1 / 1.5}, spread=0.02)
    found = find_crossing("CPU", "GPU", ours)
    reach = sqrt(ours[0].ratio.high / ours[0].ratio.low)
    assert reach > 1
    low, high = (find_crossing("CPU", "GPU", points({100: 1.5 * shift, 10_000: shift / 1.5}, spread=0.0)) for shift in (1 / reach, reach))
    assert found.low == pytest.approx(low.parameters, rel=0.01)
    assert found.high == pytest.approx(high.parameters, rel=0.01)


def test_a_device_that_wins_everywhere_crosses_nowhere() -> None:
    found = find_crossing("CPU", "GPU", points({100: 0.9, 1000: 0.5}))
    assert (found.winner, found.parameters) == ("GPU", None)
    found = find_crossing("CPU", "GPU", points({100: 1.5, 1000: 1.4}))
    assert (found.winner, found.parameters) == ("CPU", None)


def test_the_winner_is_the_faster_one_at_the_largest_model_in_either_order() -> None:
    falling = find_crossing("CPU", "GPU", points({100: 2.0, 10_000: 0.5}, spread=0.0))
    rising = find_crossing("GPU", "CPU", points({100: 0.5, 10_000: 2.0}, spread=0.0))
    assert (falling.winner, rising.winner) == ("GPU", "GPU")
    assert falling.parameters == pytest.approx(rising.parameters)


def test_of_several_crossings_the_last_counts() -> None:
    found = find_crossing("CPU", "GPU", points({1: 2.0, 10: 0.5, 100: 2.0, 1000: 0.5}, spread=0.0))
    assert found.parameters == pytest.approx(sqrt(100 * 1000))


def test_an_end_beyond_the_models_is_open() -> None:
    found = find_crossing("CPU", "GPU", points({100: 1.5, 1000: 0.99}, spread=0.05))
    assert found.parameters is not None
    assert found.low is not None
    assert found.high is None


def test_of_rounds_that_scatter_the_interval_holds_the_truth() -> None:
    """Eleven depths, three rounds that share their luck, and noise of 1%: the interval is narrow, and nearly always right."""
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


def test_rounds_are_paired_by_their_index() -> None:
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


def test_a_job_is_read_by_labels_and_depth() -> None:
    assert sweeps.disc_parameters(10) == 703_142
    found = crossing_of(sweeps.crossing_disc())
    assert found is not None
    assert (found.loser, found.winner, len(found.points)) == ("CPU", "GPU", 11)
    assert found.parameters is not None
    assert 176_806 < found.parameters < 703_142
    assert 9 < found.layers_at(found.parameters) < 10


def test_a_model_that_one_device_never_finished_is_left_out() -> None:
    job = sweeps.crossing_disc()
    job.records[-1].rounds = []
    found = crossing_of(job)
    assert found is not None
    assert found.points[-1].layers == 11


def test_one_device_and_other_workloads_cross_nothing() -> None:
    assert crossing_of(sweeps.t4()) is None
    job = sweeps.crossing_disc()
    job.records = [record for record in job.records if record.role == side_role("CPU")]
    assert crossing_of(job) is None
