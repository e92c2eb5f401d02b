"""The loader ``dali-gpu``: DALI decodes and augments on the GPU that trains."""

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
"""Files whose sizes tell how large images are."""


def open_dali_gpu(config: ResolvedConfig, shard: Shard) -> DaliGpuLoader:
    """``config.workers`` threads that read files and prepare them for the GPU, and ``config.prefetch`` batches kept ready there."""
    assert config.data_dir, "checked"
    return DaliGpuLoader(image_folder.read_index(config.data_dir), config, shard)


def gpu_graph(config: ResolvedConfig, files: Sequence[str], device: torch.device) -> DaliGraph:
    """It ends at what the first layer computes in: float16 where that is it, else float32, which autocast makes bfloat16."""
    assert config.image_size, "images have a size"
    dtype: DaliDtype = "FLOAT16" if find_precision(config.precision).layer_dtype == "float16" else "FLOAT"
    return DaliGraph(config.image_size, config.augment, dtype, dali_layout(config), device.index, decoder_options(config, files))


def decoder_options(config: ResolvedConfig, files: Sequence[str]) -> dict[str, float]:
    """How much goes to the hardware decoder, and for how large images it keeps room, so that it need not make any in mid-run."""
    width, height = max_image_size(files)
    options: dict[str, float] = {"preallocate_width_hint": width, "preallocate_height_hint": height}
    if config.hw_decoder_load is not None:
        options["hw_decoder_load"] = config.hw_decoder_load
    return options


def max_image_size(files: Sequence[str]) -> tuple[int, int]:
    """The width of the widest and the height of the highest of some images; the rest is not far from them. 0 where none can be read."""
    width = height = 0
    for file in islice(files, 0, None, max(1, len(files) // SAMPLED_FILES)):
        with suppress(Exception), Image.open(file) as image:  # a damaged file is told where it is trained on
            width, height = max(width, image.width), max(height, image.height)
    return width, height


class DaliGpuLoader:
    """Batches in DALI's own memory on the GPU, trained on where they lie."""

    def __init__(self, tree: ImageFolderIndex, config: ResolvedConfig, shard: Shard) -> None:
        self.data = tree.describe("dali-gpu")
        self._device = shard.device
        self._graph = gpu_graph(config, tree.files, shard.device)
        self._pool = PipelinePool(self._graph, tree, config, shard.rank, shard.world_size, SkippedFiles(config.skip_bad))
        self.max_prefetched = self._pool.max_prefetched
        self._keep_alive = BatchKeepAlive(shard.device)
        self._timings = BatchTimings()

    def next_batch(self, on_host_ready: Callable[[], None]) -> Batch:
        asked = perf_counter()
        supplied = self._pool.next_batch()
        on_host_ready()
        self._timings.record(asked, len(supplied.labels), supplied.worker_timing)
        self._keep_alive.mark_last_issued()  # which may wait for the device: no fault of the loader's, and so after the batch is in hand
        # it is ready; asked to order itself before a stream, it would make that wait for all that DALI has begun since
        images = torch.from_dlpack(supplied.images.as_tensor().__dlpack__(stream=-1))
        self._keep_alive.add(images)
        return self._graph.to_nchw(images), supplied.labels.pin_memory().to(self._device, non_blocking=True)

    def pop_stats(self) -> LoaderStats | None:
        return self._timings.pop_stats()

    def worker_pids(self) -> list[int]:
        return []

    def close(self) -> None:
        self._keep_alive.wait()
        self._pool.close()


MAX_BATCHES_IN_USE = 8
"""Batches that the device may still have to train on. A host that is further ahead waits, or they would fill its memory."""


class BatchKeepAlive:
    """Keeps the batches that the device may not be done with.

    DALI takes back the memory of a batch when nobody on the host refers to it any more, and knows nothing of the stream that
    still reads it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last: Tensor | None = None
        self._issued: deque[tuple[torch.cuda.Event, Tensor]] = deque()

    def add(self, batch: Tensor) -> None:
        """It is trained on next."""
        self._last = batch

    def mark_last_issued(self) -> None:
        """All that reads the last batch has been issued on the current stream."""
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
        """Until the device is done with all of them."""
        self.mark_last_issued()
        while self._issued:
            self._issued.popleft()[0].synchronize()
