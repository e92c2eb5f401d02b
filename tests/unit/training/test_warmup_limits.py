"""Time limits of warm-up and draining."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from training import InMemory, config, session, tiny_net, world_of_one

from ddpbench.bench.arm import Arm, ArmOptions
from ddpbench.bench.resolve import resolve_config
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.record.config import Config
from ddpbench.training import warmup
from ddpbench.training.session import Session
from ddpbench.training.warmup import MAX_WARMUP_WINDOWS, MIN_WARMUP_WINDOWS, warm_up, warm_up_again

CPU = torch.device("cpu")


class Opened(InMemory):
    """A loader that counts open instances and delivered batches."""

    live = 0
    max_prefetched = 7

    def __init__(self) -> None:
        super().__init__(CPU)
        assert Opened.live == 0, "the previous loader is closed"
        Opened.live, self.given = 1, 0

    def next_batch(self, on_host_ready: Callable[[], None]) -> tuple[torch.Tensor, torch.Tensor]:
        self.given += 1
        return super().next_batch(on_host_ready)

    def close(self) -> None:
        Opened.live = 0


@pytest.fixture
def live() -> Session:
    Opened.live = 0
    return Session(config(warmup=5), tiny_net(), nn.CrossEntropyLoss(), Opened(), world_of_one(), ProgressMarker(60.0))


def given(live: Session) -> int:
    return live._loader.given  # type: ignore[attr-defined,no-any-return]


def test_no_warmup_window_starts_after_the_limit(live: Session) -> None:
    preparation, _, step_s = warm_up(live, limit_s=1e-9, min_windows=0)
    assert (preparation.warmup_steps, given(live)) == (2, 2)
    assert step_s > 0, "measured on the second step"
    warm_up_again(live, 1e-9)
    assert given(live) == 4
    warm_up_again(live)
    assert given(live) == 4 + 2 + 5


@pytest.mark.parametrize("limit_s", [None, 1e-9])
def test_minimum_windows_run_despite_the_limit(limit_s: float | None) -> None:
    live = session(world_of_one(), config(warmup=1))
    preparation, _, _ = warm_up(live, limit_s=limit_s)
    assert preparation.warmup_steps >= 4
    assert limit_s is None or preparation.warmup_steps == 4


def test_draining_stops_after_its_time_limit(live: Session) -> None:
    warm_up_again(live)
    before = given(live)
    live.run_round(3, max_drain_s=1e-9)
    assert given(live) == before + 2 + 3, "one chunk of four, and the round"
    live.run_round(3, max_drain_s=0.0)
    assert given(live) == before + 2 + 3 + 3


def test_loader_is_closed_before_the_next_is_opened(live: Session) -> None:
    warm_up_again(live)
    live.reset(tiny_net().state_dict(), Opened)
    live.run_round(1, max_drain_s=0.0)
    assert given(live) == 1


@pytest.mark.parametrize(("limit_s", "windows"), [(None, MAX_WARMUP_WINDOWS), (1e-6, MIN_WARMUP_WINDOWS), (1e6, MAX_WARMUP_WINDOWS)])
def test_short_time_limit_shortens_the_warmup(limit_s: float | None, windows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "WINDOW_TOLERANCE", -1.0)  # no two windows agree
    asked = Config(workload="disc-mlp-2", device="cpu", warmup=1, steps=1, rounds=1, time_limit=limit_s)
    arm = Arm(resolve_config(asked, False, 1), world_of_one(), ProgressMarker(60.0), ArmOptions(num_arms=2))
    arm.activate()
    assert arm.warmup is not None
    assert arm.warmup.warmup_steps == 2 + windows
    arm.park()
