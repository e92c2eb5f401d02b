"""A remedy: what to try against a bottleneck, its predicted and its measured gain; and what to use in the end."""

from __future__ import annotations

from typing import Literal

import msgspec

from ddpbench.record.prediction import Prediction, Scenario
from ddpbench.record.private import FreeText, ShellCommand
from ddpbench.record.ranges import Amount, AtLeastOne, Count, NonZero, Seconds
from ddpbench.record.screening import CureCode, Obstacle
from ddpbench.record.verdict import ChangeTraining, NextStep

RemedyCode = Literal[
    "more-workers",
    "all-cores-workers",  # without a prediction
    "fewer-workers",
    "no-workers",
    "more-cores",
    "more-prefetch",
    "out-of-order",
    "persistent-workers",
    "dataloader-with-workers",
    "other-loader",  # the one of the scenario
    "more-hw-decoding",
    "data-in-memory",
    "resident-data",
    "ready-indices",
    "pinned-memory",
    "pinned-memory-and-worker",
    "decode-on-device",
    "decode-on-gpu",
    "without-loader",  # a comparison that shows what the loader costs
    "cuda-graphs",
    "fast",
    "larger-batch",
    "even-batches",
    "less-sync",
    "faster-compute",
    "inspect-straggler",
    "list-processes",
    "more-evidence",
    "fewer-ranks",
    "channels-last",  # these were screened: see Screening
    "fused-kernels",
    "fused-optimizer",
    "tf32-products",
    "bf16-autocast",
    "other-setting",  # of the scenario: predicted before its trial, and not recommended since
]

MemoryLimit = Literal["shm", "memory"]
"""What has no room for more workers: shared memory, or the memory of the node."""

MAX_INTERVAL_RATIO = 1.5
"""A measured interval that spans more than this factor neither confirms nor refutes a prediction."""


class MeasuredGain(msgspec.Struct, frozen=True, kw_only=True):
    """Throughput of a trial as a multiple of the baseline that took turns with it, with a 95% interval."""

    center: NonZero
    low: NonZero
    high: NonZero
    pairs: AtLeastOne  # rounds of both
    has_interval: bool  # else ``low`` and ``high`` are the range of the pairs

    @property
    def is_above_one(self) -> bool:
        """Whether it has an interval that lies above 1."""
        return self.has_interval and self.low > 1


class Remedy(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="setting", omit_defaults=True):
    """Something to try against a bottleneck, from the rule that suggests it to the page that shows it.

    ``command`` measures it beside the original run; empty if it cannot be tried here. ``gain`` is predicted for ``scenario``, or for a
    change of the user's code, as a multiple of the images/s; None if something has to be measured first. Subclasses add numbers that
    neither the scenario nor the record has.
    """

    code: RemedyCode
    command: ShellCommand = ""
    scenario: Scenario | None = None
    gain: NonZero | None = None
    change: NextStep | None = None  # what to write in a user's script
    reads_other_samples: bool = False  # its workers would, or may
    can_be_tried: bool = False  # here: flags of a run or arguments of a DataLoader express all of ``scenario``
    prediction: Prediction | None = None  # of ``scenario``
    measured: MeasuredGain | None = None  # by its trial
    failure: FreeText = ""  # why its trial has no figure
    missing_batches: Count = 0  # that the shortest round of the trial, or of its baseline, lacks to be complete

    @property
    def is_wide(self) -> bool:
        """Whether the measured interval is too wide to confirm or refute the prediction."""
        return self.measured is not None and self.measured.high > MAX_INTERVAL_RATIO * self.measured.low

    @property
    def is_inside(self) -> bool | None:
        """Whether the measured gain lies in the predicted interval.

        None if either is missing or ``is_wide``.
        """
        found = self.prediction
        if self.measured is None or found is None or found.low is None or found.high is None or self.is_wide:
            return None
        return found.low <= self.measured.center <= found.high

    @property
    def is_gain(self) -> bool:
        """Whether it is faster than the baseline, beyond the noise."""
        return self.measured is not None and self.measured.is_above_one

    @property
    def is_significant(self) -> bool:
        """Whether it is faster or slower than the baseline, beyond the noise."""
        return self.measured is not None and self.measured.has_interval and not self.measured.low <= 1 <= self.measured.high


class MoreWorkers(Remedy, frozen=True, kw_only=True, tag="more-workers"):
    code: RemedyCode = "more-workers"
    workers: int  # per rank
    workers_needed: int  # to keep up with the device, or with the handoff if that is slower
    max_useful_workers: int  # that the cores have work for
    is_handoff_bound: bool
    wanted_workers: int | None = None  # per rank, of which memory has room for ``workers``; None if it has room for more
    limited_by: MemoryLimit | None = None  # that memory


