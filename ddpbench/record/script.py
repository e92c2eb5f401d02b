"""What was observed of a user's own training script, besides its rounds."""

from __future__ import annotations

from typing import Literal

import msgspec

from ddpbench.record.ranges import AtLeastOne, Count, Seconds

OutsideKind = Literal["validation", "checkpoint", "between-epochs"]
"""What a script does outside of its steps: batches of a loader that no update follows, ``torch.save``, the rest between two epochs."""

StepKind = Literal["batch", "update"]
"""What a step of a script is: a batch of its training loader, or an update if no DataLoader is watched that gives the batches."""


class WatchedScript(msgspec.Struct, frozen=True, kw_only=True):
    """A training script, as rank 0 observed it.

    Its record has a ``ResolvedConfig`` with the observed settings. Those that a script does not have keep a default there.
    """

    model: str = ""  # class of the outermost model, and of the model in DDP: "DistributedDataParallel(ResNet)"; empty if unknown
    optimizers: list[str] = []  # classes, in the order of their first steps
    dataset: str = ""  # class, and that of the dataset in it: "Subset of CIFAR10"
    num_samples: Count | None = None  # of the dataset; None if it has no length
    in_order: bool = True  # its DataLoader returns batches in the order of the sampler
    step: StepKind = "batch"
    batches: Count = 0  # of the training loader, on one rank; updates if these are the steps
    epochs: Count = 0  # begun
    batches_per_update: AtLeastOne = 1  # above 1 with gradient accumulation
    training_s: Seconds = 0.0  # all steps, and the time outside of them until the last step or validation
    fusable_norms: Count | None = None  # BatchNorms of the model that fused kernels can run; None if they were not looked for
    ended_early: bool = False  # by ddpbench, after --steps batches
    outside_s: dict[OutsideKind, Seconds] = {}
