"""How long a script is watched to which no other batches can be given."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ddpbench.script.diagnose import only_watched
from ddpbench.script.diagnose.only_watched import CHECK_S, ENOUGH_ROUNDS, MAX_UPDATES, WatchSchedule
from ddpbench.script.diagnose.stage import Stage


class Script:
    """Makes an update every ``step_s``, and asks for a stage where the one before has ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step_s: float, limit_s: float, rounds_per_s: float) -> None:
        self.now_s, self.step_s, self.counts = 100.0, step_s, 0
        monkeypatch.setattr(only_watched, "monotonic", lambda: self.now_s)
        self.schedule = WatchSchedule(self.now_s + limit_s, lambda: self.num_rounds(rounds_per_s))

    def num_rounds(self, rounds_per_s: float) -> int:
        self.counts += 1
        return int((self.now_s - 100) * rounds_per_s)

    def stages(self) -> Iterator[Stage]:
        updates = 7
        while True:
            stage = self.schedule.next_stage(updates)
            yield stage
            if stage.kind == "end":
                return
            self.now_s += self.step_s * stage.batches
            updates = stage.end


MakeScript = Callable[..., Script]


@pytest.mark.parametrize("step_s", [0.002, 0.05, 1.5])
def test_script_ends_when_there_are_enough_rounds(step_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, step_s, limit_s=175, rounds_per_s=1 / 3)
    *watched, end = script.stages()
    assert {stage.kind for stage in watched} == {"watch"}
    assert end.last_update == end.first == watched[-1].end, "ranks end at the update at which they have asked"
    seconds = script.now_s - 100
    assert 3 * ENOUGH_ROUNDS <= seconds <= 3 * ENOUGH_ROUNDS + 2 * CHECK_S + 10 * step_s
    assert script.counts <= 4, "rounds are not counted before there can be enough"


@pytest.mark.parametrize("step_s", [0.01, 0.7, 4.0])
def test_script_that_has_too_few_rounds_ends_in_time(step_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, step_s, limit_s=60, rounds_per_s=0)
    assert [stage.kind for stage in script.stages()][-1] == "end"
    assert 60 - 2 * step_s - CHECK_S <= script.now_s - 100 <= 60


def test_script_with_steps_longer_than_the_limit_ends_after_its_first_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, step_s=30, limit_s=60, rounds_per_s=0)
    assert [stage.kind for stage in script.stages()] == ["watch", "end"]


def test_number_of_steps_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, step_s=1e-6, limit_s=60, rounds_per_s=0)
    assert [stage for stage in script.stages()][-1].first <= 2 * MAX_UPDATES