class FewerWorkers(Remedy, frozen=True, kw_only=True, tag="fewer-workers"):
    code: RemedyCode = "fewer-workers"
    workers: int  # per rank
    workers_per_node: int  # of the run, all ranks of the node together
    usable_cores: float  # of the node


class MoreCores(Remedy, frozen=True, kw_only=True, tag="more-cores"):
    code: RemedyCode = "more-cores"
    cores: float  # per rank
    workers: int  # per rank
    is_handoff_bound: bool


class DataInMemory(Remedy, frozen=True, kw_only=True, tag="data-in-memory"):
    """Sizes are None if the files were not measured."""

    code: RemedyCode = "data-in-memory"
    dataset_bytes: float | None = None
    shm_free_bytes: float | None = None  # of the node with the least
    fits: bool = False  # a copy in shared memory leaves room for the workers' batches


class PersistentWorkers(Remedy, frozen=True, kw_only=True, tag="persistent-workers"):
    """``scenario`` is set for the DataLoader of a script that can keep its workers."""

    code: RemedyCode = "persistent-workers"
    max_gain: float
    epoch_s: float
    first_batch_s: float  # from the start of the workers on
    is_rebuilt: bool = False  # the script creates the loader again for every epoch


class DecodeOnDevice(Remedy, frozen=True, kw_only=True, tag="decode-on-device"):
    """Rates are samples/s per rank. ``gain`` is that of ``low``."""

    code: RemedyCode = "decode-on-device"
    low: float  # with a device that decodes a batch before each step
    high: float  # with a device that decodes beside the steps, which are no slower
    decoding_rate: float  # of the device, without training


class DecodeOnGpu(Remedy, frozen=True, kw_only=True, tag="decode-on-gpu"):
    """Pixels differ from those of the script's own loader by ``mean_difference``, and at most ``max_difference``, of 255."""

    code: RemedyCode = "decode-on-gpu"
    mean_difference: Amount
    max_difference: Amount


class LargerBatch(Remedy, frozen=True, kw_only=True, tag="larger-batch"):
    code: RemedyCode = "larger-batch"
    batch_size: int


class FewerRanks(Remedy, frozen=True, kw_only=True, tag="fewer-ranks"):
    """For a launcher that starts the ranks outside of a command of ddpbench."""

    code: RemedyCode = "fewer-ranks"
    max_ranks_per_node: int


class ScreenedRemedy(Remedy, frozen=True, kw_only=True, tag="screened"):
    """A cure that was tried inside the running script. ``measured`` is the gain of computing alone, on top of other cures."""

    on_top_of: list[CureCode] = []
    is_kept: bool = False  # it gains more than the noise, and enough to matter
    first_use_s: Seconds | None = None
    obstacle: Obstacle | None = None  # why it was not tried
    needed_s: Seconds | None = None  # for its trial, if there was no time


AnyRemedy = (
    Remedy
    | MoreWorkers
    | FewerWorkers
    | MoreCores
    | DataInMemory
    | PersistentWorkers
    | DecodeOnDevice
    | DecodeOnGpu
    | LargerBatch
    | FewerRanks
    | ScreenedRemedy
)

AdviceCode = Literal[
    "change",  # to the setting that gained most
    "screened",  # to settings that compute faster, as screened; not proved by a fresh start
    "keep-nothing-faster",  # no trial is measurably faster
    "keep-too-noisy",  # the trials vary too much
    "keep-changes-numbers",  # only settings that compute in another precision are faster
    "keep-other-losses",  # settings that should only round change the losses
    "keep-no-gain-predicted",
    "undecided-no-trial-worked",
    "undecided-other-samples",  # more workers would read other samples, and nothing else can be tried
    "undecided-nothing-to-try",
]


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """What a change gains: samples/s of all ranks, and device-hours per day for the same number of samples."""

    samples_per_s: float
    samples_per_s_low: float
    samples_per_s_high: float
    saved_hours_per_day: float
    hours_per_day: NonZero  # of all devices


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What to use from now on, by the trials of a diagnosis."""

    code: AdviceCode
    change: NextStep | None = None
    scenario: Scenario | None = None  # of ``change``
    worth: Worth | None = None
    computing: ChangeTraining | None = None  # screened settings that only round differently
    computing_gain: MeasuredGain | None = None  # theirs, of computing alone

    @property
    def is_undecided(self) -> bool:
        """Whether no trial says what to use, so that the next step of the verdict stands."""
        return self.code in ("undecided-no-trial-worked", "undecided-other-samples", "undecided-nothing-to-try")
