"""Which batches are steps of the training, with real loaders, models and optimizers."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterator
from functools import partial
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from watched import BATCH, FEATURES, Training, loader, points, watched

from ddpbench.machine.step_timer import BACKWARD, DATA, FORWARD, HOST_TO_DEVICE, OPTIMIZER, SYNC
from ddpbench.script.observe import rows
from ddpbench.script.observe.observer import MIN_PAUSE_S
from ddpbench.script.observe.rounds import batches_per_update
from ddpbench.script.observe.rows import EPOCH_START_MS, FIRST_PHASE, NUMBER, SAMPLES, STRETCH, UPDATES, is_kept
from ddpbench.script.observe.step_clock import SCRIPT


def phase_ms(rows: Any, phase: int) -> Any:
    return rows[:, FIRST_PHASE + phase]


def test_every_batch_of_an_epoch_is_a_step() -> None:
    training = Training()
    with watched() as seen:
        training.train(loader(6))
    assert list(seen.rows[:, NUMBER]) == list(range(6))
    assert set(seen.rows[:, STRETCH]) == {0}
    assert set(seen.rows[:, UPDATES]) == {1}
    assert set(seen.rows[:, SAMPLES]) == {BATCH}
    assert (seen.observer.epochs, seen.observer.optimizers, seen.hooks.models.name) == (1, ["SGD"], "Sequential")
    assert seen.first_batches == [0]


def test_time_is_charged_to_the_phase_in_which_it_passes() -> None:
    class Slow(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 8 * BATCH

        def __getitem__(self, index: int) -> torch.Tensor:
            sleep(0.010 / BATCH)
            return torch.randn(FEATURES)

    training, model = Training(), nn.Linear(FEATURES, 1)
    model.register_forward_hook(lambda *_: sleep(0.020))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer.register_step_pre_hook(lambda *_: sleep(0.030))
    del training
    with watched() as seen:
        for x in DataLoader(Slow(), BATCH):
            sleep(0.005)
            loss = model(x).sum()
            loss.register_hook(lambda grad: sleep(0.040))
            loss.backward()
            optimizer.step()
            sleep(0.050)
    steady = seen.rows[1:]
    expected = {DATA: 10, HOST_TO_DEVICE: 5, FORWARD: 20, BACKWARD: 40, OPTIMIZER: 30, SCRIPT: 50}
    for phase, least_ms in expected.items():
        assert phase_ms(steady, phase).min() >= least_ms
    assert phase_ms(steady, SYNC).max() == 0
    fastest = steady[steady[:, FIRST_PHASE:].sum(axis=1).argmin()]
    assert all(fastest[FIRST_PHASE + phase] < least_ms + 10 for phase, least_ms in expected.items())


def test_batch_is_prepared_before_an_update_that_computes_its_own_loss() -> None:
    training = Training()

    def closure(x: torch.Tensor) -> torch.Tensor:
        loss = training.model(x).sum()
        loss.backward()
        return loss

    with watched() as seen:
        for x, _ in loader(4):
            sleep(0.02)
            training.optimizer.step(partial(closure, x))
    assert phase_ms(seen.rows[1:], HOST_TO_DEVICE).min() >= 20


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_only_steps_that_are_kept_have_times(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "SEGMENT_STEPS", 3)
    monkeypatch.setattr(rows, "FULL_SEGMENTS", 2)
    training = Training()
    training.model.to(device)
    batches = loader(30)
    with watched() as seen:
        for _ in range(2):
            for x, _ in batches:
                training.model(x.to(device)).sum().backward()
                training.optimizer.step()
    steps = 60 if device == "cpu" else 59  # the first step shows the device
    kept = [number for number in range(steps) if is_kept(number)]
    assert len(kept) < 30
    assert list(seen.rows[:, NUMBER]) == kept
    for phase in (DATA, HOST_TO_DEVICE, FORWARD, BACKWARD, OPTIMIZER, SCRIPT):
        assert phase_ms(seen.rows[1:], phase).min() > 0
    assert (seen.observer.num_batches, seen.observer.epochs) == (steps, 2)
    assert seen.observer.steps.seconds > sum(seen.rows[:, FIRST_PHASE:].sum(axis=1)) / 1000


def test_validation_and_checkpoints_are_outside_of_steps(tmp_path: Any) -> None:
    training, batches, validation = Training(), loader(4), loader(5)
    with watched() as seen:
        for _ in validation:  # a sanity check before the training
            pass
        for _ in range(3):
            training.train(batches)
            for x, _ in validation:
                training.model(x)
                sleep(0.01)
            torch.save(training.model, tmp_path / "model.pt")
    assert len(seen.rows) == 12
    assert list(seen.rows[:, STRETCH]) == sorted(seen.rows[:, STRETCH])
    assert len(set(seen.rows[:, STRETCH])) == 3
    outside_s = seen.observer.outside.seconds
    assert outside_s["validation"] >= 3 * 5 * 0.01
    assert 0 < outside_s["checkpoint"] < outside_s["validation"]
    assert seen.observer.epochs == 3


def test_validation_in_the_middle_of_an_epoch_ends_a_stretch() -> None:
    training, validation = Training(), loader(4)
    with watched() as seen:
        for index, batch in enumerate(loader(9)):
            training.step(batch)
            if index == 4:
                for _ in validation:
                    sleep(0.05)
    assert list(seen.rows[:, NUMBER]) == list(range(9))
    assert list(seen.rows[:, STRETCH]) == [0] * 5 + [1] * 4
    assert phase_ms(seen.rows, SCRIPT).max() < 150
    assert seen.observer.outside.seconds["validation"] >= 0.2


def test_checkpoint_in_a_step_does_not_count_in_it(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    monkeypatch.setattr(torch, "save", lambda *_: sleep(1.5 * MIN_PAUSE_S))
    with watched() as seen:
        for index, batch in enumerate(loader(6)):
            training.step(batch)
            if index == 2:
                torch.save(training.model, tmp_path / "model.pt")
    assert seen.rows[:, FIRST_PHASE:].max() < 1500 * MIN_PAUSE_S
    assert list(seen.rows[:, STRETCH]) == [0] * 3 + [1] * 3
    assert set(seen.observer.outside.seconds) == {"checkpoint"}
    assert seen.observer.outside.seconds["checkpoint"] >= 1.5 * MIN_PAUSE_S


@pytest.mark.slow
def test_checkpoint_that_safetensors_saves_is_outside_of_steps(tmp_path: Any) -> None:
    training = Training()
    with watched() as seen:
        safetensors = importlib.import_module("safetensors.torch")
        for _ in range(3):
            training.train(loader(4))
            safetensors.save_file(training.model.state_dict(), tmp_path / "model.safetensors")
    assert seen.observer.outside.seconds["checkpoint"] > 0
    assert not hasattr(safetensors.save_file, "__wrapped__"), "restored"


def test_gradient_accumulation_counts_batches_per_update() -> None:
    training = Training()
    with watched() as seen:
        for index, (x, _) in enumerate(loader(12)):
            training.backward(x)
            if index % 3 == 2:
                training.optimizer.step()
    assert len(seen.rows) == 12 - 2  # the first update shows which loader trains, and its batch is the first step
    assert batches_per_update(seen.rows) == 3


def test_two_optimizers_and_zipped_loaders_make_one_step_per_batch() -> None:
    one, other = Training(), Training()
    with watched() as seen:
        for (x, _), (z, _) in zip(loader(8), loader(8), strict=True):
            one.step((x,))
            other.step((z,))
    assert len(seen.rows) == 8
    assert set(seen.rows[1:, UPDATES]) == {2}
    assert set(seen.rows[:, STRETCH]) == {0}


def test_new_loader_for_every_epoch_continues_the_training() -> None:
    training = Training()
    with watched() as seen:
        for _ in range(3):
            training.train(loader(5))
    assert seen.observer.epochs == 3
    assert len(seen.rows) == 3 * 5
    assert seen.observer.training is not None
    assert seen.observer.training.is_rebuilt


def test_iterable_dataset_and_dict_batches_have_samples() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            for _ in range(6):
                yield {"inputs": {"x": torch.randn(3, FEATURES)}, "name": "text"}

    training = Training()
    with watched() as seen:
        for batch in DataLoader(Stream(), batch_size=None):
            training.step((batch["inputs"]["x"],))
    assert set(seen.rows[:, SAMPLES]) == {3}
    assert seen.observer.training is not None
    assert (seen.observer.training.dataset, seen.observer.training.num_samples) == ("Stream", None)


def test_manual_iteration_over_epochs_is_watched() -> None:
    training, batches = Training(), loader(10, num_workers=1, persistent_workers=True)
    with watched() as seen:
        for _ in range(2):
            iterator = iter(batches)
            assert len(iterator) == 10
            for _ in range(10):
                training.step(next(iterator))
            with pytest.raises(StopIteration):
                next(iterator)
    assert len(seen.rows) == 20
    assert seen.observer.training is not None
    assert (seen.observer.training.workers, seen.observer.training.prefetched) == (1, 2)


def test_loader_that_iterates_over_another_is_not_counted_twice() -> None:
    class Wrapper(DataLoader[Any]):
        def __iter__(self) -> Any:  # a generator, as Accelerate's
            for x, y in super().__iter__():
                yield x * 2, y

    class Own(DataLoader[Any]):
        def __iter__(self) -> Any:  # without DataLoader's, as torchdata's
            return iter([(torch.randn(BATCH, FEATURES),)] * 6)

    for kind in (Wrapper, Own):
        training = Training()
        batches = kind(points(6), BATCH)
        with watched() as seen:
            for _ in range(2):
                training.train(batches)
        assert len(seen.rows) == 12
        assert seen.observer.epochs == 2


class Ahead(DataLoader[Any]):
    """Fetches one batch ahead and prepares the one that it holds, as Accelerate does."""

    def __iter__(self) -> Any:
        iterator = super().__iter__()
        batch = next(iterator)
        for following in iterator:
            sleep(0.010)
            yield batch
            batch = following
        yield batch


def test_loader_that_fetches_ahead_has_a_step_for_every_batch_of_the_script() -> None:
    training, batches = Training(), Ahead(points(6), BATCH)
    with watched() as seen:
        for _ in range(2):
            for index, batch in enumerate(batches):
                training.backward(batch[0])
                if index % 2:
                    training.optimizer.step()
    assert list(seen.rows[:, NUMBER]) == list(range(11))  # the first update shows which loader trains
    assert list(seen.rows[:, UPDATES]) == [1, 0] * 5 + [1]
    assert list(seen.rows[:, STRETCH]) == [0] * 5 + [1] * 6
    assert set(seen.observer.outside.seconds) == {"between-epochs"}
    assert seen.observer.training is not None
    assert seen.observer.training.received == 12


def test_what_a_wrapping_loader_does_with_a_batch_is_no_wait_for_data() -> None:
    class Slow(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> torch.Tensor:
            sleep(0.005)
            return torch.randn(BATCH, FEATURES)

    training = Training()
    with watched() as seen:
        for x in Ahead(Slow(), batch_size=None):
            training.step((x,))
    inner = seen.rows[1:-1]  # of the first and the last one, it fetches two and none
    assert phase_ms(inner, DATA).min() >= 5
    assert phase_ms(inner, HOST_TO_DEVICE).min() >= 10
    assert phase_ms(seen.rows[-1:], DATA).max() < 5


def test_accelerate_has_a_step_for_every_batch() -> None:
    from accelerate import Accelerator

    training, accelerator = Training(), Accelerator(cpu=True)
    model, optimizer, batches = accelerator.prepare(training.model, training.optimizer, loader(6))
    with watched() as seen:
        for _ in range(3):
            for x, _ in batches:
                accelerator.backward(model(x).sum())
                optimizer.step()
    assert set(seen.rows[:, UPDATES]) == {1}
    assert list(seen.rows[:, STRETCH]) == [0] * 6 + [1] * 6 + [2] * 6
    assert seen.observer.epochs == 3


def test_new_iterator_begins_an_epoch_without_the_end_of_the_last_one() -> None:
    training, batches = Training(), loader(9)
    with watched() as seen:
        for _ in range(3):
            for index, batch in enumerate(batches):
                training.step(batch)
                if index == 3:
                    break
            sleep(0.010)
    assert seen.observer.epochs == 3
    assert list(seen.rows[:, STRETCH]) == [0] * 4 + [1] * 4 + [2] * 3  # the last step has no end
    assert phase_ms(seen.rows, SCRIPT).max() < 10
    assert seen.observer.outside.seconds["between-epochs"] >= 0.020


def test_new_iterator_for_every_batch_begins_no_epochs() -> None:
    training, batches = Training(), loader(9)
    with watched() as seen:
        for _ in range(6):
            training.step(next(iter(batches)))
    assert seen.observer.epochs == 1
    assert set(seen.rows[:, STRETCH]) == {0}
    assert seen.observer.outside.seconds == {}


def test_end_of_zipped_loaders_is_no_validation() -> None:
    training = Training()
    with watched() as seen:
        for _ in range(2):
            for (x, _), _ in zip(loader(8), loader(8), strict=True):
                training.step((x,))
    assert set(seen.observer.outside.seconds) == {"between-epochs"}


def test_steps_are_updates_if_no_dataloader_gives_the_batches(tmp_path: Any) -> None:
    def batches() -> Iterator[Any]:
        for _ in range(8):
            sleep(0.010)
            yield (torch.randn(BATCH, FEATURES),)

    training, other, validation = Training(), Training(), loader(5)
    with watched() as seen:
        for _ in range(2):
            for batch in batches():
                training.step(batch)
                other.step(batch)
            for _ in validation:
                sleep(0.002)
    assert seen.observer.steps_are_updates
    assert (seen.observer.updates, seen.observer.training, seen.observer.epochs) == (32, None, 0)
    assert list(seen.rows[:, STRETCH]) == [0] * 7 + [1] * 7  # from one update to the next
    assert set(seen.rows[:, UPDATES]) == {2}
    assert phase_ms(seen.rows, SCRIPT)[1:].min() >= 10
    assert phase_ms(seen.rows, DATA).max() == 0
    assert seen.observer.outside.seconds["validation"] >= 5 * 0.002
    assert len(seen.first_batches) == 1


def test_dataloader_after_a_few_updates_is_the_one_that_trains() -> None:
    training = Training()
    with watched() as seen:
        training.train([(torch.randn(BATCH, FEATURES),)] * 2)  # a warm-up
        training.train(loader(6))
    assert not seen.observer.steps_are_updates
    assert len(seen.first_batches) == 1
    assert len(seen.rows) == 6
    assert set(seen.rows[:, SAMPLES]) == {BATCH}


def run_in_thread(training: Training, batches: int) -> None:
    thread = threading.Thread(target=training.train, args=(loader(batches),))
    thread.start()
    thread.join()


def test_threads_besides_the_one_that_trains_are_ignored() -> None:
    training, other = Training(), Training()
    with watched() as seen:
        for index, batch in enumerate(loader(6)):
            training.step(batch)
            if index == 3:
                run_in_thread(other, 5)
    assert len(seen.rows) == 6


def test_training_in_another_thread_is_observed() -> None:
    training = Training()
    with watched() as seen:
        run_in_thread(training, 5)
        run_in_thread(training, 7)
    assert seen.observer.updates == 12
    assert len(seen.rows) >= 4 + 6, "but for the updates that show which thread trains"


def test_iteration_over_the_training_loader_without_backward_is_validation() -> None:
    training, batches = Training(), loader(8)
    with watched() as seen:
        for _ in range(3):
            training.train(batches)
            for x, _ in batches:
                training.model(x)
    assert list(seen.rows[:, NUMBER]) == list(range(24))
    assert (seen.observer.num_batches, seen.observer.epochs) == (24, 3)
    assert set(seen.observer.outside.seconds) == {"validation", "between-epochs"}
    assert seen.observer.training is not None
    assert seen.observer.training.received == 24
    assert seen.observer.steps.seconds == pytest.approx(seen.rows[:, FIRST_PHASE:].sum() / 1000, rel=0.01)


def test_batches_that_are_skipped_at_first_stay_training() -> None:
    training = Training()
    with watched() as seen:
        for _ in range(2):
            for index, batch in enumerate(loader(8)):
                if index > 2:
                    training.step(batch)
    assert len(seen.rows) == 8 - 3 + 8


def test_evaluation_on_a_new_loader_of_the_same_dataset_is_validation() -> None:
    training = Training()
    with watched() as seen:
        for _ in range(3):
            training.train(loader(8))
            for x, _ in loader(8):
                training.model(x)
    assert len(seen.rows) == 24
    assert seen.observer.epochs == 3


def test_start_of_workers_that_validate_is_validation() -> None:
    training, batches = Training(), loader(24)
    with watched() as seen:
        for index, batch in enumerate(batches):
            training.step(batch)
            if index % 8 == 7:
                for x, _ in DataLoader(points(4), BATCH, num_workers=2):
                    training.model(x)
    assert len(seen.rows) == 24
    assert phase_ms(seen.rows, SCRIPT).max() < 5.0
    assert seen.observer.outside.seconds["validation"] > 0.02


def test_start_of_workers_and_wait_for_their_first_batch_are_the_start_of_the_epoch() -> None:
    training, batches = Training(), DataLoader(SlowToOpen(8), 1, num_workers=2)
    with watched() as seen:
        for _ in range(2):
            training.train(batches)
    starts = seen.rows[:, EPOCH_START_MS]
    assert list(np.flatnonzero(starts)) == [0, 8]
    assert starts[8] > 50.0
    assert seen.rows[8, FIRST_PHASE + DATA] == 0.0
    assert seen.observer.outside.seconds["between-epochs"] < 0.05


class SlowToOpen(Dataset[Any]):
    """Every worker opens it before its first sample."""

    def __init__(self, length: int) -> None:
        self._length, self._is_open = length, False

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not self._is_open:
            sleep(0.05)
            self._is_open = True
        return torch.randn(FEATURES), 0


def test_forked_child_observes_nothing() -> None:
    training = Training()
    with watched() as seen:
        training.train(loader(3))
        reader, writer = os.pipe()
        if os.fork() == 0:
            seen.observer.deactivate()  # as os.register_at_fork calls it
            training.train(loader(3))
            os.write(writer, str(len(seen.rows)).encode())
            os._exit(0)
        assert os.read(reader, 10) == b"3"
        os.wait()


def test_watching_leaves_the_training_and_torch_unchanged() -> None:
    def run() -> tuple[Any, ...]:
        torch.manual_seed(3)
        training = Training()
        batches = loader(8, shuffle=True)
        for _ in range(2):
            training.train(batches)
        return *(each.detach().clone() for each in training.model.parameters()), torch.rand(3)

    names = [
        (DataLoader, "__iter__"),
        (DataLoader, "__init_subclass__"),
        (torch.autograd, "backward"),
        (torch, "save"),
        (nn.Sequential, "__call__"),
    ]
    before = [getattr(owner, name) for owner, name in names]
    bare = run()
    with watched() as seen:
        observed = run()
    assert len(seen.rows) == 16
    assert all(torch.equal(one, other) for one, other in zip(bare, observed, strict=True))
    assert [getattr(owner, name) for owner, name in names] == before
    assert "__call__" not in vars(nn.Sequential)


def test_error_of_ddpbench_ends_the_watching_and_not_the_script() -> None:
    class Odd(DataLoader[Any]):
        prefetch_factor = property(lambda self: 1 / 0, lambda self, value: None)  # type: ignore[assignment]

    training = Training()
    with watched() as seen:
        training.train(loader(4))
        assert len(list(Odd(points(5), BATCH))) == 5
        training.train(loader(4))
    assert seen.observer.problem == "ZeroDivisionError: division by zero"
    assert len(seen.rows) <= 4


@pytest.mark.cuda
def test_training_on_a_gpu_is_timed_on_the_device() -> None:
    device = torch.device("cuda", 0)
    model = nn.Sequential(nn.Linear(2048, 2048), nn.Linear(2048, 2048)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = torch.utils.data.TensorDataset(torch.randn(40 * 64, 2048))
    with watched() as seen:
        for (x,) in DataLoader(data, 64, pin_memory=True):
            with torch.autocast("cuda", torch.float16):
                loss = model(x.to(device, non_blocking=True)).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert seen.observer.device == device
    assert seen.hooks.models.precision == "amp-fp16"
    assert len(seen.rows) == 40 - 1  # the first step shows the device
    steady = seen.rows[5:]
    for phase in (DATA, HOST_TO_DEVICE, FORWARD, BACKWARD, OPTIMIZER, SCRIPT):
        assert phase_ms(steady, phase).min() > 0
    assert phase_ms(steady, SYNC).max() == 0


@pytest.mark.cuda
def test_child_that_is_forked_in_a_step_frees_no_cuda_events() -> None:
    """Workers of a loader that the script iterates over in the middle of a step."""
    model = nn.Linear(FEATURES, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watched() as seen:
        os.register_at_fork(after_in_child=seen.observer.leave_to_parent)
        for step, (batch, _) in enumerate(loader(8)):
            loss = model(batch.cuda()).square().mean()
            if step >= 4:
                assert len(list(DataLoader(points(2), BATCH, num_workers=2))) == 2
            loss.backward()
            optimizer.step()
    assert seen.observer.problem == ""
    assert seen.observer.num_batches >= 4
