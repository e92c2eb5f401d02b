"""The loader ``dali-cpu``: DALI reads, decodes and augments in threads on the CPU, without touching a GPU."""

from __future__ import annotations

import torch

from ddpbench.data.datasets import image_folder
from ddpbench.data.datasets.image_folder import ImageTree
from ddpbench.data.loader import HostBatch
from ddpbench.data.loaders.dali.graph import Graph, layout_of
from ddpbench.data.loaders.dali.supply import Supply
from ddpbench.data.loaders.skipped_files import LeftOut
from ddpbench.data.normalize import finisher
from ddpbench.data.shard import Shard
from ddpbench.record.resolved import Settled


def open_dali_cpu(config: Settled, shard: Shard) -> DaliCpu:
    """``config.workers`` threads, shared out over pipelines of which each keeps ``config.prefetch`` batches ready."""
    assert config.data_dir, "checked"
    return DaliCpu(image_folder.read(config.data_dir), config, shard)


def cpu_graph(config: Settled, device: torch.device) -> Graph:
    """For a GPU rank it ends at uint8, a quarter of the bytes on the wire, which are normalised there; for a CPU rank it does all."""
    assert config.image_size, "images have a size"
    if device.type == "cuda":
        return Graph(config.image_size, config.augment, "UINT8", "HWC")
    return Graph(config.image_size, config.augment, "FLOAT", layout_of(config))


class DaliCpu:
    """Batches in host memory."""

    def __init__(self, tree: ImageTree, config: Settled, shard: Shard) -> None:
        self.data = tree.data("dali-cpu")
        graph = cpu_graph(config, shard.device)
        normalise = finisher("imagenet", config.image_size, config.channels_last, shard.device)
        self.finish = normalise if graph.dtype == "UINT8" else graph.seen_as_nchw
        self._supply = Supply(graph, tree, config, shard.rank, shard.world_size, LeftOut(config.skip_bad))
        self.in_flight = self._supply.in_flight
        self._pin = config.pin_memory and shard.device.type == "cuda"

    def next_batch(self) -> HostBatch:
        supplied = self._supply.next()
        batch = HostBatch(torch.from_dlpack(supplied.images.as_tensor()), supplied.labels, supplied.sheet)
        return batch.pin_memory() if self._pin else batch

    def worker_pids(self) -> list[int]:
        return []

    def close(self) -> None:
        self._supply.close()
