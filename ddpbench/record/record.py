"""The record of one arm, and the job of all arms."""

from __future__ import annotations

from typing import Literal

import msgspec

from ddpbench.record.checks import AnyCheck
from ddpbench.record.config import Config, ResolvedConfig
from ddpbench.record.diagnosis import Diagnosis, LoaderBenchmark
from ddpbench.record.environment import Environment, RankPlacement
from ddpbench.record.errors import Status
from ddpbench.record.loaders import DECODING_LOADER
from ddpbench.record.private import EntryName, FreeText
from ddpbench.record.proof import Proof
from ddpbench.record.ranges import Amount, AtLeastOne, Count, Elapsed, Fraction, Milliseconds, NonZero, Seconds
from ddpbench.record.request import SweepShard
from ddpbench.record.roles import RUN, Role
from ddpbench.record.roofline import Roofline
from ddpbench.record.scaling import Scaling
from ddpbench.record.script import WatchedScript
from ddpbench.record.text import mask_command
from ddpbench.record.trace import Trace
from ddpbench.record.verdict import Verdict

SCHEMA = 4
"""Schema version that this release writes."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Why an arm failed."""

    message: FreeText
    hint: FreeText = ""
    rank: Count | None = None
    step: Count | None = None
    phase: str = ""
    arm_index: Count | None = None  # index of the arm in the job, if the fault concerns one arm only
    out_of_memory: bool = False


class ObservedPrecision(msgspec.Struct, frozen=True, kw_only=True):
    """Dtypes and settings observed in warm-up; the precision's name only says what was requested."""

    parameter_dtypes: list[str]
    gradient_dtypes: list[str]
    batch_norm_dtypes: list[str]
    first_layer_dtype: str  # compute dtype of the first convolution or linear layer
    last_layer_dtype: str
    tf32_matmul: bool
    tf32_cudnn: bool
    loss_scale: Amount | None = None
    optimizer: str = ""  # class and implementation: "SGD fused"
    master_weight_dtype: str = ""  # dtype of the master weights; empty without any


class Warmup(msgspec.Struct, frozen=True, kw_only=True):
    """Times before the first timed step; not part of the throughput."""

    build_s: Seconds
    first_batch_s: Seconds
    first_step_s: Seconds  # from the request for the first batch to the end of the first step
    warmup_steps: Count
    warmup_converged: bool  # two windows agreed before the limit
    compile_cache: Literal["cold", "warm"] | None = None  # warm: every compiled or fused kernel was found on disk; None: none was needed
    kernel_compile_s: Seconds = 0.0  # in which Triton compiled fused kernels

    @property
    def start_s(self) -> float:
        """Seconds from the beginning until the first step has ended."""
        return self.build_s + self.first_step_s


class PeakThroughput(msgspec.Struct, frozen=True, kw_only=True):
    """Measured peak of the devices; the minimum over ranks. ``matmul_tflops`` maps dtype to TFLOP/s."""

    matmul_tflops: dict[str, NonZero] = {}


class KernelActivity(msgspec.Struct, frozen=True, kw_only=True):
    """Step time and kernel time of the GPU, from a short profiler window after the last round; the rest is idle."""

    step_ms: Milliseconds
    kernel_ms: Milliseconds


FileKind = Literal["jpegs", "images", ""]
"""File type in the class folders of a dataset: JPEGs or any images. Empty if it has no class folders, or if unknown."""


class DatasetInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The dataset of an arm, and how its loader reads it."""

    loader: EntryName
    dataset: str = ""  # a key of record.registry.DATASETS; empty for another image folder, and if unknown
    file_kind: FileKind = ""
    num_samples: Count | None = None
    num_batches: Count | None = None  # batches that repeat, of the loaders synthetic and replay
    replayed_loader: EntryName = ""  # whose batches the loader replay repeats
    skipped_extensions: dict[str, Count] = {}  # files in class folders that are no images, by extension; "" for files without one
    generated: bool = False  # deterministic, learnable, generated images: accuracy only shows that training converges
    reread: bool = False  # timed rounds read the same files more than once
    respawns_workers: bool = False  # the loader restarts its workers every epoch
    is_rebuilt: bool = False  # a script creates the loader again for every epoch, so that it cannot keep its workers
    workers: Count | None = None  # workers per rank that a user-defined loader starts; None for loaders that start the requested number
    setup_s: Seconds = 0.0  # time that a user-defined function took to return its iterable, once

    def effective_workers(self, requested: int) -> int:
        """Number of workers that run if ``requested`` were requested."""
        return requested if self.workers is None else self.workers

    @property
    def is_jpeg(self) -> bool:
        """Whether every file of the dataset is a JPEG."""
        return self.file_kind == "jpegs"

    @property
    def is_image_folder(self) -> bool:
        """Whether the dataset is a tree of class folders, as ImageNet is, with files of any type."""
        return self.file_kind != ""


class CollectiveWait(msgspec.Struct, frozen=True, kw_only=True):
    """Breakdown of the time spent waiting for other ranks, in ms; means over all steps of a round."""

    peer_data_wait_ms: Milliseconds  # for late data on another rank; mean over ranks, too
    min_rank_ms: Milliseconds  # exposed communication: of the rank that waits least in each step
    min_rank_sync_ms: Milliseconds  # exposed all-reduce: the same for gradient sync only


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One timed round of all ranks. Throughput is the images of all ranks over the wall time of the slowest."""

    index: Count
    traces: list[Trace]  # one per rank, in rank order
    samples: AtLeastOne  # of all ranks
    wall_s: Elapsed  # of the slowest rank
    params_in_sync: bool = True  # all ranks ended the round with equal parameters, or the engine does not sync them
    collective_wait: CollectiveWait | None = None  # set if the traces hold only some of the steps
    batch_imbalance: Amount | None = None  # elements of the largest batch of a step over the mean of all ranks; None if unknown
    largest_batch_rank: Count | None = None  # the rank that has it in nearly all steps; None if none has, or it is unknown

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.wall_s


