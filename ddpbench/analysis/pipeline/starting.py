"""What it takes to start workers anew for an epoch, as a DataLoader does whose workers do not persist."""

from __future__ import annotations

from dataclasses import dataclass

from ddpbench.analysis.pipeline.supply import Supply
from ddpbench.record.diagnosis import Diagnosis
from ddpbench.record.record import Record


@dataclass(frozen=True)
class Start:
    """``first_s`` until the first batch is there, ``epoch_s`` for an epoch beside that, as fast as the run was."""

    first_s: float
    epoch_s: float

    @property
    def share(self) -> float:
        """Of an epoch that begins with it, the fraction."""
        return self.first_s / (self.first_s + self.epoch_s)

    @property
    def gain(self) -> float:
        """How many times as fast epochs are without it."""
        return 1 + self.first_s / self.epoch_s


def start_of(record: Record, given: Supply, diagnosis: Diagnosis) -> Start | None:
    """None without workers, and where nobody counts the images or took a first batch.

    The run of a loader that does start them anew has it in its figure, where it is worth mentioning: epochs are short then.
    """
    first_s = max((each.first_batch_s for each in diagnosis.alone), default=None)
    if record.data is None or not record.data.images or first_s is None or not given.workers:
        return None
    epoch_s = record.data.images / (record.world_size * given.given_rate)
    return Start(first_s, epoch_s - first_s if record.data.starts_anew and epoch_s > first_s else epoch_s)
