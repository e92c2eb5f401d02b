"""Learning rate schedules, step by step."""

from __future__ import annotations

import pytest
import torch
from training import config, tiny_net, world_of_one

from ddpbench.bench import arm as arms_module
from ddpbench.bench.arm import Arm
from ddpbench.bench.resolve import resolve_config
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.record.config import Config
from ddpbench.training.optimizer import LRSchedule, lr_factor, make_optimizer


def test_constant_schedule_has_factor_one() -> None:
    assert {lr_factor("constant", update, 10, 5) for update in range(10)} == {1.0}


def test_linear_schedule_warms_up_over_a_tenth_and_decays_to_zero() -> None:
    factors = [lr_factor("linear", update, 100, 10) for update in range(100)]
    assert factors[:10] == pytest.approx([0.1 * (update + 1) for update in range(10)])
    assert factors[9] == factors[10] == 1.0
    assert factors[10:] == pytest.approx([(100 - update) / 90 for update in range(10, 100)])
    assert min(factors) > 0, "no update has a zero learning rate"


def test_single_update_has_the_full_learning_rate() -> None:
    assert lr_factor("linear", 0, 1, 1) == 1.0


def test_step_schedule_decays_by_0_7_per_epoch() -> None:
    assert [lr_factor("step", update, 9, 3) for update in range(9)] == pytest.approx([1, 1, 1, 0.7, 0.7, 0.7, 0.49, 0.49, 0.49])


@pytest.mark.parametrize("implementation", ["fused", "foreach", "loop", "triton"])
def test_every_optimizer_implementation_follows_the_schedule(implementation: str) -> None:
    settled = config(lr=0.5, schedule="linear", optimizer_impl=implementation)
    model = tiny_net()
    optimizer = make_optimizer(model, settled)
    schedule, rates = LRSchedule(optimizer, settled), []
    optimizer.register_step_post_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))

    def update() -> None:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()

    update()
    assert rates == [0.05], "before the length is known, the factor is that of the first update"
    schedule.set_length(20, 5)
    for _ in range(20):
        update()
    assert rates[1:] == pytest.approx([0.5 * lr_factor("linear", number, 20, 5) for number in range(20)])
    schedule.set_length(20, 5, updates_done=7)
    update()
    assert rates[-1] == pytest.approx(0.5 * lr_factor("linear", 7, 20, 5)), "a parked training continues its schedule"


def test_remeasured_round_does_not_advance_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    throttled = iter([False, True])
    monkeypatch.setattr(arms_module, "was_throttled", lambda _: next(throttled))
    asked = Config(workload="disc-mlp-2", device="cpu", schedule="linear", warmup=1, steps=3, rounds=2)
    arm = Arm(resolve_config(asked, False, 1), world_of_one(), ProgressMarker(60.0))
    arm.activate()
    kept = [arm.run_round(number) for number in range(2)]
    assert [timed and timed.traces[0].retry_reason for timed in kept] == [None, "throttle"]
    assert arm._session is not None
    assert arm._session.updates_done == 6, "the end of the schedule, not three updates beyond it"
    arm.park()


def test_throttled_round_of_whole_epochs_is_not_remeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arms_module, "was_throttled", lambda _: True)
    asked = Config(workload="disc-mlp-2", device="cpu", loader="tensor", batch_size=250, epochs=2, rounds=1, fresh=True)
    arm = Arm(resolve_config(asked, False, 1), world_of_one(), ProgressMarker(60.0))
    arm.activate()
    timed = arm.run_round(0)
    arm.park()
    assert timed is not None
    assert timed.traces[0].retry_reason is None
