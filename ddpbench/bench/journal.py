"""The job on disk: rewritten after every round, closed when the run ends, loaded even if it was cut off."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypedDict

import psutil
from typing_extensions import Unpack

from ddpbench.bench.resolve import default_loader
from ddpbench.machine.streams import print_error, print_note, record_stdout
from ddpbench.machine.variables import EnvVar
from ddpbench.record.config import Config
from ddpbench.record.diagnosis import AlternativeLoader, Diagnosis, H2DBandwidth, LoaderBenchmark, NodeState, Storage
from ddpbench.record.environment import RankPlacement
from ddpbench.record.errors import BenchError, OutOfMemory, Status, UsageError
from ddpbench.record.io import atomic_write, load, previous_runs, reserve_path, save, slug
from ddpbench.record.prediction import Prediction
from ddpbench.record.private import placeholders, redact, redact_names, restore_names
from ddpbench.record.record import DatasetInfo, Fault, Job, KernelActivity, ObservedPrecision, PeakThroughput, Record, Round, Warmup
from ddpbench.record.request import OutputOptions, Request
from ddpbench.record.roles import SkippedMeasurement
from ddpbench.record.roofline import Roofline
from ddpbench.record.scaling import Overlap, Scaling
from ddpbench.report.console import make_console
from ddpbench.workloads.registry import find_workload

if TYPE_CHECKING:
    from ddpbench.report.pages.registry import PageRenderer


def import_pages() -> None:
    """Import what judges and shows records, which no first step waits for, but before a fault: the disk may be gone then."""
    for module in ("ddpbench.analysis.judge", "ddpbench.report.export", "ddpbench.report.pages.registry"):
        import_module(module)


class Journal:
    """Rank 0's record file. Rounds come from the main thread; a signal thread may close it, between two updates."""

    def __init__(self, job: Job, path: Path) -> None:
        self.job, self.path = job, path
        self.save_error = ""  # why the last save failed; empty if the file is up to date
        self._frozen = False
        self._lock = threading.RLock()
        self.save()

    def save(self) -> None:
        """Save the job. A full disk does not end the run: it is reported once now and once at the end, and the old file stays intact."""
        with self._lock:
            previous_error, self.save_error = self.save_error, ""
            try:
                save(self.job, self.path)
            except OSError as problem:
                self.save_error = save_error_text(self.path, problem)
        if self.save_error and not previous_error:
            print_note(f"{self.save_error}; saving is retried after every round")

    def add_round(self, index: int, measured: Round, **update: Unpack[ArmUpdate]) -> None:
        """Append a round to arm ``index``, along with other updates, and save."""
        with self._lock:
            if not self._frozen:
                self.job.records[index].rounds.append(measured)
            self._update((self.job.records[index], update))

    def update_arm(self, index: int, **update: Unpack[ArmUpdate]) -> None:
        """Update fields of arm ``index``, and save."""
        self._update((self.job.records[index], update))

    def update_arms(self, update_of: Callable[[Record], ArmUpdate]) -> None:
        """Update fields of every arm, and save."""
        self._update(*((record, update_of(record)) for record in self.job.records))

    def update_diagnosis(self, **update: Unpack[DiagnosisUpdate]) -> None:
        """Update fields of the diagnosis, and save."""
        self._update((self.job.diagnosis, update))

    def update_scaling(self, **update: Unpack[ScalingUpdate]) -> None:
        """Update fields of the scaling result, and save."""
        self._update((self.job.scaling, update))

    def _update(self, *updates: tuple[Record | Diagnosis | Scaling | None, Mapping[str, object]]) -> None:
        """Set the fields of every target that have a value, and save once."""
        with self._lock:
            if self._frozen:
                return
            for target, update in updates:
                for name, value in update.items():
                    if value is not None:
                        setattr(target, name, value)
            self.save()

    def add_arms(self, records: Sequence[Record]) -> int:
        """Append arms before their turns, and save; returns the index of the first."""
        with self._lock:
            first = len(self.job.records)
            if not self._frozen:
                self.job.records += records
                self.save()
            return first

    def fail_arm(self, index: int, error: BenchError) -> None:
        """End arm ``index`` with ``error``; the other arms continue."""
        too_large = isinstance(error, OutOfMemory)
        fault = Fault(message=error.message, hint=error.hint, arm_index=index, out_of_memory=too_large)
        with self._lock:
            if not self._frozen:
                self.job.records[index].status, self.job.records[index].fault = error.status, fault
                self.save()

    def freeze(self) -> None:
        """Ignore all updates after the current one, because a signal thread is about to count the rounds and end the run."""
        with self._lock:
            self._frozen = True

    def close(self, status: Status, fault: Fault | None = None) -> None:
        """End every arm that is still running, judge all, and save, also if judging fails."""
        from ddpbench.analysis.judge import judge_all, previous_figures

        earlier = previous_runs(self.path.parent)
        with self._lock:
            close_records(self.job.records, status, fault)
            try:
                judge_all(self.job, lambda record: previous_figures(record, earlier))
            finally:
                self.save()


