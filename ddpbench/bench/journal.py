"""The job on disk: rewritten after every round, and closed when the run ends."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypedDict, Unpack

from ddpbench.analysis.judge import judge_all, previous_figures
from ddpbench.machine.streams import print_error, print_note, record_stdout
from ddpbench.record.diagnosis import AlternativeLoader, Diagnosis, H2DBandwidth, LoaderBenchmark, NodeState, Storage
from ddpbench.record.errors import BenchError, OutOfMemory, Status
from ddpbench.record.files import atomic_write
from ddpbench.record.folder import previous_runs
from ddpbench.record.prediction import Prediction
from ddpbench.record.record import (
    DatasetInfo,
    Fault,
    Job,
    KernelActivity,
    ObservedPrecision,
    PeakThroughput,
    Record,
    Round,
    Warmup,
    load,
    reserve_path,
    save,
    slug,
)
from ddpbench.record.request import OutputOptions, Request
from ddpbench.record.scaling import Overlap, Scaling
from ddpbench.report.console import make_console
from ddpbench.report.export import jobs_to_json
from ddpbench.report.pages.registry import PageRenderer


class Journal:
    """Rank 0's file. Rounds come from the main thread, the end may come from a thread that saw a signal."""

    def __init__(self, job: Job, path: Path) -> None:
        self.job, self.path = job, path
        self.save_error = ""  # why the file is behind, once the disk refused
        self._frozen = False
        self._lock = threading.Lock()
        self.save()

    def save(self) -> None:
        """Writes what is known. A full disk must not end the run: it is said once, and at the end, and the old file stays whole."""
        with self._lock:
            before, self.save_error = self.save_error, ""
            try:
                save(self.job, self.path)
            except OSError as problem:
                self.save_error = save_error_text(self.path, problem)
        if self.save_error and not before:
            print_note(f"{self.save_error}; it is tried again after every round")

    def add_round(self, index: int, measured: Round, **update: Unpack[ArmUpdate]) -> None:
        """One more round of arm ``index``, with what else is known of it by now, on disk before the next begins."""
        if not self._frozen:
            self.job.records[index].rounds.append(measured)
        self._set_fields(self.job.records[index], update)

    def update_arm(self, index: int, **update: Unpack[ArmUpdate]) -> None:
        """What is known by now of arm ``index``, on disk at once."""
        self._set_fields(self.job.records[index], update)

    def update_diagnosis(self, **update: Unpack[DiagnosisUpdate]) -> None:
        """What is known by now beside the arms of a diagnosis, on disk at once."""
        self._set_fields(self.job.diagnosis, update)

    def update_scaling(self, **update: Unpack[ScalingUpdate]) -> None:
        """What is known by now beside the arms of a ladder, on disk at once."""
        self._set_fields(self.job.scaling, update)

    def _set_fields(self, target: Record | Diagnosis | Scaling | None, update: Mapping[str, object]) -> None:
        if self._frozen:
            return
        for name, value in update.items():
            if value is not None:
                setattr(target, name, value)
        self.save()

    def add_arms(self, records: Sequence[Record]) -> int:
        """Further arms, on disk before their turns; returns the place of the first."""
        first = len(self.job.records)
        if not self._frozen:
            self.job.records += records
            self.save()
        return first

    def fail_arm(self, index: int, error: BenchError) -> None:
        """Arm ``index`` ends here, and the others go on."""
        if self._frozen:
            return
        record = self.job.records[index]
        too_large = isinstance(error, OutOfMemory)
        record.status, record.fault = error.status, Fault(message=error.message, hint=error.hint, arm_index=index, out_of_memory=too_large)
        self.save()

    def freeze(self) -> None:
        """Nothing more is taken down: somebody counts the rounds, to end the run."""
        self._frozen = True

    def close(self, status: Status, fault: Fault | None = None) -> None:
        """Ends every arm that still runs, judges all, and saves."""
        close_records(self.job.records, status, fault)
        earlier = previous_runs(self.path.parent)
        judge_all(self.job, lambda record: previous_figures(record, earlier))
        self.save()


