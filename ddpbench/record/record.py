"""The record of one arm, and the job of all arms."""

from __future__ import annotations

from typing import Literal

import msgspec

from ddpbench.record.checks import Check
from ddpbench.record.config import Config, ResolvedConfig
from ddpbench.record.diagnosis import Diagnosis, LoaderBenchmark
from ddpbench.record.environment import Environment, RankPlacement
from ddpbench.record.errors import Status
from ddpbench.record.ranges import Amount, AtLeastOne, Count, Elapsed, Fraction, Milliseconds, NonZero, Seconds
from ddpbench.record.scaling import Scaling
from ddpbench.record.sweep_shard import SweepShard
from ddpbench.record.trace import Trace
from ddpbench.record.verdict import Verdict

SCHEMA = 1
"""Schema version that this release writes. ``load`` rejects newer ones."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Why an arm failed."""

    message: str
    hint: str = ""
    rank: Count | None = None
    step: Count | None = None
    phase: str = ""
    arm_index: Count | None = msgspec.field(default=None, name="arm")  # index of the arm in the job, if the fault concerns one arm only
    out_of_memory: bool = False


class ObservedPrecision(msgspec.Struct, frozen=True, kw_only=True):
    """Dtypes and settings observed in warm-up; the precision's name only says what was requested."""

    parameter_dtypes: list[str] = msgspec.field(name="parameters")
    gradient_dtypes: list[str] = msgspec.field(name="gradients")
    batch_norm_dtypes: list[str] = msgspec.field(name="batch_norm")
    first_layer_dtype: str = msgspec.field(name="first_layer")  # compute dtype of the first convolution or linear layer
    last_layer_dtype: str = msgspec.field(name="last_layer")
    tf32_matmul: bool
    tf32_cudnn: bool
    loss_scale: Amount | None = None
    optimizer: str = ""  # class and implementation: "SGD fused"
    master_weight_dtype: str = msgspec.field(default="", name="master")  # dtype of the master weights; empty without any


class Warmup(msgspec.Struct, frozen=True, kw_only=True):
    """Times before the first timed step; not part of the throughput."""

    build_s: Seconds
    first_batch_s: Seconds
    first_step_s: Seconds  # from the request for the first batch to the end of the first step
    warmup_steps: Count
    warmup_converged: bool = msgspec.field(name="warmup_agreed")  # two windows agreed before the limit


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

    loader: str
    description: str  # "synthetic batch on the device", "ImageNet folder, 1,281,167 JPEGs"
    file_kind: FileKind | None = msgspec.field(default=None, name="files")  # None if only ``description`` says it
    images: Count | None = None
    generated: bool = msgspec.field(
        default=False, name="made"
    )  # deterministic, learnable, generated images: accuracy only shows that training converges
    reread: bool = msgspec.field(default=False, name="recycled")  # timed rounds read the same files more than once
    respawns_workers: bool = msgspec.field(default=False, name="starts_anew")  # the loader restarts its workers every epoch
    workers: Count | None = None  # workers per rank that a user-defined loader starts; None for loaders that start the requested number
    setup_s: Seconds = msgspec.field(default=0.0, name="set_up_s")  # time that a user-defined function took to return its iterable, once

    def effective_workers(self, requested: int) -> int:
        """Number of workers that run if ``requested`` were requested."""
        return requested if self.workers is None else self.workers

    @property
    def is_jpeg(self) -> bool:
        """Whether every file of the dataset is a JPEG."""
        return self._file_kind == "jpegs"

    @property
    def is_image_folder(self) -> bool:
        """Whether the dataset is a tree of class folders, as ImageNet is, with files of any type."""
        return self._file_kind != ""

    @property
    def _file_kind(self) -> FileKind:
        if self.file_kind is not None:
            return self.file_kind
        described = self.description.rpartition(": ")[2]  # for replay, the dataset behind the batches
        if not described.startswith(("ImageNet folder", "image folder", "made set in the shape of ImageNet")):
            return ""
        return "jpegs" if "JPEG" in described else "images"


