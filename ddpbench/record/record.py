"""The record of one arm, and the job file that holds them: typed, validated on load, written whole and atomically."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from ddpbench.record.config import Config
from ddpbench.record.diagnosis import Alone, Diagnosis
from ddpbench.record.encoded import encoded
from ddpbench.record.environment import Environment, RankPlace
from ddpbench.record.errors import Status, UsageError
from ddpbench.record.files import write_whole
from ddpbench.record.findings import Check, Headline, Verdict
from ddpbench.record.ranges import Amount, AtLeastOne, Count, Elapsed, Milliseconds, NonZero, Seconds
from ddpbench.record.resolved import Settled
from ddpbench.record.scaling import Scaling
from ddpbench.record.sweep_shard import Share
from ddpbench.record.trace import Trace
from ddpbench.record.validate import inconsistency

ANOTHER = "name a FILE that ddpbench wrote; without one, 'ddpbench report' prints the latest"
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
    arm: Count | None = None  # where it is known to be of one arm alone, the place of that in the job
    out_of_memory: bool = False


class Attestation(msgspec.Struct, frozen=True, kw_only=True):
    """What ran, as observed in warm-up; the name of the precision is only what was asked."""

    parameters: list[str]  # dtypes of the parameters
    gradients: list[str]
    batch_norm: list[str]
    first_layer: str  # dtype the first convolution or linear layer computed in
    last_layer: str
    tf32_matmul: bool
    tf32_cudnn: bool
    loss_scale: Amount | None = None
    optimizer: str = ""  # class and implementation: "SGD fused"
    master: str = ""  # dtype of the weights that the optimizer updates in the parameters' stead; empty without any


class Preparation(msgspec.Struct, frozen=True, kw_only=True):
    """What happened before the first timed step; never inside the figure."""

    build_s: Seconds
    first_batch_s: Seconds
    first_step_s: Seconds  # from asking the loader for the first batch to the end of the first step
    warmup_steps: Count
    warmup_agreed: bool  # two windows agreed before the limit


class Ceilings(msgspec.Struct, frozen=True, kw_only=True):
    """What this very device reaches, measured; the least over ranks. ``matmul_tflops`` is keyed by dtype."""

    matmul_tflops: dict[str, NonZero] = {}


class LaunchGap(msgspec.Struct, frozen=True, kw_only=True):
    """From a short profiler window after the last round: how long the GPU ran kernels in a step, and how long it idled."""

    step_ms: Milliseconds
    kernel_ms: Milliseconds


Files = Literal["jpegs", "images", ""]
"""What lies in the class folders of a data set, JPEGs or images of any kind; empty where it has no such folders, or none that we know."""


class Data(msgspec.Struct, frozen=True, kw_only=True):
    """Which data it was."""

    loader: str
    description: str  # "synthetic batch on the device", "ImageNet folder, 1,281,167 JPEGs"
    files: Files | None = None  # None in a record that only describes them
    images: Count | None = None
    made: bool = False  # a deterministic, learnable set made here: accuracy on it means that training converges, no more
    recycled: bool = False  # the timed window read the same files more than once
    starts_anew: bool = False  # the workers of the loader end with an epoch, and others begin
    workers: Count | None = None  # that a function of somebody's own starts a rank; None of loaders that start what they are asked for
    set_up_s: Seconds = 0.0  # what a function of somebody's own took to return its batches, once

    def workers_where(self, asked: int) -> int:
        """Those that there are where so many were asked for."""
        return asked if self.workers is None else self.workers

    @property
    def of_jpegs(self) -> bool:
        """Whether every file of it is a JPEG."""
        return self._files == "jpegs"

    @property
    def of_folders(self) -> bool:
        """Whether it lies in class folders, as ImageNet does, in files of any kind."""
        return self._files != ""

    @property
    def _files(self) -> Files:
        if self.files is not None:
            return self.files
        described = self.description.rpartition(": ")[2]  # of replayed batches, what they are of
        if not described.startswith(("ImageNet folder", "image folder", "made set in the shape of ImageNet")):
            return ""
        return "jpegs" if "JPEG" in described else "images"


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """How the waits for other ranks divide, in ms: means over all steps of a round."""

    late_data_ms: Milliseconds  # for data that came late on another rank; over ranks, too
    least_ms: Milliseconds  # on the rank that waits least in a step
    least_sync_ms: Milliseconds  # the same of gradient sync alone


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One timed round of all ranks. Throughput is images of all ranks over the slowest rank's wall seconds."""

    index: Count
    traces: list[Trace]  # one a rank, in rank order
    images: AtLeastOne  # of all ranks
    wall_s: Elapsed  # of the slowest rank
    digests_agree: bool = True  # every rank ended the round with the same parameters, or none was to
    waits: Waits | None = None  # where its traces hold only some of its steps

    @property
    def images_per_s(self) -> float:
        return self.images / self.wall_s


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A journal was gone on with elsewhere: from this round on its ranks ran on other GPUs or hosts."""

    round: Count
    places: list[RankPlace]


class Record(msgspec.Struct, kw_only=True):
    """One arm of a job."""

    config: Settled
    environment: Environment
    asked: Config | None = None  # as it was asked for, automatic fields left open
    status: Status = "running"
    fault: Fault | None = None
    item: str = "image"  # what one sample is called
    label: str = ""  # what sets this arm apart from one of the same Config: "earlier model alive"
    parameters: Count = 0  # trainable parameters of the model
    flops_per_image: Amount | None = None  # forward and backward, 2 a multiply-add
    data: Data | None = None
    attestation: Attestation | None = None
    preparation: Preparation | None = None
    ceilings: Ceilings | None = None
    launch_gap: LaunchGap | None = None
    alone: list[Alone] = []  # its loader with nobody training, one a rank, where loaders are compared
    rounds: list[Round] = []
    moves: list[Move] = []
    headline: Headline | None = None
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
    def global_batch(self) -> int:
        return self.config.batch_size * self.world_size

    @property
    def workers(self) -> int:
        """Loader workers a rank: those that there are, whatever a function of somebody's own was asked for."""
        return self.data.workers_where(self.config.workers) if self.data else self.config.workers

    @property
    def heeds_workers(self) -> bool:
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
    share: Share | None = None  # of a sweep that several jobs share out


