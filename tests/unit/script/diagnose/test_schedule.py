"""The stages that rank 0 decides, for scripts of every pace."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any
from unittest.mock import patch

import pytest

from ddpbench.record.prediction import Scenario
from ddpbench.record.roles import BASELINE, BASELINE_REPEAT, COMPUTE_ONLY, LOADER_IN_BACKGROUND, REPLAY, Role, trial_role
from ddpbench.record.screening import CureCode, Obstacle, ScreenedCure
from ddpbench.script.diagnose import schedule as module
from ddpbench.script.diagnose import screening
from ddpbench.script.diagnose.schedule import MIN_TURNS, Schedule, ScriptFacts, WindowPace
from ddpbench.script.diagnose.stage import FIRST_BATCH, Stage

MORE_WORKERS = Scenario(workers=4)


class Script:
    """A script whose steps take ``own_s`` on its own batches and ``compute_s`` on others, on a clock that only they move."""

    def __init__(
        self,
        own_s: float = 0.1,
        compute_s: float = 0.02,
        limit_s: float = 180.0,
        scenarios: Sequence[Scenario] = (),
        more_workers: int | None = None,
        is_ahead: bool = False,
        **facts: float | bool,
    ) -> None:
        self.now_s, self.stage = 0.0, None
        self.failing: Sequence[Scenario] = ()  # from their first batch on
        self.tried: list[Scenario] = []
        self.own_s, self.compute_s, self.scenarios = own_s, compute_s, scenarios
        self.workers_to_benchmark, self.loads_ahead = more_workers, is_ahead
        self.number, self.round_texts, self.verdicts_s = FIRST_BATCH, [], []
        usual: dict[str, float | bool | None] = {"ranks": 1, "workers": 2, "prefetch": 2, "batches_per_update": 1, "look_ahead": 0}
        usual |= {
            "epoch_batches": None,
            "epoch_start_s": 1.0,
            "on_gpu": False,
            "reads_files": False,
            "is_stream": False,
        }
        self.speeds: dict[CureCode, float] = {}  # of cures that apply, by their factor
        self.speeds_on_top: dict[tuple[CureCode, CureCode], float] = {}  # besides, of two cures that are on
        self.screened: Sequence[ScreenedCure] = ()
        self.compared: tuple[Sequence[CureCode], int] | None = None  # cures, over so many updates
        self.has_room = True  # for a snapshot
        self.failing_cure, self.disturbed_windows = "", 0
        self.last_s: float | None = None  # by when cures must be screened
        self.computes = False  # and waits for nothing
        self.has_trial_gained, self.seconds_of_proof = False, 0.0
        self.facts, self.limit_s = ScriptFacts(**{**usual, **facts}), limit_s  # type: ignore[arg-type]

    def step_times(self, first: int, end: int) -> WindowPace:
        assert self.stage is not None
        assert self.stage.first <= first < end <= self.stage.end
        step_s = self.step_s(self.stage)
        return WindowPace(step_s, step_s - self.compute_s, step_s - self.compute_s)

    def is_ahead(self, pace: WindowPace) -> bool:
        return self.loads_ahead

    def more_workers(self, pace: WindowPace) -> int | None:
        return self.workers_to_benchmark

    def print_verdict(self) -> None:
        self.verdicts_s.append(self.now_s)

    def candidates(self, whole_epochs: bool) -> list[Scenario]:
        return [each for each in self.scenarios if whole_epochs or not each.persistent_workers]

    def has_failed(self, scenario: Scenario) -> bool:
        return scenario in self.failing and scenario in self.tried

    def needs_limits(self) -> bool:
        return self.computes

    def has_gain(self) -> bool:
        return self.has_trial_gained

    def proof_s(self, step_s: float) -> float:
        return self.seconds_of_proof

    def num_updates(self) -> int:
        return self.number

    def epoch_position(self) -> int:
        return self.number % (self.facts.epoch_batches or 1)

    def cures(self) -> list[tuple[CureCode, Obstacle | None]]:
        return [("volumes-cure", "volumes"), *((code, None) for code in self.speeds)] if self.speeds else []  # type: ignore[list-item]

    def cure_failure(self, code: CureCode) -> str:
        return "RuntimeError" if code == self.failing_cure else ""

    def is_undisturbed(self, first: int, end: int) -> bool:
        self.disturbed_windows -= 1
        return self.disturbed_windows < 0

    def keep_screening(self, cures: Sequence[ScreenedCure]) -> None:
        self.screened = cures

    def has_room_for_snapshot(self) -> bool:
        return self.has_room

    def keep_loss_comparison(self, cures: Sequence[CureCode], updates: int) -> None:
        self.compared = cures, updates

    def step_s(self, stage: Stage) -> float:
        """The mean step, in windows of whole epochs with the starts of workers."""
        start_s = self.facts.epoch_start_s / (self.facts.epoch_batches or 1) if stage.whole_epochs and stage.source == "own" else 0.0
        pairs = prod(gain for pair, gain in self.speeds_on_top.items() if {*pair} <= {*stage.cures})
        computing_s = self.compute_s / prod(self.speeds[each] for each in stage.cures) / pairs
        return start_s + (self.own_s if stage.source == "own" else computing_s)

    def stages(self) -> list[Stage]:
        found: list[Stage] = []
        number = FIRST_BATCH
        with patch.object(module, "monotonic", lambda: self.now_s), patch.object(screening, "monotonic", lambda: self.now_s):
            plan = Schedule(self.facts, self.limit_s, self, self.last_s)
            while not found or found[-1].kind != "end":
                self.number = number
                self.stage = stage = plan.next_stage(number)
                self.round_texts.append(plan.round_text)
                assert stage.first == number
                found.append(stage)
                if stage.source == "trial":
                    self.tried.append(stage.scenario)
                if stage.kind == "window":
                    self.now_s += stage.batches * self.step_s(stage)
                    number = stage.end
                self.now_s += stage.seconds
        return found


def rounds(stages: Sequence[Stage]) -> dict[Role, int]:
    timed = [each.role for each in stages if each.is_timed and each.role]
    return {role: timed.count(role) for role in timed}


def test_every_control_run_has_its_rounds() -> None:
    found = rounds(Script(on_gpu=True).stages())
    assert set(found) == {BASELINE, COMPUTE_ONLY, LOADER_IN_BACKGROUND, REPLAY}
    assert min(found.values()) >= 3


@pytest.mark.parametrize("computes", [True, False])
def test_layers_are_timed_in_the_last_window_if_computing_is_the_limit(computes: bool) -> None:
    script = Script(on_gpu=True)
    script.computes = computes
    last = [each for each in script.stages() if each.kind == "window"][-1]
    assert (last.is_profiled, last.times_layers) == (True, computes)


def test_loader_is_benchmarked_before_all_rounds() -> None:
    kinds = [each.kind for each in Script(ranks=2, on_gpu=True, reads_files=True).stages()]
    assert kinds.index("benchmark") < kinds.index("collect")
    others = [kind for kind in kinds if kind != "window"]
    assert others == ["benchmark", "benchmark", "collect", "copies", "decoding", "storage", "collect", "end"]


def test_loader_is_benchmarked_with_more_workers_if_there_is_time() -> None:
    found = [(each.workers, each.single_rank) for each in Script(ranks=2, more_workers=8).stages() if each.kind == "benchmark"]
    assert found == [(0, False), (0, True), (8, False)]
    slow = Script(own_s=6.0, more_workers=8)
    assert all(each.workers == 0 for each in slow.stages() if each.kind == "benchmark"), "four batches of a worker would take 48 s"


def test_trials_take_turns_with_the_present_loader() -> None:
    stages = Script(scenarios=[MORE_WORKERS]).stages()
    collected = max(index for index, stage in enumerate(stages) if stage.kind == "collect")
    order = [stage.role for stage in stages[collected:] if stage.is_timed]
    assert order[:4] == [BASELINE_REPEAT, trial_role(MORE_WORKERS), trial_role(MORE_WORKERS), BASELINE_REPEAT]
    assert all(stage.unmeasured >= 2 for stage in stages if stage.is_timed)


@pytest.mark.parametrize("is_ahead", [True, False])
def test_round_of_many_workers_is_short_if_they_are_far_ahead(is_ahead: bool) -> None:
    """Else it has four batches of each, so that their bursts average out."""
    script = Script(own_s=0.08, compute_s=0.08, workers=24, epoch_batches=100, limit_s=75.0, is_ahead=is_ahead)
    timed = [each for each in script.stages() if each.is_timed and each.role == BASELINE]
    assert (max(each.batches - each.unmeasured for each in timed) < 96) == is_ahead


def kinds(stages: Sequence[Stage]) -> list[str]:
    return [each.kind for each in stages if each.kind != "window"]


def test_samples_are_compared_before_other_workers_are_tried() -> None:
    assert kinds(Script(scenarios=[MORE_WORKERS]).stages()) == ["benchmark", "collect", "collect", "samples", "end"]
    assert kinds(Script(scenarios=[Scenario(pin_memory=True)]).stages()) == ["benchmark", "collect", "collect", "end"]
    assert kinds(Script(scenarios=[Scenario(workers=0)]).stages()) == ["benchmark", "collect", "collect", "end"]
    assert kinds(Script(is_stream=True).stages()) == ["benchmark", "collect", "samples", "collect", "end"], "it decides what to suggest"


def test_trial_whose_samples_differ_does_not_begin() -> None:
    script = Script(scenarios=[MORE_WORKERS])
    script.failing = script.tried = [MORE_WORKERS]  # as the comparison has shown
    assert set(rounds(script.stages())) == {BASELINE, COMPUTE_ONLY, LOADER_IN_BACKGROUND}


def test_trial_that_fails_is_not_continued() -> None:
    script = Script(scenarios=[MORE_WORKERS])
    script.failing = [MORE_WORKERS]
    found = rounds(script.stages())
    assert trial_role(MORE_WORKERS) not in found
    assert found[BASELINE_REPEAT] == 1


def test_no_trial_without_a_candidate() -> None:
    assert BASELINE_REPEAT not in rounds(Script().stages())


def test_nothing_runs_in_the_background_without_workers() -> None:
    assert LOADER_IN_BACKGROUND not in rounds(Script(workers=0).stages())


@pytest.mark.parametrize(("own_s", "compute_s"), [(0.002, 0.002), (0.05, 0.004), (0.5, 0.02), (1.5, 1.4)])
@pytest.mark.parametrize("limit_s", [60.0, 180.0])
def test_time_limit_holds_within_a_turn(own_s: float, compute_s: float, limit_s: float) -> None:
    script = Script(own_s, compute_s, limit_s, [MORE_WORKERS])
    found = rounds(script.stages())
    assert found[BASELINE] >= 2
    assert found[COMPUTE_ONLY] >= 2
    assert script.now_s <= 1.6 * limit_s, "a turn that has begun ends"


@pytest.mark.parametrize("workers", [2, 16])
def test_slow_steps_of_a_loader_far_ahead_get_the_time_for_a_verdict(workers: int) -> None:
    stages = Script(own_s=1.1, compute_s=1.1, limit_s=75.0, workers=workers, is_ahead=True).stages()
    assert rounds(stages)[BASELINE] >= MIN_TURNS
    assert set(rounds(stages)) == {BASELINE}
    assert sum(each.batches for each in stages if each.kind == "window" and not each.is_timed) <= 2 * workers + 3, "drained once"


def test_epoch_that_ends_in_a_round_of_a_loader_far_ahead_costs_a_step() -> None:
    stages = Script(own_s=1.1, compute_s=1.1, limit_s=75.0, workers=16, epoch_batches=15, epoch_start_s=0.1, is_ahead=True).stages()
    assert {each.batches - each.unmeasured for each in stages if each.role == BASELINE and each.is_timed} <= {7, 8}


def test_slow_steps_exceed_the_time_limit_by_a_window_at_most() -> None:
    """Before the first two turns are complete, there is no verdict."""
    script = Script(own_s=5.0, compute_s=5.0, limit_s=180.0, scenarios=[MORE_WORKERS], workers=8)
    stages = script.stages()
    longest_s = max(stage.batches * script.step_s(stage) for stage in stages if stage.kind == "window")
    assert script.now_s <= 1.5 * 180.0 + 2 * longest_s


def test_windows_last_whole_updates() -> None:
    stages = Script(batches_per_update=4, look_ahead=1).stages()
    assert all(stage.batches % 4 == 0 for stage in stages if stage.kind == "window")


def test_rounds_have_enough_batches_per_worker() -> None:
    stages = Script(own_s=2.0, workers=8, limit_s=1000.0).stages()
    assert all(stage.batches - stage.unmeasured >= 32 for stage in stages if stage.is_timed and stage.role == BASELINE)


@pytest.mark.parametrize("epoch_batches", [5000, 48, 20])
def test_rounds_last_longer_if_epochs_end_meanwhile(epoch_batches: int) -> None:
    """Batches that were loaded at the start of an epoch do not count: 16, or half of a short epoch; of repeated ones the first."""
    stages = [each for each in Script(own_s=2.0, workers=8, limit_s=1000.0, epoch_batches=epoch_batches).stages() if each.is_timed]
    for role, prefetched, least in ((BASELINE, 16, 32), (COMPUTE_ONLY, 1, 5)):
        unsteady = min(prefetched, epoch_batches // 2)
        for stage in (each for each in stages if each.role == role):
            assert sum(number % epoch_batches >= unsteady for number in range(stage.first_measured, stage.end)) >= least
            assert (stage.end - 1) % epoch_batches >= unsteady, "no longer than it must be"


def test_repeated_batches_do_not_use_up_the_script() -> None:
    """The loop makes 1,000 steps per second on batches that are there already."""
    windows = [each for each in Script(own_s=0.05, compute_s=0.001).stages() if each.source in ("repeated", "background")]
    timed = [each.batches for each in windows if each.is_timed]
    assert max(timed) <= 102
    assert sum(timed) < 2000


def test_rounds_of_a_script_that_hardly_waits_last_longer() -> None:
    windows = [each for each in Script(own_s=0.0012, compute_s=0.001).stages() if each.source == "repeated" and each.is_timed]
    assert max(each.batches for each in windows) > 1000


def test_script_ends_after_an_update_that_no_rank_has_made() -> None:
    end = Script(look_ahead=3).stages()[-1]
    assert end.last_update > end.first + 3


@pytest.mark.parametrize("epoch_batches", [1, 7, 36])
def test_windows_of_short_epochs_are_whole_epochs(epoch_batches: int) -> None:
    """With the starts of their workers: those of the script's own loader, and of trials."""
    stages = Script(own_s=0.1, scenarios=[MORE_WORKERS], epoch_batches=epoch_batches).stages()
    whole = [each for each in stages if each.is_timed and each.source in ("own", "trial")]
    assert {each.role for each in whole} == {BASELINE, BASELINE_REPEAT, trial_role(MORE_WORKERS)}
    for stage in whole:
        assert stage.whole_epochs
        assert stage.first_measured % epoch_batches == stage.end % epoch_batches == 0
        assert stage.end - stage.first_measured >= 5
        assert stage.unmeasured >= (epoch_batches if stage.source == "trial" and stage.turn == 0 else 0), "its workers start"
    assert not any(each.whole_epochs for each in stages if each.kind == "window" and each not in whole)


