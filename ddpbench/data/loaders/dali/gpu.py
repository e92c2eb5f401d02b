"""The loader ``dali-gpu``: DALI decodes and augments on the GPU that trains, with its hardware decoder where it has one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from time import perf_counter

import torch
from PIL import Image

from ddpbench.data.batch_timing import Arrivals
from ddpbench.data.datasets import image_folder
from ddpbench.data.datasets.image_folder import ImageTree
from ddpbench.data.loader import Batch
from ddpbench.data.loaders.dali.graph import Dtype, Graph, layout_of
from ddpbench.data.loaders.dali.in_use import InUse
from ddpbench.data.loaders.dali.supply import Supply
from ddpbench.data.loaders.skipped_files import LeftOut
from ddpbench.data.shard import Shard
from ddpbench.record.loader_stats import Loading
from ddpbench.record.registry import precision
from ddpbench.record.resolved import Settled

SAMPLED = 200
"""Files whose sizes tell how large images are."""


def open_dali_gpu(config: Settled, shard: Shard) -> DaliGpu:
    """``config.workers`` threads that read files and prepare them for the GPU, and ``config.prefetch`` batches kept ready there."""
    assert config.data_dir, "checked"
    return DaliGpu(image_folder.read(config.data_dir), config, shard)


def gpu_graph(config: Settled, files: Sequence[str], device: torch.device) -> Graph:
    """It ends at what the first layer computes in: float16 where that is it, else float32, which autocast makes bfloat16."""
    assert config.image_size, "images have a size"
    dtype: Dtype = "FLOAT16" if precision(config.precision).layers == "float16" else "FLOAT"
    return Graph(config.image_size, config.augment, dtype, layout_of(config), device.index, decoder_options(config, files))


def decoder_options(config: Settled, files: Sequence[str]) -> dict[str, float]:
    """How much goes to the hardware decoder, and for how large images it keeps room, so that it need not make any in mid-run."""
    width, height = largest(files)
    options: dict[str, float] = {"preallocate_width_hint": width, "preallocate_height_hint": height}
    if config.hw_decoder_load is not None:
        options["hw_decoder_load"] = config.hw_decoder_load
    return options


def largest(files: Sequence[str]) -> tuple[int, int]:
    """The width of the widest and the height of the highest of some images; the rest is not far from them. 0 where none can be read."""
    width = height = 0
    for file in islice(files, 0, None, max(1, len(files) // SAMPLED)):
        with suppress(Exception), Image.open(file) as image:  # a damaged file is told where it is trained on
            width, height = max(width, image.width), max(height, image.height)
    return width, height


class DaliGpu:
    """Batches in DALI's own memory on the GPU, trained on where they lie."""

    def __init__(self, tree: ImageTree, config: Settled, shard: Shard) -> None:
        self.data = tree.data("dali-gpu")
        self._device = shard.device
        self._graph = gpu_graph(config, tree.files, shard.device)
        self._supply = Supply(self._graph, tree, config, shard.rank, shard.world_size, LeftOut(config.skip_bad))
        self.in_flight = self._supply.in_flight
        self._in_use = InUse(shard.device)
        self._arrivals = Arrivals()

    def next_batch(self, in_hand: Callable[[], None]) -> Batch:
        asked = perf_counter()
        supplied = self._supply.next()
        in_hand()
        self._arrivals.note(asked, len(supplied.labels), supplied.sheet)
        self._in_use.last_was_issued()  # which may wait for the device: no fault of the loader's, and so after the batch is in hand
        # it is ready; asked to order itself before a stream, it would make that wait for all that DALI has begun since
        images = torch.from_dlpack(supplied.images.as_tensor().__dlpack__(stream=-1))
        self._in_use.add(images)
        return self._graph.seen_as_nchw(images), supplied.labels.pin_memory().to(self._device, non_blocking=True)

    def loading(self) -> Loading | None:
        return self._arrivals.told()

    def worker_pids(self) -> list[int]:
        return []

    def close(self) -> None:
        self._in_use.wait()
        self._supply.close()
