"""The lines of a diagnosis: what it does, which round, and the time left."""

from __future__ import annotations

from unittest.mock import patch

from ddpbench.record.prediction import Scenario
from ddpbench.record.roles import BASELINE, BASELINE_REPEAT, COMPUTE_ONLY, trial_role
from ddpbench.script.diagnose import progress_lines as module
from ddpbench.script.diagnose.progress_lines import ProgressLines
from ddpbench.script.diagnose.stage import Stage, end_stage


def lines(*shown: tuple[float, Stage, str], end_s: float = 175.0) -> list[str]:
    printed: list[str] = []
    progress = ProgressLines(printed.append, end_s)
    for now_s, stage, round_text in shown:
        with patch.object(module, "monotonic", lambda now_s=now_s: now_s):
            progress.show(stage, round_text)
    return printed


def window(role: object) -> Stage:
    return Stage(kind="window", first=10, batches=5, role=role)  # type: ignore[arg-type]


def test_each_phase_is_named_with_its_round_and_the_time_left() -> None:
    trial = trial_role(Scenario(workers=4))
    assert lines(
        (5.0, Stage(kind="benchmark", first=10), ""),
        (20.0, window(BASELINE), "1 of 8"),
        (60.0, window(BASELINE_REPEAT), "1 of 6"),
        (80.0, window(trial), "2 of 6"),
        (180.0, window(trial), "6 of 6"),
    ) == [
        "ddpbench: loader alone, at most 170 s left",
        "ddpbench: control runs, round 1 of 8, at most 155 s left",
        "ddpbench: trials, round 1 of 6, at most 115 s left",
        "ddpbench: trials, round 2 of 6, at most 95 s left",
        "ddpbench: trials, round 6 of 6",
    ]


def test_one_phase_prints_a_line_every_ten_seconds() -> None:
    shown = [(float(second), window((BASELINE, COMPUTE_ONLY)[second % 2]), f"{second // 4 + 1} of 8") for second in range(25)]
    assert [line.split(", ")[1] for line in lines(*shown)] == ["round 1 of 8", "round 3 of 8", "round 6 of 8"]


def test_what_takes_no_time_is_not_shown() -> None:
    assert lines((5.0, Stage(kind="collect", first=10), ""), (6.0, end_stage(10, 20), "")) == []
