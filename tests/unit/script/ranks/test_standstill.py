"""Which ranks count as standing still, what is said about them, and where they stand."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest
from torch import distributed as dist
from watched import Training, loader, watched

from ddpbench.script.observe import rows
from ddpbench.script.observe.hooks import hooked
from ddpbench.script.observe.observer import Observer
from ddpbench.script.observe.rows import to_rows
from ddpbench.script.ranks.flight_recorder import pending_collective
from ddpbench.script.ranks.progress import ProgressReader, RankProgress, Totals
from ddpbench.script.ranks.stack import is_library, user_line
from ddpbench.script.ranks.standstill import (
    FIRST_STEP_FACTOR,
    OUTSIDE_S,
    REPORT_AFTER_S,
    USUAL_STEPS,
    Standstill,
    dead_rank,
    find_standstill,
)

HOSTS = {0: "a", 1: "b", 2: "b"}


def at(steps: int, marks: int = 3, idle_s: float = 0.0, step_s: float = 0.1, **changes: Any) -> RankProgress:
    totals = Totals(steps=steps, samples=8 * steps, step_ms=1000 * step_s * steps)
    return RankProgress(**{"steps": steps, "marks": marks, "idle_s": idle_s, "line": "train.py:1 in main", "totals": totals, **changes})


def find(*progress: RankProgress, ended: dict[int, int] | None = None, timeout_s: float | None = None) -> Standstill | None:
    return find_standstill(dict(enumerate(progress)), HOSTS, ended or {}, timeout_s)


def found(*progress: RankProgress, **how: Any) -> Standstill:
    standstill = find(*progress, **how)
    assert standstill is not None
    return standstill


@pytest.mark.parametrize(
    ("progress", "limit_s"),
    [
        (at(50), REPORT_AFTER_S),
        (at(50, step_s=60.0), USUAL_STEPS * 60.0),
        (at(0), FIRST_STEP_FACTOR * REPORT_AFTER_S),
        (at(50, outside="validation"), OUTSIDE_S),
    ],
    ids=["step", "long steps", "first step", "validation"],
)
def test_standstill_is_reported_after_a_limit_that_depends_on_the_place(progress: RankProgress, limit_s: float) -> None:
    def after(seconds: float) -> RankProgress:
        return RankProgress(**{name: getattr(progress, name) for name in progress.__struct_fields__} | {"idle_s": seconds})

    assert find(after(0.99 * limit_s)) is None
    assert found(after(1.01 * limit_s)).rank == 0


def test_hang_timeout_replaces_the_limit_of_a_step_and_not_that_outside() -> None:
    assert found(at(50, idle_s=11.0), timeout_s=10.0).rank == 0
    assert find(at(50, idle_s=9.0), timeout_s=10.0) is None
    assert find(at(0, idle_s=11.0), timeout_s=10.0) is None
    assert find(at(50, idle_s=1000.0, outside="between-epochs"), timeout_s=10.0) is None
    assert found(at(50, idle_s=500.0, step_s=60.0), timeout_s=400.0).rank == 0


def test_rank_that_the_others_wait_for_is_named() -> None:
    hung = found(at(41, marks=3, idle_s=400.0), at(41, marks=0, idle_s=390.0, waits_for_data=True), at(41, marks=3, idle_s=400.0))
    assert (hung.rank, hung.host) == (1, "b")
    assert hung.note == "rank 1 (b) has made no progress for 390 s at step 41, waiting for data: train.py:1 in main"
    assert (hung.error.message, hung.error.exit_code) == ("rank 1 (b) hung at step 41, waiting for data: no progress for 390 s", 124)
    assert (hung.fault.rank, hung.fault.step, hung.fault.phase) == (1, 41, "data")


def test_rank_that_sends_nothing_is_named_before_others() -> None:
    assert found(at(41, idle_s=400.0), at(41, idle_s=400.0, is_silent=True)).rank == 1


def test_ranks_that_wait_for_a_validation_of_another_do_not_hang() -> None:
    assert find(at(40, idle_s=600.0, outside="validation"), at(40, idle_s=600.0), timeout_s=60.0) is None
    assert found(at(40, idle_s=2000.0, outside="validation"), at(40, idle_s=2000.0)).rank == 0


def test_rank_that_moves_is_not_blamed() -> None:
    assert found(at(10), at(50, idle_s=400.0)).rank == 1


def test_different_collectives_and_ended_ranks_are_listed() -> None:
    hung = found(at(9, idle_s=400.0, collective="gloo:all_reduce 7 [[18]]"), at(9, idle_s=400.0, collective="gloo:barrier 7"))
    assert hung.note.endswith("; rank 0 waits in gloo:all_reduce 7 [[18]]; rank 1 waits in gloo:barrier 7")
    alike = found(at(9, idle_s=400.0, collective="gloo:barrier 7"), at(9, idle_s=400.0, collective="gloo:barrier 7"))
    assert alike.note.startswith("every rank has made no progress for 400 s at step 9: ")
    assert alike.note.endswith("; all wait in gloo:barrier 7")
    assert found(at(21, idle_s=400.0), ended={1: 20}).note.endswith("; rank 1 has ended after step 20")


def test_dead_rank_is_named() -> None:
    fault = dead_rank(3, "n2", at(7))
    assert (fault.message, fault.rank, fault.step) == (
        "rank 3 (n2) ended unexpectedly after step 7: it was killed, or called os._exit",
        3,
        7,
    )


def test_line_is_the_innermost_one_of_the_users_own_code() -> None:
    begun, line = threading.Event(), ""

    def read() -> None:
        nonlocal line
        begun.wait()
        while "join" not in line:  # until the main thread waits there
            line = user_line()

    thread = threading.Thread(target=read)
    thread.start()
    begun.set()
    thread.join()
    assert re.fullmatch(r"test_standstill\.py:\d+ in test_line_is_the_innermost_one_of_the_users_own_code: thread\.join\(\)", line)
    assert is_library(dist.__file__)
    assert is_library(threading.__file__)
    assert not is_library(__file__)


def test_progress_follows_the_script_and_its_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    with watched() as seen:
        reader = ProgressReader(seen.observer, hang_timeout_s=0.0002)
        before = reader.read()
        training.train(loader(6))
        after = reader.read()
        threading.Event().wait(0.05)
        later = reader.read()
    assert (before.steps, before.totals) == (0, Totals())
    assert (after.steps, after.outside, after.idle_s, after.line) == (6, "between-epochs", 0.0, "")
    assert after.totals.steps == 6
    assert 0 < after.totals.data_ms < after.totals.own_ms == after.totals.step_ms
    assert later.idle_s >= 0.05
    assert later.line.startswith("test_standstill.py:")
    assert later.totals.since(after.totals) == Totals()


def test_script_that_has_left_its_loop_is_outside_of_steps() -> None:
    training = Training()
    with watched() as seen:
        reader = ProgressReader(seen.observer, hang_timeout_s=None)
        for batch in loader(6):
            training.step(batch)
            in_loop = reader.read()
            if seen.observer.num_batches == 3:
                break
        after = reader.read()
    assert (in_loop.steps, in_loop.outside) == (3, None)
    assert (after.steps, after.outside) == (3, "between-epochs")


def test_totals_have_all_steps_of_a_long_training_if_all_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "SEGMENT_STEPS", 1)
    training, observer = Training(), Observer(times_all=True)
    with hooked(observer):
        training.train(loader(40))
        totals = ProgressReader(observer, hang_timeout_s=None).read().totals
        observer.finish()
    assert totals.steps == 40
    assert 16 <= len(to_rows(observer.steps.rows[:])) < 40


def test_collective_is_unknown_without_a_process_group() -> None:
    assert pending_collective() == ""
