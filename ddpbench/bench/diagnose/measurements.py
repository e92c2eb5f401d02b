"""The loader with nobody training, on all ranks at once and on one alone."""

from __future__ import annotations

from functools import partial

from ddpbench.bench.diagnose.briefs import MAX_REPLAY_FILL_WINDOWS, replay_batch_count
from ddpbench.bench.diagnose.scene import DiagnosisContext, DiagnosisExperiment
from ddpbench.bench.loader_bench import benchmark_loader
from ddpbench.bench.together import run_on_rank_zero
from ddpbench.data.device_loader import DeviceLoader
from ddpbench.data.loader import Loader
from ddpbench.record.diagnosis import LoaderBenchmark

BENCHMARK_WINDOWS = 3
"""What a loader that is not fast is looked at for: its first batches, the others until it runs evenly, and then."""


def benchmark_on_all_ranks(context: DiagnosisContext) -> list[LoaderBenchmark]:
    """One a rank. Notes how long a batch takes on the slowest, and keeps those to replay while the workers run anyway."""
    world = context.job_context.world

    def keep(loader: Loader, alone: LoaderBenchmark) -> None:
        context.loader_batch_s = world.all_max(alone.elapsed_s / len(alone.intervals_ms))
        if not isinstance(loader, DeviceLoader):
            return
        context.batch_bytes = loader.batch_bytes
        if batches := replay_batch_count(context):
            context.loader_factories.keep_for_replay(loader.host, world.device.torch_device, batches)

    return world.gather(benchmark_loader(context.loader_factories.with_new_file_order(context.config), world, context.window_s, keep))


def benchmark_on_one_rank(context: DiagnosisContext) -> LoaderBenchmark | None:
    """Rank 0's, with the others idle: it gives more than with all at once where they take from each other."""
    world, config = context.job_context.world, context.loader_factories.with_new_file_order(context.config)
    return run_on_rank_zero(world, partial(benchmark_loader, config, world, context.window_s))


def _has_other_ranks(context: DiagnosisContext) -> bool:
    return context.job_context.world.size > 1


LOADER_ON_ALL_RANKS = DiagnosisExperiment(
    "loader_benchmarks", "measuring the loader alone", benchmark_on_all_ranks, 1.0, BENCHMARK_WINDOWS + MAX_REPLAY_FILL_WINDOWS
)
LOADER_ON_ONE_RANK = DiagnosisExperiment(
    "single_rank_loader_benchmark",
    "measuring the loader on one rank alone",
    benchmark_on_one_rank,
    1.0,
    BENCHMARK_WINDOWS,
    is_needed=_has_other_ranks,
)
