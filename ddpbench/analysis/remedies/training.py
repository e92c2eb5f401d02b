"""Next steps against a bottleneck: a command that measures a remedy beside the original run, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil

from ddpbench.analysis.checks.node import TOP_COMMAND
from ddpbench.analysis.command import CommandBuilder
from ddpbench.analysis.cpu_demand import cpu_demand, oversubscribed_node
from ddpbench.analysis.evidence import MIN_ROUNDS, is_too_short_for_verdict, required_length
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.remedies.loader import RULES_BY_BOTTLENECK, first_command, recommend_for_loader
from ddpbench.analysis.remedies.rules import Remedy
from ddpbench.analysis.summary import compute_dtype
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.prediction import Scenario
from ddpbench.record.record import Record
from ddpbench.record.verdict import Verdict

DIAGNOSIS_S, VERIFY_S = 120.0, 55.0
"""Approximate seconds of a diagnosis without a time limit, and of the trials of remedies that follow it."""

MAX_MEMORY_FILL = 0.9
"""The fraction of a device's memory that a doubled batch may be expected to fill."""

NextStepRule = Callable[[CommandBuilder, AnalysisInput], Remedy | str]
"""Returns a remedy, or just a command if that is enough; an empty string if there is nothing to try."""


def fewer_launches(builder: CommandBuilder, inputs: AnalysisInput) -> Remedy | str:
    """Against a host that is too slow to issue kernels: CUDA graphs, then more work per kernel."""
    if builder.record.config.compile == "off" and not builder.has_flag("compile"):
        command, change = builder.command(compile=("off", "reduce-overhead")), Scenario(compile="reduce-overhead")
        return Remedy(change.flag_text, "CUDA graphs: the host issues a step's kernels at once", command, change)
    command, change = larger_batch(builder, inputs), Scenario(batch_size=2 * builder.record.config.batch_size)
    seen = inputs.controls.compute_only is not None and inputs.controls.compute_only.kernel_activity is not None
    return Remedy(change.flag_text, "more work for every kernel that is issued", command, change if seen else None) if command else ""


def less_sync(builder: CommandBuilder, inputs: AnalysisInput) -> str:
    """Against slow gradient sync: half the bytes, then fewer all-reduces per image."""
    config = builder.record.config
    halved = config.comm_hook != "none" or builder.has_flag("comm_hook")
    if builder.record.environment.backend == "nccl" and config.engine == "ddp" and not halved:
        return builder.command(comm_hook=("none", "fp16"))
    return larger_batch(builder, inputs)


def faster_compute(builder: CommandBuilder, inputs: AnalysisInput) -> str:
    """For a device that is busy computing: tensor cores, then fused kernels, then a larger batch."""
    record, config, cuda = builder.record, builder.record.config, builder.record.environment.device_type == "cuda"
    in_float32 = record.observed_precision is not None and compute_dtype(record.observed_precision) in ("float32", "tf32")
    if in_float32 and (cuda or not builder.has_flag("precision")):  # CPUs without bfloat16 units are slower with it
        return builder.command(precision=(config.precision, "amp-fp16" if cuda else "amp-bf16"))
    if cuda and config.compile == "off" and not builder.has_flag("compile"):
        return builder.command(compile=("off", "default"))
    return larger_batch(builder, inputs) if cuda else ""


def larger_batch(builder: CommandBuilder, inputs: AnalysisInput) -> str:
    """Twice the batch size, if it fits in device memory and the user did not set it."""
    batch, peak, total = builder.record.config.batch_size, inputs.summary.peak_allocated_bytes, inputs.summary.device_total_bytes
    if builder.has_flag("batch_size"):
        return ""
    if peak is not None and total is not None and 2 * peak > MAX_MEMORY_FILL * total:
        return ""
    return builder.command(batch_size=(batch, 2 * batch))


def inspect_straggler(builder: CommandBuilder, inputs: AnalysisInput) -> str:
    """Against one slow rank: a command that shows whether its data, its GPU or its host is the reason."""
    record, slow = builder.record, inputs.summary.straggler
    if slow is None:
        return ""
    if slow.kind == "data" and record.config.loader != SYNTHETIC and inputs.controls.compute_only is None:
        return builder.command(loader=(record.config.loader, SYNTHETIC))  # shows what the loader costs in total
    there = f"ssh {slow.host} " if record.environment.nodes > 1 else ""
    gpu = next(place.device_id for place in record.environment.placements if place.rank == slow.rank)
    if not gpu or slow.kind in ("host", "data"):
        return there + TOP_COMMAND
    if slow.kind == "host to device":
        return f"{there}nvidia-smi topo -m"
    return f"{there}nvidia-smi -q -i {gpu} -d CLOCK,PERFORMANCE,TEMPERATURE,POWER"


