"""The measurements of a diagnosis besides its trainings: nodes, loader, copies, storage."""

from __future__ import annotations

from functools import partial

import msgspec

from ddpbench.analysis.cpu_demand import all_cores_workers, scarcest_node
from ddpbench.bench.diagnose.context import DiagnosisContext, DiagnosisExperiment
from ddpbench.bench.diagnose.round_plans import MAX_REPLAY_FILL_WINDOWS, replay_batch_count
from ddpbench.bench.loader_bench import benchmark_loader
from ddpbench.data.datasets import image_folder
from ddpbench.data.device_copy import DeviceLoader
from ddpbench.data.loader import Loader
from ddpbench.data.preflight import check_loader
from ddpbench.distributed.bandwidth import measure_h2d_bandwidth
from ddpbench.distributed.collectives import run_on_all_ranks, run_on_rank_zero
from ddpbench.machine.host import check_free_memory
from ddpbench.machine.node_state import collect_node_state
from ddpbench.machine.storage import benchmark_storage
from ddpbench.record.diagnosis import H2DBandwidth, LoaderBenchmark, NodeState, Storage
from ddpbench.record.errors import ConfigFailed
from ddpbench.record.loaders import find_loader, loader_spec
from ddpbench.record.roles import SkipReason
from ddpbench.workloads import registry as workloads

BENCHMARK_WINDOWS = 3
"""Windows to benchmark a slow loader: for its first batches, until it runs evenly, and for the measurement."""


def benchmark_on_all_ranks(context: DiagnosisContext) -> list[LoaderBenchmark]:
    """One benchmark per rank. Also notes seconds per batch on the slowest rank, and keeps batches for the replay arm."""
    world = context.job_context.world

    def keep(loader: Loader, benchmark: LoaderBenchmark) -> None:
        context.loader_batch_s = world.all_max(benchmark.elapsed_s / len(benchmark.intervals_ms))
        if not isinstance(loader, DeviceLoader):
            return
        context.batch_bytes = loader.batch_bytes
        if batches := replay_batch_count(context):
            context.loader_factories.keep_for_replay(loader.host, world.device.torch_device, batches)

    return world.gather(benchmark_loader(context.loader_factories.with_new_file_order(context.config), world, context.window_s, keep))


def benchmark_on_one_rank(context: DiagnosisContext) -> LoaderBenchmark | None:
    """Rank 0's benchmark while the others idle; faster than with all ranks if their loaders compete."""
    world, config = context.job_context.world, context.loader_factories.with_new_file_order(context.config)
    return run_on_rank_zero(world, partial(benchmark_loader, config, world, context.window_s))


def _has_other_ranks(context: DiagnosisContext) -> bool:
    return context.job_context.world.size > 1


LOADER_ON_ALL_RANKS = DiagnosisExperiment(
    "loader_benchmarks", "benchmarking the loader", benchmark_on_all_ranks, 1.0, BENCHMARK_WINDOWS + MAX_REPLAY_FILL_WINDOWS
)
LOADER_ON_ONE_RANK = DiagnosisExperiment(
    "single_rank_loader_benchmark",
    "benchmarking the loader on one rank",
    benchmark_on_one_rank,
    1.0,
    BENCHMARK_WINDOWS,
    is_needed=_has_other_ranks,
)


def benchmark_with_all_cores(context: DiagnosisContext) -> list[LoaderBenchmark]:
    """One benchmark per rank, all at once, with a worker for every core. Raises ConfigFailed if memory is too small for them."""
    world, config = context.job_context.world, context.loader_factories.with_new_file_order(context.config)
    config = msgspec.structs.replace(config, workers=workers_for_all_cores(context))
    spec = workloads.find_workload(config.workload)
    run_on_all_ranks(world, partial(check_loader, config, spec.dataset, spec.classes, world.size))
    batches = world.rank_env.local_world_size * config.workers * config.prefetch
    run_on_all_ranks(world, partial(check_free_memory, "prefetched batches", batches * context.batch_bytes))
    benchmark = run_on_all_ranks(world, partial(benchmark_loader, config, world, context.window_s))
    return world.gather(msgspec.structs.replace(benchmark, workers=config.workers))


