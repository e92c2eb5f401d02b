"""What it takes to start workers anew for an epoch, as a DataLoader does whose workers do not persist."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from ddpbench.analysis.pipeline.model import PipelineModel
from ddpbench.record.diagnosis import Diagnosis
from ddpbench.record.record import Record


@dataclass(frozen=True)
class WorkerStartup:
    """``first_s`` until the first batch is there, and ``epoch_s`` that an epoch with such a start takes."""

    first_batch_s: float
    epoch_s: float

    @property
    def epoch_fraction(self) -> float:
        """Of an epoch, the fraction, at most: a batch is waited for also where workers are there already."""
        return min(1.0, self.first_batch_s / self.epoch_s)

    @property
    def max_gain(self) -> float:
        """How many times as fast epochs would be without it, at most."""
        return 1 / (1 - self.epoch_fraction) if self.epoch_fraction < 1 else inf


def worker_startup(record: Record, pipeline: PipelineModel, diagnosis: Diagnosis) -> WorkerStartup | None:
    """None without workers, and where nobody counts the images or took a first batch.

    Epochs of a loader that does start them anew have it in them, as the run had where they are short.
    """
    data, first_s = record.data, max((each.first_batch_s for each in diagnosis.loader_benchmarks), default=None)
    if data is None or not data.images or first_s is None or not pipeline.workers:
        return None
    first_s, epoch_s = max(0.0, first_s - data.setup_s), data.images / (record.world_size * pipeline.achieved_rate)
    return WorkerStartup(first_s, epoch_s if data.respawns_workers else first_s + epoch_s)
