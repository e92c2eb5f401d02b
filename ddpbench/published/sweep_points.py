"""Finds the record of a job that reproduces a row of a published table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpbench.published.publications import PublishedExperiment, PublishedRow
from ddpbench.record.record import Job, Record
from ddpbench.record.registry import find_precision
from ddpbench.record.roles import EARLIER_MODEL_ALIVE, RUN, Role


def matching_records(job: Job, workload: str) -> list[Record]:
    """The records of the published ``workload``, by name.

    If the job was shrunk, the largest of its family.
    """
    exact = [record for record in job.records if record.config.workload == workload]
    if exact:
        return exact
    family = records_of_family(job.records, workload)
    max_parameters = max((record.num_parameters for record in family), default=0)
    return [record for record in family if record.num_parameters == max_parameters]


def records_of_family(records: Iterable[Record], workload: str) -> list[Record]:
    """All records of the same family.

    Any Wide-ResNet, any width of VGG16 on CIFAR-10, any depth of disc-mlp.
    """
    return [record for record in records if _family(record.config.workload) == _family(workload)]


def is_quick(job: Job) -> bool:
    """Whether the job shrank the protocol, so that its figures give no ratio to the published ones."""
    return "--quick" in job.command


def batch_sizes(records: Iterable[Record]) -> list[int]:
    """The batch sizes per rank, in rising order."""
    return sorted({record.config.batch_size for record in records})


def match_row(row: PublishedRow, experiment: PublishedExperiment, job: Job) -> Record | None:
    """The record that repeats ``row``, matched by precision and batch size.

    Prefers a record with the earlier model alive, as published. A row without a batch size takes the protocol's, the smallest in the
    job. If the job shrank its batch sizes, they are assigned to the rows in the same order.
    """
    candidates = [
        record for record in matching_records(job, experiment.workload) if record.config.precision == find_precision(row.precision).name
    ]
    batch_size = _batch_size(row, experiment, matching_records(job, experiment.workload), is_quick(job))
    matching = [record for record in candidates if record.config.batch_size == batch_size]
    return next((record for record in matching if record.role == EARLIER_MODEL_ALIVE), matching[0] if matching else None)


def find_by_precision(records: Iterable[Record], name: str, batch: int | None = None, role: Role = RUN) -> Record | None:
    """The first record of a precision, given by name or alias; any batch size if None."""
    wanted = find_precision(name).name
    return next(
        (
            record
            for record in records
            if record.config.precision == wanted and record.role == role and batch in (None, record.config.batch_size)
        ),
        None,
    )


def _batch_size(row: PublishedRow, experiment: PublishedExperiment, records: Sequence[Record], quick: bool) -> int | None:
    sizes = batch_sizes(records)
    if row.batch_size is None:
        return sizes[0] if sizes else None
    published = sorted({each.batch_size for each in experiment.rows if each.batch_size is not None})
    if not quick or row.batch_size in sizes:
        return row.batch_size
    index = published.index(row.batch_size)
    return sizes[index] if index < len(sizes) else None


def _family(workload: str) -> str:
    return next((family for family in ("wrn", "vgg16-", "disc-mlp", "gemm-mlp") if workload.startswith(family)), workload)
