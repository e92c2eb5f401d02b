"""Data-pipeline measurements of ``ddpbench diagnose``, in addition to the records of its arms."""

from __future__ import annotations

from typing import Literal

import msgspec

from ddpbench.record.loader_stats import CpuUsage, LoaderStats
from ddpbench.record.prediction import Prediction
from ddpbench.record.private import EntryName, Folder, HostName
from ddpbench.record.ranges import Amount, AtLeastOne, Count, Difference, Elapsed, Fraction, Milliseconds, NonZero, Seconds
from ddpbench.record.remedy import Advice, AnyRemedy
from ddpbench.record.roles import SkippedMeasurement
from ddpbench.record.screening import Screening
from ddpbench.record.script_diff import ScriptDiff

SHM_DIR = "/dev/shm"
"""The in-memory file system through which loader workers pass batches."""


class LoaderBenchmark(msgspec.Struct, frozen=True, kw_only=True):
    """Loader benchmark of one rank, without training."""

    rank: Count
    elapsed_s: Elapsed
    samples: AtLeastOne
    intervals_ms: list[Milliseconds]  # between one batch and the next
    first_batch_s: Seconds  # since the loader was opened
    loader_cpu_s: Difference  # of the workers, and of loader threads in the trainer process
    main_process_cpu_s: Difference  # of the rest of the trainer process
    workers_rss_bytes: Count | None  # resident memory of the workers
    loader_stats: LoaderStats | None = None
    cpu_usage: CpuUsage | None = None
    workers: Count | None = None  # per rank; None if those of the run

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.elapsed_s


NoColdRateReason = Literal[
    "in_memory",  # the file system keeps its files in memory
    "own_cache",  # the file system has its own cache, which cannot be evicted
    "no_time",  # no file of the sample could be read in time
    "unreadable",
    "not_evicted",  # files stayed in the page cache: another process holds them
    "unknown_residency",  # the same, or the kernel does not report which pages are cached
]
"""Why there is no rate of cold reads."""


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a dataset, and how fast a node reads them. Rates are files/s per node, None if not measured."""

    path: Folder
    file_system: str  # "ext4", "nfs4", "tmpfs"
    num_files: Count
    bytes_per_file: Amount
    cached_fraction: Fraction | None  # fraction of the sampled bytes that was in the page cache
    warm_files_per_s: NonZero | None
    cold_files_per_s: NonZero | None
    no_cold_rate_reason: NoColdRateReason | None = None
    cached_after_fraction: Fraction | None = None  # fraction of the sample that could not be evicted; None unless that is the reason
    verified: bool = False  # the kernel's I/O counters confirm that cold reads came from storage


class H2DBandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """Host-to-device bandwidth of one rank in bytes/s, all ranks copying at once; the minimum over ranks."""

    pinned_bytes_per_s: NonZero
    pageable_bytes_per_s: NonZero
    bytes_per_sample: NonZero  # as transferred


class DeviceDecoding(msgspec.Struct, frozen=True, kw_only=True):
    """JPEG files of the dataset that one GPU has decoded and resized, all ranks at once; of the slowest rank."""

    images: AtLeastOne
    elapsed_s: Elapsed

    @property
    def images_per_s(self) -> float:
        return self.images / self.elapsed_s


class PixelDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How much pixels of the same crops, from 0 to 255, differ between the GPU's decoder and the script's own."""

    images: AtLeastOne
    mean: Amount
    max: Amount


class RankNumaNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The NUMA nodes of one rank's cores and GPU; empty if unknown."""

    rank: Count
    core_nodes: list[Count] = []
    gpu_nodes: list[Count] = []


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """One node: the resources that the job may use, and the load from other processes."""

    host: HostName
    affinity_cores: AtLeastOne
    cpu_quota_cores: NonZero | None  # cores: the minimum over the cgroup and its ancestors
    slurm_cores: AtLeastOne | None
    numa: list[RankNumaNodes] = []
    shm_free_bytes: Count | None = None
    usable_memory_bytes: Count | None = None
    other_busy_cores: Amount | None = None  # cores that processes outside the job keep busy, before the job runs


class WorkerMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Room for workers of a DataLoader in place of those that a script has, and their need; bytes of all ranks of a node."""

    batch_bytes: Count
    worker_bytes: Count = 0  # of a worker, besides its batches; 0 if unknown
    shm_bytes: Count | None = None  # that batches may take in ``SHM_DIR``; None without one
    memory_bytes: Count  # that workers and their batches may take


class AlternativeLoader(msgspec.Struct, frozen=True, kw_only=True):
    """Benchmark of another loader on the same files and worker count, on all ranks at once.

    Or of the same loader with another ``hw_decoder_load``.
    """

    loader: EntryName
    workers: Count
    hw_decoder_load: Fraction | None = None
    loader_benchmarks: list[LoaderBenchmark]
    background_step_ms: list[
        Milliseconds
    ] = []  # step times of training on batches already on the device while this loader runs; empty if not measured
    delivery_ratio: Amount | None = None  # images loaded per image trained on meanwhile; 1 if the loader keeps up


class Diagnosis(msgspec.Struct, kw_only=True):
    """All measurements of a diagnosis outside its training arms."""

    loader: EntryName
    node_states: list[NodeState] = []  # one per node
    loader_benchmarks: list[LoaderBenchmark] = []  # one per rank, all ranks at once
    single_rank_loader_benchmark: LoaderBenchmark | None = None  # rank 0 while the others idle
    all_cores_loader_benchmarks: list[LoaderBenchmark] = []  # one per rank, all ranks at once, with a worker for every core, or more
    resident_loader_benchmarks: list[LoaderBenchmark] = []  # one per rank, all ranks at once, of the script's data on the device
    gpu_decoding_benchmarks: list[LoaderBenchmark] = []  # one per rank, all ranks at once, of the script's images decoded on its GPU
    pixel_difference: PixelDifference | None = None  # of those, on rank 0
    worker_memory: WorkerMemory | None = None  # of rank 0's node; of a script only
    stage_cpu_s: dict[str, Seconds] = {}  # CPU seconds per image by stage, if measured separately from the loader (DALI)
    storage: Storage | None = None
    h2d_bandwidth: H2DBandwidth | None = None
    device_decoding: DeviceDecoding | None = None
    alternative_loaders: list[AlternativeLoader] = []
    predictions: list[Prediction] = []  # recorded before any of them is tried
    screening: Screening | None = None  # of a script whose computing was tried with other settings
    remedies: list[AnyRemedy] | None = None  # those that were tried first, then by gain; None until they are judged
    advice: Advice | None = None  # None until something has been tried, unless nothing can be
    diff: ScriptDiff | None = None  # of a script, that does what ``advice`` says
    compile_diff: ScriptDiff | None = None  # the same, and the model compiled, which only fresh launches can try; None where it may not be
    skipped: list[SkippedMeasurement] = []