class CollectiveWait(msgspec.Struct, frozen=True, kw_only=True):
    """Breakdown of the time spent waiting for other ranks, in ms; means over all steps of a round."""

    peer_data_wait_ms: Milliseconds = msgspec.field(name="late_data_ms")  # for late data on another rank; mean over ranks, too
    min_rank_ms: Milliseconds = msgspec.field(name="least_ms")  # of the rank that waits least in each step
    min_rank_sync_ms: Milliseconds = msgspec.field(name="least_sync_ms")  # the same for gradient sync only


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One timed round of all ranks. Throughput is the images of all ranks over the wall time of the slowest."""

    index: Count
    traces: list[Trace]  # one per rank, in rank order
    images: AtLeastOne  # of all ranks
    wall_s: Elapsed  # of the slowest rank
    params_in_sync: bool = msgspec.field(
        default=True, name="digests_agree"
    )  # all ranks ended the round with equal parameters, or the engine does not sync them
    collective_wait: CollectiveWait | None = msgspec.field(default=None, name="waits")  # set if the traces hold only some of the steps

    @property
    def images_per_s(self) -> float:
        return self.images / self.wall_s


class ThroughputEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """Median images/s of all ranks over the rounds, with a t-interval on the logs of the round throughputs."""

    images_per_s: NonZero
    low: NonZero
    high: NonZero
    rounds: AtLeastOne
    round_cv: Amount  # coefficient of variation of the round throughputs, a fraction
    launch_low: NonZero  # interval that includes the variance between launches: for comparing across launches
    launch_high: NonZero
    launch_sd: Amount  # of the log throughput, a fraction
    launch_source: str  # "assumed", "3 launches", "7 earlier runs"
    launch_images_per_s: list[NonZero] = msgspec.field(default=[], name="launch_figures")  # images/s of each launch, if there are several
    confidence: Fraction = 0.95


class Relocation(msgspec.Struct, frozen=True, kw_only=True):
    """A resume on other GPUs or hosts, from round ``first_round`` on."""

    first_round: Count = msgspec.field(name="round")
    placements: list[RankPlacement] = msgspec.field(name="places")


class Record(msgspec.Struct, kw_only=True):
    """One arm of a job."""

    config: ResolvedConfig
    environment: Environment
    requested: Config | None = msgspec.field(default=None, name="asked")  # as requested, automatic fields unset
    status: Status = "running"
    fault: Fault | None = None
    sample_unit: str = msgspec.field(default="image", name="item")  # name of one sample
    label: str = ""  # distinguishes arms with equal Configs: "earlier model alive"
    num_parameters: Count = msgspec.field(default=0, name="parameters")  # trainable parameters of the model
    flops_per_image: Amount | None = None  # forward and backward, 2 per multiply-add
    data: DatasetInfo | None = None
    observed_precision: ObservedPrecision | None = msgspec.field(default=None, name="attestation")
    warmup: Warmup | None = msgspec.field(default=None, name="preparation")
    peak_throughput: PeakThroughput | None = msgspec.field(default=None, name="ceilings")
    kernel_activity: KernelActivity | None = msgspec.field(default=None, name="launch_gap")
    loader_benchmarks: list[LoaderBenchmark] = msgspec.field(default=[], name="alone")  # one per rank, if loaders are compared
    rounds: list[Round] = []
    relocations: list[Relocation] = msgspec.field(default=[], name="moves")
    throughput: ThroughputEstimate | None = msgspec.field(default=None, name="headline")
    checks: list[Check] = []
    verdict: Verdict | None = None

    @property
    def out_of_memory(self) -> bool:
        """Whether the arm failed because a rank ran out of memory."""
        return self.fault is not None and self.fault.out_of_memory

    @property
    def world_size(self) -> int:
        return self.environment.world_size

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
    command: list[str]  # exact, as typed
    kind: str = "run"  # the command: "run", "sweep", "crossover", "diagnose", "scale", or "reproduce NAME"
    swept: list[str] = []  # the Config fields in which the arms differ
    records: list[Record]
    diagnosis: Diagnosis | None = None
    scaling: Scaling | None = None
    sweep_shard: SweepShard | None = msgspec.field(default=None, name="share")  # set if several jobs share the sweep