def list_processes(builder: CommandBuilder, inputs: AnalysisInput) -> str:
    """Against other processes: lists them."""
    return TOP_COMMAND


def more_evidence(builder: CommandBuilder, inputs: AnalysisInput) -> str:
    """What would decide: enough rounds, then ranks that do not share cores, then a diagnosis with its control runs.

    A diagnosis is repeated with twice its usual time, once.
    """
    record, few = builder.record, is_too_short_for_verdict(builder.record)
    if inputs.controls.diagnosis is not None:
        usual_s = DIAGNOSIS_S + VERIFY_S
        has_more = (record.config.time_limit or 0.0) > usual_s
        return "" if has_more else builder.diagnose_command(time_limit=(ceil(2 * usual_s),))
    if few:
        return builder.command(**longer_run_fields(record))
    return reduce_oversubscription(builder) if oversubscribed_node(record) else builder.diagnose_command()


def reduce_oversubscription(builder: CommandBuilder) -> str:
    """Against too few cores: fewer workers, else fewer threads, else fewer ranks."""
    node, environment = cpu_demand(builder.record), builder.record.environment
    if node.max_workers >= 0:
        return builder.command(workers=(node.workers, node.max_workers))
    cores = max(1, int(node.usable_cores))
    ranks = min(node.ranks, cores)
    threads = cores // ranks
    if ranks == node.ranks:
        return builder.command(threads=(node.threads_per_rank, threads)) if threads < node.threads_per_rank else ""
    if environment.nodes > 1 or environment.launcher == "slurm":
        return f"at most {ranks} ranks a node"
    return replace(builder, ranks=ranks).command(**({"threads": (threads,)} if threads < node.threads_per_rank else {}))


def longer_run_fields(record: Record) -> Mapping[str, tuple[object, ...]]:
    """Fields and values that give another run the evidence that this one lacks: twice the rounds, once."""
    asked = record.requested or record.config
    wanted = {name: (number,) for name, number in required_length(record).items() if number != getattr(asked, name)}
    if len(record.rounds) < asked.rounds:
        return {**wanted, **({"time_limit": ()} if record.status == "ok" else {})}
    return wanted or ({"rounds": (2 * asked.rounds,)} if asked.rounds <= MIN_ROUNDS else {})


NEXT_STEP_RULES: Mapping[str, NextStepRule] = {
    "straggler": inspect_straggler,
    "noisy-neighbour": list_processes,
    "launch-bound": fewer_launches,
    "sync-bound": less_sync,
    "compute-bound": faster_compute,
    "inconclusive": more_evidence,
}
"""Rules by the kind of a verdict that does not concern the loader."""

NEXT_STEP_NAMES = {
    "straggler": "what tells why",
    "noisy-neighbour": "who else is there",
    "sync-bound": "less to sync",
    "compute-bound": "nothing to do for the data; faster computing",
    "inconclusive": "better evidence",
}
"""Names of remedies that are just a command."""


def recommend(builder: CommandBuilder, inputs: AnalysisInput, verdict: Verdict) -> list[Remedy]:
    """What may help against ``verdict``, the most likely first; empty if nothing is known to."""
    if verdict.kind == "data-bound" or verdict.kind in RULES_BY_BOTTLENECK:
        return recommend_for_loader(builder, inputs, verdict)
    tried = NEXT_STEP_RULES[verdict.kind](builder, inputs)
    if isinstance(tried, Remedy):
        return [tried]
    return [Remedy(NEXT_STEP_NAMES[verdict.kind], "", tried)] if tried else []


def next_command(builder: CommandBuilder, inputs: AnalysisInput, verdict: Verdict) -> str:
    """The command to run next: a diagnosis if the cause of a data-bound run is unknown, else that of the first remedy."""
    if verdict.kind == "data-bound" and not verdict.cause and inputs.controls.diagnosis is None:
        return builder.diagnose_command()
    return first_command(recommend(builder, inputs, verdict))