def close_records(records: Sequence[Record], status: Status, fault: Fault | None) -> None:
    """End every record that is still running: with ``status``, unless all its rounds are there.

    A fault of one arm is recorded for that arm; the records of the others refer to it.
    """
    for index, record in enumerate(records):
        if record.status != "running":
            continue
        if fault and len(records) > 1 and len(record.rounds) == record.config.rounds:
            record.status = "ok"
        else:
            record.status, record.fault = status, fault
            if fault and fault.arm_index not in (None, index):
                record.fault = Fault(message=f"stopped because another arm failed: {fault.message}")


def close_journal_file(path: Path, status: Status, fault: Fault, placements: Sequence[RankPlacement]) -> None:
    """Like ``Journal.close``, from another process, if rank 0 is dead. ``placements`` are those of the job's ranks."""
    from ddpbench.analysis.judge import judge_all

    job = load(path)
    if job.redacted:  # the fault has the real names
        job = restore_names(job, placeholders(placements))
    close_records(job.records, status, fault)
    judge_all(job)
    save(job, path)


def write_json(job: Job, target: str, force: bool) -> None:
    """Write the record to the ``--json`` target; ``-`` is stdout. Raises OSError and then leaves an existing file untouched."""
    from ddpbench.report.export import jobs_to_json

    text = jobs_to_json(job) + "\n"
    if target == "-":
        record_stdout().write(text)
        record_stdout().flush()
    else:
        atomic_write(Path(target), text.encode(), overwrite=force)


def _write_summary(path: Path | None, job: Job, target: str, force: bool) -> None:
    """Write the summary of ``job``, whose record is at ``path``, to the ``--summary`` target; raises as ``write_json`` does."""
    from ddpbench.report.summarize_job import summarize_job, summary_json

    atomic_write(Path(target), f"{summary_json([summarize_job(job, path)])}\n".encode(), overwrite=force)


def print_and_write_json(
    job: Job,
    path: Path | None,
    output: OutputOptions,
    save_error: str = "",
    stream: TextIO | None = None,
    render: PageRenderer | None = None,
) -> str:
    """Print the report, and write the record to the ``--json`` target and its summary to that of ``--summary``; redacted if ``job`` is.

    The report goes to ``stream``, by default to stdout unless the record goes there; ``render`` prints it, by default the page of the
    job's kind. Returns the combined text of ``save_error`` and of an error in writing them, printed once below the report; empty if
    none.
    """
    from ddpbench.report.pages.registry import view_of

    shown_path = None if job.redacted else path
    if job.redacted:
        job = redact(job)
        if path:
            print_note(f"the redacted record is in {path}")
    console = make_console(stream or (sys.stderr if output.json == "-" else sys.stdout))
    (render or view_of(job).render)(job, console, shown_path, verbose=output.verbose, quiet=output.quiet)
    for target, write in ((output.json, write_json), (output.summary, partial(_write_summary, shown_path))):
        try:
            if target:
                write(job, target, output.force)
        except OSError as problem:
            save_error = "; ".join(filter(None, [save_error, save_error_text(target, problem)]))
    if save_error:
        print_error(
            BenchError(save_error, "the figures above are complete; copy them: rounds that are not on disk would be measured again")
        )
    return save_error


def new_job(request: Request, records: list[Record]) -> Job:
    """The job of the request, before anything is measured."""
    return Job(
        started=f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%S+00:00}",
        command=request.command,
        swept=request.swept,
        records=records,
        sweep_shard=request.sweep_shard,
        redacted=request.output.redact,
    )


