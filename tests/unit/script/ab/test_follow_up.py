"""How long the launches of a proof are in the time that is left, and which command they are."""

from __future__ import annotations

import sys

import pytest

from ddpbench.record.request import OutputOptions
from ddpbench.record.script_diff import ProofPlan, ScriptDiff
from ddpbench.script.ab.follow_up import END_S, LAUNCH_S, MIN_LAUNCH_S, MIN_STEPS, launches_s, plan_proof, proof_command


def test_time_that_is_set_aside_is_enough_for_whole_launches() -> None:
    for left_s in (launches_s(15.0), 10 * launches_s(15.0)):
        assert plan_proof(left_s, 15.0, 0.1) == ProofPlan(steps=round(LAUNCH_S / 0.1), seconds=launches_s(15.0))


@pytest.mark.parametrize(
    ("left_s", "start_s", "step_s", "steps"),
    [
        (4 * (2 + 10 + END_S), 2.0, 0.1, 100),
        (4 * (2 + MIN_LAUNCH_S + END_S) - 1, 2.0, 0.1, None),
        (4 * (2 + 10 + END_S), 2.0, 10 / (MIN_STEPS - 1), None),  # too slow
        (-5.0, 2.0, 0.1, None),
    ],
)
def test_launches_fit_into_the_time(left_s: float, start_s: float, step_s: float, steps: int | None) -> None:
    plan = plan_proof(left_s, start_s, step_s)
    assert (plan and plan.steps) == steps


def test_command_is_the_proof_with_its_steps() -> None:
    diff = ScriptDiff(text="--- a", file="a b.diff", proof="ddpbench ab", compute_only=True)
    plan = ProofPlan(steps=120, seconds=90.0)
    program = ["train.py", "--api-key", "secret"]
    assert proof_command(diff, plan, program, OutputOptions(output_dir="runs", quiet=True, summary="kept.json", gpus=2), 2) == [
        *(sys.executable, "-m", "ddpbench", "ab", "--steps", "120", "--output-dir", "runs", "--quiet"),
        *("--gpus", "2", "--diff", "a b.diff", "--compute-only", "train.py", "--api-key", "secret"),
    ]
