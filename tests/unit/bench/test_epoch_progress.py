"""The epoch of a long round, reported while the round is timed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic, sleep

import pytest
from training import world_of_one

from ddpbench.bench.arm import Arm, ArmOptions
from ddpbench.bench.resolve import resolve_config
from ddpbench.data.loader import Batch, Loader
from ddpbench.data.loaders.open import open_loader
from ddpbench.data.shard import Shard
from ddpbench.machine import epoch_progress as module
from ddpbench.machine.epoch_progress import epoch_progress
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.record.config import Config, ResolvedConfig

STEPS_PER_EPOCH = 4  # of the thousand points of a disc, at batch 250


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.01)
    monkeypatch.setattr(module, "MIN_REPORT_INTERVAL_S", 0.0)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = monotonic() + 30
    while not condition():
        assert monotonic() < deadline
        sleep(0.005)


def test_epochs_are_counted_from_the_first_step_of_the_round() -> None:
    pulse, reported = ProgressMarker(60.0), list[str]()
    pulse.step = 7
    with epoch_progress(pulse, 10, 3, reported.append):
        wait_until(lambda: reported == ["epoch 1 of 3"])
        pulse.step = 26
        wait_until(lambda: reported == ["epoch 1 of 3", "epoch 2 of 3"])
        pulse.step = 37
        wait_until(lambda: len(reported) == 3)
    assert reported[-1] == "epoch 3 of 3", "the last epoch is reported too"
    assert not any(thread.name == "ddpbench-epochs" for thread in threading.enumerate())


def test_short_round_reports_no_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 3600.0)
    reported: list[str] = []
    with epoch_progress(ProgressMarker(60.0), 10, 3, reported.append):
        pass
    assert reported == []


def test_short_epochs_do_not_flood_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_REPORT_INTERVAL_S", 3600.0)
    pulse, reported = ProgressMarker(60.0), list[str]()
    with epoch_progress(pulse, 10, 3, reported.append):
        wait_until(lambda: bool(reported))
        pulse.step = 20
        sleep(0.2)
    assert reported == ["epoch 1 of 3"]


@pytest.mark.parametrize(("fresh", "drained"), [(True, 0), (False, 1)])
def test_round_of_several_epochs_reports_each_epoch(fresh: bool, drained: int) -> None:
    """The last batch of an epoch is withheld until its report; ``drained`` steps precede the first epoch."""
    reported: list[str] = []
    taken: int | None = None

    def opener(config: ResolvedConfig, shard: Shard) -> Loader:
        loader = open_loader(config, shard)
        next_batch = loader.next_batch

        def withheld(in_hand: Callable[[], None]) -> Batch:
            nonlocal taken
            if taken is not None:
                taken += 1
                epoch, step = divmod(taken - drained, STEPS_PER_EPOCH)
                if epoch and not step:
                    wait_until(lambda: f"epoch {epoch} of 3" in reported)
            return next_batch(in_hand)

        loader.next_batch = withheld  # type: ignore[method-assign]
        return loader

    asked = Config(workload="disc-mlp-2", device="cpu", loader="tensor", batch_size=250, epochs=3, rounds=1, fresh=fresh, validate=False)
    arm = Arm(
        resolve_config(asked, False, 1), world_of_one(), ProgressMarker(60.0), ArmOptions(loader_factory=opener, report=reported.append)
    )
    arm.activate()
    taken = 0
    timed = arm.run_round(0)
    arm.park()
    assert timed is not None
    assert (timed.traces[0].steps, taken) == (3 * STEPS_PER_EPOCH, 3 * STEPS_PER_EPOCH + drained)
    assert [text for text in reported if not text.startswith("warming up, ")] == ["epoch 1 of 3", "epoch 2 of 3", "epoch 3 of 3"]
