"""What-if scenarios and their predicted gains."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ddpbench.record.config import DATA, RANKS, TRAINING, CompileMode, Positive
from ddpbench.record.flags import Flag, flag_fields, to_argv
from ddpbench.record.private import EntryName
from ddpbench.record.ranges import Amount, AtLeastOne, Fraction, NonZero

UNCHANGED = "unchanged"
MAX_RANKS = 1024


PREDICTION_CONFIDENCE = 0.9
"""Confidence of the interval of a predicted gain."""

MIN_WORTHWHILE_GAIN = 1.05
"""A gain below this, predicted or measured, is too small to matter."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """Changed settings or hardware of a training. ``None`` means unchanged."""

    loader: Annotated[EntryName | None, Flag(DATA, "data loader", automatic=UNCHANGED, sweep=False)] = None
    hw_decoder_load: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Flag(DATA, "fraction of JPEGs that dali-gpu decodes on the hardware decoder", automatic=UNCHANGED, sweep=False),
    ] = None
    workers: Annotated[Annotated[int, Meta(ge=0, le=1024)] | None, Flag(DATA, "loader workers per rank", "-j", UNCHANGED, sweep=False)] = (
        None
    )
    prefetch: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None, Flag(DATA, "batches to prefetch per worker", automatic=UNCHANGED, sweep=False)
    ] = None
    pin_memory: Annotated[bool | None, Flag(DATA, "copy batches from pinned (page-locked) memory", automatic=UNCHANGED, sweep=False)] = None
    in_order: Annotated[
        bool | None, Flag(DATA, "return batches in order, even if a later one is ready first (scripts)", automatic=UNCHANGED, sweep=False)
    ] = None
    persistent_workers: Annotated[
        bool | None, Flag(DATA, "keep the workers from one epoch to the next (scripts)", automatic=UNCHANGED, sweep=False)
    ] = None
    resident: Annotated[
        bool | None, Flag(DATA, "data in the memory of the device, read a batch at a time (scripts)", automatic=UNCHANGED, sweep=False)
    ] = None
    decode_on_gpu: Annotated[
        bool | None, Flag(DATA, "images decoded and resized by the GPU that trains (scripts)", automatic=UNCHANGED, sweep=False)
    ] = None
    ready_indices: Annotated[
        bool | None, Flag(DATA, "draw the indices of batches before the batches are wanted (scripts)", automatic=UNCHANGED, sweep=False)
    ] = None
    data_in_memory: Annotated[
        bool | None, Flag(DATA, "read files from memory, without waiting for storage", automatic=UNCHANGED, sweep=False)
    ] = None
    precision: Annotated[str | None, Flag(TRAINING, "numeric precision", automatic=UNCHANGED, sweep=False)] = None
    batch_size: Annotated[Annotated[int, Positive] | None, Flag(TRAINING, "images per GPU and step", "-b", UNCHANGED, sweep=False)] = None
    compile: Annotated[CompileMode | None, Flag(TRAINING, "torch.compile mode", automatic=UNCHANGED, sweep=False)] = None
    fast: Annotated[
        bool | None, Flag(TRAINING, "the fastest settings known for the workload on a GPU", automatic=UNCHANGED, sweep=False)
    ] = None
    fused_kernels: Annotated[
        bool | None, Flag(TRAINING, "fused kernels of BatchNorm, addition, ReLU and max-pool", automatic=UNCHANGED, sweep=False)
    ] = None
    gpus: Annotated[Annotated[int, Meta(ge=1, le=MAX_RANKS)] | None, Flag(RANKS, "number of ranks", automatic=UNCHANGED, sweep=False)] = (
        None
    )
    cores_per_gpu: Annotated[
        Annotated[float, Meta(gt=0, le=1024)] | None,
        Flag(RANKS, "CPU cores for each rank and its workers", automatic="an equal share of the node", sweep=False),
    ] = None

    @property
    def has_no_workers(self) -> bool:
        """Whether a loader of ddpbench takes the place of the script's, which has none."""
        return bool(self.resident or self.decode_on_gpu)

    @property
    def flag_text(self) -> str:
        """The flags as typed on the command line."""
        return " ".join(to_argv(self, flag_fields(Scenario)))

    @property
    def keeps_workers(self) -> bool:
        """Whether the DataLoader that it stands for has ``persistent_workers=True``, unless it cannot keep its workers."""
        return bool(self.persistent_workers or self.workers)

    @property
    def only_workers(self) -> int | None:
        """The number of workers, if ``workers`` is all that changes."""
        return self.workers if self == Scenario(workers=self.workers) else None


