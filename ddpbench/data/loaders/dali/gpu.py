"""The loader ``dali-gpu``: DALI decodes and augments on the training GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from time import perf_counter

import torch
from PIL import Image
from torch import Tensor

from ddpbench.data.batch_timing import BatchTimings
from ddpbench.data.datasets import image_folder
from ddpbench.data.datasets.image_folder import ImageFolderIndex
from ddpbench.data.loader import Batch
from ddpbench.data.loaders.dali.graph import DaliDtype, DaliGraph, dali_layout
from ddpbench.data.loaders.dali.pipeline_pool import PipelinePool
from ddpbench.data.loaders.workers import SkippedFiles
from ddpbench.data.shard import Shard
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.loader_stats import LoaderStats
from ddpbench.record.registry import find_precision

SAMPLED_FILES = 200
"""Files sampled to estimate the maximum image size."""


def open_dali_gpu(config: ResolvedConfig, shard: Shard) -> DaliGpuLoader:
    """Open the loader ``dali-gpu``.

    ``config.workers`` threads read files and prepare them for the GPU, which prefetches ``config.prefetch`` batches.
    """
    assert config.data_dir, "checked"
    return DaliGpuLoader(image_folder.read_index(config.data_dir), config, shard)


def gpu_graph(config: ResolvedConfig, files: Sequence[str], device: torch.device) -> DaliGraph:
    """The graph, ending in the dtype of the first layer.

    That is float16, or else float32, which autocast converts to bfloat16 if needed.
    """
    assert config.image_size, "image workloads have an image size"
    dtype: DaliDtype = "FLOAT16" if find_precision(config.precision).layer_dtype == "float16" else "FLOAT"
    return DaliGraph(config.image_size, config.augment, dtype, dali_layout(config), device.index, decoder_options(config, files))


def decoder_options(config: ResolvedConfig, files: Sequence[str]) -> dict[str, float]:
    """Options of the hardware decoder: its load, if configured, and preallocation for large images.

    Preallocation avoids allocations during the run.
    """
    width, height = max_image_size(files)
    options: dict[str, float] = {"preallocate_width_hint": width, "preallocate_height_hint": height}
    if config.hw_decoder_load is not None:
        options["hw_decoder_load"] = config.hw_decoder_load
    return options


def max_image_size(files: Sequence[str]) -> tuple[int, int]:
    """Maximum width and maximum height of about SAMPLED_FILES images, in pixels.

    The other images are rarely much larger. 0 if none can be read.
    """
    width = height = 0
    for file in islice(files, 0, None, max(1, len(files) // SAMPLED_FILES)):
        with suppress(Exception), Image.open(file) as image:  # training reports damaged files
            width, height = max(width, image.width), max(height, image.height)
    return width, height


class DaliGpuLoader:
    """Batches in DALI's GPU memory, used for training without a copy."""

    def __init__(self, tree: ImageFolderIndex, config: ResolvedConfig, shard: Shard) -> None:
        self.data = tree.describe("dali-gpu")
        self._device = shard.device
        self._graph = gpu_graph(config, tree.files, shard.device)
        self._pool = PipelinePool(self._graph, tree, config, shard.rank, shard.world_size, SkippedFiles(config.skip_bad))
        self.max_prefetched = self._pool.max_prefetched
        self._keep_alive = BatchKeepAlive(shard.device)
        self._timings = BatchTimings()

    def next_batch(self, on_host_ready: Callable[[], None]) -> Batch:
        requested_s = perf_counter()
        dali_batch = self._pool.next_batch()
        on_host_ready()
        self._timings.record(requested_s, len(dali_batch.labels), dali_batch.worker_timing)
        self._keep_alive.mark_last_issued()  # after on_host_ready: a wait for the device is not charged to the loader
        # the batch is complete; with a stream, DLPack would make that stream wait for all later DALI work as well
        images = torch.from_dlpack(dali_batch.images.as_tensor().__dlpack__(stream=-1))
        self._keep_alive.add(images)
        return self._graph.to_nchw(images), dali_batch.labels.pin_memory().to(self._device, non_blocking=True)

    def pop_stats(self) -> LoaderStats | None:
        return self._timings.pop_stats()

    def worker_pids(self) -> list[int]:
        return []

    def close(self) -> None:
        self._keep_alive.wait()
        self._pool.close()


MAX_BATCHES_IN_USE = 8
"""Maximum number of batches that the device has still to train on.

Beyond it the host waits, or these batches would fill the device's memory.
"""


class BatchKeepAlive:
    """Keeps references to batches that the device may still read.

    DALI reuses the memory of a batch when no reference on the host is left, regardless of streams that still read it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last: Tensor | None = None
        self._issued: deque[tuple[torch.cuda.Event, Tensor]] = deque()

    def add(self, batch: Tensor) -> None:
        """Set the batch that is trained on next."""
        self._last = batch

    def mark_last_issued(self) -> None:
        """Mark that all reads of the last batch have been issued on the current stream.

        Waits for the device if more than MAX_BATCHES_IN_USE batches are in use.
        """
        if self._last is not None:
            done = torch.cuda.Event()
            done.record(torch.cuda.current_stream(self._device))
            self._issued.append((done, self._last))
            self._last = None
        if len(self._issued) > MAX_BATCHES_IN_USE:
            self._issued[0][0].synchronize()
        while self._issued and self._issued[0][0].query():
            self._issued.popleft()

    def wait(self) -> None:
        """Wait until the device has finished with all batches."""
        self.mark_last_issued()
        while self._issued:
            self._issued.popleft()[0].synchronize()
