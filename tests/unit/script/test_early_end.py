"""A script ends at a step of an optimizer, and at no other place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from watched import BATCH, FEATURES, Training, loader

from ddpbench.script import early_end
from ddpbench.script.early_end import EarlyEnd, ScriptEnder, StepLimit
from ddpbench.script.observe.hooks import Hooks
from ddpbench.script.observe.observer import Observer

Loop = Callable[[Training, Iterable[Any]], None]


def run(loop: Loop, steps: int, batches: int = 20) -> tuple[int, Observer]:
    """Updates of the script ``loop`` that ends after ``steps`` steps, and what was observed."""
    observer, ender = Observer(), ScriptEnder(lambda: None)
    hooks = Hooks(observer, ender, StepLimit(steps, ender))
    try:
        with pytest.raises(EarlyEnd) as ended:
            loop(Training(), loader(batches))
    finally:
        observer.finish()
        hooks.remove()
    assert ended.value.code == 0
    assert hooks.has_ended_script
    return observer.updates, observer


def plain(training: Training, batches: Iterable[Any]) -> None:
    training.train(batches)


def accumulated(training: Training, batches: Iterable[Any]) -> None:
    for index, (x, _) in enumerate(batches):
        training.backward(x)
        if index % 3 == 2:
            training.optimizer.step()


def one_batch_ahead(training: Training, batches: Iterable[Any]) -> None:
    iterator = iter(batches)
    batch = next(iterator)
    for following in iterator:
        training.step(batch)
        batch = following


def rebuilt_loaders(training: Training, batches: Iterable[Any]) -> None:
    """A new DataLoader for every epoch, in place of the one before."""
    for _ in range(5):
        training.train(loader(10))


def adversarial(training: Training, batches: Iterable[Any]) -> None:
    other = Training()
    for batch in batches:
        training.step(batch)
        other.step(batch)


@pytest.mark.parametrize(
    ("loop", "steps", "updates"),
    [
        (plain, 1, 1),
        (plain, 7, 7),
        (accumulated, 7, 3),
        (accumulated, 9, 3),
        (accumulated, 10, 4),
        (one_batch_ahead, 1, 1),
        (one_batch_ahead, 2, 2),
        (one_batch_ahead, 7, 7),
        (rebuilt_loaders, 7, 7),
        (rebuilt_loaders, 25, 25),
        (adversarial, 7, 14),
    ],
)
def test_script_ends_at_the_last_update_of_its_last_step(loop: Loop, steps: int, updates: int) -> None:
    assert run(loop, steps)[0] == updates


def test_steps_without_a_loader_are_updates() -> None:
    def own_batches(training: Training, _: Iterable[Any]) -> None:
        while True:
            training.step((torch.randn(BATCH, FEATURES),))

    assert run(own_batches, steps=9)[0] == 9


def test_steps_count_through_epochs_and_not_in_validation() -> None:
    def epochs(training: Training, batches: Iterable[Any]) -> None:
        while True:
            training.train(batches)
            for x, _ in loader(6):
                training.model(x)

    updates, observer = run(epochs, steps=13, batches=5)
    assert (updates, observer.num_batches, observer.epochs) == (13, 13, 3)


def test_end_may_be_requested_at_any_time_and_is_raised_at_every_later_update() -> None:
    observer, ender = Observer(), ScriptEnder(lambda: None)
    hooks, training = Hooks(observer, ender), Training()
    batch = (torch.randn(BATCH, FEATURES),)
    try:
        training.step(batch)
        thread = threading.Thread(target=ender.request_end)
        thread.start()
        thread.join()
        for _ in range(3):
            with pytest.raises(EarlyEnd):
                training.step(batch)
    finally:
        observer.finish()
        hooks.remove()
    training.step(batch)


@pytest.mark.parametrize("trains_in_main", [True, False])
def test_only_the_thread_that_trains_is_ended(trains_in_main: bool) -> None:
    observer, ender = Observer(), ScriptEnder(lambda: None)
    hooks, training = Hooks(observer, ender), Training()
    thread = threading.Thread(target=training.train, args=(loader(3),))
    try:
        if trains_in_main:
            training.train(loader(3))
        ender.request_end()
        thread.start()
        thread.join()
    finally:
        hooks.remove()
    assert ender.has_raised == (not trains_in_main)
    assert not ender.is_ending, "the main thread has not been ended"
    assert observer.updates == (3 if trains_in_main else 1)


def test_process_is_left_only_if_the_script_trains_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_end, "LEAVE_AFTER_S", 0.2)
    has_left = threading.Event()
    ender = ScriptEnder(has_left.set)
    ender.request_end()
    with pytest.raises(EarlyEnd):
        ender.end_if_requested(trains_here=True)
    assert not has_left.wait(0.5), "the script may do anything in its finally blocks"
    with pytest.raises(EarlyEnd):
        ender.end_if_requested(trains_here=True)
    assert has_left.wait(10.0)
