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
from ddpbench.record.config import measurement_config
from ddpbench.record.environment import RankPlacement
from ddpbench.record.errors import UsageError
from ddpbench.record.io import load, slug
from ddpbench.record.record import Job, Record, Relocation
from ddpbench.record.request import Request

VENDOR_WORDS = frozenset({"nvidia", "tesla", "geforce", "graphics"})


def device_slug(record: Record) -> str:
    """The GPU's name in the form of a folder name, such as ``h200``; ``cpu`` for any processor."""
    if record.environment.device_type == "cpu":
        return "cpu"
    words = slug(record.environment.placements[0].device_name).split("-")
    return "-".join(word for word in words if word not in VENDOR_WORDS)


def open_resumable_journal(request: Request, records: list[Record], stem: str) -> Journal:
    """Open the journal ``stem`` in the folder of this GPU: a new one, or that of an earlier run of the same command.

    Raises UsageError if it belongs to another command or version, cannot be read, or is being written by another process.
    """
    largest = next((record for record in records if record.environment.device_type == "cuda"), records[0])
    path = Path(request.output.output_dir) / device_slug(largest) / f"{stem}.json"
    _lock_journal(path)
    new = new_job(request, records)
    if not path.exists():
        return Journal(new, path)
    try:
        job = load(path)
    except UsageError as problem:
        raise UsageError(problem.message, MOVE_JOURNAL_HINT) from problem
    check_same_job(job, new, path)
    job.command = new.command
    for record, anew in zip(job.records, records, strict=True):
        if not (ResumeState.from_record(record).is_finished or len(record.rounds) == anew.config.rounds):
            reopen_record(record, anew)
    return Journal(job, path)


def reopen_record(record: Record, new: Record) -> None:
    """Open ``record`` for more rounds, configured as in ``new``; records a Relocation if they run on other devices than the last ones."""
    record.status, record.fault = "running", None
    record.config, record.requested = new.config, new.requested
    here = new.environment.placements
    if not record.rounds:
        record.environment = new.environment
    elif _device_ids(record.relocations[-1].placements if record.relocations else record.environment.placements) != _device_ids(here):
        record.relocations.append(Relocation(first_round=len(record.rounds), placements=here))


def _is_continuation(record: Record, new: Record) -> bool:
    more = new.config.rounds if record.config.fresh and new.config.rounds > record.config.rounds else record.config.rounds
    return measurement_config(msgspec.structs.replace(record.config, rounds=more)) == measurement_config(new.config)


def check_same_job(job: Job, new: Job, path: Path) -> None:
    """Raises UsageError if ``job``, loaded from ``path``, measured something else than ``new`` will.

    More rounds than before count as the same, if every round trains from scratch.
    """
    if (
        job.sweep_shard != new.sweep_shard
        or len(job.records) != len(new.records)
        or not all(map(_is_continuation, job.records, new.records))
    ):
        raise UsageError(f"'{path}' is the journal of another command: {shlex.join(job.command)}", MOVE_JOURNAL_HINT)
    theirs, ours = job.records[0].environment, new.records[0].environment
    for name in ours.software.__struct_fields__:
        if getattr(theirs.software, name) != getattr(ours.software, name):
            raise UsageError(
                f"'{path}' was measured with {name} {getattr(theirs.software, name)}, and here is {getattr(ours.software, name)}",
                MOVE_JOURNAL_HINT,
            )
    before, now = (configured_threads(each.records[0]) for each in (job, new))
    if ours.device_type == "cpu" and before != now:
        raise UsageError(f"'{path}' was measured with OMP_NUM_THREADS={before or ''}, and here it is {now or 'not set'}", MOVE_JOURNAL_HINT)
    if [place.device_name for place in theirs.placements] != [place.device_name for place in ours.placements]:
        raise UsageError(f"'{path}' was measured on {theirs.world_size} x {theirs.placements[0].device_name}", MOVE_JOURNAL_HINT)


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
    is_finished: bool = False

    @classmethod
    def from_record(cls, record: Record) -> ResumeState:
        traces = record.traces
        dead = any(trace.numerics.nonfinite_step is not None for trace in traces)
        steps = traces[0].steps if traces else 0
        too_big = record.fault is not None and record.fault.arm_index is not None and record.out_of_memory
        images = record.data.num_samples if record.data else None
        return cls(frozenset(timed.index for timed in record.rounds), steps, images, dead or too_big)

    def is_pending(self, turn: int) -> bool:
        """Whether that round is still to be measured."""
        return not self.is_finished and turn not in self.completed_rounds


NOTHING_MEASURED = ResumeState()

MOVE_JOURNAL_HINT = "move it away, or choose another folder with -o DIR"
"""Hint for a journal that cannot be resumed."""
