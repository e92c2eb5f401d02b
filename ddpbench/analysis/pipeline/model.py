"""Model of the data pipeline: the rates of workers, cores and storage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, fsum, inf
from typing import NamedTuple

from ddpbench.analysis.collective_wait import exposed_comm_ms
from ddpbench.analysis.controls import WorkersTrial, step_s
from ddpbench.analysis.cpu_demand import all_cores_workers, cpu_demand
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.node_cpu_usage import NodeCpuUsage, busiest_node
from ddpbench.analysis.pipeline import rates
from ddpbench.analysis.pipeline.costs import LoaderCost, loader_cost, loader_cost_of_run, loader_costs_of_ranks, sampler_batch_s
from ddpbench.analysis.summary import compute_phases_ms, samples_per_step
from ddpbench.record.diagnosis import Diagnosis, LoaderBenchmark
from ddpbench.record.loader_stats import LoaderStats
from ddpbench.record.record import Record
from ddpbench.record.trace import Trace

MAX_WORKERS_PER_CORE = 16
"""Upper limit on predicted workers per core; each is a process with its own copy of the program in memory."""

MIN_WAIT_MS = 1.0
"""Minimum time to get a batch that counts as a wait, as in ``data/batch_timing.py``; the loader reports the handoff over waits only."""


@dataclass(frozen=True)
class BenchmarkGain:
    """Of a loader benchmark with ``workers`` per rank: its throughput as a multiple of that with those of the run."""

    workers: int
    gain: float


@dataclass(frozen=True)
class PipelineModel:
    """One rank on the node where cores are scarcest. Rates are images/s per rank."""

    ranks_per_node: int
    workers: int  # per rank
    pins_itself: bool  # the trainer process copies batches to page-locked memory
    usable_cores: float  # of that node
    trainer_cores: int  # cores that the trainer processes of the node need
    device_rate: float  # training on batches that are already on the device
    achieved_rate: float  # of the run
    cost: LoaderCost | None  # mean over all ranks
    all_cores_factor: float  # CPU time per image with all cores busy, relative to ``cost``; 1 if it was not measured
    rank_costs: Sequence[LoaderCost]  # of each rank that reports it
    main_process_cpu_s: float  # CPU seconds per image in the trainer process to receive it from a worker; 0 if unknown
    training_cpu_s: float  # CPU seconds per image to train on it, if these cores do that; 0 with a GPU
    cpu_usage: NodeCpuUsage | None
    data_wait_fraction: float  # fraction of a step
    sampler_fraction: float | None  # fraction of the wait for a batch in which the trainer draws indices
    sampler_batch_s: float  # for the indices of a batch; 0 if unknown
    handoff_fraction: float | None  # fraction of the wait for a batch after its worker has finished it
    head_of_line_fraction: float | None  # fraction of the wait for data in which a later batch was ready
    measured_loader_rate: float | None  # from the loader benchmark, the slowest rank
    resident_rate: float | None  # of the data on the device, without training; None if they cannot be there
    storage_rate: float | None
    single_rank_speedup: float | None  # loader rate with one rank loading, over its rate with all ranks loading
    more_workers: WorkersTrial | None  # what more workers gained in a trial
    benchmark_gain: BenchmarkGain | None  # what more workers gained in a loader benchmark

    @property
    def sample_cpu_s(self) -> float | None:
        """CPU seconds to load an image in the run."""
        return self.cost.cpu_s + (self.main_process_cpu_s if self.workers else 0.0) if self.cost else None

    @property
    def all_cores_sample_cpu_s(self) -> float | None:
        """CPU seconds to load an image in a worker while all cores are busy."""
        return self.all_cores_factor * self.cost.cpu_s + self.main_process_cpu_s if self.cost else None

    def all_cores_worker_sample_s(self, cost: LoaderCost) -> float:
        """Wall seconds per image in a worker with ``cost``, while all cores are busy with other images."""
        return self._worker_sample_s(cost) + (self.all_cores_factor - 1) * cost.cpu_s

    def rate_from_cores(self, sample_cpu_s: float) -> float | None:
        """Images/s that the cores load at ``sample_cpu_s`` each.

        None if the trainers leave no cores, so that loading and training take turns.
        """
        if self.training_cpu_s:
            return rates.shared_core_rate(self.usable_cores, self.ranks_per_node, sample_cpu_s, self.training_cpu_s)
        return rates.core_rate(self.usable_cores, self.trainer_cores, self.ranks_per_node, sample_cpu_s) or None

    @property
    def core_bound_rate(self) -> float | None:
        """Rate of the cores.

        It is at least what the run reached, since its trainers may need fewer cores than assumed.
        """
        rate = self.rate_from_cores(self.all_cores_sample_cpu_s) if self.all_cores_sample_cpu_s else None
        return rate and max(rate, self.achieved_rate)

    @property
    def rate_per_core(self) -> float | None:
        """Images/s that one more core for each rank would load, as long as nothing else is the limit."""
        return 1 / (self.all_cores_sample_cpu_s + self.training_cpu_s) if self.all_cores_sample_cpu_s else None

    @property
    def loader_rate(self) -> float | None:
        """Images/s of the loader without training: as measured, else from the cores."""
        return self.measured_loader_rate or (
            rates.core_rate(self.usable_cores, 0, self.ranks_per_node, self.all_cores_sample_cpu_s) if self.all_cores_sample_cpu_s else None
        )

    @property
    def worker_sample_s(self) -> float | None:
        """Wall seconds per image in a worker.

        Excludes the wait for a core if the cores were contended.
        """
        return self._worker_sample_s(self.cost) if self.cost else None

    def _worker_sample_s(self, cost: LoaderCost) -> float:
        return cost.uncontended_wall_s() if self.is_contended else cost.wall_s

    @property
    def worker_bound_rate(self) -> float | None:
        """Images/s per rank with all workers busy; without workers, the rate of the run. None if the time per image is unknown."""
        if not self.workers or not self.worker_sample_s:
            return self.achieved_rate if self.worker_sample_s else None  # the trainer alternates between loading and training
        return rates.worker_rate(self.workers, self.worker_sample_s)

    @property
    def is_contended(self) -> bool:
        """Whether the cores have no time for more work; judged by their number if their usage is unknown.

        False for mostly blocked workers: they hardly need a core, and find one on the busiest machine.
        """
        if self.cost is not None and self.cost.is_mostly_blocked:
            return False
        if self.cpu_usage is not None:
            return self.cpu_usage.is_saturated
        return self.ranks_per_node * self.workers + self.trainer_cores >= self.usable_cores

    @property
    def worker_busy_fraction(self) -> float | None:
        """Fraction of time in which the workers load batches.

        Near 1 the workers are the bottleneck.
        """
        if self.cost is None or not self.workers:
            return None
        return min(1.0, self.achieved_rate * self.cost.wall_s / self.workers)

    @property
    def worker_cores(self) -> float | None:
        """Cores of the node that the workers keep busy."""
        return self.ranks_per_node * self.achieved_rate * self.cost.cpu_s if self.cost else None

    @property
    def max_rate(self) -> float:
        """Rate of the device, or of the handoff in the trainer process if that is lower.

        Workers and cores do not change it.
        """
        return min(self.device_rate, rates.trainer_rate(self.main_process_cpu_s))

    @property
    def is_handoff_bound(self) -> bool:
        """Whether the handoff in the trainer process is slower than the device."""
        return self.max_rate < self.device_rate

    @property
    def workers_needed(self) -> int | None:
        """Workers per rank that sustain ``max_rate`` on the slowest rank; None if unknown."""
        costs = self.rank_costs or ([self.cost] if self.cost else [])
        slowest_s = max(map(self.all_cores_worker_sample_s, costs), default=None)
        return rates.workers_needed(slowest_s, self.max_rate) if slowest_s else None

    @property
    def max_useful_workers(self) -> int | None:
        """Workers per rank that keep the cores busy.

        More would only take turns, or hundreds of them would wait and fill memory.
        """
        if self.cost is None or self.core_bound_rate is None:
            return None
        busy = round(self.all_cores_worker_sample_s(self.cost) * self.core_bound_rate)
        return max(1, min(busy, int(MAX_WORKERS_PER_CORE * self.usable_cores / self.ranks_per_node)))

    @property
    def recommended_workers(self) -> int | None:
        """Predicted worker count: ``workers_needed``, or ``max_useful_workers`` if these are fewer; None if either is unknown.

        None, too, if the trainer loads its batches faster itself than it could receive them from workers.
        """
        if self.workers_needed is None or self.max_useful_workers is None or (not self.workers and self.max_rate <= self.achieved_rate):
            return None
        return min(self.workers_needed, self.max_useful_workers)

    @property
    def cores_needed(self) -> float | None:
        """Cores per rank that sustain ``max_rate``, those of the trainer included."""
        if self.all_cores_sample_cpu_s is None:
            return None
        return rates.cores_needed(self.all_cores_sample_cpu_s, self.max_rate, self.trainer_cores, self.ranks_per_node)

    @property
    def whole_cores_needed(self) -> float | None:
        """``cores_needed``, with the node total rounded up to whole cores.

        17 cores are 2.125 for each of eight ranks.
        """
        return ceil(self.ranks_per_node * self.cores_needed) / self.ranks_per_node if self.cores_needed else None


@lru_cache(maxsize=8)  # every rule about a run asks for it
def pipeline_model(inputs: AnalysisInput) -> PipelineModel:
    """The model of a run, from its record and, if it was diagnosed, from its control runs and loader benchmarks."""
    record, diagnosis, node = inputs.record, inputs.controls.diagnosis, cpu_demand(inputs.record)
    batch, compute_only = samples_per_step(record), inputs.controls.compute_only
    compute_s = fsum(compute_phases_ms(record, inputs.summary)) / 1000
    measured_s, comm_ms = step_s(inputs.controls.compute_only), exposed_comm_ms(record.rounds) if record.uses_ddp else 0.0
    device_s = measured_s or compute_s + comm_ms / 1000
    on_cpu, cost = record.environment.device_type == "cpu", loader_cost_of_run(record, diagnosis)
    return PipelineModel(
        ranks_per_node=node.ranks,
        workers=node.workers,
        pins_itself=not node.workers and record.config.pin_memory and not on_cpu,
        usable_cores=node.usable_cores,
        trainer_cores=node.trainer_cores,
        device_rate=rates.step_rate(samples_per_step(compute_only) if compute_only and measured_s else batch, device_s),
        achieved_rate=rates.step_rate(batch, inputs.step_ms / 1000),
        cost=cost,
        all_cores_factor=_all_cores_factor(diagnosis, cost),
        rank_costs=loader_costs_of_ranks(record, diagnosis),
        main_process_cpu_s=_main_process_cpu_s(diagnosis, has_workers=bool(node.workers)),
        training_cpu_s=node.threads_per_rank * (measured_s or compute_s) / batch if on_cpu else 0.0,
        cpu_usage=busiest_node(record),
        data_wait_fraction=inputs.data_wait_ms / inputs.step_ms,
        sampler_fraction=_fraction_of_waits(record, lambda stats, _: stats.sampler_s and 1000 * stats.sampler_s),
        sampler_batch_s=sampler_batch_s(record),
        handoff_fraction=_handoff_fraction(record),
        head_of_line_fraction=_head_of_line_fraction(record),
        measured_loader_rate=slowest_rate(diagnosis.loader_benchmarks) if diagnosis else None,
        single_rank_speedup=_single_rank_speedup(diagnosis),
        resident_rate=slowest_rate(diagnosis.resident_loader_benchmarks) if diagnosis else None,
        storage_rate=_storage_rate(diagnosis, node.ranks),
        more_workers=inputs.controls.more_workers,
        benchmark_gain=_benchmark_gain(diagnosis, node.workers),
    )


def more_workers_to_benchmark(usable_cores: float, ranks: int, workers: int, cost: LoaderCost | None, keep_up: float) -> int | None:
    """Workers per rank of a second loader benchmark, which shows what more than ``workers`` cost; None if the run shows it itself.

    One for every core of a node with ``ranks`` or, if those with ``cost`` mostly wait for something else, as many as ``keep_up`` with the
    steps: nothing but such a benchmark shows whether they share what they wait for.
    """
    for_cores = all_cores_workers(usable_cores, ranks, workers)
    if cost is None or not cost.is_mostly_blocked:
        return for_cores
    needed = min(ceil(keep_up), int(MAX_WORKERS_PER_CORE * usable_cores / ranks))
    return needed if needed > workers else for_cores


def slowest_rate(benchmarks: Sequence[LoaderBenchmark]) -> float | None:
    """Images/s of the slowest rank."""
    return min((each.samples_per_s for each in benchmarks), default=None)


def _all_cores_factor(diagnosis: Diagnosis | None, cost: LoaderCost | None) -> float:
    """CPU time per image with more workers, relative to ``cost``, at least 1; 1 if unknown."""
    busy = loader_cost(each.loader_stats for each in diagnosis.all_cores_loader_benchmarks) if diagnosis else None
    return max(1.0, busy.cpu_s / cost.cpu_s) if busy and cost and cost.cpu_s else 1.0


def _main_process_cpu_s(diagnosis: Diagnosis | None, has_workers: bool) -> float:
    """Measured with the loader of the run; of one without workers, with a worker for every core."""
    if diagnosis is None:
        return 0.0
    benchmarks = diagnosis.loader_benchmarks if has_workers else diagnosis.all_cores_loader_benchmarks
    return fsum(each.main_process_cpu_s for each in benchmarks) / sum(each.samples for each in benchmarks) if benchmarks else 0.0


def _handoff_fraction(record: Record) -> float | None:
    """Fraction of the waits for batches after their workers have finished them; None if unknown."""
    return _fraction_of_waits(record, lambda stats, waits: stats.handoff_ms and stats.handoff_ms * waits.number)


def _head_of_line_fraction(record: Record) -> float | None:
    """Fraction of the waits for batches in which a later one was ready; None if unknown."""
    return _fraction_of_waits(record, lambda stats, waits: stats.head_of_line_fraction and stats.head_of_line_fraction * waits.total_ms)


class _Waits(NamedTuple):
    number: int
    total_ms: float


def _fraction_of_waits(record: Record, part_ms: Callable[[LoaderStats, _Waits], float | None]) -> float | None:
    """The sum of ``part_ms`` over all traces, relative to their waits for batches."""
    found_ms, waited_ms = 0.0, 0.0
    for trace in record.traces:
        waits = _waits(trace)
        if waits.number and trace.loader_stats and (part := part_ms(trace.loader_stats, waits)) is not None:
            found_ms += part
            waited_ms += waits.total_ms
    return found_ms / waited_ms if waited_ms else None


def _waits(trace: Trace) -> _Waits:
    """All waits for batches, as the loader reports them, else those of the steps that the trace keeps."""
    stats = trace.loader_stats
    if stats and stats.num_waits is not None and stats.waited_ms is not None:
        return _Waits(stats.num_waits, stats.waited_ms)
    waits_ms = [wait for wait in trace.host_data_ms if wait > MIN_WAIT_MS]
    return _Waits(len(waits_ms), fsum(waits_ms))


def _storage_rate(diagnosis: Diagnosis | None, ranks: int) -> float | None:
    storage = diagnosis.storage if diagnosis else None
    if storage is None or storage.cached_fraction is None:
        return None
    return rates.storage_rate(ranks, storage.cached_fraction, storage.warm_files_per_s, storage.cold_files_per_s)


def _benchmark_gain(diagnosis: Diagnosis | None, workers: int) -> BenchmarkGain | None:
    if diagnosis is None or not (diagnosis.all_cores_loader_benchmarks and diagnosis.loader_benchmarks):
        return None
    own, more = slowest_rate(diagnosis.loader_benchmarks), slowest_rate(diagnosis.all_cores_loader_benchmarks)
    number = diagnosis.all_cores_loader_benchmarks[0].workers or 0
    return BenchmarkGain(number, more / own) if own and more and number > workers else None


def _single_rank_speedup(diagnosis: Diagnosis | None) -> float | None:
    if diagnosis is None or diagnosis.single_rank_loader_benchmark is None or not diagnosis.loader_benchmarks:
        return None
    concurrent = next(each for each in diagnosis.loader_benchmarks if each.rank == diagnosis.single_rank_loader_benchmark.rank)
    return diagnosis.single_rank_loader_benchmark.samples_per_s / concurrent.samples_per_s


@dataclass(frozen=True)
class WorkerStartup:
    """Seconds until the first batch, and length of an epoch that includes it."""

    first_batch_s: float
    epoch_s: float

    @property
    def epoch_fraction(self) -> float:
        """Upper bound of the fraction of an epoch that starting the workers takes.

        Part of ``first_batch_s`` is no start-up: running workers, too, take time to deliver a batch.
        """
        return min(1.0, self.first_batch_s / self.epoch_s)

    @property
    def max_gain(self) -> float:
        """Upper bound of the speedup of an epoch without the start of its workers."""
        return 1 / (1 - self.epoch_fraction) if self.epoch_fraction < 1 else inf


def worker_startup(record: Record, pipeline: PipelineModel, diagnosis: Diagnosis) -> WorkerStartup | None:
    """Return the start-up cost of the workers, or None.

    None without workers, or if images or first batches were not counted. If the loader respawns its workers, the epoch time already
    includes their start.
    """
    data, first_s = record.data, max((each.first_batch_s for each in diagnosis.loader_benchmarks), default=None)
    if data is None or not data.num_samples or first_s is None or not pipeline.workers:
        return None
    first_s, epoch_s = max(0.0, first_s - data.setup_s), data.num_samples / (record.world_size * pipeline.achieved_rate)
    return WorkerStartup(first_s, epoch_s if data.respawns_workers else first_s + epoch_s)
