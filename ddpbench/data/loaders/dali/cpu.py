"""The loader ``dali-cpu``: DALI reads, decodes and augments in CPU threads, without using a GPU."""

from __future__ import annotations

import torch

from ddpbench.data.datasets import image_folder
from ddpbench.data.datasets.image_folder import ImageFolderIndex
from ddpbench.data.loader import HostBatch
from ddpbench.data.loaders.dali.graph import DaliGraph, dali_layout
from ddpbench.data.loaders.dali.pipeline_pool import PipelinePool
from ddpbench.data.loaders.workers import SkippedFiles
from ddpbench.data.normalize import make_normalize
from ddpbench.data.shard import Shard
from ddpbench.record.config import ResolvedConfig


def open_dali_cpu(config: ResolvedConfig, shard: Shard) -> DaliCpuLoader:
    """Open the loader ``dali-cpu``.

    ``config.workers`` threads are divided among pipelines, each of which prefetches ``config.prefetch`` batches.
    """
    assert config.data_dir, "checked"
    return DaliCpuLoader(image_folder.read_index(config.data_dir), config, shard)


def cpu_graph(config: ResolvedConfig, device: torch.device) -> DaliGraph:
    """The graph for a rank on ``device``.

    For a GPU rank it ends in uint8, a quarter of the bytes to copy, and the GPU normalises; for a CPU rank it includes normalisation.
    """
    assert config.image_size, "image workloads have an image size"
    if device.type == "cuda":
        return DaliGraph(config.image_size, config.augment, "UINT8", "HWC")
    return DaliGraph(config.image_size, config.augment, "FLOAT", dali_layout(config))


class DaliCpuLoader:
    """Batches in host memory."""

    def __init__(self, tree: ImageFolderIndex, config: ResolvedConfig, shard: Shard) -> None:
        self.data = tree.describe("dali-cpu")
        graph = cpu_graph(config, shard.device)
        normalise = make_normalize("imagenet", config.image_size, config.channels_last, shard.device)
        self.device_transform = normalise if graph.dtype == "UINT8" else graph.to_nchw
        self._pool = PipelinePool(graph, tree, config, shard.rank, shard.world_size, SkippedFiles(config.skip_bad))
        self.max_prefetched = self._pool.max_prefetched
        self._pin = config.pin_memory and shard.device.type == "cuda"

    def next_batch(self) -> HostBatch:
        dali_batch = self._pool.next_batch()
        batch = HostBatch(torch.from_dlpack(dali_batch.images.as_tensor()), dali_batch.labels, dali_batch.worker_timing)
        return batch.pin_memory() if self._pin else batch

    def worker_pids(self) -> list[int]:
        return []

    def close(self) -> None:
        self._pool.close()
