"""Consistency checks between the fields of a record, run once when it is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ddpbench.record.config import Config
from ddpbench.record.diagnosis import Diagnosis, LoaderBenchmark
from ddpbench.record.environment import Environment
from ddpbench.record.registry import PRECISIONS
from ddpbench.record.roles import ALLREDUCE_ONLY, WITH_DATA, ddp_role
from ddpbench.record.scaling_loss import NotMeasured
from ddpbench.record.text import pluralize
from ddpbench.record.trace import PHASES, Trace

if TYPE_CHECKING:
    from ddpbench.record.record import Job, Record, Round

MAX_PHASE_SUM_RATIO = 1.5
"""Maximum ratio of the sum of a rank's phases to its wall time. Above 1 only by the difference between two clocks."""

FIGURE_TOLERANCE = 1.001
"""The figure of a record lies between those of its slowest and its fastest round, but for rounding."""

COMPUTE_PHASES = ("forward", "backward", "optimizer")

Problems = Iterator[str]
"""Problems, one line each: the field, then the reason. Only the first is used, since later rules rely on earlier ones."""


def find_inconsistency(job: Job) -> str | None:
    """The first inconsistency in ``job``, such as ``records[0].config.precision: unknown 'fp8'``; None if there is none."""
    return next(_check_job(job), None)


def _check_job(job: Job) -> Problems:
    for at, field in enumerate(job.swept):
        if field not in Config.__struct_fields__:
            yield f"swept[{at}]: unknown '{field}'"
    for at, record in enumerate(job.records):
        yield from _prefix_problems(f"records[{at}]", _check_record(record))
    if job.sweep_shard and len(job.sweep_shard.indices) != len(job.records):
        yield f"sweep_shard: {len(job.sweep_shard.indices)} arms, but the job has {len(job.records)}"
    if job.scaling and not job.scaling.world_sizes:
        yield "scaling.world_sizes: empty"
    elif job.scaling and job.scaling.verdict and not isinstance(job.scaling.verdict.evidence, NotMeasured):
        ranks = job.scaling.world_sizes[-1]
        if not any(record.rounds and record.role in (ddp_role(ranks), WITH_DATA) for record in job.records):
            yield f"scaling.verdict: no rounds of {pluralize(ranks, 'rank')}, which it is of"
    if job.diagnosis and job.records:
        yield from _prefix_problems("diagnosis", _check_diagnosis(job.diagnosis, job.records[0].world_size))


def _check_record(record: Record) -> Problems:
    yield from _prefix_problems("config", _check_config(record.config))
    yield from _prefix_problems("requested", _check_config(record.requested) if record.requested else iter(()))
    yield from _prefix_problems("environment", _check_environment(record.environment))
    for at, relocation in enumerate(record.relocations):
        yield from _check_ranks(f"relocations[{at}].placements", [placement.rank for placement in relocation.placements], record.world_size)
    yield from _check_none_or_one_per_rank("loader_benchmarks", record.loader_benchmarks, record.world_size)
    for at, timed in enumerate(record.rounds):
        yield from _prefix_problems(f"rounds[{at}]", _check_round(timed, record.world_size))
        if record.role != ALLREDUCE_ONLY and not any(trace.total_ms(phase) for trace in timed.traces for phase in COMPUTE_PHASES):
            yield f"rounds[{at}].traces: no compute time"
    if record.throughput and not record.rounds:
        yield "throughput: no rounds"
    elif record.throughput and not record.throughput.launch_samples_per_s:  # of several launches, it is the mean of theirs
        rates, figure = [timed.samples_per_s for timed in record.rounds], record.throughput.samples_per_s
        if not min(rates) / FIGURE_TOLERANCE <= figure <= max(rates) * FIGURE_TOLERANCE:
            yield f"throughput.samples_per_s: {figure:g}, but its rounds have {min(rates):g} to {max(rates):g}"
    if record.verdict:
        yield from _prefix_problems("verdict.evidence", _check_named_ranks(record.verdict.evidence, record.world_size))
    for at, check in enumerate(record.checks):
        yield from _prefix_problems(f"checks[{at}]", _check_named_ranks(check, record.world_size))


def _check_config(config: Config) -> Problems:
    if config.precision not in PRECISIONS:
        yield f"precision: unknown '{config.precision}'"


def _check_environment(environment: Environment) -> Problems:
    yield from _check_ranks("placements", [placement.rank for placement in environment.placements], environment.world_size)
    if environment.nodes > environment.world_size:
        yield f"nodes: {environment.nodes} for {environment.world_size} ranks"


