"""What screened cures gain, which are kept, and what is advised then."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from screened import NOISE, STRONG_NOISE, cure, left_out, screened_diagnosis

from ddpbench.analysis.remedies.outcomes import advise
from ddpbench.analysis.screening import advised_cures, is_kept, is_within_rounding, noise_floor, screened_gain, together
from ddpbench.record.prediction import Scenario
from ddpbench.record.remedy import ScreenedRemedy
from ddpbench.record.screening import LossComparison, ScreenedCure, Screening
from ddpbench.record.verdict import ChangeTraining


def test_gain_is_the_ratio_of_paired_windows() -> None:
    gain = screened_gain(cure("channels-last", 1.5))
    assert gain is not None
    assert (gain.center, gain.pairs) == (pytest.approx(1.5, rel=0.005), 6)
    assert gain.low < 1.5 < gain.high < 1.52
    assert screened_gain(left_out("channels-last", "no-time")) is None


def test_noise_floor_is_the_upper_end_of_the_null_cure() -> None:
    null = screened_gain(cure("null"))
    assert null is not None
    assert noise_floor([cure("null"), cure("channels-last", 1.5)]) == null.high
    assert noise_floor([cure("channels-last", 1.5)]) == float("inf")


@pytest.mark.parametrize(
    ("gain", "noise", "floor", "kept"),
    [
        (1.5, NOISE, 1.01, True),
        (1.04, NOISE, 1.01, True),
        (1.04, NOISE, 1.05, False),
        (1.02, NOISE, 1.01, False),
        (1.1, STRONG_NOISE, 1.01, False),
        (0.9, NOISE, 1.01, False),
    ],
)
def test_cure_is_kept_beyond_noise_and_three_percent(gain: float, noise: Sequence[float], floor: float, kept: bool) -> None:
    assert is_kept(cure("channels-last", gain, noise=noise), floor) is kept


def test_gains_of_cures_on_top_of_each_other_are_multiplied() -> None:
    screening = Screening(cures=[cure("null"), cure("channels-last", 1.9), cure("fused-optimizer", 1.1, ["channels-last"])])
    found = together(advised_cures(screening))
    assert found is not None
    assert found.center == pytest.approx(2.09, rel=0.01)
    assert found.low < 2.09 < found.high


def test_what_changes_numbers_is_not_advised_nor_what_was_tried_on_top_of_it() -> None:
    cures = [cure("null"), cure("channels-last"), cure("bf16-autocast", 1.6), cure("channels-last", 1.2, ["bf16-autocast"])]
    assert advised_cures(Screening(cures=cures)) == []
    job = screened_diagnosis(*cures)
    assert job.diagnosis
    assert job.diagnosis.advice
    assert job.diagnosis.advice.code == "keep-changes-numbers"


def test_disturbed_cure_is_not_kept() -> None:
    disturbed = replace(cure("channels-last", 1.9), obstacle="disturbed")
    assert advised_cures(Screening(cures=[cure("null"), disturbed])) == []


def test_screened_cures_are_advised_for_a_training_that_computes() -> None:
    job = screened_diagnosis(cure("null"), cure("channels-last", 1.9), cure("fused-optimizer", 1.01, ["channels-last"]))
    assert job.diagnosis
    advice = job.diagnosis.advice
    assert advice
    assert (advice.code, advice.computing) == ("screened", ChangeTraining(cures=["channels-last"], optimizers=["SGD"]))
    assert advice.computing_gain
    assert advice.computing_gain.center == pytest.approx(1.9, rel=0.01)
    assert advice.worth is None, "of the training it is not known"


def test_cures_of_a_training_that_waits_for_data_come_after_its_loader() -> None:
    job = screened_diagnosis(cure("null"), cure("channels-last", 1.9), data_bound=True)
    assert job.diagnosis
    advice = job.diagnosis.advice
    assert advice
    assert (advice.code, advice.scenario) == ("change", Scenario(workers=6))
    assert advice.computing == ChangeTraining(cures=["channels-last"], optimizers=["SGD"])


@pytest.mark.parametrize(("noise", "code"), [(NOISE, "keep-nothing-faster"), (STRONG_NOISE, "keep-too-noisy")])
def test_without_a_cure_that_is_kept_the_settings_stay(noise: Sequence[float], code: str) -> None:
    job = screened_diagnosis(cure("null", noise=noise), cure("channels-last", 1.0, noise=noise))
    assert job.diagnosis
    assert job.diagnosis.advice
    assert job.diagnosis.advice.code == code


def test_every_trial_is_a_remedy() -> None:
    failed = ScreenedCure(code="bf16-autocast", failure="RuntimeError: expected Float")
    job = screened_diagnosis(cure("null"), cure("channels-last", 1.9), left_out("fused-optimizer", "loss-scaler"), failed)
    assert job.diagnosis
    found = {each.code: each for each in job.diagnosis.remedies or () if isinstance(each, ScreenedRemedy)}
    assert list(found) == ["channels-last", "fused-optimizer", "bf16-autocast"]
    assert [each.is_kept for each in found.values()] == [True, False, False]
    assert found["fused-optimizer"].obstacle == "loss-scaler"
    assert found["bf16-autocast"].failure == "RuntimeError: expected Float"
    assert found["channels-last"].change == ChangeTraining(cures=["channels-last"], optimizers=["SGD"])


def test_settings_that_change_numbers_are_advised_if_that_is_allowed() -> None:
    cures = [cure("null"), cure("channels-last", 1.4), cure("bf16-autocast", 1.2, ["channels-last"])]
    for allows, expected in ((False, ["channels-last"]), (True, ["channels-last", "bf16-autocast"])):
        kept = advised_cures(Screening(cures=cures, allows_numerics=allows))
        assert [each.code for each in kept] == expected


PLAIN = [1.0, 0.9, 0.8]


@pytest.mark.parametrize(
    ("second", "changed", "is_near"),
    [
        (PLAIN, [1.0, 0.9001, 0.8], True),
        (PLAIN, [1.0, 0.95, 0.8], False),
        ([1.0, 0.9, 0.84], [1.0, 0.9, 0.9], True),  # two runs of the script differ as much
        (PLAIN, [1.0, 0.9, None], False),
        ([1.0, 0.9, None], [1.0, 0.9, None], True),  # the script itself is not finite
        ([1.0, 0.9], [1.0, 0.9, 0.8], True),  # some were not seen
    ],
)
def test_cure_that_changes_losses_is_not_advised(second: list[float | None], changed: list[float | None], is_near: bool) -> None:
    steps = LossComparison(cures=["channels-last"], plain=[[*PLAIN], second], changed=changed)
    kept = [cure("null"), cure("channels-last", 1.9)]
    assert [each.code for each in advised_cures(Screening(cures=kept, loss_comparison=steps))] == (["channels-last"] if is_near else [])
    job = screened_diagnosis(*kept)
    assert job.diagnosis
    job.diagnosis.screening = Screening(cures=kept, loss_comparison=steps)
    advice = advise(job)
    assert advice
    assert advice.code == ("screened" if is_near else "keep-other-losses")


def test_losses_of_what_is_known_by_heart_count_beside_the_first_one() -> None:
    tiny = LossComparison(cures=["channels-last"], plain=[[1e-6], [1e-6]], changed=[2e-6])
    assert not is_within_rounding(tiny)
    assert is_within_rounding(replace(tiny, first=2.3))
    assert not is_within_rounding(replace(tiny, first=2.3, changed=[0.5]))
