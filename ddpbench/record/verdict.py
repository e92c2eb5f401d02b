"""Verdicts: the bottleneck of a run, or the main loss of a scaling job."""

from __future__ import annotations

from typing import Literal

import msgspec

from ddpbench.record.ranges import Count, Fraction

Bottleneck = Literal[
    "straggler",  # one rank is slow and the others wait for it
    "loader-steals-cpu",  # the data loader takes cores that the training needs
    "loader-steals-gpu",  # the data loader takes GPU time from the training
    "noisy-neighbour",  # processes outside the job load the machine
    "data-bound",  # the devices wait for data
    "host-to-device-bound",  # batch copies to the device are the bottleneck
    "launch-bound",  # the host cannot issue kernels fast enough
    "sync-bound",  # exposed gradient all-reduce is the bottleneck
    "compute-bound",  # the device is busy computing: healthy
    "inconclusive",  # two bottlenecks compete, or there are too few rounds
]
"""Every bottleneck, in the order in which they are tested: the first that applies is the verdict."""

ScalingLoss = Literal[
    "baseline-in-doubt",  # efficiency exceeds 100%: the 1-rank baseline was too slow
    "scales",  # almost nothing is lost
    "network-bound",  # the network between the nodes is too slow for the gradients
    "link-bound",  # the links between the devices of one node are too slow for the gradients
    "contention-bound",  # ranks on one machine compete for resources even without communication
    "data-bound",  # the ranks wait for data
    "straggler",  # ranks wait for a slow rank
    "ddp-bound",  # ranks compute more slowly while they all-reduce gradients
    "batch-bound",  # the batch per rank is too small for its device
    "unexplained",  # most of the loss is unexplained
    "inconclusive",  # two losses compete, or there are too few rounds
]
"""Every verdict on a scaling job."""

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
"""Root causes of a data-bound run."""

CONFIDENT_FRACTION, PROBABLE_FRACTION = 0.99, 0.70
"""Minimum fraction of resamples to report a bottleneck as certain, and as probable. Below both it is inconclusive."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The bottleneck of a run, or the main loss of a scaling job."""

    kind: Bottleneck | ScalingLoss
    says: str  # the bottleneck and its share, for a non-expert
    why: str  # the evidence in numbers
    next: str = ""  # a command to copy, or one action
    rank: Count | None = None  # the slow rank, if one rank is the bottleneck
    cause: str = ""  # a key of CAUSES; empty if unknown, or if the run is not data-bound
    repeatability: Fraction | None = None  # fraction of resamples that name this bottleneck; None if nothing was resampled
    cause_repeatability: Fraction | None = None  # of those, the fraction that names this cause
    runner_up: str = ""  # the bottleneck that the other resamples name most often
    cause_runner_up: str = ""  # the second most frequent cause among resamples of the same bottleneck

    @property
    def is_probable(self) -> bool:
        """Whether a bottleneck is named that too few resamples repeat to report it as certain."""
        return self.kind != "inconclusive" and self.repeatability is not None and self.repeatability < CONFIDENT_FRACTION

    @property
    def is_cause_probable(self) -> bool:
        return bool(self.cause) and self.cause_repeatability is not None and self.cause_repeatability < CONFIDENT_FRACTION
