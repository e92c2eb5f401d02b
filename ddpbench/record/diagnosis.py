"""What the experiments around a training found out about its data pipeline, beside the trainings' own records."""

from __future__ import annotations

import msgspec

from ddpbench.record.loader_stats import CpuUsage, LoaderStats
from ddpbench.record.prediction import Prediction
from ddpbench.record.ranges import Amount, AtLeastOne, Count, Difference, Elapsed, Fraction, Milliseconds, NonZero, Seconds

SHM_DIR = "/dev/shm"
"""A file system that is memory, where loader workers hand batches over."""

COMPUTE_ONLY, INDEPENDENT, REPLAY, LOADER_IN_BACKGROUND, BASELINE = (
    "device alone",
    "no gradient sync",
    "replay",
    "beside the loader",
    "as asked",
)
BASELINE_REPEAT, TRIAL_PREFIX = "as asked, again", "tried: "
"""The labels of a diagnosis' trainings.

device alone       batches lie on the device: what the device can do
no gradient sync   the same, every rank for itself
replay             real batches in pinned host memory, copied every step
beside the loader  batches lie on the device, while the loader runs and its batches are dropped
as asked           the real run
as asked, again    the same in turns with cures that are tried, each of which is labelled as tried: and its flags
"""


class LoaderBenchmark(msgspec.Struct, frozen=True, kw_only=True):
    """The loader of one rank with nobody training."""

    rank: Count
    elapsed_s: Elapsed = msgspec.field(name="seconds")
    images: AtLeastOne
    intervals_ms: list[Milliseconds]  # between one batch and the next
    first_batch_s: Seconds  # from opening the loader
    loader_cpu_s: Difference = msgspec.field(name="cpu_s")  # of the workers, and of threads that load inside the trainer
    main_process_cpu_s: Difference = msgspec.field(name="main_cpu_s")  # of the trainer process beside them
    workers_rss_bytes: Count | None = msgspec.field(name="memory_bytes")  # resident, of the workers
    loader_stats: LoaderStats | None = msgspec.field(default=None, name="loading")
    cpu_usage: CpuUsage | None = msgspec.field(default=None, name="cores")

    @property
    def images_per_s(self) -> float:
        return self.images / self.elapsed_s


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a data set, and how fast a node reads them. Rates are files/s of the node; None where they could not be measured."""

    path: str
    file_system: str  # "ext4", "nfs4", "tmpfs"
    num_files: Count = msgspec.field(name="files")
    bytes_per_file: Amount
    cached_fraction: Fraction | None = msgspec.field(name="resident")  # fraction of the sampled bytes that lay in the page cache
    warm_files_per_s: NonZero | None = msgspec.field(name="warm")
    cold_files_per_s: NonZero | None = msgspec.field(name="cold")
    cold_unavailable_reason: str = msgspec.field(default="", name="cold_why")  # why there is no cold rate
    verified: bool = msgspec.field(default=False, name="proved")  # the cold reads were seen to come from a device


class H2DBandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """Host-to-device bandwidth of one rank, all ranks at once, in bytes/s; the least over ranks."""

    pinned_bytes_per_s: NonZero = msgspec.field(name="pinned")
    pageable_bytes_per_s: NonZero = msgspec.field(name="pageable")
    bytes_per_image: NonZero  # on the wire


class RankNumaNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The NUMA nodes of one rank, as far as they are told."""

    rank: Count
    core_nodes: list[Count] = msgspec.field(default=[], name="cores")
    gpu_nodes: list[Count] = msgspec.field(default=[], name="gpu")


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """One node: what the job may use there, and who else is there."""

    host: str
    affinity_cores: AtLeastOne = msgspec.field(name="affinity")
    cpu_quota_cores: NonZero | None = msgspec.field(name="quota")  # cores, the least of all cgroups up the tree
    slurm_cores: AtLeastOne | None = msgspec.field(name="slurm")
    numa: list[RankNumaNodes] = []
    shm_free_bytes: Count | None = None
    usable_memory_bytes: Count | None = msgspec.field(default=None, name="memory_bytes")
    other_busy_cores: Amount | None = msgspec.field(
        default=None, name="others_cores"
    )  # cores that other people's processes keep busy, before anything here runs


class AlternativeLoader(msgspec.Struct, frozen=True, kw_only=True):
    """Another loader on the same files, with as many workers, all ranks at once; or the same one with another share of decoding."""

    loader: str
    workers: Count
    hw_decoder_load: Fraction | None = None
    loader_benchmarks: list[LoaderBenchmark] = msgspec.field(name="alone")
    background_step_ms: list[Milliseconds] = msgspec.field(
        default=[], name="step_ms"
    )  # of training on batches that are there already, beside it; empty where that was not measured
    delivery_ratio: Amount | None = msgspec.field(
        default=None, name="kept_up"
    )  # images that it gave meanwhile, for one that was trained on: 1 where it keeps up


class Diagnosis(msgspec.Struct, kw_only=True):
    """Everything that the experiments around the trainings gave."""

    loader: str
    node_states: list[NodeState] = msgspec.field(default=[], name="surroundings")  # one a node
    loader_benchmarks: list[LoaderBenchmark] = msgspec.field(default=[], name="alone")  # one a rank, all ranks at once
    single_rank_loader_benchmark: LoaderBenchmark | None = msgspec.field(default=None, name="alone_single")  # rank 0 with the others idle
    stage_cpu_s: dict[str, Seconds] = msgspec.field(
        default={}, name="stages"
    )  # CPU seconds an image by stage, where they were measured apart from the loader (DALI)
    storage: Storage | None = None
    h2d_bandwidth: H2DBandwidth | None = msgspec.field(default=None, name="copies")
    alternative_loaders: list[AlternativeLoader] = msgspec.field(default=[], name="candidates")  # other loaders that might help
    predictions: list[Prediction] = []  # written before any of them is tried
    skip_reasons: dict[str, str] = msgspec.field(default={}, name="left_out")  # experiment -> why there was no time or no way for it