def _check_round(timed: Round, world_size: int) -> Problems:
    yield from _check_ranks("traces", [trace.rank for trace in timed.traces], world_size)
    for at, trace in enumerate(timed.traces):
        yield from _prefix_problems(f"traces[{at}]", _check_trace(trace))
        if trace.steps != timed.traces[0].steps:
            yield f"traces[{at}].steps: {trace.steps}, but {timed.traces[0].steps} on rank 0"


def _check_trace(trace: Trace) -> Problems:
    for phase in PHASES:
        if phase not in trace.phases_ms:
            yield f"phases_ms.{phase}: missing"
        elif trace.totals_ms and phase not in trace.totals_ms:
            yield f"totals_ms.{phase}: missing"
    num_steps = len(next(iter(trace.phases_ms.values()), ()))
    if not 0 < num_steps <= trace.steps or not (trace.totals_ms or num_steps == trace.steps):
        yield f"phases_ms: {pluralize(num_steps, 'step')} of {trace.steps}"
    for phase, durations in trace.phases_ms.items():
        if len(durations) != num_steps:
            yield f"phases_ms.{phase}: {pluralize(len(durations), 'step')}, but other phases have {num_steps}"
    for field, values in (
        ("host_data_ms", trace.host_data_ms),
        ("host_lead_ms", trace.host_lead_ms),
        ("host_issue_ms", trace.host_issue_ms),
    ):
        if len(values) not in ((num_steps,) if field == "host_data_ms" else (0, num_steps)):
            yield f"{field}: {pluralize(len(values), 'step')}, but phases_ms has {num_steps}"
    total_s = sum(map(trace.total_ms, PHASES)) / 1000
    if total_s > MAX_PHASE_SUM_RATIO * trace.wall_s:
        yield f"{'totals_ms' if trace.totals_ms else 'phases_ms'}: {total_s:g} s in a round of {trace.wall_s:g} s"


def _check_named_ranks(finding: object, world_size: int) -> Problems:
    """Check the ranks that a check or evidence names, and those of the evidence that it quotes."""
    for field in ("rank", "ranks", "cores_by_rank"):
        value = getattr(finding, field, None)
        ranks = value if isinstance(value, list | dict) else [value] if field == "rank" and value is not None else []
        if ranks and max(ranks) >= world_size:
            yield f"{field}: no rank {max(ranks)}, world size is {world_size}"
    if likely := getattr(finding, "likely", None):
        yield from _prefix_problems("likely", _check_named_ranks(likely, world_size))


def _check_diagnosis(diagnosis: Diagnosis, world_size: int) -> Problems:
    yield from _check_none_or_one_per_rank("loader_benchmarks", diagnosis.loader_benchmarks, world_size)
    if diagnosis.single_rank_loader_benchmark and diagnosis.single_rank_loader_benchmark.rank >= world_size:
        yield f"single_rank_loader_benchmark.rank: no rank {diagnosis.single_rank_loader_benchmark.rank}, world size is {world_size}"
    yield from _check_none_or_one_per_rank("all_cores_loader_benchmarks", diagnosis.all_cores_loader_benchmarks, world_size)
    yield from _check_none_or_one_per_rank("resident_loader_benchmarks", diagnosis.resident_loader_benchmarks, world_size)
    yield from _check_none_or_one_per_rank("gpu_decoding_benchmarks", diagnosis.gpu_decoding_benchmarks, world_size)
    for at, alternative in enumerate(diagnosis.alternative_loaders):
        yield from _check_none_or_one_per_rank(f"alternative_loaders[{at}].loader_benchmarks", alternative.loader_benchmarks, world_size)


def _check_none_or_one_per_rank(field: str, benchmarks: Sequence[LoaderBenchmark], world_size: int) -> Problems:
    """Check that either no rank or every rank was measured."""
    yield from _check_ranks(field, [benchmark.rank for benchmark in benchmarks], world_size) if benchmarks else iter(())


def _check_ranks(field: str, ranks: Sequence[int], world_size: int) -> Problems:
    if len(ranks) != world_size or ranks != [*range(world_size)]:
        yield f"{field}: ranks {', '.join(map(str, ranks)) or 'none'}, expected 0 to {world_size - 1}"


def _prefix_problems(field: str, problems: Problems) -> Problems:
    return (f"{field}.{problem}" for problem in problems)
