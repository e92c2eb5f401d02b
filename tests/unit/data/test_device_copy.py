"""Copies from host to device: batches in use are not overwritten, and copies overlap with steps."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import sample_datasets
import torch
from open_loaders import ALL_LOADERS, CPU, config, opened, take

from ddpbench.data.device_copy import SideStreamCopy, make_device_copy
from ddpbench.data.loader import Batch


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample_datasets.image_tree(tmp_path_factory.mktemp("tree"))


def host_batches(*sizes: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(size, 3, 8, 8, generator=generator), torch.randint(10, (size,), generator=generator)) for size in sizes]


def test_batch_is_not_copied_on_cpu() -> None:
    images, labels = host_batches(4)[0]
    kept, kept_labels = make_device_copy(CPU, lambda images: images)(images, labels)
    assert kept is images
    assert kept_labels is labels


class CpuEvent:
    """A CPU substitute for a CUDA event; CPU work is complete immediately."""

    def record(self, stream: object) -> None:
        pass


def check_batches_of_any_size(deliver: SideStreamCopy) -> None:
    for images, labels in host_batches(4, 4, 2, 4, 1, 1, 1):
        delivered, delivered_labels = deliver(images, labels)
        assert torch.equal(delivered.cpu(), images)
        assert torch.equal(delivered_labels.cpu(), labels)


def test_batches_of_any_size_arrive_complete_without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins = {"Stream": torch.cpu.Stream, "current_stream": torch.cpu.Stream, "Event": CpuEvent, "stream": nullcontext}
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    check_batches_of_any_size(SideStreamCopy(CPU, lambda images: images))


@pytest.mark.cuda
def test_batches_of_any_size_arrive_complete() -> None:
    check_batches_of_any_size(SideStreamCopy(torch.device("cuda", 0), lambda images: images))


@pytest.mark.cuda
def test_batch_in_use_is_not_overwritten() -> None:
    device = torch.device("cuda", 0)
    deliver = make_device_copy(device, lambda images: images)
    batches = [(images.pin_memory(), labels.pin_memory()) for images, labels in host_batches(*[4] * 12)]
    torch.cuda.synchronize()
    kept = []
    for images, labels in batches:
        delivered, delivered_labels = deliver(images, labels)
        torch.cuda._sleep(50_000_000)  # a long step, so that later copies are issued while it runs
        kept.append((delivered.clone(), delivered_labels.clone()))
    end = torch.cuda.Event()
    end.record()
    assert not end.query(), "the host did not wait for the device"
    for (images, labels), (seen, seen_labels) in zip(batches, kept, strict=True):
        assert torch.equal(images, seen.cpu())
        assert torch.equal(labels, seen_labels.cpu())


@pytest.mark.cuda
def test_copy_overlaps_with_the_previous_step() -> None:
    device = torch.device("cuda", 0)
    deliver = make_device_copy(device, lambda images: images)
    (first, labels), (second, _) = ((images.pin_memory(), labels.pin_memory()) for images, labels in host_batches(4, 4))
    for images in (first, second):  # allocate both slots, which waits for earlier users of their memory
        deliver(images, labels)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)
    step_done = torch.cuda.Event()
    step_done.record()
    deliver(first, labels)
    deliver._side.synchronize()  # type: ignore[attr-defined]
    assert not step_done.query(), "the copy ended before the previous step"


@pytest.mark.cuda
@pytest.mark.parametrize("loader", ALL_LOADERS)
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("pin_memory", [True, False])
def test_gpu_batches_equal_cpu_batches(loader: str, channels_last: bool, pin_memory: bool, tree: Path) -> None:
    settled = config(loader, tree, channels_last=channels_last, pin_memory=pin_memory, batch_size=4)
    with opened(settled, device=torch.device("cuda", 0)) as live:
        images, labels = take(live, 6)
        single = live.next_batch(lambda: None)[0]
        assert (images.device.type, labels.device.type, single.dtype) == ("cuda", "cuda", torch.float32)
        assert single.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    if loader == "synthetic":
        return
    with opened(settled) as live:
        expected, expected_labels = take(live, 6)
    assert torch.equal(labels.cpu(), expected_labels)
    assert (images.cpu() - expected).abs().max() < 0.02, "uint8 transfer rounds by half a level"
