"""What to try next against a limit: a command that measures the cure beside what was run, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil

from ddpbench.analysis.checks.node import WHO_RUNS
from ddpbench.analysis.command import Rerun
from ddpbench.analysis.cpu_demand import crowded, need
from ddpbench.analysis.evidence import LEAST_ROUNDS, enough, too_few_for_a_verdict
from ddpbench.analysis.inputs import Case
from ddpbench.analysis.remedies.loader import OF_KIND, first_command, loader_cures
from ddpbench.analysis.remedies.rules import Cure
from ddpbench.analysis.summary import compute_dtype
from ddpbench.record.findings import Verdict
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.prediction import Change
from ddpbench.record.record import Record

DIAGNOSIS_S, PROOF_S = 120.0, 55.0
"""What a diagnosis takes about where nothing limits it, and trying cures behind it."""

FITS = 0.9
"""The fraction of a device's memory that a doubled batch may be expected to fill."""

Next = Callable[[Rerun, Case], Cure | str]
"""What to try: a cure, or the command alone where that says it all; empty where there is nothing."""


def fewer_launches(run: Rerun, case: Case) -> Cure | str:
    """Against a host that is too slow to issue kernels: CUDA graphs, then more work a kernel."""
    if run.record.config.compile == "off" and not run.has_flag("compile"):
        command, change = run.command(compile=("off", "reduce-overhead")), Change(compile="reduce-overhead")
        return Cure(change.words, "CUDA graphs: the host issues a step's kernels at once", command, change)
    command, change = larger_batch(run, case), Change(batch_size=2 * run.record.config.batch_size)
    seen = case.around.device is not None and case.around.device.launch_gap is not None
    return Cure(change.words, "more work for every kernel that is issued", command, change if seen else None) if command else ""


def less_sync(run: Rerun, case: Case) -> str:
    """Against gradients that take too long: half the bytes, then fewer all-reduces an image."""
    config = run.record.config
    halved = config.comm_hook != "none" or run.has_flag("comm_hook")
    if run.record.environment.backend == "nccl" and config.engine == "ddp" and not halved:
        return run.command(comm_hook=("none", "fp16"))
    return larger_batch(run, case)


def faster_compute(run: Rerun, case: Case) -> str:
    """Against nothing: the device is busy. Tensor cores, then fused kernels, then a larger batch."""
    record, config, cuda = run.record, run.record.config, run.record.environment.device_type == "cuda"
    in_float32 = record.attestation is not None and compute_dtype(record.attestation) in ("float32", "tf32")
    if in_float32 and (cuda or not run.has_flag("precision")):  # processors without bfloat16 units are slower with it
        return run.command(precision=(config.precision, "amp-fp16" if cuda else "amp-bf16"))
    if cuda and config.compile == "off" and not run.has_flag("compile"):
        return run.command(compile=("off", "default"))
    return larger_batch(run, case) if cuda else ""


def larger_batch(run: Rerun, case: Case) -> str:
    """Twice the batch, if the device has the memory for it and nobody chose this one."""
    batch, peak, total = run.record.config.batch_size, case.summary.peak_bytes, case.summary.total_bytes
    if run.has_flag("batch_size"):
        return ""
    if peak is not None and total is not None and 2 * peak > FITS * total:
        return ""
    return run.command(batch_size=(batch, 2 * batch))


def look_at(run: Rerun, case: Case) -> str:
    """Against one slow rank: what tells whether it is its data, its GPU or its host."""
    record, slow = run.record, case.summary.slow
    if slow is None:
        return ""
    if slow.kind == "data" and record.config.loader != SYNTHETIC and case.around.device is None:
        return run.command(loader=(record.config.loader, SYNTHETIC))  # what the loader costs altogether
    there = f"ssh {slow.host} " if record.environment.nodes > 1 else ""
    gpu = next(place.device_id for place in record.environment.places if place.rank == slow.rank)
    if not gpu or slow.kind in ("host", "data"):
        return there + WHO_RUNS
    if slow.kind == "host to device":
        return f"{there}nvidia-smi topo -m"
    return f"{there}nvidia-smi -q -i {gpu} -d CLOCK,PERFORMANCE,TEMPERATURE,POWER"


def who_else(run: Rerun, case: Case) -> str:
    """Against other processes: which they are."""
    return WHO_RUNS


def more_evidence(run: Rerun, case: Case) -> str:
    """What would decide: enough rounds, then ranks that do not share cores, then a diagnosis with its control runs.

    A diagnosis is given twice its usual time, once.
    """
    record, few = run.record, too_few_for_a_verdict(run.record)
    if case.around.diagnosis is not None:
        usual_s = DIAGNOSIS_S + PROOF_S
        has_more = (record.config.time_limit or 0.0) > usual_s
        return "" if has_more else run.diagnose(time_limit=(ceil(2 * usual_s),))
    if few:
        return run.command(**rounds_to_ask_for(record))
    return fewer_at_once(run) if crowded(record) else run.diagnose()


def fewer_at_once(run: Rerun) -> str:
    """Against too few cores: fewer workers, else fewer threads, else fewer ranks."""
    node, environment = need(run.record), run.record.environment
    if node.room >= 0:
        return run.command(workers=(node.workers, node.room))
    cores = max(1, int(node.usable))
    ranks = min(node.ranks, cores)
    threads = cores // ranks
    if ranks == node.ranks:
        return run.command(threads=(node.threads, threads)) if threads < node.threads else ""
    if environment.nodes > 1 or environment.launcher == "slurm":
        return f"at most {ranks} ranks a node"
    return replace(run, ranks=ranks).command(**({"threads": (threads,)} if threads < node.threads else {}))


def rounds_to_ask_for(record: Record) -> Mapping[str, tuple[object, ...]]:
    """The fields, and their values, with which another run has the evidence that this one lacks: twice the rounds, once."""
    asked = record.asked or record.config
    wanted = {name: (number,) for name, number in enough(record).items() if number != getattr(asked, name)}
    if len(record.rounds) < asked.rounds:
        return {**wanted, **({"time_limit": ()} if record.status == "ok" else {})}
    return wanted or ({"rounds": (2 * asked.rounds,)} if asked.rounds <= LEAST_ROUNDS else {})


NEXT: Mapping[str, Next] = {
    "straggler": look_at,
    "noisy-neighbour": who_else,
    "launch-bound": fewer_launches,
    "sync-bound": less_sync,
    "compute-bound": faster_compute,
    "inconclusive": more_evidence,
}
"""By the kind of the verdict, where it is not of the loader."""

TRIES = {
    "straggler": "what tells why",
    "noisy-neighbour": "who else is there",
    "sync-bound": "less to sync",
    "compute-bound": "nothing to do for the data; faster computing",
    "inconclusive": "better evidence",
}
"""What a command alone is, in words."""


def offered(run: Rerun, case: Case, found: Verdict) -> list[Cure]:
    """What may help against ``found``, the likeliest first; empty where nothing is known to."""
    if found.kind == "data-bound" or found.kind in OF_KIND:
        return loader_cures(run, case, found)
    tried = NEXT[found.kind](run, case)
    if isinstance(tried, Cure):
        return [tried]
    return [Cure(TRIES[found.kind], "", tried)] if tried else []


def next_step(run: Rerun, case: Case, found: Verdict) -> str:
    """The command to go on with: a diagnosis, where the run alone does not tell why it waits for data; else what is offered first."""
    if found.kind == "data-bound" and not found.cause and case.around.diagnosis is None:
        return run.diagnose()
    return first_command(offered(run, case, found))