def new_journal(request: Request, records: list[Record]) -> Journal:
    """The journal in a new timestamped file. Raises UsageError if it cannot be created."""
    return Journal(new_job(request, records), reserve_timestamped_path(request, _file_stem(request)))


def reserve_timestamped_path(request: Request, stem: str) -> Path:
    """A new file whose name begins with the UTC time. Raises UsageError if it cannot be created."""
    return reserve_path(Path(request.output.output_dir), f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{stem}")


def save_error_text(target: object, problem: OSError) -> str:
    """The error text for a file that could not be written."""
    return f"cannot save {target}: {problem.strerror}"


def config_in_name(config: Config, output: OutputOptions) -> Config:
    """``config`` as the name of a file may show it."""
    return redact_names(config) if output.redact else config


def _file_stem(request: Request) -> str:
    arm = request.arms[0]
    first = config_in_name(arm, request.output)
    if request.swept:
        return slug(f"{first.workload} {' '.join(request.swept)}")
    return slug(f"{first.workload} {first.precision} {first.loader or default_loader(arm, find_workload(arm.workload))}")


class ArmUpdate(TypedDict, total=False):
    """Fields of a Record that ``Journal.update_arm``, ``update_arms`` and ``add_round`` set."""

    num_parameters: int
    flops_per_sample: float
    data: DatasetInfo | None
    observed_precision: ObservedPrecision | None
    warmup: Warmup | None
    peak_throughput: PeakThroughput | None
    loader_benchmarks: list[LoaderBenchmark]
    kernel_activity: KernelActivity
    roofline: Roofline


class DiagnosisUpdate(TypedDict, total=False):
    """Fields of a Diagnosis that ``Journal.update_diagnosis`` sets."""

    node_states: list[NodeState]
    loader_benchmarks: list[LoaderBenchmark]
    single_rank_loader_benchmark: LoaderBenchmark | None
    all_cores_loader_benchmarks: list[LoaderBenchmark]
    stage_cpu_s: dict[str, float] | None
    storage: Storage | None
    h2d_bandwidth: H2DBandwidth | None
    alternative_loaders: list[AlternativeLoader]
    predictions: list[Prediction]
    skipped: list[SkippedMeasurement]


class ScalingUpdate(TypedDict, total=False):
    """Fields of a Scaling that ``Journal.update_scaling`` sets."""

    bucket_bytes: list[int]
    allreduce_busbw: dict[int, float]
    busy_wait_cores: float | None
    overlap: Overlap | None
    skipped: list[SkippedMeasurement]


def load_job(path: Path) -> Job:
    """The job in ``path``; one that is not closed is judged by the rounds it has, and marked interrupted if its process has ended.

    Raises UsageError if the file is not a record.
    """
    from ddpbench.analysis.judge import judge_all, judge_remedies

    job = load(path)
    if not job.records:
        raise UsageError(f"'{path}' contains no training", "the run ended before its first training")
    unclosed = [record for record in job.records if record.status == "running"]
    if not unclosed:
        if job.diagnosis and job.diagnosis.remedies is None:  # an older version did not keep them
            judge_remedies(job, job.diagnosis)
        return job
    placement = unclosed[0].environment.placements[0]
    if not _is_running(placement, path):
        other_host = "" if _is_this_host(placement.host) and "#" not in placement.host else f", or it still runs on {placement.host}"
        close_records(unclosed, "interrupted", Fault(message=f"its process is gone{other_host}"))
    judge_all(job)
    return job


def _is_running(placement: RankPlacement, path: Path) -> bool:
    """Whether the rank at ``placement`` still writes the record ``path``. A process younger than the file is a different one."""
    if not _is_this_host(placement.host):
        return False
    try:
        process = psutil.Process(placement.pid)
        return process.status() != psutil.STATUS_ZOMBIE and bool(process.create_time() <= path.stat().st_mtime)
    except psutil.Error:
        return False


def _is_this_host(host: str) -> bool:
    """Whether ``host`` may be this host. Names of nodes that share one end in "#" and a number, so a match can be another node."""
    return host.partition("#")[0] in (socket.gethostname(), os.environ.get(EnvVar.SLURMD_NODENAME))
