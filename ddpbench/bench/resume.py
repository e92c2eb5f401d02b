"""Resumes the journal of a sweep: finished rounds count, others are measured again."""

from __future__ import annotations

import fcntl
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ddpbench.analysis.cpu_demand import configured_threads
from ddpbench.bench.journal import Journal, new_job
from ddpbench.machine.streams import print_note
from ddpbench.record.config import measurement_config
from ddpbench.record.environment import RankPlacement
from ddpbench.record.errors import UsageError
from ddpbench.record.io import load, slug
from ddpbench.record.private import Private, placeholders, restore_names
from ddpbench.record.record import Job, Record, Relocation
from ddpbench.record.request import Request

VENDOR_WORDS = frozenset({"nvidia", "tesla", "geforce", "graphics"})


def device_slug(record: Record) -> str:
    """The GPU's name in the form of a folder name, such as ``h200``; ``cpu`` for any CPU."""
    if record.environment.device_type == "cpu":
        return "cpu"
    parts = slug(record.environment.placements[0].device_name).split("-")
    return "-".join(part for part in parts if part not in VENDOR_WORDS)


def open_resumable_journal(request: Request, records: list[Record], stem: str) -> Journal:
    """Open the journal ``stem`` in the folder of this GPU: a new one, or that of an earlier run of the same command.

    Raises UsageError if it belongs to another command or version, cannot be read, or is being written by another process.
    """
    reference = next((record for record in records if record.environment.device_type == "cuda"), records[0])
    path = Path(request.output.output_dir) / device_slug(reference) / f"{stem}.json"
    _lock_journal(path)
    requested_job = new_job(request, records)
    if not path.exists():
        return Journal(requested_job, path)
    try:
        job = load(path)
    except UsageError as problem:
        raise UsageError(problem.message, MOVE_JOURNAL_HINT) from problem
    if job.redacted:
        job = _with_names(job, requested_job, path)
    check_same_job(job, requested_job, path)
    job.command, job.redacted = requested_job.command, job.redacted or requested_job.redacted
    for record, new_record in zip(job.records, records, strict=True):
        if not (ResumeState.from_record(record).cannot_continue or len(record.rounds) == new_record.config.rounds):
            reopen_record(record, new_record)
    return Journal(job, path)


def _with_names(job: Job, new: Job, path: Path) -> Job:
    """The redacted ``job`` with the hosts, GPUs and folders of ``new``, on which it is assumed to have been measured.

    Raises UsageError if its placeholders may stand for another workload or loader.
    """
    if any(kind is Private.ENTRY for kind, _ in placeholders(job)):
        raise UsageError(f"'{path}' is redacted and does not name its workload or loader, so it cannot be resumed", MOVE_JOURNAL_HINT)
    print_note(f"'{path}' is redacted: its rounds are assumed to be from the same hosts and data")
    return restore_names(job, placeholders(new))


def reopen_record(record: Record, new: Record) -> None:
    """Open ``record`` for more rounds, configured as in ``new``; records a Relocation if they run on other devices than the last ones."""
    record.status, record.fault = "running", None
    record.config, record.requested = new.config, new.requested
    placements = new.environment.placements
    if not record.rounds:
        record.environment = new.environment
    elif _device_ids(record.relocations[-1].placements if record.relocations else record.environment.placements) != _device_ids(placements):
        record.relocations.append(Relocation(first_round=len(record.rounds), placements=placements))


def _is_continuation(record: Record, new: Record) -> bool:
    rounds = new.config.rounds if record.config.fresh and new.config.rounds > record.config.rounds else record.config.rounds
    return measurement_config(msgspec.structs.replace(record.config, rounds=rounds)) == measurement_config(new.config)


def check_same_job(job: Job, new: Job, path: Path) -> None:
    """Raises UsageError if ``job``, loaded from ``path``, measured something other than ``new`` will.

    More rounds than before count as the same, if every round trains from scratch.
    """
    if (
        job.sweep_shard != new.sweep_shard
        or len(job.records) != len(new.records)
        or not all(map(_is_continuation, job.records, new.records))
    ):
        command = "" if job.redacted else f": {shlex.join(job.command)}"
        raise UsageError(f"'{path}' is the journal of another command{command}", MOVE_JOURNAL_HINT)
    recorded, current = job.records[0].environment, new.records[0].environment
    for name in current.software.__struct_fields__:
        if getattr(recorded.software, name) != getattr(current.software, name):
            raise UsageError(
                f"'{path}' was measured with {name} {getattr(recorded.software, name)}, but it is {getattr(current.software, name)} here",
                MOVE_JOURNAL_HINT,
            )
    recorded_threads, current_threads = (configured_threads(each.records[0]) for each in (job, new))
    if current.device_type == "cpu" and recorded_threads != current_threads:
        raise UsageError(
            f"'{path}' was measured with OMP_NUM_THREADS={recorded_threads or ''}, but it is {current_threads or 'not set'} here",
            MOVE_JOURNAL_HINT,
        )
    if [placement.device_name for placement in recorded.placements] != [placement.device_name for placement in current.placements]:
        raise UsageError(f"'{path}' was measured on {recorded.world_size} x {recorded.placements[0].device_name}", MOVE_JOURNAL_HINT)


def _device_ids(places: Sequence[RankPlacement]) -> list[tuple[str, str]]:
    return [(place.host, place.device_id) for place in places]


def _lock_journal(path: Path) -> None:
    """Lock the journal for the life of this process. Raises UsageError if another process holds it or it cannot be created."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path.with_name(f".{path.stem}.lock"), os.O_CREAT | os.O_WRONLY, 0o644)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"another process is writing '{path}'", "wait for it, or choose another folder with -o DIR") from None
    except OSError as problem:
        raise UsageError(f"cannot write results in '{path.parent}': {problem.strerror}", "choose another folder with -o DIR") from problem


class ResumeState(msgspec.Struct, frozen=True):
    """What an earlier job measured of an arm: rounds, steps per round, number of images, and whether more rounds are useless."""

    completed_rounds: frozenset[int] = frozenset()
    steps_per_round: int = 0
    samples: int | None = None
    cannot_continue: bool = False

    @classmethod
    def from_record(cls, record: Record) -> ResumeState:
        traces = record.traces
        is_nonfinite = any(trace.numerics.nonfinite_step is not None for trace in traces)
        steps = traces[0].steps if traces else 0
        is_too_large = record.fault is not None and record.fault.arm_index is not None and record.out_of_memory
        num_samples = record.data.num_samples if record.data else None
        return cls(frozenset(timed.index for timed in record.rounds), steps, num_samples, is_nonfinite or is_too_large)

    def is_pending(self, turn: int) -> bool:
        """Whether that round is still to be measured."""
        return not self.cannot_continue and turn not in self.completed_rounds


NOTHING_MEASURED = ResumeState()

MOVE_JOURNAL_HINT = "move it away, or choose another folder with -o DIR"
"""Hint for a journal that cannot be resumed."""
