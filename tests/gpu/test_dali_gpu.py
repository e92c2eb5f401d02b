"""DALI on GPU: the same images as on CPU, kept alive while the device reads them, in the training dtype."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import sample_datasets
import torch
from colours import levels_off
from open_loaders import NO_DALI, config, opened, take

from ddpbench.data.datasets import image_folder
from ddpbench.data.loader import Batch
from ddpbench.data.loaders.dali.gpu import MAX_BATCHES_IN_USE
from ddpbench.data.loaders.dali.stage_costs import measure_stage_cpu_s
from ddpbench.record.errors import BenchError

pytestmark = [pytest.mark.cuda, NO_DALI]

GPU = torch.device("cuda", 0)
CLASSES = 13
CLOCKS = 100_000_000
"""GPU cycles; about 50 ms."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Single-colour images, one distinct colour per label."""
    return sample_datasets.image_tree(tmp_path, classes=CLASSES, images=1, texture=0)


@pytest.mark.parametrize("loader", ["dali-cpu", "dali-gpu"])
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(("precision", "dtype"), [("amp-fp16", torch.float16), ("amp-bf16", torch.float32), ("fp32", torch.float32)])
def test_batches_have_the_dtype_and_layout_of_training(
    loader: str, channels_last: bool, precision: str, dtype: torch.dtype, tree: Path
) -> None:
    with opened(config(loader, tree, channels_last=channels_last, precision=precision, batch_size=5), device=GPU) as live:
        for _ in range(4):
            images, labels = live.next_batch(lambda: None)
            assert (images.device, images.shape, labels.device, labels.dtype) == (GPU, (5, 3, 32, 32), GPU, torch.int64)
            assert images.dtype == (dtype if loader == "dali-gpu" else torch.float32)
            assert images.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
            assert levels_off(images, labels) < 4


@pytest.mark.parametrize("hw_decoder_load", [None, 0.0, 1.0])
def test_sample_order_matches_dali_cpu(hw_decoder_load: float | None, tree: Path) -> None:
    for rank in range(2):
        drawn = []
        for loader in ("dali-cpu", "dali-gpu"):
            settled = config(loader, tree, batch_size=3, workers=2, hw_decoder_load=hw_decoder_load)
            with opened(settled, rank=rank, world_size=2, device=GPU) as live:
                drawn.append(take(live, 9)[1].tolist())
        assert drawn[0] == drawn[1]


def test_center_crop_matches_pil(tmp_path: Path) -> None:
    tree = sample_datasets.image_tree(tmp_path, grain=20)  # coarse grain: the GPU decoder interpolates chroma differently
    looks = []
    for loader in ("torch", "dali-gpu"):
        settled = config(loader, tree, workers=1, batch_size=16, augment=False, image_size=42, precision="fp32")
        with opened(settled, device=GPU) as live:
            looks.append(take(live, 1)[0].cpu())
    assert (looks[0] - looks[1]).abs().mean() < 0.06, "less than four of 255 levels"


def test_crop_statistics_match_torch(tmp_path: Path) -> None:
    tree = sample_datasets.image_tree(tmp_path, grain=2)
    statistics = []
    for loader in ("torch", "dali-gpu"):
        with opened(config(loader, tree, batch_size=16, workers=2, precision="fp32"), device=GPU) as live:
            images = take(live, 40)[0].double().cpu()
        flattened = images.transpose(0, 1).flatten(1)
        statistics.append(torch.cat([flattened.mean(1), flattened.std(1)]))
    torch.testing.assert_close(*statistics, atol=0.03, rtol=0.03)


def test_batch_is_kept_while_the_device_lags_behind(tree: Path) -> None:
    read: list[Batch] = []
    with opened(config("dali-gpu", tree, batch_size=CLASSES, workers=2, precision="fp32"), device=GPU) as live:
        for _ in range(30):
            images, labels = live.next_batch(lambda: None)
            torch.cuda._sleep(CLOCKS // 10)
            read.append((images.mean((2, 3), keepdim=True), labels))
            del images
        torch.cuda.synchronize()
    assert levels_off(torch.cat([means for means, _ in read]), torch.cat([labels for _, labels in read])) < 4


def test_on_host_ready_is_called_before_waiting_for_the_device(tree: Path) -> None:
    """Otherwise the wait would be attributed to the loader."""
    steps: list[torch.cuda.Event] = []
    behind: list[int] = []
    with opened(config("dali-gpu", tree, batch_size=CLASSES), device=GPU) as live:
        take(live, 3)
        for _ in range(MAX_BATCHES_IN_USE + 4):
            live.next_batch(lambda: behind.append(sum(not step.query() for step in steps)))
            torch.cuda._sleep(CLOCKS)
            steps.append(torch.cuda.Event())
            steps[-1].record()
    assert max(behind) > MAX_BATCHES_IN_USE


def test_batch_does_not_wait_for_later_batches(tree: Path) -> None:
    """Work on the batch completes although DALI has later work queued on the device."""
    with opened(config("dali-gpu", tree, batch_size=CLASSES, prefetch=4), device=GPU) as live:
        take(live, 5)
        images, labels = live.next_batch(lambda: None)
        done = torch.cuda.Event()
        images.sum()
        done.record()
        done.synchronize()
        assert levels_off(images, labels) < 4


def test_batches_can_be_read_on_another_stream(tree: Path) -> None:
    stream = torch.cuda.Stream(GPU)
    with opened(config("dali-gpu", tree, batch_size=CLASSES), device=GPU) as live:
        for _ in range(5):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(CLOCKS // 10)
                images, labels = (part.clone() for part in live.next_batch(lambda: None))
            stream.synchronize()
            assert levels_off(images, labels) < 4


def test_file_that_stops_dali_is_named_or_skipped(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    damaged = Path(image_folder.read_index(str(tree)).files[7])
    damaged.write_bytes(b"hello" * 100)
    with opened(config("dali-gpu", tree, batch_size=4), device=GPU) as live, pytest.raises(BenchError, match=str(damaged)):
        take(live, 9)
    with opened(config("dali-gpu", tree, batch_size=4, skip_bad=1), device=GPU) as live:
        images, labels = take(live, 9)
        stats = live.pop_stats()
    assert Counter(labels.tolist()) == Counter(dict.fromkeys(set(range(CLASSES)) - {7}, 3))
    assert levels_off(images, labels) < 4
    assert stats
    assert (stats.samples, len(stats.skipped_files)) == (36, 1)


def test_reopening_does_not_leak_gpu_memory(tree: Path) -> None:
    free = []
    for _ in range(6):
        with opened(config("dali-gpu", tree, batch_size=8, workers=2), device=GPU) as live:
            take(live, 20)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free.append(torch.cuda.mem_get_info(GPU)[0])
    assert min(free[2:]) > free[1] - 2**26, "permanent DALI memory is allocated by the first loader"


@pytest.mark.parametrize("loader", ["dali-cpu", "dali-gpu"])
def test_every_dali_stage_has_a_cpu_cost(loader: str, tree: Path) -> None:
    costs = measure_stage_cpu_s(config(loader, tree, batch_size=8), GPU, seconds=0.2)
    assert list(costs) == ["read", "decode", "augment"]
    assert sum(costs.values()) > 0
