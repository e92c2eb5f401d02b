"""The job on disk: rewritten whole after every round, and closed by whoever ends the run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Unpack

from ddpbench.analysis.history import repeated
from ddpbench.analysis.judge import judge_all
from ddpbench.bench.learned import OfArm, OfDiagnosis, OfScaling
from ddpbench.machine.stderr import print_error, print_note
from ddpbench.machine.stdout import for_the_record
from ddpbench.record.diagnosis import Diagnosis
from ddpbench.record.errors import BenchError, DoesNotFit, Status
from ddpbench.record.files import write_whole
from ddpbench.record.folder import earlier_runs
from ddpbench.record.record import Fault, Job, Record, Round, load, reserve, save, slug
from ddpbench.record.request import Output, Request
from ddpbench.record.scaling import Scaling
from ddpbench.report.console import make_console
from ddpbench.report.export import to_json
from ddpbench.report.pages.registry import Render


class Journal:
    """Rank 0's file. Rounds come from the main thread, the end may come from a thread that saw a signal."""

    def __init__(self, job: Job, path: Path) -> None:
        self.job, self.path = job, path
        self.unsaved = ""  # why the file is behind, once the disk refused
        self._sealed = False
        self._lock = threading.Lock()
        self.save()

    def save(self) -> None:
        """Writes what is known. A full disk must not end the run: it is said once, and at the end, and the old file stays whole."""
        with self._lock:
            before, self.unsaved = self.unsaved, ""
            try:
                save(self.job, self.path)
            except OSError as problem:
                self.unsaved = not_saved(self.path, problem)
        if self.unsaved and not before:
            print_note(f"{self.unsaved}; it is tried again after every round")

    def add(self, index: int, measured: Round, **learned: Unpack[OfArm]) -> None:
        """One more round of arm ``index``, with what else is known of it by now, on disk before the next begins."""
        if not self._sealed:
            self.job.records[index].rounds.append(measured)
        self._learn(self.job.records[index], learned)

    def learn_of_arm(self, index: int, **learned: Unpack[OfArm]) -> None:
        """What is known by now of arm ``index``, on disk at once."""
        self._learn(self.job.records[index], learned)

    def learn_of_diagnosis(self, **learned: Unpack[OfDiagnosis]) -> None:
        """What is known by now beside the arms of a diagnosis, on disk at once."""
        self._learn(self.job.diagnosis, learned)

    def learn_of_scaling(self, **learned: Unpack[OfScaling]) -> None:
        """What is known by now beside the arms of a ladder, on disk at once."""
        self._learn(self.job.scaling, learned)

    def _learn(self, what: Record | Diagnosis | Scaling | None, learned: Mapping[str, object]) -> None:
        if self._sealed:
            return
        for name, value in learned.items():
            if value is not None:
                setattr(what, name, value)
        self.save()

    def enter(self, records: Sequence[Record]) -> int:
        """Further arms, on disk before their turns; returns the place of the first."""
        first = len(self.job.records)
        if not self._sealed:
            self.job.records += records
            self.save()
        return first

    def drop(self, index: int, error: BenchError) -> None:
        """Arm ``index`` ends here, and the others go on."""
        if self._sealed:
            return
        record = self.job.records[index]
        too_large = isinstance(error, DoesNotFit)
        record.status, record.fault = error.status, Fault(message=error.message, hint=error.hint, arm=index, out_of_memory=too_large)
        self.save()

    def seal(self) -> None:
        """Nothing more is taken down: somebody counts the rounds, to end the run."""
        self._sealed = True

    def close(self, status: Status, fault: Fault | None = None) -> None:
        """Ends every arm that still runs, judges all, and saves."""
        close_records(self.job.records, status, fault)
        earlier = earlier_runs(self.path.parent)
        judge_all(self.job, lambda record: repeated(record, earlier))
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
            if fault and fault.arm not in (None, index):
                record.fault = Fault(message=f"ended with another arm: {fault.message}")


def close_file(path: Path, status: Status, fault: Fault) -> None:
    """Does what ``Journal.close`` does, from another process: rank 0 is gone."""
    job = load(path)
    close_records(job.records, status, fault)
    judge_all(job)
    save(job, path)


def write_json(job: Job, target: str, force: bool) -> None:
    """The record once more where ``--json`` wants it, whole; ``-`` is stdout. Raises OSError, and then leaves what was there."""
    text = to_json(job) + "\n"
    if target == "-":
        for_the_record().write(text)
        for_the_record().flush()
    else:
        write_whole(Path(target), text.encode(), overwrite=force)


def print_and_write(job: Job, path: Path | None, output: Output, render: Render, unsaved: str = "") -> str:
    """The report, on stdout unless the record goes there, and the record where ``--json`` wants it.

    Says once, below, what the disk did not take: ``unsaved``, and that record. Returns it; empty where all is written.
    """
    render(job, make_console(sys.stderr if output.json == "-" else sys.stdout), path, verbose=output.verbose, quiet=output.quiet)
    try:
        if output.json:
            write_json(job, output.json, output.force)
    except OSError as problem:
        unsaved = "; ".join(filter(None, [unsaved, not_saved(output.json, problem)]))
    if unsaved:
        print_error(BenchError(unsaved, "the figures above are whole: keep them, for what is not on disk would be measured anew"))
    return unsaved


def new_job(request: Request, records: list[Record]) -> Job:
    """What the request will have measured, before it has."""
    return Job(
        started=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S+00:00}",
        command=request.command,
        swept=request.swept,
        records=records,
        share=request.share,
    )


def new_journal(request: Request, records: list[Record]) -> Journal:
    """A file of its own for every run, named by its time. Raises UsageError where it cannot be made."""
    return Journal(new_job(request, records), reserve_now(request, _stem(request)))


def reserve_now(request: Request, stem: str) -> Path:
    """A file whose name begins with the time, by which the latest is found. Raises UsageError where it cannot be made."""
    return reserve(Path(request.output.output_dir), f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{stem}")


def not_saved(target: object, problem: OSError) -> str:
    """What is said of a file that the disk did not take."""
    return f"cannot save {target}: {problem.strerror}"


def _stem(request: Request) -> str:
    first = request.arms[0]
    if request.swept:
        return slug(f"{first.workload} {' '.join(request.swept)}")
    return slug(f"{first.workload} {first.precision} {first.loader or ('torch' if first.data_dir else 'synthetic')}")