def close_records(records: Sequence[Record], status: Status, fault: Fault | None) -> None:
    """Ends every record that is still running: with ``status``, unless all its rounds are there.

    A fault of one arm is that one's alone: what became of the others is told from it.
    """
    for index, record in enumerate(records):
        if record.status != "running":
            continue
        if fault and len(records) > 1 and len(record.rounds) == record.config.rounds:
            record.status = "ok"
        else:
            record.status, record.fault = status, fault
            if fault and fault.arm_index not in (None, index):
                record.fault = Fault(message=f"ended with another arm: {fault.message}")


def close_journal_file(path: Path, status: Status, fault: Fault) -> None:
    """Does what ``Journal.close`` does, from another process: rank 0 is gone."""
    job = load(path)
    close_records(job.records, status, fault)
    judge_all(job)
    save(job, path)


def write_json(job: Job, target: str, force: bool) -> None:
    """The record once more where ``--json`` wants it, whole; ``-`` is stdout. Raises OSError, and then leaves what was there."""
    text = jobs_to_json(job) + "\n"
    if target == "-":
        record_stdout().write(text)
        record_stdout().flush()
    else:
        atomic_write(Path(target), text.encode(), overwrite=force)


def print_and_write_json(job: Job, path: Path | None, output: OutputOptions, render: PageRenderer, save_error: str = "") -> str:
    """The report, on stdout unless the record goes there, and the record where ``--json`` wants it.

    Says once, below, what the disk did not take: ``save_error``, and that record. Returns it; empty where all is written.
    """
    render(job, make_console(sys.stderr if output.json == "-" else sys.stdout), path, verbose=output.verbose, quiet=output.quiet)
    try:
        if output.json:
            write_json(job, output.json, output.force)
    except OSError as problem:
        save_error = "; ".join(filter(None, [save_error, save_error_text(output.json, problem)]))
    if save_error:
        print_error(BenchError(save_error, "the figures above are whole: keep them, for what is not on disk would be measured anew"))
    return save_error


def new_job(request: Request, records: list[Record]) -> Job:
    """What the request will have measured, before it has."""
    return Job(
        started=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S+00:00}",
        command=request.command,
        swept=request.swept,
        records=records,
        sweep_shard=request.sweep_shard,
    )


def new_journal(request: Request, records: list[Record]) -> Journal:
    """A file of its own for every run, named by its time. Raises UsageError where it cannot be made."""
    return Journal(new_job(request, records), reserve_timestamped_path(request, _file_stem(request)))


def reserve_timestamped_path(request: Request, stem: str) -> Path:
    """A file whose name begins with the time, by which the latest is found. Raises UsageError where it cannot be made."""
    return reserve_path(Path(request.output.output_dir), f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{stem}")


def save_error_text(target: object, problem: OSError) -> str:
    """What is said of a file that the disk did not take."""
    return f"cannot save {target}: {problem.strerror}"


def _file_stem(request: Request) -> str:
    first = request.arms[0]
    if request.swept:
        return slug(f"{first.workload} {' '.join(request.swept)}")
    return slug(f"{first.workload} {first.precision} {first.loader or ('torch' if first.data_dir else 'synthetic')}")


DiagnosisField = Literal[
    "node_states",
    "loader_benchmarks",
    "single_rank_loader_benchmark",
    "stage_cpu_s",
    "storage",
    "h2d_bandwidth",
    "alternative_loaders",
]
"""The fields of a Diagnosis that an experiment fills in."""


class ArmUpdate(TypedDict, total=False):
    """Of a Record."""

    data: DatasetInfo | None
    observed_precision: ObservedPrecision | None
    warmup: Warmup | None
    peak_throughput: PeakThroughput | None
    loader_benchmarks: list[LoaderBenchmark]
    kernel_activity: KernelActivity


class DiagnosisUpdate(TypedDict, total=False):
    """Of a Diagnosis."""

    node_states: list[NodeState]
    loader_benchmarks: list[LoaderBenchmark]
    single_rank_loader_benchmark: LoaderBenchmark | None
    stage_cpu_s: dict[str, float] | None
    storage: Storage | None
    h2d_bandwidth: H2DBandwidth | None
    alternative_loaders: list[AlternativeLoader]
    predictions: list[Prediction]
    skip_reasons: dict[str, str]


class ScalingUpdate(TypedDict, total=False):
    """Of a Scaling."""

    bucket_bytes: list[int]
    allreduce_busbw: dict[int, float]
    busy_wait_cores: float | None
    overlap: Overlap | None
    skip_reasons: dict[str, str]