def slug(text: str) -> str:
    """``text`` in lower case with anything but letters and digits as single hyphens, for file names."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def reserve(folder: Path, stem: str) -> Path:
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
    write_whole(path, encoded(job))


def load(path: Path) -> Job:
    """The job in ``path``. Raises UsageError naming the file, and the field or the line that is wrong."""
    try:
        text = path.read_bytes()
    except OSError as problem:
        raise UsageError(f"cannot read '{path}': {problem.strerror}", ANOTHER) from problem
    if (schema := _decode(path, text, _Head).schema) > SCHEMA:
        raise UsageError(f"'{path}' has schema {schema}; this release reads up to {SCHEMA}", "update ddpbench")
    job = _decode(path, text, Job)
    if wrong := inconsistency(job):
        raise _no_record(path, wrong)
    return job


def _decode(path: Path, text: bytes, kind: type[Decoded]) -> Decoded:
    """``text`` as a ``kind``. Raises UsageError naming ``path`` and what is wrong, whatever bytes the file holds."""
    try:
        text.decode()  # msgspec does not report where a byte is wrong
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as problem:
        raise _no_record(path, _by_field(str(problem))) from problem
    except msgspec.DecodeError as problem:
        byte = re.search(r"byte (\d+)", str(problem))  # none if the text ends too soon
        raise _no_record(path, f"cut off or no JSON, near line {_line_of(text, int(byte[1]) if byte else None)}") from problem
    except UnicodeDecodeError as problem:
        raise _no_record(path, f"not UTF-8, near line {_line_of(text, problem.start)}") from problem
    except RecursionError as problem:
        raise _no_record(path, "nested too deeply") from problem


def _no_record(path: Path, wrong: str) -> UsageError:
    """The error for a file that is no record, or one that makes no sense."""
    return UsageError(f"'{path}' is no ddpbench record: {wrong}", ANOTHER)


def _by_field(problem: str) -> str:
    """msgspec's ``problem``, which ends with a path, as ``records[0].status: expected ...``."""
    what, _, where = problem.partition(" - at `$")
    what = what[:1].lower() + what[1:]
    return f"{where[:-1].removeprefix('.')}: {what}" if where else what


def _line_of(text: bytes, byte: int | None) -> int:
    return text.count(b"\n", 0, byte) + 1


class _Head(msgspec.Struct):
    schema: int
