"""Rounds that train from scratch keep no state of earlier rounds."""

from __future__ import annotations

import pytest
import torch
from training import CLASSES, InMemory, config, session, tiny_net, world_of_one

from ddpbench.bench.arm import Arm, ArmOptions
from ddpbench.bench.resolve import resolve_config
from ddpbench.bench.scheduler import load_exclusively
from ddpbench.data.loader import Loader
from ddpbench.data.loaders.open import open_loader
from ddpbench.data.shard import Shard
from ddpbench.machine.progress_marker import ActiveArm, ProgressMarker
from ddpbench.record.config import Config, ResolvedConfig
from ddpbench.training.evaluate import evaluate_accuracy
from ddpbench.training.loss_tracker import parameter_checksum
from ddpbench.training.session import Session
from ddpbench.training.warmup import warm_up, warm_up_again
from ddpbench.workloads.init_model import init_model_cached


def weights(seed: int) -> dict[str, torch.Tensor]:
    model = tiny_net()
    torch.manual_seed(seed)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model.state_dict()


def trained(live: Session, seed: int, steps: int = 5) -> tuple[float | None, int]:
    """Last loss and parameter checksum of a training from the weights of ``seed``."""
    live.reset(weights(seed), lambda: InMemory(torch.device("cpu")))
    live.set_schedule_length(steps, steps)
    trace = live.run_round(steps, max_drain_s=0.0)
    return trace.numerics.last_loss, trace.numerics.params_checksum_after


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("precision", ["fp32", "amp-fp16", "o2", "bf16"])
def test_same_seed_gives_a_bit_identical_training(precision: str, optimizer: str) -> None:
    live = session(world_of_one(), config(precision=precision, optimizer=optimizer, schedule="linear"))
    warm_up(live)
    first = trained(live, seed=1)
    other = trained(live, seed=2)
    assert other != first, "another seed gives another training"
    assert trained(live, seed=1) == first
    live.release_device()


def test_used_engine_trains_like_a_new_engine() -> None:
    used = session(world_of_one(), config())
    warm_up(used)
    trained(used, seed=2, steps=9)
    again = trained(used, seed=1)
    used.release_device()
    unused = session(world_of_one(), config())
    warm_up_again(unused)
    assert trained(unused, seed=1) == again
    unused.release_device()


def test_accuracy_is_the_correct_fraction_and_leaves_training_unchanged() -> None:
    live = session(world_of_one(), config())
    warm_up_again(live)
    before = parameter_checksum(live.model.parameters())
    live.model.eval()
    data = InMemory(torch.device("cpu"))
    named = live.model(data.images).argmax(1)
    live.model.train()
    wrong = (named + 1) % CLASSES
    half = torch.where(torch.arange(len(named)) % 2 == 0, named, wrong)
    assert evaluate_accuracy(live, [(data.images, named)]) == 1.0
    assert evaluate_accuracy(live, [(data.images, wrong), (data.images, wrong)]) == 0.0
    assert evaluate_accuracy(live, [(data.images, half)]) == 0.5
    assert live.model.training
    assert parameter_checksum(live.model.parameters()) == before
    live.release_device()


def test_cudnn_benchmark_runs_only_for_training_shapes() -> None:
    live, seen = session(world_of_one(), config(fresh=True)), []
    live.model.register_forward_hook(lambda *_: seen.append((live.model.training, torch.backends.cudnn.benchmark)))
    live.run_round(1, max_drain_s=0.0)
    evaluate_accuracy(live, [(torch.randn(3, 3, 8, 8), torch.zeros(3, dtype=torch.int64))])
    live.run_round(1, max_drain_s=0.0)
    assert seen == [(True, True), (False, False), (True, True)]
    live.release_device()


def test_log_loss_and_zeroed_gradients_do_not_change_training() -> None:
    plain = session(world_of_one(), config())
    logging = session(world_of_one(), config(log_loss=True, set_to_none=False))
    for live in (plain, logging):
        warm_up_again(live)
    assert trained(plain, seed=1) == trained(logging, seed=1)
    plain.release_device()
    logging.release_device()


def test_loader_is_opened_once_per_round_and_warmup() -> None:
    opened: list[int] = []

    def opener(config: ResolvedConfig, shard: Shard) -> Loader:
        opened.append(config.seed)
        return open_loader(config, shard)

    asked = Config(workload="disc-mlp-2", device="cpu", loader="torch", workers=0, steps=3, rounds=2, fresh=True, validate=False)
    arm = Arm(resolve_config(asked, False, 1), world_of_one(), ProgressMarker(60.0), ArmOptions(num_arms=2, loader_factory=opener))
    losses = []
    for turn in range(2):
        arm.activate()
        timed = arm.run_round(turn)
        arm.park()
        assert timed is not None
        losses.append(timed.traces[0].numerics.last_loss)
    assert opened == [0, 0, 1], "once for the warm-up and once per round"
    again = Arm(resolve_config(asked, False, 1), world_of_one(), ProgressMarker(60.0), ArmOptions(num_arms=2))
    again.activate()
    assert [again.run_round(turn).traces[0].numerics.last_loss for turn in range(2)] == losses  # type: ignore[union-attr]
    again.park()


def test_active_arm_is_known_to_the_progress_marker() -> None:
    asked = [Config(workload="disc-mlp-2", device="cpu", batch_size=size, steps=1, rounds=1) for size in (4, 8)]
    pulse = ProgressMarker(60.0)
    arms = [Arm(resolve_config(each, False, 1), world_of_one(), pulse, ArmOptions(num_arms=2, index=at)) for at, each in enumerate(asked)]
    for at, arm in enumerate(arms):
        load_exclusively(arm, arms)
        assert pulse.active_arm == ActiveArm(at, asked[at].batch_size)
    arms[1].park()
    assert pulse.active_arm is None


def initial_checksums(device: str) -> list[int]:
    """Checksums of the initial weights of two arms in each of two rounds."""
    asked = Config(workload="disc-mlp-2", device=device, loader="tensor", steps=3, rounds=2, fresh=True, validate=False)  # type: ignore[arg-type]
    arms = [
        Arm(resolve_config(asked, device == "cuda", 1), world_of_one(device), ProgressMarker(60.0), ArmOptions(num_arms=2))
        for _ in range(2)
    ]
    found = []
    for turn in range(2):
        for arm in arms:
            arm.activate()
            timed = arm.run_round(turn)
            arm.park()
            assert timed is not None
            found.append(timed.traces[0].numerics.params_checksum_before)
    return found


def test_arms_start_a_round_with_the_same_weights_uncached_on_cpu() -> None:
    init_model_cached.cache_clear()
    first, second, third, fourth = initial_checksums("cpu")
    assert first == second != third == fourth
    assert init_model_cached.cache_info().currsize == 0, "cached weights would count towards the memory of every arm"


@pytest.mark.cuda
def test_initial_weights_are_cached_once_per_round_on_gpu() -> None:
    init_model_cached.cache_clear()
    first, second, third, fourth = initial_checksums("cuda")
    assert first == second != third == fourth
    assert init_model_cached.cache_info().misses == 2, "once for activation and round 1 (same seed), once for round 2"
