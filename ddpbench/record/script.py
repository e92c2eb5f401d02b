"""What was observed of a user's own training script, besides its rounds."""

from __future__ import annotations

from typing import Literal

import msgspec

from ddpbench.record.private import FileMessage, FreeText
from ddpbench.record.ranges import AtLeastOne, Count, Seconds
from ddpbench.record.screening import CureCode

OutsideKind = Literal["validation", "checkpoint", "between-epochs"]
"""What a script does outside of its steps: batches of a loader that no update follows, ``torch.save``, the rest between two epochs."""

StepKind = Literal["batch", "update"]
"""What a step of a script is: a batch of its training loader, or an update if no DataLoader is watched that gives the batches."""


HandleKind = Literal[
    "file",
    "archive",  # zip or tar
    "hdf5",
    "database",  # LMDB or SQLite, in a file
    "socket",
    "memory-map",  # writable, and shared
    "descriptor",  # of a file that a library has opened: reading a sample moves its position
]
"""What a dataset holds open."""


class SharedHandle(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a dataset has open when its workers are forked: all of them, and the trainer, use one and the same."""

    name: str  # "Records.file": the class of the dataset, and the attributes that lead to it
    kind: HandleKind
    path: FileMessage = ""  # of the file; empty if ``name`` leads to it


NotComparedReason = Literal[
    "random",  # most samples differ between two reads, although each began with the same random state
    "repetitive",  # of a stream: one worker alone yields the same sample again and again
    "shuffled",  # of a stream: with equal seeds, workers yield the same samples, in an order of their own with others
    "failed",
]
"""Why samples could not be compared."""


class SampleComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Samples that several workers read at once, beside those that the script's own way reads: without workers, or with one.

    Of a stream, an IterableDataset, beside those of each other.
    """

    workers: AtLeastOne
    samples: Count = 0  # that were compared
    different: Count = 0  # of them; of a stream, those that another worker yielded, too
    unsteady: Count = 0  # more samples, which differ from one read to the next in the script's own way, and were not compared
    is_stream: bool = False
    not_compared: NotComparedReason | None = None
    error: FreeText = ""  # if it failed

    @property
    def repeats_samples(self) -> bool:
        """Whether workers yield each other's samples: the stream is not divided among them."""
        return self.is_stream and self.different > 0

    @property
    def changes_samples(self) -> bool:
        """Whether more workers give a script other samples."""
        return self.different > 0 or self.not_compared in ("failed", "repetitive", "shuffled")


OnlyWatchedReason = Literal[
    "no-loader",  # its batches come from no DataLoader in the thread that trains
    "rank-0-loads",  # and sends them to the other ranks, as DataLoaderDispatcher of Accelerate does
]
"""Why a diagnosis could give a script no other batches."""


class WatchedScript(msgspec.Struct, frozen=True, kw_only=True):
    """A training script, as rank 0 observed it.

    Its record has a ``ResolvedConfig`` with the observed settings. Those that a script does not have keep ddpbench's own default there.
    """

    observed_settings: list[str] = []  # fields of the ``ResolvedConfig`` that the script has itself; empty in older records

    model: str = ""  # class of the outermost model, and of the model in DDP: "DistributedDataParallel(ResNet)"; empty if unknown
    optimizers: list[str] = []  # classes, in the order of their first steps
    dataset: str = ""  # class, and that of the dataset in it: "Subset of CIFAR10"
    sampler: str = ""  # class of what chooses its samples; empty if unknown
    num_samples: Count | None = None  # of the dataset; None if it has no length
    in_order: bool = True  # its DataLoader returns batches in the order of the sampler
    step: StepKind = "batch"
    batches: Count = 0  # of the training loader, on one rank; updates if these are the steps
    updates: Count = 0  # of all optimizers, on one rank
    first_step_s: Seconds | None = None  # None if it was not timed
    epochs: Count = 0  # begun
    epoch_batches: Count | None = None  # on one rank; None if unknown
    batches_per_update: AtLeastOne = 1  # above 1 with gradient accumulation
    training_s: Seconds = 0.0  # all steps, and the time outside of them until the last step or validation
    settings_to_try: list[CureCode] = []  # that apply to what it trains; not looked for in a diagnosis, which tries them
    ended_early: bool = False  # by ddpbench: after --steps batches, or at the end of a diagnosis
    outside_s: dict[OutsideKind, Seconds] = {}
    sample_comparison: SampleComparison | None = None  # of the training loader's dataset; None if nothing was compared
    shared_handles: list[SharedHandle] = []  # of the training loader's dataset, if it forks workers; empty if not searched
    only_watched: OnlyWatchedReason | None = None  # in a diagnosis, which has tried nothing then
