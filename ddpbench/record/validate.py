"""What holds between the fields of a record, which types alone do not say; checked once, when it is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ddpbench.record.config import Config
from ddpbench.record.diagnosis import Alone, Diagnosis
from ddpbench.record.environment import Environment
from ddpbench.record.registry import PRECISIONS
from ddpbench.record.scaling import COMMUNICATION
from ddpbench.record.trace import PHASES, Trace

if TYPE_CHECKING:
    from ddpbench.record.record import Job, Record, Round

LONGER = 1.5
"""How many times as long as its round the phases of a rank may be at most; they are never longer but for two clocks' difference."""

COMPUTING = ("forward", "backward", "optimizer")

Wrong = Iterator[str]
"""What is wrong, one line each: the field, then why. Only the first counts: later rules rely on earlier ones."""


def inconsistency(job: Job) -> str | None:
    """The first thing in ``job`` that cannot be, such as ``records[0].config.precision: unknown 'fp8'``; None if there is none."""
    return next(_of_job(job), None)


def _of_job(job: Job) -> Wrong:
    for at, field in enumerate(job.swept):
        if field not in Config.__struct_fields__:
            yield f"swept[{at}]: unknown '{field}'"
    for at, record in enumerate(job.records):
        yield from _within(f"records[{at}]", _of_record(record))
    if job.share and len(job.share.places) != len(job.records):
        yield f"share: of {len(job.share.places)} arms, and there are {len(job.records)}"
    if job.scaling and not job.scaling.ladder:
        yield "scaling.ladder: empty"
    if job.diagnosis and job.records:
        yield from _within("diagnosis", _of_diagnosis(job.diagnosis, job.records[0].world_size))


def _of_record(record: Record) -> Wrong:
    yield from _within("config", _of_config(record.config))
    yield from _within("asked", _of_config(record.asked) if record.asked else iter(()))
    yield from _within("environment", _of_environment(record.environment))
    for at, move in enumerate(record.moves):
        yield from _ranks(f"moves[{at}].places", [place.rank for place in move.places], record.world_size)
    yield from _one_a_rank("alone", record.alone, record.world_size)
    for at, timed in enumerate(record.rounds):
        yield from _within(f"rounds[{at}]", _of_round(timed, record.world_size))
        if record.label != COMMUNICATION and not any(trace.total_ms(phase) for trace in timed.traces for phase in COMPUTING):
            yield f"rounds[{at}].traces: nothing was computed"
    if record.headline and not record.rounds:
        yield "headline: there is no round"


def _of_config(config: Config) -> Wrong:
    if config.precision not in PRECISIONS:
        yield f"precision: unknown '{config.precision}'"


def _of_environment(environment: Environment) -> Wrong:
    yield from _ranks("places", [place.rank for place in environment.places], environment.world_size)
    if environment.nodes > environment.world_size:
        yield f"nodes: {environment.nodes} for {environment.world_size} ranks"


def _of_round(timed: Round, world_size: int) -> Wrong:
    yield from _ranks("traces", [trace.rank for trace in timed.traces], world_size)
    for at, trace in enumerate(timed.traces):
        yield from _within(f"traces[{at}]", _of_trace(trace))
        if trace.steps != timed.traces[0].steps:
            yield f"traces[{at}].steps: {trace.steps}, and {timed.traces[0].steps} on rank 0"


def _of_trace(trace: Trace) -> Wrong:
    for phase in PHASES:
        if phase not in trace.phases_ms:
            yield f"phases_ms.{phase}: missing"
        elif trace.totals_ms and phase not in trace.totals_ms:
            yield f"totals_ms.{phase}: missing"
    kept = len(next(iter(trace.phases_ms.values()), ()))
    if not 0 < kept <= trace.steps or not (trace.totals_ms or kept == trace.steps):
        yield f"phases_ms: of {kept} steps, and there were {trace.steps}"
    for phase, durations in trace.phases_ms.items():
        if len(durations) != kept:
            yield f"phases_ms.{phase}: of {len(durations)} steps, and other phases of {kept}"
    for field, a_step in (("host_data_ms", trace.host_data_ms), ("lead_ms", trace.lead_ms), ("issuing_ms", trace.issuing_ms)):
        if len(a_step) not in ((kept,) if field == "host_data_ms" else (0, kept)):
            yield f"{field}: of {len(a_step)} steps, and phases_ms of {kept}"
    total_s = sum(map(trace.total_ms, PHASES)) / 1000
    if total_s > LONGER * trace.wall_s:
        yield f"{'totals_ms' if trace.totals_ms else 'phases_ms'}: {total_s:g} s in a round of {trace.wall_s:g} s"


def _of_diagnosis(diagnosis: Diagnosis, world_size: int) -> Wrong:
    yield from _one_a_rank("alone", diagnosis.alone, world_size)
    if diagnosis.alone_single and diagnosis.alone_single.rank >= world_size:
        yield f"alone_single.rank: {diagnosis.alone_single.rank} of {world_size} ranks"
    for at, candidate in enumerate(diagnosis.candidates):
        yield from _one_a_rank(f"candidates[{at}].alone", candidate.alone, world_size)


def _one_a_rank(field: str, alone: Sequence[Alone], world_size: int) -> Wrong:
    """Nothing at all was measured, or every rank."""
    yield from _ranks(field, [each.rank for each in alone], world_size) if alone else iter(())


def _ranks(field: str, ranks: Sequence[int], world_size: int) -> Wrong:
    if len(ranks) != world_size or ranks != [*range(world_size)]:
        yield f"{field}: of ranks {', '.join(map(str, ranks)) or 'none'}, where 0 to {world_size - 1} belong"


def _within(field: str, found: Wrong) -> Wrong:
    return (f"{field}.{wrong}" for wrong in found)
