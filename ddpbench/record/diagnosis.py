"""Data-pipeline measurements of ``ddpbench diagnose``, in addition to the records of its arms."""

from __future__ import annotations

import msgspec

from ddpbench.record.loader_stats import CpuUsage, LoaderStats
from ddpbench.record.prediction import Prediction
from ddpbench.record.ranges import Amount, AtLeastOne, Count, Difference, Elapsed, Fraction, Milliseconds, NonZero, Seconds

SHM_DIR = "/dev/shm"
"""The in-memory file system through which loader workers pass batches."""

COMPUTE_ONLY, INDEPENDENT, REPLAY, LOADER_IN_BACKGROUND, BASELINE = (
    "device alone",
    "no gradient sync",
    "replay",
    "beside the loader",
    "as asked",
)
BASELINE_REPEAT, TRIAL_PREFIX = "as asked, again", "tried: "
"""Labels of a diagnosis' arms.

device alone       batches are already on the device: the compute-only throughput
no gradient sync   the same, but ranks never synchronise gradients
replay             real batches in pinned host memory, copied every step
beside the loader  batches are on the device, while the loader runs and its batches are discarded
as asked           the baseline: the requested configuration
as asked, again    the baseline repeated, interleaved with trials of remedies, each labelled "tried: " and its flags
"""


class LoaderBenchmark(msgspec.Struct, frozen=True, kw_only=True):
    """Loader benchmark of one rank, without training."""

    rank: Count
    elapsed_s: Elapsed = msgspec.field(name="seconds")
    images: AtLeastOne
    intervals_ms: list[Milliseconds]  # between one batch and the next
    first_batch_s: Seconds  # since the loader was opened
    loader_cpu_s: Difference = msgspec.field(name="cpu_s")  # of the workers, and of loader threads in the trainer process
    main_process_cpu_s: Difference = msgspec.field(name="main_cpu_s")  # of the rest of the trainer process
    workers_rss_bytes: Count | None = msgspec.field(name="memory_bytes")  # resident memory of the workers
    loader_stats: LoaderStats | None = msgspec.field(default=None, name="loading")
    cpu_usage: CpuUsage | None = msgspec.field(default=None, name="cores")

    @property
    def images_per_s(self) -> float:
        return self.images / self.elapsed_s


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a dataset, and how fast a node reads them. Rates are files/s per node, None if not measured."""

    path: str
    file_system: str  # "ext4", "nfs4", "tmpfs"
    num_files: Count = msgspec.field(name="files")
    bytes_per_file: Amount
    cached_fraction: Fraction | None = msgspec.field(name="resident")  # fraction of the sampled bytes that was in the page cache
    warm_files_per_s: NonZero | None = msgspec.field(name="warm")
    cold_files_per_s: NonZero | None = msgspec.field(name="cold")
    cold_unavailable_reason: str = msgspec.field(default="", name="cold_why")  # why there is no cold rate
    verified: bool = msgspec.field(default=False, name="proved")  # the kernel's I/O counters confirm that cold reads came from storage


class H2DBandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """Host-to-device bandwidth of one rank in bytes/s, all ranks copying at once; the minimum over ranks."""

    pinned_bytes_per_s: NonZero = msgspec.field(name="pinned")
    pageable_bytes_per_s: NonZero = msgspec.field(name="pageable")
    bytes_per_image: NonZero  # as transferred


class RankNumaNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The NUMA nodes of one rank's cores and GPU; empty if unknown."""

    rank: Count
    core_nodes: list[Count] = msgspec.field(default=[], name="cores")
    gpu_nodes: list[Count] = msgspec.field(default=[], name="gpu")


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """One node: the resources that the job may use, and the load from other processes."""

    host: str
    affinity_cores: AtLeastOne = msgspec.field(name="affinity")
    cpu_quota_cores: NonZero | None = msgspec.field(name="quota")  # cores: the minimum over the cgroup and its ancestors
    slurm_cores: AtLeastOne | None = msgspec.field(name="slurm")
    numa: list[RankNumaNodes] = []
    shm_free_bytes: Count | None = None
    usable_memory_bytes: Count | None = msgspec.field(default=None, name="memory_bytes")
    other_busy_cores: Amount | None = msgspec.field(
        default=None, name="others_cores"
    )  # cores that processes outside the job keep busy, before the job runs


class AlternativeLoader(msgspec.Struct, frozen=True, kw_only=True):
    """Benchmark of another loader on the same files and worker count, on all ranks at once.

    Or of the same loader with another ``hw_decoder_load``.
    """

    loader: str
    workers: Count
    hw_decoder_load: Fraction | None = None
    loader_benchmarks: list[LoaderBenchmark] = msgspec.field(name="alone")
    background_step_ms: list[Milliseconds] = msgspec.field(
        default=[], name="step_ms"
    )  # step times of training on batches already on the device while this loader runs; empty if not measured
    delivery_ratio: Amount | None = msgspec.field(
        default=None, name="kept_up"
    )  # images loaded per image trained on meanwhile; 1 if the loader keeps up


class Diagnosis(msgspec.Struct, kw_only=True):
    """All measurements of a diagnosis outside its training arms."""

    loader: str
    node_states: list[NodeState] = msgspec.field(default=[], name="surroundings")  # one per node
    loader_benchmarks: list[LoaderBenchmark] = msgspec.field(default=[], name="alone")  # one per rank, all ranks at once
    single_rank_loader_benchmark: LoaderBenchmark | None = msgspec.field(default=None, name="alone_single")  # rank 0 while the others idle
    stage_cpu_s: dict[str, Seconds] = msgspec.field(
        default={}, name="stages"
    )  # CPU seconds per image by stage, if measured separately from the loader (DALI)
    storage: Storage | None = None
    h2d_bandwidth: H2DBandwidth | None = msgspec.field(default=None, name="copies")
    alternative_loaders: list[AlternativeLoader] = msgspec.field(default=[], name="candidates")
    predictions: list[Prediction] = []  # recorded before any of them is tried
    skip_reasons: dict[str, str] = msgspec.field(default={}, name="left_out")  # experiment -> why it was skipped
