"""What is said about a run: its figure, the checks on it, and the limit it hit."""

from __future__ import annotations

from typing import Literal

import msgspec

from ddpbench.record.ranges import Amount, AtLeastOne, Count, Fraction, NonZero

Bottleneck = Literal[
    "straggler",  # one rank is slow and the others wait for it
    "loader-steals-cpu",  # the data loader takes the cores that the training needs
    "loader-steals-gpu",  # the data loader takes GPU time from the training
    "noisy-neighbour",  # other people's processes take the machine
    "data-bound",  # the devices wait for data
    "host-to-device-bound",  # copying batches to the device is the limit
    "launch-bound",  # the host cannot issue kernels fast enough
    "sync-bound",  # gradient all-reduce that backward does not hide is the limit
    "compute-bound",  # the device is busy computing: healthy
    "inconclusive",  # two limits compete, or the rounds are too few
]
"""Every limit a run can hit, in the order they are tested: the first that holds is the verdict."""

ScalingLoss = Literal[
    "baseline-in-doubt",  # more than all of one rank's speed is kept, which cannot be: the one rank was slow
    "scales",  # next to nothing is lost
    "network-bound",  # the network between the nodes is too slow for the gradients
    "link-bound",  # the links between the devices of one node are too slow for the gradients
    "contention-bound",  # ranks on one machine take from each other, without a word between them
    "data-bound",  # the ranks wait for data
    "straggler",  # ranks wait for a slow one
    "ddp-bound",  # ranks compute more slowly while they send gradients
    "batch-bound",  # the share of the batch that a rank has is too small for its device
    "unexplained",  # most of what is lost has no name
    "inconclusive",  # two losses compete, or the rounds are too few
]
"""Every verdict on a ladder."""

CAUSES = {
    "too-few-workers": "more loader workers would help, and there are cores for them",
    "too-few-cores": "no number of workers can feed the devices from these cores",
    "oversubscribed": "more workers than cores: they take turns",
    "quota": "a CPU quota stops the workers",
    "storage": "files cannot be read as fast",
    "decode": "decoding takes most of an image's cost",
    "augment": "augmentation takes most of an image's cost",
    "collate": "putting batches together takes most of an image's cost",
    "hand-over": "the trainer process takes batches over too slowly: collate, pickling or the pin thread",
    "head-of-line": "batches are ready, but not the one whose turn it is",
    "one-rank": "one rank's loader is slow, and the others wait for it",
}
"""What makes a run data-bound."""

CONFIDENT_FRACTION, PROBABLE_FRACTION = 0.99, 0.70
"""Shares of resamples from which a limit is named plainly, and from which it is named with its share. Below it is inconclusive."""

Severity = Literal["blocks", "warns", "informs"]


class ThroughputEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The figure: median images/s of all ranks over the rounds, with a t-interval on the logs of the round figures."""

    images_per_s: NonZero
    low: NonZero
    high: NonZero
    rounds: AtLeastOne
    round_cv: Amount  # coefficient of variation of the round figures, a fraction
    launch_low: NonZero  # the interval that also carries the variance between launches: for comparing across launches
    launch_high: NonZero
    launch_sd: Amount  # of the log figure, a fraction
    launch_source: str  # "assumed", "3 launches", "7 earlier runs"
    launch_images_per_s: list[NonZero] = msgspec.field(
        default=[], name="launch_figures"
    )  # images/s of each launch, where the record is of several
    confidence: Fraction = 0.95


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One trust check that had something to say."""

    code: str = msgspec.field(name="name")
    severity: Severity = msgspec.field(name="effect")
    sentence: str
    numbers: dict[str, float] = {}
    hint: str = ""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Which limit the run hit."""

    kind: Bottleneck | ScalingLoss
    says: str  # the limit in words a non-expert understands, with its share
    why: str  # the numbers
    next: str = ""  # a command to copy, or one thing to do
    rank: Count | None = None  # the slow rank, where one rank is the limit
    cause: str = ""  # a key of CAUSES; empty if a data-bound run's is unknown
    repeatability: Fraction | None = None  # share of the resamples that name this limit; None if nothing was resampled
    cause_repeatability: Fraction | None = None  # of those, the share that names this cause
    runner_up: str = ""  # the limit that the other resamples name most often
    cause_runner_up: str = ""  # of those of the same limit, the cause

    @property
    def is_probable(self) -> bool:
        """Whether the limit is named, and too few resamples repeat it to name it plainly."""
        return self.kind != "inconclusive" and self.repeatability is not None and self.repeatability < CONFIDENT_FRACTION

    @property
    def is_cause_probable(self) -> bool:
        return bool(self.cause) and self.cause_repeatability is not None and self.cause_repeatability < CONFIDENT_FRACTION
