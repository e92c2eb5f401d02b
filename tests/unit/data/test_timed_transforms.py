"""What each transform of a Compose takes, in the process that loads."""

from __future__ import annotations

from time import sleep
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import Compose, v2

from ddpbench.data.batch_timing import Stopwatch
from ddpbench.data.loaders.timed_transforms import timing_transforms
from ddpbench.data.loaders.user_timed import TimedBatch, timed_parts


class Slow:
    """Sleeps for so many milliseconds, and adds one."""

    def __init__(self, ms: float) -> None:
        self.ms = ms

    def __call__(self, number: int) -> int:
        sleep(self.ms / 1000)
        return number + 1


class Module(nn.Module):
    def forward(self, number: int, *others: Any) -> Any:
        sleep(0.004)
        return (number + 1, *others) if others else number + 1


def plus_ten(number: int) -> int:
    return number + 10


class Numbers(Dataset[int]):
    """Applies its transform wherever it likes, and keeps what it has read."""

    def __init__(self, transform: Any) -> None:
        self.transform, self.seen = transform, 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        self.seen += 1
        return self.transform(index)


COMPOSED = Compose([Slow(8), Compose([Slow(2), plus_ten]), v2.Compose([Module()])])


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}])
def test_transforms_are_timed_where_a_sample_is_loaded(options: dict[str, Any]) -> None:
    loader = DataLoader(Numbers(COMPOSED), batch_size=4)
    dataset, collate = timed_parts(loader)
    first, second = list(DataLoader(dataset, batch_size=4, collate_fn=collate, **options))
    assert isinstance(first, TimedBatch)
    assert first.batch.tolist() == [13, 14, 15, 16]
    for each in (first, second):
        parts = each.worker_timing.parts_s
        assert set(parts) == {"Slow", "plus_ten", "Module"}
        assert parts["Slow"] >= 4 * 0.010
        assert parts["Module"] >= 4 * 0.004
        assert sum(parts.values()) <= each.worker_timing.wall_s["sample"]


def test_nothing_is_timed_or_changed_outside_of_a_sample() -> None:
    watch = Stopwatch()
    with timing_transforms(watch):
        assert COMPOSED(1) == 14
    watch.start()
    watch.lap("sample")
    assert set(watch.finish_batch().parts_s) == {"Slow", "plus_ten", "Module"}
    assert COMPOSED(1) == 14
    watch.start()
    watch.lap("sample")
    assert watch.finish_batch().parts_s == {}


def test_several_inputs_pass_through_together() -> None:
    with timing_transforms(Stopwatch()):
        assert v2.Compose([Module(), Module()])(1, "a label") == (3, "a label")
        assert v2.Compose([v2.Identity()])((1, 2)) == (1, 2)
        assert Compose([])(5) == 5


class Own(Compose):
    def __call__(self, number: int) -> int:
        return -super().__call__(number)


def test_composes_of_the_script_keep_their_way() -> None:
    with timing_transforms(Stopwatch()):
        assert Own([plus_ten])(1) == -11
        with pytest.raises(ZeroDivisionError):
            Compose([lambda number: number / 0])(1)


def test_one_sample_within_another_is_timed_apart() -> None:
    outer, inner = Stopwatch(), Stopwatch()

    def load_inner(number: int) -> int:
        with timing_transforms(inner):
            return Compose([plus_ten])(number)

    with timing_transforms(outer):
        assert Compose([load_inner, plus_ten])(1) == 21
    for watch, names in ((outer, {"load_inner", "plus_ten"}), (inner, {"plus_ten"})):
        watch.start()
        watch.lap("sample")
        assert set(watch.finish_batch().parts_s) == names


def test_dataset_keeps_what_it_caches() -> None:
    own = Numbers(plus_ten)
    dataset, collate = timed_parts(DataLoader(own, batch_size=4))
    list(DataLoader(dataset, batch_size=4, collate_fn=collate))
    assert own.seen == 8
    assert torch.equal(torch.tensor(own[3]), torch.tensor(13))
