"""What a loader has to work with and what it gives, beside what the devices could train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, fsum
from statistics import fmean

from ddpbench.analysis.controls import step_s
from ddpbench.analysis.cpu_demand import need
from ddpbench.analysis.inputs import Case
from ddpbench.analysis.node_cpu_usage import Busy, busiest
from ddpbench.analysis.pipeline import rates
from ddpbench.analysis.pipeline.costs import Cost, cost_of_run, costs_of_ranks
from ddpbench.analysis.ranks import COMPUTE, known
from ddpbench.record.diagnosis import Alone, Diagnosis
from ddpbench.record.record import Record

MOST_A_CORE = 16
"""Workers a core of which it can be said what they would give; each is a process with the program in its memory."""

STOOD_MS = 1.0
"""A rank stood waiting for a batch that took it longer than this to get; of those the loader tells how they were handed over."""


@dataclass(frozen=True)
class Supply:
    """One rank of the node where cores are scarcest. Rates are images/s a rank."""

    ranks: int  # on that node
    workers: int  # a rank
    cores: float  # usable on that node
    trainers: int  # cores that its trainer processes need
    device_rate: float  # what the device trains of batches that are there already
    given_rate: float  # what the run reached
    cost: Cost | None  # of an image in the workers, the mean over all ranks
    costs_of_ranks: Sequence[Cost]  # the same on each rank that tells its own
    main_s: float  # seconds of a core an image in the trainer process beside its workers
    training_s: float  # the same for training it, where that is done on these cores; 0 on a GPU
    busy: Busy | None
    wait_share: float  # of a step, for data
    hand_over_share: float | None  # of the wait for a batch: from its worker's end of it to the trainer's having it
    head_of_line: float | None  # of the wait for data: a later batch was ready
    alone_rate: float | None  # of the loader with nobody training
    storage_rate: float | None
    sharing: float | None  # how many times as much the loader gives on one rank alone as on each of all at once

    @property
    def image_s(self) -> float | None:
        """Seconds of a core that loading an image takes."""
        return self.cost.cpu_s + self.main_s if self.cost else None

    def cores_give(self, image_s: float) -> float | None:
        """Images/s of these cores where loading one takes ``image_s``; None where the trainers leave none, and it loads by turns."""
        if self.training_s:
            return rates.shared_core_rate(self.cores, self.ranks, image_s, self.training_s)
        return rates.core_rate(self.cores, self.trainers, self.ranks, image_s) or None

    @property
    def by_cores(self) -> float | None:
        """At the least what the run reached on them, whatever its costs come to: its trainers may need less than all of theirs."""
        rate = self.cores_give(self.image_s) if self.image_s else None
        return rate and max(rate, self.given_rate)

    @property
    def loader_rate(self) -> float | None:
        """Images/s of the loader with nobody training: as measured, else as the cores give them."""
        return self.alone_rate or (rates.core_rate(self.cores, 0, self.ranks, self.image_s) if self.image_s else None)

    @property
    def worker_s(self) -> float | None:
        """Seconds an image in a worker: as it was, or with a core of its own where the cores were all busy."""
        return self._worker_s(self.cost) if self.cost else None

    def _worker_s(self, cost: Cost) -> float:
        return cost.wall_with_a_core_s() if self.contended else cost.wall_s

    @property
    def by_workers(self) -> float | None:
        if not self.workers or not self.worker_s:
            return self.given_rate if self.worker_s else None  # the trainer loads and trains by turns
        return rates.worker_rate(self.workers, self.worker_s)

    @property
    def contended(self) -> bool:
        """Whether the cores leave no time for more work; by their number, where nobody watched them.

        More workers that hardly need a core find one on the busiest machine.
        """
        if self.cost is not None and self.cost.mostly_elsewhere:
            return False
        if self.busy is not None:
            return self.busy.all_of_them
        return self.ranks * self.workers + self.trainers >= self.cores

    @property
    def working(self) -> float | None:
        """The fraction of their time for which the workers make batches; near 1 they are what is waited for."""
        if self.cost is None or not self.workers:
            return None
        return min(1.0, self.given_rate * self.cost.wall_s / self.workers)

    @property
    def cores_of_workers(self) -> float | None:
        """Cores of the node that the workers keep busy."""
        return self.ranks * self.given_rate * self.cost.cpu_s if self.cost else None

    @property
    def most_rate(self) -> float:
        """What the device trains, or less where the trainer process cannot hand over so many, however many workers and cores there are."""
        return min(self.device_rate, rates.trainer_rate(self.main_s))

    @property
    def handed_too_slowly(self) -> bool:
        """Whether the device would wait for the trainer process however many workers and cores there are."""
        return self.most_rate < self.device_rate

    @property
    def workers_wanted(self) -> int | None:
        """Workers a rank that keep up with the device on every rank, as far as the trainer process can."""
        slowest_s = max(map(self._worker_s, self.costs_of_ranks), default=self.worker_s)
        return rates.workers_needed(slowest_s, self.most_rate) if slowest_s else None

    @property
    def workers_of_use(self) -> int | None:
        """Workers a rank that keep these cores busy: more of them only take turns, or wait by hundreds and fill the memory."""
        if self.worker_s is None or self.by_cores is None:
            return None
        return max(1, min(round(self.worker_s * self.by_cores), int(MOST_A_CORE * self.cores / self.ranks)))

    @property
    def cores_wanted(self) -> float | None:
        """Cores a rank that load as fast as the device trains, or as its trainer hands over; the trainer's are among them."""
        return rates.cores_needed(self.image_s, self.most_rate, self.trainers, self.ranks) if self.image_s else None

    @property
    def whole_cores_wanted(self) -> float | None:
        """The same where all ranks of the node share whole cores: 17 are 2.125 each of eight."""
        return ceil(self.ranks * self.cores_wanted) / self.ranks if self.cores_wanted else None


