"""A remedy: what to try against a bottleneck, as a code with its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ddpbench.analysis.worker_memory import MemoryLimit
from ddpbench.record.prediction import Scenario

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
    "pinned-memory",
    "pinned-memory-and-worker",
    "decode-on-device",
    "without-loader",  # a comparison that shows what the loader costs
    "cuda-graphs",
    "fast",
    "larger-batch",
    "even-batches",
    "less-sync",
    "faster-compute",
    "fused-kernels",  # of a user's own script
    "inspect-straggler",
    "list-processes",
    "more-evidence",
    "fewer-ranks",
]

SCRIPT_REMEDIES: tuple[RemedyCode, ...] = (
    "more-workers",
    "all-cores-workers",
    "fewer-workers",
    "no-workers",
    "more-prefetch",
    "out-of-order",
    "persistent-workers",
    "pinned-memory",
    "pinned-memory-and-worker",
    "decode-on-device",
    "more-cores",
    "data-in-memory",
    "cuda-graphs",
    "fused-kernels",
    "even-batches",
    "inspect-straggler",
    "list-processes",
)
"""Remedies that a user's own script can make, or that concern its machine. The others are settings of ddpbench's workloads."""


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """Something to try against a bottleneck.

    ``command`` measures it beside the original run; empty if it cannot be tried here. ``gain`` is predicted for ``scenario``, or for a
    change of the user's code, as a multiple of the images/s; None if something has to be measured first. Subclasses add numbers that
    neither the scenario nor the record has.
    """

    code: RemedyCode
    command: str = ""
    scenario: Scenario | None = None
    gain: float | None = None


@dataclass(frozen=True, kw_only=True)
class MoreWorkers(Remedy):
    code: RemedyCode = "more-workers"
    workers: int  # per rank
    workers_needed: int  # to keep up with the device, or with the handoff if that is slower
    max_useful_workers: int  # that the cores have work for
    is_handoff_bound: bool
    wanted_workers: int | None = None  # per rank, of which memory has room for ``workers``; None if it has room for more
    limited_by: MemoryLimit | None = None  # that memory


@dataclass(frozen=True, kw_only=True)
class FewerWorkers(Remedy):
    code: RemedyCode = "fewer-workers"
    workers: int  # per rank
    workers_per_node: int  # of the run, all ranks of the node together
    usable_cores: float  # of the node


@dataclass(frozen=True, kw_only=True)
class MoreCores(Remedy):
    code: RemedyCode = "more-cores"
    cores: float  # per rank
    workers: int  # per rank
    is_handoff_bound: bool


@dataclass(frozen=True, kw_only=True)
class DataInMemory(Remedy):
    """Sizes are None if the files were not measured."""

    code: RemedyCode = "data-in-memory"
    dataset_bytes: float | None = None
    shm_free_bytes: float | None = None  # of the node with the least
    fits: bool = False  # a copy in shared memory leaves room for the workers' batches


@dataclass(frozen=True, kw_only=True)
class PersistentWorkers(Remedy):
    """``scenario`` is set for the DataLoader of a script that can keep its workers."""

    code: RemedyCode = "persistent-workers"
    max_gain: float
    epoch_s: float
    first_batch_s: float  # from the start of the workers on
    is_rebuilt: bool = False  # the script creates the loader again for every epoch


@dataclass(frozen=True, kw_only=True)
class DecodeOnDevice(Remedy):
    """Rates are samples/s per rank. ``gain`` is that of ``low``."""

    code: RemedyCode = "decode-on-device"
    low: float  # with a device that decodes a batch before each step
    high: float  # with a device that decodes beside the steps, which are no slower
    decoding_rate: float  # of the device, without training


@dataclass(frozen=True, kw_only=True)
class LargerBatch(Remedy):
    code: RemedyCode = "larger-batch"
    batch_size: int


@dataclass(frozen=True, kw_only=True)
class FewerRanks(Remedy):
    """For a launcher that starts the ranks outside of a command of ddpbench."""

    code: RemedyCode = "fewer-ranks"
    max_ranks_per_node: int
