"""The record of one arm, and the job file that holds them: typed, validated on load, written whole and atomically."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from ddpbench.record.config import Config, ResolvedConfig
from ddpbench.record.diagnosis import Diagnosis, LoaderBenchmark
from ddpbench.record.environment import Environment, RankPlacement
from ddpbench.record.errors import Status, UsageError
from ddpbench.record.files import atomic_write, encode_json
from ddpbench.record.findings import Check, ThroughputEstimate, Verdict
from ddpbench.record.ranges import Amount, AtLeastOne, Count, Elapsed, Milliseconds, NonZero, Seconds
from ddpbench.record.scaling import Scaling
from ddpbench.record.sweep_shard import SweepShard
from ddpbench.record.trace import Trace
from ddpbench.record.validate import find_inconsistency

NOT_A_RECORD_HINT = "name a FILE that ddpbench wrote; without one, 'ddpbench report' prints the latest"
"""The hint for a file that is no record."""

SCHEMA = 1
"""The newest schema this release writes. A reader refuses newer ones and says so."""

Decoded = TypeVar("Decoded")


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Why an arm did not end well."""

    message: str
    hint: str = ""
    rank: Count | None = None
    step: Count | None = None
    phase: str = ""
    arm_index: Count | None = msgspec.field(
        default=None, name="arm"
    )  # where it is known to be of one arm alone, the place of that in the job
    out_of_memory: bool = False


class ObservedPrecision(msgspec.Struct, frozen=True, kw_only=True):
    """What ran, as observed in warm-up; the name of the precision is only what was asked."""

    parameter_dtypes: list[str] = msgspec.field(name="parameters")  # dtypes of the parameters
    gradient_dtypes: list[str] = msgspec.field(name="gradients")
    batch_norm_dtypes: list[str] = msgspec.field(name="batch_norm")
    first_layer_dtype: str = msgspec.field(name="first_layer")  # dtype the first convolution or linear layer computed in
    last_layer_dtype: str = msgspec.field(name="last_layer")
    tf32_matmul: bool
    tf32_cudnn: bool
    loss_scale: Amount | None = None
    optimizer: str = ""  # class and implementation: "SGD fused"
    master_weight_dtype: str = msgspec.field(
        default="", name="master"
    )  # dtype of the weights that the optimizer updates in the parameters' stead; empty without any


class Warmup(msgspec.Struct, frozen=True, kw_only=True):
    """What happened before the first timed step; never inside the figure."""

    build_s: Seconds
    first_batch_s: Seconds
    first_step_s: Seconds  # from asking the loader for the first batch to the end of the first step
    warmup_steps: Count
    warmup_converged: bool = msgspec.field(name="warmup_agreed")  # two windows agreed before the limit


class PeakThroughput(msgspec.Struct, frozen=True, kw_only=True):
    """What this very device reaches, measured; the least over ranks. ``matmul_tflops`` is keyed by dtype."""

    matmul_tflops: dict[str, NonZero] = {}


class KernelActivity(msgspec.Struct, frozen=True, kw_only=True):
    """From a short profiler window after the last round: how long the GPU ran kernels in a step, and how long it idled."""

    step_ms: Milliseconds
    kernel_ms: Milliseconds


FileKind = Literal["jpegs", "images", ""]
"""What lies in the class folders of a data set, JPEGs or images of any kind; empty where it has no such folders, or none that we know."""


class DatasetInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Which data it was."""

    loader: str
    description: str  # "synthetic batch on the device", "ImageNet folder, 1,281,167 JPEGs"
    file_kind: FileKind | None = msgspec.field(default=None, name="files")  # None in a record that only describes them
    images: Count | None = None
    generated: bool = msgspec.field(
        default=False, name="made"
    )  # a deterministic, learnable set made here: accuracy on it means that training converges, no more
    reread: bool = msgspec.field(default=False, name="recycled")  # the timed window read the same files more than once
    respawns_workers: bool = msgspec.field(
        default=False, name="starts_anew"
    )  # the workers of the loader end with an epoch, and others begin
    workers: Count | None = None  # that a function of somebody's own starts a rank; None of loaders that start what they are asked for
    setup_s: Seconds = msgspec.field(default=0.0, name="set_up_s")  # what a function of somebody's own took to return its batches, once

    def effective_workers(self, requested: int) -> int:
        """Those that there are where so many were asked for."""
        return requested if self.workers is None else self.workers

    @property
    def is_jpeg(self) -> bool:
        """Whether every file of it is a JPEG."""
        return self._file_kind == "jpegs"

    @property
    def is_image_folder(self) -> bool:
        """Whether it lies in class folders, as ImageNet does, in files of any kind."""
        return self._file_kind != ""

    @property
    def _file_kind(self) -> FileKind:
        if self.file_kind is not None:
            return self.file_kind
        described = self.description.rpartition(": ")[2]  # of replayed batches, what they are of
        if not described.startswith(("ImageNet folder", "image folder", "made set in the shape of ImageNet")):
            return ""
        return "jpegs" if "JPEG" in described else "images"


class CollectiveWait(msgspec.Struct, frozen=True, kw_only=True):
    """How the waits for other ranks divide, in ms: means over all steps of a round."""

    peer_data_wait_ms: Milliseconds = msgspec.field(name="late_data_ms")  # for data that came late on another rank; over ranks, too
    min_rank_ms: Milliseconds = msgspec.field(name="least_ms")  # on the rank that waits least in a step
    min_rank_sync_ms: Milliseconds = msgspec.field(name="least_sync_ms")  # the same of gradient sync alone


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One timed round of all ranks. Throughput is images of all ranks over the slowest rank's wall seconds."""

    index: Count
    traces: list[Trace]  # one a rank, in rank order
    images: AtLeastOne  # of all ranks
    wall_s: Elapsed  # of the slowest rank
    params_in_sync: bool = msgspec.field(
        default=True, name="digests_agree"
    )  # every rank ended the round with the same parameters, or none was to
    collective_wait: CollectiveWait | None = msgspec.field(default=None, name="waits")  # where its traces hold only some of its steps

    @property
    def images_per_s(self) -> float:
        return self.images / self.wall_s


class Relocation(msgspec.Struct, frozen=True, kw_only=True):
    """A journal was gone on with elsewhere: from this round on its ranks ran on other GPUs or hosts."""

    first_round: Count = msgspec.field(name="round")
    placements: list[RankPlacement] = msgspec.field(name="places")


class Record(msgspec.Struct, kw_only=True):
    """One arm of a job."""

    config: ResolvedConfig
    environment: Environment
    requested: Config | None = msgspec.field(default=None, name="asked")  # as it was asked for, automatic fields left open
    status: Status = "running"
    fault: Fault | None = None
    sample_unit: str = msgspec.field(default="image", name="item")  # what one sample is called
    label: str = ""  # what sets this arm apart from one of the same Config: "earlier model alive"
    num_parameters: Count = msgspec.field(default=0, name="parameters")  # trainable parameters of the model
    flops_per_image: Amount | None = None  # forward and backward, 2 a multiply-add
    data: DatasetInfo | None = None
    observed_precision: ObservedPrecision | None = msgspec.field(default=None, name="attestation")
    warmup: Warmup | None = msgspec.field(default=None, name="preparation")
    peak_throughput: PeakThroughput | None = msgspec.field(default=None, name="ceilings")
    kernel_activity: KernelActivity | None = msgspec.field(default=None, name="launch_gap")
    loader_benchmarks: list[LoaderBenchmark] = msgspec.field(
        default=[], name="alone"
    )  # its loader with nobody training, one a rank, where loaders are compared
    rounds: list[Round] = []
    relocations: list[Relocation] = msgspec.field(default=[], name="moves")
    throughput: ThroughputEstimate | None = msgspec.field(default=None, name="headline")
    checks: list[Check] = []
    verdict: Verdict | None = None

    @property
    def out_of_memory(self) -> bool:
        """Whether it ended because a rank ran out of memory."""
        return self.fault is not None and self.fault.out_of_memory

    @property
    def world_size(self) -> int:
        return self.environment.world_size

    @property
    def global_batch_size(self) -> int:
        return self.config.batch_size * self.world_size

    @property
    def workers(self) -> int:
        """Loader workers a rank: those that there are, whatever a function of somebody's own was asked for."""
        return self.data.effective_workers(self.config.workers) if self.data else self.config.workers

    @property
    def honors_num_workers(self) -> bool:
        """Whether there are as many as were asked for: else nobody but that function changes their number."""
        return self.workers == self.config.workers

    @property
    def traces(self) -> list[Trace]:
        """Of every rank and round."""
        return [trace for timed in self.rounds for trace in timed.traces]

    @property
    def traces_by_rank(self) -> dict[int, list[Trace]]:
        found: dict[int, list[Trace]] = {}
        for trace in self.traces:
            found.setdefault(trace.rank, []).append(trace)
        return found