@lru_cache(maxsize=8)  # every rule about a case asks for it
def supply(case: Case) -> Supply:
    record, diagnosis, node = case.record, case.around.diagnosis, need(case.record)
    batch = record.config.batch_size
    device_s = step_s(case.around.device) or fsum(case.summary.phases_ms[phase] for phase in COMPUTE) / 1000
    cpu = record.environment.device_type == "cpu"
    return Supply(
        ranks=node.ranks,
        workers=node.workers,
        cores=node.usable,
        trainers=node.trainers,
        device_rate=rates.device_rate(batch, device_s),
        given_rate=rates.device_rate(batch, case.step_ms / 1000),
        cost=cost_of_run(record, diagnosis),
        costs_of_ranks=costs_of_ranks(record, diagnosis),
        main_s=_main_s(diagnosis) if node.workers else 0.0,
        training_s=node.threads * device_s / batch if cpu else 0.0,
        busy=busiest(record),
        wait_share=case.data_wait_ms / case.step_ms,
        hand_over_share=_hand_over_share(record),
        head_of_line=_head_of_line(record),
        alone_rate=min((each.images_per_s for each in diagnosis.alone), default=None) if diagnosis else None,
        sharing=_sharing(diagnosis),
        storage_rate=_storage_rate(diagnosis, node.ranks),
    )


def _main_s(diagnosis: Diagnosis | None) -> float:
    there: list[Alone] = [each for each in diagnosis.alone if each.images] if diagnosis else []
    return fsum(each.main_cpu_s for each in there) / sum(each.images for each in there) if there else 0.0


def _hand_over_share(record: Record) -> float | None:
    """Of the wait for those batches that a rank stood waiting for."""
    handed_ms, waited_ms = 0.0, 0.0
    for trace in record.traces:
        stood = [wait for wait in trace.host_data_ms if wait > STOOD_MS]
        if stood and trace.loading and trace.loading.hand_over_ms is not None:
            handed_ms += len(stood) * trace.loading.hand_over_ms
            waited_ms += fsum(stood)
    return handed_ms / waited_ms if waited_ms else None


def _head_of_line(record: Record) -> float | None:
    told = known(trace.loading.head_of_line for trace in record.traces if trace.loading)
    return fmean(told) if told else None


def _storage_rate(diagnosis: Diagnosis | None, ranks: int) -> float | None:
    storage = diagnosis.storage if diagnosis else None
    if storage is None or storage.resident is None:
        return None
    return rates.storage_rate(ranks, storage.resident, storage.warm, storage.cold)


def _sharing(diagnosis: Diagnosis | None) -> float | None:
    if diagnosis is None or diagnosis.alone_single is None or not diagnosis.alone:
        return None
    together = next(each for each in diagnosis.alone if each.rank == diagnosis.alone_single.rank)
    return diagnosis.alone_single.images_per_s / together.images_per_s
