"""Whether a script only moves its batches to the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ddpbench.script.diagnose.batch_use import BatchUse
from ddpbench.script.diagnose.repeated import RepeatedBatches


def moved(batch: list[Tensor]) -> None:
    images, labels = batch[0].to("meta", torch.float64, non_blocking=True), batch[1].to(device="meta")
    assert (type(images), type(labels)) == (Tensor, Tensor)
    nn.functional.cross_entropy(nn.Linear(3, 4, device="meta").double()(images), labels).backward()


def asked(batch: list[Tensor]) -> None:
    assert batch[0].shape == (2, 3)
    assert (len(batch[0]), batch[0].size(1), batch[0].ndim, batch[0].dtype, batch[0].is_cuda) == (2, 3, 2, torch.float32, False)


@pytest.mark.parametrize(
    ("use", "reads"),
    [
        (moved, False),
        (asked, False),
        (lambda batch: batch[0].to(torch.float64), True),
        (lambda batch: batch[0].to("cpu"), True),
        (lambda batch: batch[1].data, True),
        (lambda batch: batch[1].numpy(), True),
        (lambda batch: np.asarray(batch[1]), True),
        (lambda batch: batch[1].tolist(), True),
        (lambda batch: batch[0][:1], True),
        (lambda batch: batch[0] * 2, True),
        (lambda batch: batch[0].mul_(2), True),
        (lambda batch: torch.cat([torch.ones(2, 3), batch[0]]), True),
        (lambda batch: torch.nn.functional.one_hot(batch[1]), True),
        (lambda batch: str(batch[0]), True),
        (lambda batch: [label for label in batch[1]], True),
    ],
    ids=[
        *("moved", "asked", "dtype", "cpu", "data"),
        *("numpy", "asarray", "tolist", "slice", "product", "in place", "cat", "one_hot", "str", "loop"),
    ],
)
def test_what_a_script_does_with_its_first_repeated_batch(use: Callable[[list[Tensor]], Any], reads: bool) -> None:
    repeated = RepeatedBatches()
    repeated.keep([torch.ones(2, 3), torch.tensor([0, 1])])
    watched = BatchUse()
    batch = repeated.next_batch(watched)
    assert all(isinstance(each, Tensor) for each in batch)
    use(batch)
    assert watched.reads_on_host is reads


def test_tensors_of_other_classes_are_not_watched() -> None:
    repeated = RepeatedBatches()
    repeated.keep([nn.Parameter(torch.ones(2))])
    watched = BatchUse()
    assert type(repeated.next_batch(watched)[0]) is nn.Parameter
    assert watched.reads_on_host
