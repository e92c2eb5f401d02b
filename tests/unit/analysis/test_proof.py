"""What launches with and without a change of a script show."""

from __future__ import annotations

from typing import Any

import pytest

from ddpbench.analysis.proof import MIN_HALF_WIDTH, judged, longer_first_step
from ddpbench.record.proof import Proof, ProofCode, ProofProblem, SideLaunch
from ddpbench.report.messages.proof import first_step_text


def launch(samples_per_s: float, is_changed: bool = False, **changes: Any) -> SideLaunch:
    usual: dict[str, Any] = {"samples_per_step": 32.0, "batches": 200, "updates": 200}
    return SideLaunch(is_changed=is_changed, samples_per_s=samples_per_s, **{**usual, **changes})


def proof(plain: list[float], changed: list[float], **changes: Any) -> Proof:
    """Of these figures in samples/s; ``changes`` are those of the launches with the change."""
    launches = [*(launch(each) for each in plain), *(launch(each, is_changed=True, **changes) for each in changed)]
    return judged(Proof(diff="faster.diff", steps=200, launches=launches))


@pytest.mark.parametrize(
    ("plain", "changed", "code"),
    [
        ([100, 101], [150, 151], "proved"),
        ([100, 101], [80, 81], "slower"),
        ([100, 120], [130, 110], "cannot-tell"),
        ([100, 100], [101, 101], "cannot-tell"),
        ([100, 101, 99], [104, 105, 103], "proved"),
    ],
)
def test_gain_must_be_larger_than_the_spread_of_the_launches(plain: list[float], changed: list[float], code: ProofCode) -> None:
    assert proof(plain, changed).code == code


def test_interval_is_never_narrower_than_launches_differ() -> None:
    gain = proof([100, 100], [200, 200]).gain
    assert gain is not None
    assert gain.center == pytest.approx(2)
    assert gain.low == pytest.approx(2 * (1 - MIN_HALF_WIDTH))
    assert gain.high == pytest.approx(2 * (1 + MIN_HALF_WIDTH))


def test_interval_is_that_of_the_pooled_spread() -> None:
    """By hand: log variances 0.0050 and 0.0018, pooled 0.0034; t of two degrees of freedom is 4.303."""
    gain = proof([100, 110.5171], [200, 212.3673]).gain
    assert gain is not None
    assert gain.center == pytest.approx(1.9604, rel=1e-4)
    assert (gain.low, gain.high) == (pytest.approx(1.5246, rel=2e-3), pytest.approx(2.5208, rel=2e-3))


@pytest.mark.parametrize(("plain", "changed"), [([100.0], []), ([100.0, 101.0], [150.0])])
def test_two_launches_of_each_side_are_needed(plain: list[float], changed: list[float]) -> None:
    found = proof(plain, changed)
    assert (found.gain, found.code) == (None, None)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"has_finite_loss": False}, "loss-not-finite"),
        ({"updates": 150}, "skipped-updates"),
        ({"updates": 198}, "skipped-updates"),
        ({"samples_per_step": 64.0}, "other-batches"),
    ],
)
def test_faster_launches_with_a_problem_prove_nothing(changes: dict[str, Any], problem: ProofProblem) -> None:
    found = proof([100, 101], [200, 201], **changes)
    assert (found.code, found.problems) == ("refuted", [problem])


def test_skipped_updates_of_both_sides_are_none_of_the_change() -> None:
    launches = [launch(100, updates=100), launch(101, updates=100)]
    launches += [launch(200, is_changed=True, updates=99), launch(201, is_changed=True, updates=100)]
    assert judged(Proof(diff="faster.diff", steps=200, launches=launches)).code == "proved"


@pytest.mark.parametrize(
    ("changed", "first_step_s", "extra_s", "payback_s"),
    [
        ([200.0, 200.0], (31.0, 36.0), 30.0, 60.0),
        ([125.0, 125.0], (31.0, 31.0), 30.0, 150.0),
        ([200.0, 200.0], (1.5, 36.0), None, None),
        ([80.0, 80.0], (31.0, 31.0), None, None),
        ([200.0, 200.0], (None, 31.0), None, None),
    ],
    ids=["twice as fast", "a quarter", "once slow", "slower", "unknown"],
)
def test_longer_first_step_pays_once_the_gain_has_saved_as_much(
    changed: list[float], first_step_s: tuple[float | None, float], extra_s: float | None, payback_s: float | None
) -> None:
    plain = [launch(100.0, first_step_s=each) for each in (0.9, 1.0)]
    other = [launch(rate, is_changed=True, first_step_s=each) for rate, each in zip(changed, first_step_s, strict=True)]
    judgement = judged(Proof(diff="compile.diff", steps=200, launches=[*plain, *other]))
    found = longer_first_step(judgement)
    assert (found and found.extra_s, found and found.payback_s) == (
        extra_s and pytest.approx(extra_s),
        payback_s and pytest.approx(payback_s),
    )
    assert first_step_text(judgement).startswith("takes 30 s longer, which pays off after" if extra_s else "")
    assert bool(first_step_text(judgement)) is bool(extra_s)
