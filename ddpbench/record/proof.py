"""Launches of a script as it is and with a change of its code, in turn: what proves, or refutes, that the change trains faster."""

from __future__ import annotations

from typing import Literal

import msgspec

from ddpbench.record.private import FileMessage
from ddpbench.record.ranges import AtLeastOne, Count, NonZero, Seconds
from ddpbench.record.remedy import MeasuredGain

ProofCode = Literal[
    "proved",  # faster, beyond the spread of the launches, and nothing speaks against it
    "slower",
    "cannot-tell",  # the interval of the gain includes 1
    "refuted",  # there is a figure, but a problem
]

ProofProblem = Literal[
    "loss-not-finite",
    "skipped-updates",  # more of them than without the change
    "other-batches",  # another number of samples per step
]


class SideLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """One launch."""

    is_changed: bool
    samples_per_s: NonZero  # of all ranks
    samples_per_step: NonZero  # of one rank
    batches: Count  # on rank 0
    updates: Count
    has_finite_loss: bool = True
    peak_bytes: Count | None = None  # allocated on a device, the largest of all ranks; None on the CPU
    first_step_s: Seconds | None = None


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """All launches in their order, and what they show."""

    diff: FileMessage  # the file
    steps: AtLeastOne  # of each launch
    compute_only: bool = False  # on batches that are ready
    launches: list[SideLaunch]
    gain: MeasuredGain | None = None  # of samples/s; None until both sides were launched
    code: ProofCode | None = None
    problems: list[ProofProblem] = []
