"""What each part of a data pipeline can give on its own, beside what the device could train."""

from __future__ import annotations

from dataclasses import dataclass

from ddpbench.analysis.controls import step_s, times_as_long
from ddpbench.analysis.inputs import Case
from ddpbench.analysis.pipeline import rates
from ddpbench.analysis.pipeline.model import Supply
from ddpbench.analysis.ratio import Ratio


@dataclass(frozen=True)
class Ceilings:
    """Images/s of one rank; None where they were not measured, or do not apply."""

    device: float | None  # on batches that lie there
    no_sync: float | None  # the same with every rank for itself
    replay: float | None  # on batches that are ready in the host's memory
    pinned: float | None  # copies, from page-locked memory
    pageable: float | None
    alone: float | None  # the loader with nobody training, the slowest rank
    alone_single: float | None  # rank 0's with the others idle
    warm: float | None  # files that lie in memory
    cold: float | None  # files that lie on the storage
    workers: float | None  # of the workers there are, all busy
    cores: float | None  # of the cores there are
    given: float  # the run itself
    interference: Ratio | None  # how many times as long a step takes with the loader beside it
    utilisation: float | None  # AU


def ceilings(case: Case, given: Supply) -> Ceilings:
    around, batch = case.around, case.record.config.batch_size
    diagnosis = around.diagnosis
    copies, storage = (diagnosis.copies, diagnosis.storage) if diagnosis else (None, None)
    device_s = step_s(around.device)

    def rate(seconds: float | None) -> float | None:
        return rates.device_rate(batch, seconds) if seconds else None

    return Ceilings(
        device=rate(device_s),
        no_sync=rate(step_s(around.no_sync)),
        replay=rate(step_s(around.replay)),
        pinned=rates.copy_rate(copies.pinned, copies.bytes_per_image) if copies else None,
        pageable=rates.copy_rate(copies.pageable, copies.bytes_per_image) if copies else None,
        alone=given.alone_rate,
        alone_single=diagnosis.alone_single.images_per_s if diagnosis and diagnosis.alone_single else None,
        warm=rates.storage_rate(given.ranks, 1.0, storage.warm, None) if storage else None,
        cold=rates.storage_rate(given.ranks, 0.0, None, storage.cold) if storage else None,
        workers=given.by_workers if given.workers else None,
        cores=given.by_cores,
        given=given.given_rate,
        interference=times_as_long(around.beside, around.device),
        utilisation=rates.utilisation(device_s, case.step_ms / 1000) if device_s else None,
    )