FAST = Scenario(fast=True)
"""It is tried although its gain may only be predicted after the trial."""

AssumptionCode = Literal[
    "above-measured-load",  # more threads per core than measured: an image costs what it cost under the highest measured load
    "below-measured-load",  # fewer threads per core than measured: an image costs what it cost under the lowest measured load
    "other-processes",  # other processes keep ``cores`` busy, as in the run
    "cores-lost",  # oversubscribed cores lose ``lost_fraction`` of their time, as in the run
    "same-cores",  # more cores are of the same kind, and idle
    "enough-cores",  # CPU use unknown: the cores suffice
    "compute-time-of-run",  # no compute-only run: a step takes the compute time of the run
    "equal-batches",  # no times of single batches: all take the mean
    "background-loader",  # during training ``loader`` delivers what it did without, less what the cores take from it
    "trainer-loads-as-fast",  # the trainer loads a batch as fast as a worker
    "threads-scale",  # threads share the work on a batch evenly
    "storage-scales",  # the storage answers each of more workers as fast
    "gpu-shared",  # what decoding takes from a training on the same GPU
    "kept-workers",  # workers that are kept load the first batch of an epoch as fast as any
    "storage-limit",  # the storage delivers at most what was measured
    "no-read-wait",  # files in memory are read without a wait
    "no-overlapped-copy",  # copies from pageable memory do not overlap with training
    "same-copies",  # copies and interference take as long with another precision
    "fused-kernels",  # fused kernels move the counted bytes as fast as a copy
    "cuda-graphs",  # CUDA graphs close the gaps between kernels and leave the kernels unchanged
    "same-image-load",  # with another batch size a worker and its copy take as long per image
    "same-image-time",  # ... and so does the device; gradient sync takes as long per step
    "sync-hidden",  # gradient sync among ``ranks`` is hidden by the backward; one rank has none
    "same-step",  # a step of ``ranks`` takes as long as one of ``measured_ranks``
]
"""What a prediction takes for granted."""


class Assumption(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One assumption of a prediction. A number that ``code`` does not need is None."""

    code: AssumptionCode
    log_error: Amount = 0.0  # standard deviation of the log step time that it adds
    cores: Amount | None = None
    lost_fraction: Fraction | None = None
    ranks: AtLeastOne | None = None
    measured_ranks: AtLeastOne | None = None
    loader: EntryName | None = None
    hw_decoder_load: Fraction | None = None  # of ``loader``, if it is not the default


MeasurementCode = Literal[
    "loader-benchmark",  # the rate and the CPU time of ``loader``
    "loader-in-background",  # what ``loader`` takes from a training
    "batch-time",  # of ``loader``
    "worker-batch-time",  # of the workers of ``loader``
    "read-wait",  # how long ``loader`` waits for files
    "h2d-bandwidth",
    "cpu-usage",  # of the run
    "compute-only-step",
    "step-without-sync",
    "step-in-precision",  # ``precision``
    "step-compiled",  # by ``compile_mode``
    "step-fast",  # with ``--fast``
    "step-fused",  # with fused kernels
    "unexplained-step",  # what makes the simulated step ``simulated_ratio`` times the measured one
]
"""A measurement that a prediction may require."""


class MissingMeasurement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The measurement that a prediction requires. A name or number that ``code`` does not need is None."""

    code: MeasurementCode
    loader: EntryName | None = None
    hw_decoder_load: Fraction | None = None  # of ``loader``, if it is not the default
    precision: str | None = None
    compile_mode: str | None = None
    simulated_ratio: NonZero | None = None


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted gain of ``scenario``: the ratio of images/s of all ranks, with an interval of ``confidence``.

    ``gain`` is None if ``missing_measurement`` is not.
    """

    scenario: Scenario
    gain: NonZero | None = None
    low: NonZero | None = None
    high: NonZero | None = None
    confidence: Fraction = PREDICTION_CONFIDENCE
    samples_per_s: NonZero | None = None  # of all ranks
    assumptions: list[Assumption] = []
    missing_measurement: MissingMeasurement | None = None
    after_trial: bool = False  # predicted later than tried, though not from the trial