def test_starts_of_epochs_leave_time_for_trials() -> None:
    """The steps themselves are so short that as many as a round has otherwise would take twenty epochs, each of which starts for 1.6 s."""
    script = Script(
        own_s=0.003, compute_s=0.002, epoch_batches=20, epoch_start_s=1.6, limit_s=60.0, scenarios=[Scenario(persistent_workers=True)]
    )
    found = rounds(script.stages())
    assert len(found) == 5
    assert min(found.values()) >= 3


@pytest.mark.parametrize(
    "facts", [{"epoch_batches": 50}, {"epoch_batches": 36, "epoch_start_s": 0.1}, {"epoch_batches": 20, "limit_s": 25.0}]
)
def test_long_epochs_and_those_with_a_short_start_are_not_measured_whole(facts: dict[str, Any]) -> None:
    """Nor those of two seconds under a short time limit."""
    assert not any(each.whole_epochs for each in Script(own_s=0.1, **facts).stages())


def test_epochs_whose_batches_are_all_prefetched_are_measured_whole() -> None:
    assert any(each.whole_epochs for each in Script(own_s=0.1, epoch_batches=7, epoch_start_s=0.0).stages())


@pytest.mark.parametrize(("epoch_batches", "is_tried"), [(20, True), (500, False)])
def test_kept_workers_are_tried_only_in_whole_epochs(epoch_batches: int, is_tried: bool) -> None:
    stages = Script(own_s=0.1, scenarios=[Scenario(persistent_workers=True)], epoch_batches=epoch_batches).stages()
    assert any(each.source == "trial" for each in stages) == is_tried


