"""CPU cost per stage of the DALI loaders.

It is the difference between pipelines that end after the first, second and last stage.
"""

from __future__ import annotations

from time import perf_counter, process_time, thread_time
from typing import get_args

import msgspec
import torch

from ddpbench.data.datasets import image_folder
from ddpbench.data.datasets.image_folder import ImageFolderIndex
from ddpbench.data.loaders.dali.cpu import cpu_graph
from ddpbench.data.loaders.dali.gpu import gpu_graph
from ddpbench.data.loaders.dali.graph import DaliGraph, Stage
from ddpbench.data.loaders.dali.pipeline_pool import PipelinePool
from ddpbench.data.loaders.workers import SkippedFiles
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.loaders import loader_spec

DALI_STAGES: tuple[Stage, ...] = get_args(Stage)


def measure_stage_cpu_s(config: ResolvedConfig, device: torch.device, seconds: float = 4.0) -> dict[str, float]:
    """CPU seconds per image of DALI's threads, by stage.

    Measures the loader of ``config`` on ``device``. Takes about ``seconds``. Files are mapped into memory, so the first access to a page
    counts as decode; only the cropped part is decoded. For ``dali-gpu`` these are the host's costs of preparing and issuing GPU work. The
    pipelines take turns, and each works on one batch at a time, so that no work of another turn and no prefetched work is counted.
    """
    assert config.data_dir, "checked"
    tree = image_folder.read_index(config.data_dir)
    graph = gpu_graph(config, tree.files, device) if config.loader == "dali-gpu" else cpu_graph(config, device)
    batches, spent_s = _measure_interleaved(graph, tree, config, seconds)
    costs: dict[str, float] = {}
    previous_s = 0.0
    for stage in DALI_STAGES:
        total_s = spent_s[stage] / (batches * config.batch_size)
        costs[stage], previous_s = max(0.0, total_s - previous_s), total_s
    return costs


def _measure_interleaved(
    graph: DaliGraph, tree: ImageFolderIndex, config: ResolvedConfig, seconds: float
) -> tuple[int, dict[Stage, float]]:
    """Number of batches per pipeline, and their CPU seconds by last stage.

    Each pipeline has the threads of one pipeline of the loader: fewer threads would wait less for each other, which costs CPU time, too.
    """
    one_batch_config = msgspec.structs.replace(config, prefetch=1, workers=loader_spec(config.loader).thread_group_sizes(config.workers)[0])
    skipped = SkippedFiles(len(tree.files))  # shared, because all pipelines meet the same files: those that training skipped, on any rank
    pools = {
        stage: PipelinePool(graph, tree, one_batch_config, rank=0, world_size=1, skipped=skipped, last_stage=stage) for stage in DALI_STAGES
    }
    spent_s = dict.fromkeys(DALI_STAGES, 0.0)
    batches = 0
    try:
        for pool in pools.values():
            pool.next_batch()  # the first batch allocates memory for the later ones
        end = perf_counter() + seconds
        while not batches or perf_counter() < end:
            for stage, pool in pools.items():
                before = _other_threads_s()
                pool.next_batch()
                spent_s[stage] += _other_threads_s() - before
            batches += 1
    finally:
        for pool in pools.values():
            pool.close()
    return batches, spent_s


def _other_threads_s() -> float:
    """CPU seconds so far of all threads but the calling one, which only passes file names."""
    return process_time() - thread_time()