class Job(msgspec.Struct, kw_only=True):
    """What one command produced: one Record an arm."""

    schema: int = SCHEMA
    started: str  # UTC, ISO 8601
    command: list[str]  # exact, as typed
    kind: str = "run"  # what measured it: "run", "sweep", "crossover", "diagnose", "scale", or "reproduce NAME"
    swept: list[str] = []  # the Config fields in which the arms differ
    records: list[Record]
    diagnosis: Diagnosis | None = None
    scaling: Scaling | None = None
    sweep_shard: SweepShard | None = msgspec.field(default=None, name="share")  # of a sweep that several jobs share out


def slug(text: str) -> str:
    """``text`` in lower case with anything but letters and digits as single hyphens, for file names."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def reserve_path(folder: Path, stem: str) -> Path:
    """Creates ``stem.json`` in ``folder``, or ``stem-2.json`` ..., exclusively, so that two runs never share a name.

    Raises UsageError where the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, 10_000):
            path = folder / (f"{stem}.json" if attempt == 1 else f"{stem}-{attempt}.json")
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
                return path
            except FileExistsError:
                continue
    except OSError as problem:
        raise UsageError(f"cannot write results in '{folder}': {problem.strerror}", "choose another folder with -o DIR") from problem
    raise UsageError(f"no free name for '{stem}' in '{folder}'")


def save(job: Job, path: Path) -> None:
    """Writes the job whole. Raises OSError; the old file stays."""
    atomic_write(path, encode_json(job))


def load(path: Path) -> Job:
    """The job in ``path``. Raises UsageError naming the file, and the field or the line that is wrong."""
    try:
        text = path.read_bytes()
    except OSError as problem:
        raise UsageError(f"cannot read '{path}': {problem.strerror}", NOT_A_RECORD_HINT) from problem
    if (schema := _decode(path, text, _SchemaHeader).schema) > SCHEMA:
        raise UsageError(f"'{path}' has schema {schema}; this release reads up to {SCHEMA}", "update ddpbench")
    job = _decode(path, text, Job)
    if wrong := find_inconsistency(job):
        raise _not_a_record(path, wrong)
    return job


def _decode(path: Path, text: bytes, kind: type[Decoded]) -> Decoded:
    """``text`` as a ``kind``. Raises UsageError naming ``path`` and what is wrong, whatever bytes the file holds."""
    try:
        text.decode()  # msgspec does not report where a byte is wrong
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as problem:
        raise _not_a_record(path, _format_validation_error(str(problem))) from problem
    except msgspec.DecodeError as problem:
        byte = re.search(r"byte (\d+)", str(problem))  # none if the text ends too soon
        raise _not_a_record(path, f"cut off or no JSON, near line {_line_number(text, int(byte[1]) if byte else None)}") from problem
    except UnicodeDecodeError as problem:
        raise _not_a_record(path, f"not UTF-8, near line {_line_number(text, problem.start)}") from problem
    except RecursionError as problem:
        raise _not_a_record(path, "nested too deeply") from problem


def _not_a_record(path: Path, wrong: str) -> UsageError:
    """The error for a file that is no record, or one that makes no sense."""
    return UsageError(f"'{path}' is no ddpbench record: {wrong}", NOT_A_RECORD_HINT)


def _format_validation_error(problem: str) -> str:
    """msgspec's ``problem``, which ends with a path, as ``records[0].status: expected ...``."""
    what, _, where = problem.partition(" - at `$")
    what = what[:1].lower() + what[1:]
    return f"{where[:-1].removeprefix('.')}: {what}" if where else what


def _line_number(text: bytes, byte: int | None) -> int:
    return text.count(b"\n", 0, byte) + 1


class _SchemaHeader(msgspec.Struct):
    schema: int