LaunchSource = Literal["assumed", "launches", "earlier_runs"]
"""Where the standard deviation between launches comes from."""


class ThroughputEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """Median images/s of all ranks over the rounds, with a t-interval on the logs of the round throughputs."""

    samples_per_s: NonZero
    low: NonZero
    high: NonZero
    rounds: AtLeastOne
    round_cv: Amount  # coefficient of variation of the round throughputs, a fraction
    launch_low: NonZero  # interval that includes the variance between launches: for comparing across launches
    launch_high: NonZero
    launch_sd: Amount  # of the log throughput, a fraction
    launch_source: LaunchSource  # of ``launch_sd``
    num_launches: Count = 0  # launches or earlier runs behind ``launch_sd``; 0 if it is assumed
    launch_samples_per_s: list[NonZero] = []  # images/s of each launch, if there are several
    confidence: Fraction = 0.95


class Relocation(msgspec.Struct, frozen=True, kw_only=True):
    """A resume on other GPUs or hosts, from round ``first_round`` on."""

    first_round: Count
    placements: list[RankPlacement]


class Record(msgspec.Struct, kw_only=True):
    """One arm of a job."""

    config: ResolvedConfig
    environment: Environment
    requested: Config | None = None  # as requested, automatic fields unset
    status: Status = "running"
    fault: Fault | None = None
    sample_unit: str = "image"  # name of one sample
    role: Role = RUN
    num_parameters: Count = 0  # trainable parameters of the model
    flops_per_sample: Amount | None = None  # forward and backward, 2 per multiply-add
    script: WatchedScript | None = None  # set if a user's own script was watched
    data: DatasetInfo | None = None
    observed_precision: ObservedPrecision | None = None
    warmup: Warmup | None = None
    peak_throughput: PeakThroughput | None = None
    kernel_activity: KernelActivity | None = None
    roofline: Roofline | None = None  # set with --roofline
    loader_benchmarks: list[LoaderBenchmark] = []  # one per rank, if loaders are compared
    rounds: list[Round] = []
    relocations: list[Relocation] = []
    throughput: ThroughputEstimate | None = None
    checks: list[AnyCheck] = []
    verdict: Verdict | None = None

    @property
    def out_of_memory(self) -> bool:
        """Whether the arm failed because a rank ran out of memory."""
        return self.fault is not None and self.fault.out_of_memory

    @property
    def world_size(self) -> int:
        return self.environment.world_size

    @property
    def uses_ddp(self) -> bool:
        """Whether DDP wraps the model."""
        return self.config.uses_ddp(self.environment.backend != "none", self.world_size)

    @property
    def global_batch_size(self) -> int:
        return self.config.batch_size * self.world_size

    @property
    def workers(self) -> int:
        """Loader workers per rank that actually ran: a user-defined loader may ignore the requested number."""
        return self.data.effective_workers(self.config.workers) if self.data else self.config.workers

    @property
    def honors_num_workers(self) -> bool:
        """Whether the loader started the requested number of workers; if not, --workers has no effect on it."""
        return self.workers == self.config.workers

    @property
    def decodes_on_gpu(self) -> bool:
        """Whether a script has its GPU decode: the arguments of its DataLoader have no effect."""
        return self.config.loader == DECODING_LOADER

    @property
    def rebuilds_loader(self) -> bool:
        """Whether a script creates its DataLoader again for every epoch: that cannot keep its workers."""
        return self.data is not None and self.data.is_rebuilt

    @property
    def traces(self) -> list[Trace]:
        """The traces of every rank and round."""
        return [trace for timed in self.rounds for trace in timed.traces]

    @property
    def traces_by_rank(self) -> dict[int, list[Trace]]:
        found: dict[int, list[Trace]] = {}
        for trace in self.traces:
            found.setdefault(trace.rank, []).append(trace)
        return found


class Job(msgspec.Struct, kw_only=True):
    """Result of one command: one Record per arm."""

    schema: int = SCHEMA
    started: str  # UTC, ISO 8601
    command: list[str]  # as typed, with secrets masked
    kind: str = "run"  # the command: "run", "sweep", "crossover", "diagnose", "scale", "watch", "ab", or "reproduce NAME"
    swept: list[str] = []  # the Config fields in which the arms differ
    records: list[Record]
    diagnosis: Diagnosis | None = None
    scaling: Scaling | None = None
    proof: Proof | None = None  # of a change of a script
    sweep_shard: SweepShard | None = None  # set if several jobs share the sweep
    redacted: bool = False  # its files and pages have placeholders for private values, and no command

    def __post_init__(self) -> None:
        self.command = mask_command(self.command)
