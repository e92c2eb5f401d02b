"""The windows in which cures take turns with the settings of before, for scripts and cures of every speed."""

from __future__ import annotations

from typing import Any

import pytest
from test_schedule import Script

from ddpbench.record.prediction import Scenario
from ddpbench.record.screening import CureCode
from ddpbench.script.diagnose.screening import COMPARED_RUNS, COMPARED_UPDATES, MAX_REPEATS, MIN_SLOW_STEPS, MIN_STEPS, PAIRS, WINDOW_S
from ddpbench.script.diagnose.stage import Stage


def screened(
    speeds: dict[CureCode, float], compute_s: float = 0.02, last_s: float = 1000.0, **attributes: Any
) -> tuple[Script, list[Stage]]:
    """The script, and its windows of cures."""
    script = Script(compute_s=compute_s, limit_s=60.0)
    script.speeds, script.last_s = {"null": 1.0, **speeds}, last_s
    for name, value in attributes.items():
        setattr(script, name, value)
    return script, [each for each in script.stages() if each.screened]


def test_windows_take_turns_after_the_first_use() -> None:
    _, windows = screened({"channels-last": 1.5})
    own = [each.cures for each in windows if each.screened == "channels-last"]
    on, off = ["channels-last"], []
    assert own == [on, *[off, on, on, off] * (PAIRS // 2)]


@pytest.mark.parametrize(("step_s", "least"), [(0.001, MIN_STEPS), (0.1, MIN_STEPS), (0.3, MIN_SLOW_STEPS), (1.0, MIN_SLOW_STEPS)])
def test_windows_are_long_enough(step_s: float, least: int) -> None:
    _, windows = screened({"channels-last": 1.0}, compute_s=step_s)
    steps = [each.batches - each.unmeasured for each in windows]
    assert len(steps) == 2 * (1 + 2 * PAIRS)
    assert all(each >= least and each * step_s >= WINDOW_S for each in (*steps[1:13], *steps[14:])), "besides the two of first use"


def test_each_cure_is_tried_on_top_of_those_that_are_kept() -> None:
    script, _ = screened({"channels-last": 1.9, "bf16-autocast": 1.3})
    assert [(each.code, each.on_top_of) for each in script.screened if each.obstacle is None] == [
        ("null", []),
        ("channels-last", []),
        ("bf16-autocast", ["channels-last"]),
    ]


def test_cure_that_gained_nothing_is_tried_again_once_another_precision_is_kept() -> None:
    script, _ = screened({"channels-last": 1.0, "fused-optimizer": 1.0, "bf16-autocast": 1.3})
    tried = [(each.code, each.on_top_of) for each in script.screened if each.obstacle is None]
    assert tried[-2:] == [("channels-last", ["bf16-autocast"]), ("fused-optimizer", ["bf16-autocast"])]
    assert len(tried) == 6


def test_gain_below_three_percent_is_not_kept() -> None:
    script, _ = screened({"channels-last": 1.02, "fused-optimizer": 1.1})
    assert script.screened[-1].on_top_of == []


def test_without_a_cure_that_applies_nothing_is_screened() -> None:
    script, windows = screened({})
    assert not windows
    assert [each.obstacle for each in script.screened] == ["volumes"]


def test_cures_for_which_no_time_is_left_are_listed_with_what_they_need() -> None:
    script, windows = screened({"channels-last": 1.9, "bf16-autocast": 1.1}, last_s=100.0)
    left_out = [each for each in script.screened if each.obstacle == "no-time"]
    assert [each.code for each in left_out] == ["bf16-autocast"]
    assert left_out[0].needed_s == pytest.approx(34 + COMPARED_RUNS * COMPARED_UPDATES * script.compute_s / 1.9, abs=2)
    assert {each.screened for each in windows} == {"null", "channels-last"}


def test_cure_that_cannot_be_switched_on_is_left_after_its_first_use() -> None:
    script, windows = screened({"channels-last": 1.9, "fused-optimizer": 1.1}, failing_cure="channels-last")
    failed = next(each for each in script.screened if each.code == "channels-last")
    assert (failed.failure, failed.without_s) == ("RuntimeError", [])
    assert sum(each.screened == "channels-last" for each in windows) == 2
    assert script.screened[-1].on_top_of == []


@pytest.mark.parametrize(("disturbed", "obstacle"), [(MAX_REPEATS, None), (MAX_REPEATS + 1, "disturbed")])
def test_disturbed_window_is_measured_again(disturbed: int, obstacle: str | None) -> None:
    script, windows = screened({"channels-last": 1.9}, disturbed_windows=disturbed)
    null = next(each for each in script.screened if each.code == "null")
    assert null.obstacle == obstacle
    expected = 1 + 2 * PAIRS + disturbed if obstacle is None else 1 + disturbed
    assert sum(each.screened == "null" for each in windows) == expected


def test_without_a_noise_floor_nothing_is_kept() -> None:
    script, _ = screened({"channels-last": 1.9, "fused-optimizer": 1.5}, disturbed_windows=MAX_REPEATS + 1)
    assert script.screened[-1].on_top_of == []


def test_progress_names_the_cure_and_its_round() -> None:
    script = Script(limit_s=60.0)
    script.speeds, script.last_s = {"null": 1.0, "channels-last": 1.5}, 1000.0
    stages = script.stages()
    texts = [text for each, text in zip(stages, script.round_texts, strict=True) if each.screened == "channels-last"]
    assert texts == ["", *[f"{turn} of 6" for turn in range(1, 7) for _ in range(2)]]


def tried_codes(script: Script) -> list[CureCode]:
    return [each.code for each in script.screened if each.obstacle is None]


@pytest.mark.parametrize(
    ("gain", "proof_s", "tried"),
    [
        (1.5, 0.0, ["null", "channels-last", "bf16-autocast"]),
        (1.5, 60.0, ["null", "channels-last"]),  # kept: the rest of the time is for its proof
        (1.0, 60.0, ["null", "channels-last", "bf16-autocast"]),  # nothing to prove
        (1.5, 500.0, ["null", "channels-last", "bf16-autocast"]),  # it would not fit in anyway
    ],
)
def test_time_of_a_proof_is_set_aside_once_a_cure_is_kept(gain: float, proof_s: float, tried: list[CureCode]) -> None:
    script, windows = screened({"channels-last": gain, "bf16-autocast": 1.0}, last_s=150.0, seconds_of_proof=proof_s)
    assert tried_codes(script) == tried
    assert windows


def test_time_of_a_proof_is_set_aside_if_the_loader_gained() -> None:
    more = Scenario(workers=4)
    script, _ = screened({"channels-last": 1.0}, last_s=130.0, seconds_of_proof=60.0, has_trial_gained=True, scenarios=[more])
    without, _ = screened({"channels-last": 1.0}, last_s=130.0, seconds_of_proof=60.0, scenarios=[more])
    assert (tried_codes(script), tried_codes(without)) == ([], ["null", "channels-last"])
    assert {each.obstacle for each in script.screened} == {"volumes", "no-time"}


def compared(script: Script) -> list[Stage]:
    return [each for each in script.stages() if each.from_snapshot]


def gaining(**facts: Any) -> Script:
    script = Script(limit_s=60.0, **facts)
    script.speeds, script.last_s = {"null": 1.0, "channels-last": 1.9, "fused-kernels": 1.2, "bf16-autocast": 1.3}, 1000.0
    return script


def test_losses_are_compared_with_all_kept_cures_that_only_round() -> None:
    script = gaining(batches_per_update=2)
    windows = compared(script)
    assert [each.cures for each in windows] == [[], [], [], ["channels-last", "fused-kernels"]]
    assert [each.batches for each in windows] == [2 * COMPARED_UPDATES] * 4
    assert script.compared == (["channels-last", "fused-kernels"], COMPARED_UPDATES)


@pytest.mark.parametrize(("compute_s", "updates"), [(0.375, 20), (1.0, 7), (1.4, 5), (1.6, 0)])
def test_fewer_updates_are_compared_if_they_are_slow(compute_s: float, updates: int) -> None:
    script = gaining(compute_s=compute_s)
    assert [each.batches for each in compared(script)] == [updates] * 4 * bool(updates)


@pytest.mark.parametrize("group", [1, 8])
def test_cures_are_tried_with_gradient_accumulation(group: int) -> None:
    script = Script(limit_s=60.0, compute_s=0.25, batches_per_update=group)
    script.speeds, script.last_s = {"null": 1.0, "channels-last": 1.0}, 190.0
    script.stages()
    assert tried_codes(script) == ["null", "channels-last"]


def test_no_losses_are_compared_without_a_gain() -> None:
    script = gaining()
    script.speeds = dict.fromkeys(script.speeds, 1.0)
    assert not compared(script)


def test_no_losses_are_compared_without_memory() -> None:
    script = gaining()
    script.has_room = False
    assert not compared(script)
    assert script.screened[-1].on_top_of, "cures were kept"


def test_what_needs_a_memory_format_is_tried_again_once_that_is_kept() -> None:
    script = Script(limit_s=60.0)
    script.speeds, script.last_s = {"null": 1.0, "channels-last": 1.0, "fused-kernels": 1.3, "bf16-autocast": 1.3}, 1000.0
    script.speeds_on_top = {("channels-last", "bf16-autocast"): 1.3}
    script.stages()
    assert [(each.code, each.on_top_of) for each in script.screened[-2:]] == [
        ("channels-last", ["bf16-autocast"]),
        ("fused-kernels", ["bf16-autocast", "channels-last"]),
    ]
    assert script.screened[-1].obstacle is None


def test_kernels_of_another_memory_format_wait_for_it() -> None:
    script, _ = screened({"channels-last": 1.0, "fused-kernels": 1.5})
    assert (script.screened[-1].code, script.screened[-1].obstacle) == ("fused-kernels", "needs-channels-last")