def workers_for_all_cores(context: DiagnosisContext) -> int | None:
    """Workers per rank for every core, alike on every rank.

    None if the run keeps the cores busy, or if its loader has no worker processes.
    """
    world, config = context.job_context.world, context.config
    if find_loader(config.loader).worker_type != "processes":
        return None
    node = scarcest_node(world.placements, config.workers, 1, config.cores)
    return all_cores_workers(node.usable_cores, node.ranks, node.workers)


LOADER_ON_ALL_CORES = DiagnosisExperiment(
    "all_cores_loader_benchmarks",
    "benchmarking the loader with a worker for every core",
    benchmark_with_all_cores,
    2.0,
    BENCHMARK_WINDOWS,
    is_needed=lambda context: workers_for_all_cores(context) is not None,
)


def measure_batch_copies(context: DiagnosisContext) -> H2DBandwidth | None:
    """Copies of batch-sized buffers to the device, on all ranks at once."""
    if not context.batch_bytes:
        raise ConfigFailed("the batch size in bytes is unknown: no batch was loaded in time")
    return measure_h2d_bandwidth(context.job_context.world, context.batch_bytes, context.config.batch_size)


def _why_no_copies(context: DiagnosisContext) -> SkipReason | None:
    if not context.job_context.world.device.is_cuda:
        return "cpu_ranks"
    return "batches_made_on_device" if find_loader(context.config.loader).on_device else None


H2D_COPIES = DiagnosisExperiment("h2d_bandwidth", "measuring host-to-device copies", measure_batch_copies, 2.0, skip_reason=_why_no_copies)


def measure_loader_stages(context: DiagnosisContext) -> dict[str, float] | None:
    """CPU seconds per image by stage, on rank 0 while the others wait; None on the others."""
    from ddpbench.data.loaders.dali.stage_costs import measure_stage_cpu_s  # imported here: requires DALI, which is optional

    world = context.job_context.world
    return run_on_rank_zero(world, partial(measure_stage_cpu_s, context.config, world.device.torch_device))


def _is_threaded(context: DiagnosisContext) -> bool:
    """Whether the loader uses threads; worker processes report their stages while they work."""
    return loader_spec(context.config.loader).uses_threads


LOADER_STAGES = DiagnosisExperiment("stage_cpu_s", "measuring the loader's stages", measure_loader_stages, 8.0, is_needed=_is_threaded)


STORAGE_BUDGET_S = 3.0


def measure_dataset_storage(context: DiagnosisContext) -> Storage | None:
    """Storage benchmark of rank 0's node while every rank waits. Evicts the files it reads; those cached before are cached again."""
    directory = context.config.data_dir
    assert directory, "_why_no_files checks it"
    return run_on_rank_zero(
        context.job_context.world,
        lambda: benchmark_storage(directory, image_folder.read_index(directory).files, _num_readers(context), STORAGE_BUDGET_S),
    )


def _num_readers(context: DiagnosisContext) -> int:
    """As many readers as the loaders of a node have workers."""
    return max(1, context.config.workers * context.job_context.world.rank_env.local_world_size)


def _why_no_files(context: DiagnosisContext) -> SkipReason | None:
    config, loader = context.config, find_loader(context.config.loader)
    if loader.user_defined:
        return "user_defined_loader"
    if workloads.find_workload(config.workload).dataset != "imagenet":
        return "dataset_in_memory"
    return None if loader.reads_dataset and config.data_dir else "no_image_folder"


STORAGE = DiagnosisExperiment(
    "storage", "measuring the storage", measure_dataset_storage, STORAGE_BUDGET_S + 1.0, skip_reason=_why_no_files
)


def collect_node_states(context: DiagnosisContext) -> list[NodeState]:
    """One state per node, collected by its first rank while the others wait."""
    world = context.job_context.world
    local_ranks = [placement for placement in world.placements if placement.host == world.placement.host]
    state = collect_node_state(local_ranks) if world.rank == local_ranks[0].rank else None
    return [node_state for node_state in world.gather(state) if node_state]


NODE_STATES = DiagnosisExperiment("node_states", "inspecting the nodes", collect_node_states, 1.0)
