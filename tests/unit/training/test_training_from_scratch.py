"""A round that is a training of its own: nothing of the one before is left in it."""

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
    """The last loss and the parameters' checksum of a training from the weights of ``seed``."""
    live.reset(weights(seed), lambda: InMemory(torch.device("cpu")))
    live.set_schedule_length(steps, steps)
    trace = live.run_round(steps, max_drain_s=0.0)
    return trace.numerics.last_loss, trace.numerics.params_checksum_after


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("precision", ["fp32", "amp-fp16", "o2", "bf16"])
def test_the_same_seed_gives_the_same_training_bit_for_bit(precision: str, optimizer: str) -> None:
    live = session(world_of_one(), config(precision=precision, optimizer=optimizer, schedule="linear"))
    warm_up(live)
    first = trained(live, seed=1)
    other = trained(live, seed=2)
    assert other != first, "another seed is another training"
    assert trained(live, seed=1) == first
    live.release_device()


def test_a_training_on_an_engine_that_trained_is_one_on_a_new_engine() -> None:
    used = session(world_of_one(), config())
    warm_up(used)
    trained(used, seed=2, steps=9)
    again = trained(used, seed=1)
    used.release_device()
    unused = session(world_of_one(), config())
    warm_up_again(unused)
    assert trained(unused, seed=1) == again
    unused.release_device()


def test_accuracy_is_the_fraction_named_right_and_leaves_the_training_alone() -> None:
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


def test_algorithms_are_tried_for_the_shapes_of_training_alone() -> None:
    live, seen = session(world_of_one(), config(fresh=True)), []
    live.model.register_forward_hook(lambda *_: seen.append((live.model.training, torch.backends.cudnn.benchmark)))
    live.run_round(1, max_drain_s=0.0)
    evaluate_accuracy(live, [(torch.randn(3, 3, 8, 8), torch.zeros(3, dtype=torch.int64))])
    live.run_round(1, max_drain_s=0.0)
    assert seen == [(True, True), (False, False), (True, True)]
    live.release_device()


def test_a_logged_loss_and_zeroed_gradients_train_the_same() -> None:
    plain = session(world_of_one(), config())
    logging = session(world_of_one(), config(log_loss=True, set_to_none=False))
    for live in (plain, logging):
        warm_up_again(live)
    assert trained(plain, seed=1) == trained(logging, seed=1)
    plain.release_device()
    logging.release_device()


def test_a_loader_is_opened_for_a_training_and_not_to_settle_before_it() -> None:
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
    assert opened == [0, 0, 1], "to warm up, and for each of two rounds"
    again = Arm(resolve_config(asked, False, 1), world_of_one(), ProgressMarker(60.0), ArmOptions(num_arms=2))
    again.activate()
    assert [again.run_round(turn).traces[0].numerics.last_loss for turn in range(2)] == losses  # type: ignore[union-attr]
    again.park()


def test_the_arm_on_the_device_is_known_to_whoever_ends_the_run() -> None:
    asked = [Config(workload="disc-mlp-2", device="cpu", batch_size=size, steps=1, rounds=1) for size in (4, 8)]
    pulse = ProgressMarker(60.0)
    arms = [Arm(resolve_config(each, False, 1), world_of_one(), pulse, ArmOptions(num_arms=2, index=at)) for at, each in enumerate(asked)]
    for at, arm in enumerate(arms):
        load_exclusively(arm, arms)
        assert pulse.active_arm == ActiveArm(at, asked[at].batch_size)
    arms[1].park()
    assert pulse.active_arm is None


def begun(device: str) -> list[int]:
    """The checksums of the weights that two arms begin each of two rounds with, in turn."""
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


def test_arms_begin_a_round_with_the_same_weights_which_no_processor_keeps() -> None:
    init_model_cached.cache_clear()
    first, second, third, fourth = begun("cpu")
    assert first == second != third == fourth
    assert init_model_cached.cache_info().currsize == 0, "memory that every arm would be charged for"


@pytest.mark.cuda
def test_beside_a_gpu_they_are_drawn_once_a_round_and_changed_by_none() -> None:
    init_model_cached.cache_clear()
    first, second, third, fourth = begun("cuda")
    assert first == second != third == fourth
    assert init_model_cached.cache_info().misses == 2, "to enter with and for the first round, whose seed is the same, and for the second"
