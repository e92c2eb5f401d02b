"""Batches that are handed out again and again, whatever the script does to them."""

from __future__ import annotations

from collections import UserDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from ddpbench.script.diagnose.repeated import MAX_BATCHES, DeviceCopy, RepeatedBatches, _patched_copies

Pair = namedtuple("Pair", ["images", "labels"])


def kept(*batches: Any) -> RepeatedBatches:
    repeated = RepeatedBatches()
    for batch in batches:
        repeated.keep(batch)
    return repeated


def test_batches_come_in_turn() -> None:
    repeated = kept(*(torch.full((2,), float(number)) for number in range(3)))
    assert [float(repeated.next_batch()[0]) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_at_most_sixteen_batches_are_kept() -> None:
    repeated = kept(*(torch.full((2,), float(number)) for number in range(40)))
    assert {float(repeated.next_batch()[0]) for _ in range(40)} == set(range(MAX_BATCHES))


def test_the_batch_that_is_kept_may_change_afterwards() -> None:
    batch = {"images": torch.ones(3)}
    repeated = kept(batch)
    batch["images"].zero_()
    assert repeated.next_batch()["images"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "batch",
    [
        torch.ones(2),
        [torch.ones(2), torch.zeros(2)],
        (torch.ones(2), "a name", 3, None),
        {"images": torch.ones(2), "more": {"labels": [torch.zeros(1)]}},
        Pair(torch.ones(2), torch.zeros(2)),
        UserDict({"input_ids": torch.ones(2)}),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_structure_is_that_of_the_batch(batch: Any) -> None:
    repeated = kept(batch)
    first, second = repeated.next_batch(), repeated.next_batch()
    assert type(first) is type(batch)
    assert str(first) == str(batch)
    assert first is not second or isinstance(batch, torch.Tensor)


def test_changes_in_place_are_undone() -> None:
    repeated = kept([torch.ones(3), torch.arange(3)])
    images, labels = repeated.next_batch()
    images.div_(2).add_(5)
    labels[0] = 7
    again = repeated.next_batch()
    assert [each.tolist() for each in again] == [[1, 1, 1], [0, 1, 2]]


def test_unchanged_tensors_are_not_copied() -> None:
    repeated = kept([torch.ones(3)])
    assert repeated.next_batch()[0] is repeated.next_batch()[0]


def test_changes_of_shape_and_structure_are_undone() -> None:
    repeated = kept({"images": torch.ones(1, 3), "labels": torch.zeros(1)})
    batch = repeated.next_batch()
    batch.pop("labels")
    batch["images"].squeeze_(0)
    again = repeated.next_batch()
    assert sorted(again) == ["images", "labels"]
    assert again["images"].shape == (1, 3)


def test_gradients_of_a_batch_are_dropped() -> None:
    repeated = kept([torch.ones(3)])
    (images,) = repeated.next_batch()
    images.requires_grad_()
    images.sum().backward()
    (again,) = repeated.next_batch()
    assert not again.requires_grad
    assert again.grad is None


def test_boxes_of_torchvision_keep_their_class_and_format() -> None:
    """What its detection datasets return: a list of images, and a list of dicts."""
    image, boxes = tv_tensors.Image(torch.rand(3, 8, 8)), tv_tensors.BoundingBoxes([[0, 0, 4, 4]], format="XYXY", canvas_size=(8, 8))
    repeated = RepeatedBatches()
    repeated.keep([[image], [{"boxes": boxes, "labels": torch.tensor([1])}]])
    (found,), (target,) = repeated.next_batch()
    assert isinstance(found, tv_tensors.Image)
    assert torch.equal(found, image)
    assert (target["boxes"].format, target["boxes"].canvas_size) == (boxes.format, (8, 8))
    copied = {id(target["boxes"]): DeviceCopy(repeated._batches[0], 1, boxes.clone())}
    with _patched_copies(copied):
        for moved in (target["boxes"].to("cpu"), target["boxes"].to(torch.float64), boxes.to(torch.float64), found.to(torch.float16)):
            assert type(moved) in (tv_tensors.BoundingBoxes, tv_tensors.Image)
        assert torch.nn.Parameter(torch.ones(2)).to(torch.float64).dtype == torch.float64


def test_changes_of_an_array_are_undone() -> None:
    repeated = RepeatedBatches()
    repeated.keep({"ids": np.arange(4)})
    repeated.next_batch()["ids"][0] = 7
    assert repeated.next_batch()["ids"].tolist() == [0, 1, 2, 3]


@pytest.mark.cuda
def test_loader_that_has_given_no_batch_needs_no_copies() -> None:
    with RepeatedBatches().on_device(torch.device("cuda")):
        assert "to" not in vars(torch.Tensor)


@pytest.mark.cuda
def test_batches_of_two_loaders_are_on_the_device_at_once() -> None:
    device = torch.device("cuda")
    one, other = kept(torch.ones(2)), kept(torch.zeros(3))
    with one.on_device(device), other.on_device(device):
        assert one.next_batch().to(device).tolist() == [1, 1]
        assert other.next_batch().to(device).tolist() == [0, 0, 0]
    assert "to" not in vars(torch.Tensor)


@pytest.mark.cuda
def test_copies_to_the_device_are_there_already() -> None:
    device = torch.device("cuda")
    repeated = kept({"images": torch.arange(4.0), "labels": torch.arange(4)})
    with repeated.on_device(device):
        batch = repeated.next_batch()
        images, labels = batch["images"].to(device, non_blocking=True), batch["labels"].cuda(non_blocking=True)
        assert images.tolist() == labels.tolist() == [0, 1, 2, 3]
        images.zero_()
        half = batch["images"].to(device, dtype=torch.float16, memory_format=torch.contiguous_format)
        assert (half.dtype, half.tolist()) == (torch.float16, [0, 1, 2, 3]), "the copy on the device is never handed out itself"
        assert batch["images"].float().to(device).tolist() == [0, 1, 2, 3]
        assert batch["images"].to(torch.float64).device.type == "cpu"
        batch["images"].add_(1)
        assert batch["images"].to(device).tolist() == [1, 2, 3, 4], "a changed batch is copied as it is"
        assert repeated.next_batch()["images"].to(device).tolist() == [0, 1, 2, 3]
    assert "to" not in vars(torch.Tensor)
    assert "cuda" not in vars(torch.Tensor)


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="copies to another GPU need two")
def test_copies_to_another_gpu_are_made_there() -> None:
    repeated = kept(torch.arange(4.0))
    with repeated.on_device(torch.device("cuda", 0)):
        batch = repeated.next_batch()
        assert [batch.to("cuda:1").device.index, batch.cuda(1).device.index, batch.cuda().device.index] == [1, 1, 0]
        with torch.cuda.device(1):
            assert [batch.to("cuda").device.index, batch.cuda().device.index] == [1, 1]


@pytest.mark.parametrize(
    ("batches", "steady"),
    [
        ([[torch.ones(8, 3), torch.ones(8)]] * 30, True),
        ([{"rows": torch.ones(8, 3), "name": "a"}] * 29 + [{"rows": torch.ones(5, 3), "name": "b"}], True),
        ([torch.ones(8, 3)] * 10, False),
        ([torch.ones(8, length) for length in range(30)], False),
        ([torch.ones(8, 3), torch.ones(8, 4)] * 15, False),
        ([[torch.ones(8, 3), UserDict(rows=torch.ones(3))]] * 30, True),
        ([[torch.ones(8, 3), object()]] * 30, False),
        ([], False),
    ],
    ids=["one", "last of an epoch", "few", "lengths", "two", "mapping", "unknown", "none"],
)
def test_shapes_are_steady_if_only_the_last_batch_of_an_epoch_differs(batches: list[Any], steady: bool) -> None:
    assert kept(*batches).has_steady_shapes is steady