def test_first_verdict_is_printed_within_a_minute_and_the_final_one_before_the_trials() -> None:
    script = Script(own_s=0.1, limit_s=175.0, scenarios=[MORE_WORKERS], on_gpu=True)
    stages = script.stages()
    assert [each.kind for each in stages].count("collect") == len(script.verdicts_s) == 2
    assert script.verdicts_s[0] < 60
    before = [each for each in stages[: [each.kind for each in stages].index("collect")] if each.is_timed and each.role == BASELINE]
    assert len(before) >= MIN_TURNS


def test_short_diagnosis_prints_one_verdict() -> None:
    script = Script(own_s=0.1, limit_s=45.0)
    script.stages()
    assert len(script.verdicts_s) == 1


def test_rounds_are_numbered_up_to_those_that_there_is_time_for() -> None:
    script = Script(own_s=0.1, limit_s=175.0, scenarios=[MORE_WORKERS])
    stages = script.stages()
    texts = [text for text, stage in zip(script.round_texts, stages, strict=True) if stage.is_timed and stage.role == BASELINE]
    numbers = [tuple(map(int, text.split(" of "))) for text in texts]
    assert [number for number, _ in numbers] == list(range(1, len(numbers) + 1))
    assert all(number <= planned for number, planned in numbers)
    assert numbers[-1][1] - numbers[-1][0] <= 1
    assert {text for text, stage in zip(script.round_texts, stages, strict=True) if stage.kind in ("benchmark", "collect", "storage")} <= {
        "",
        texts[3],
    }
