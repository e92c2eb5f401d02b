"""What to try next against a limit: a command that measures the cure beside what was run, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil

from ddpbench.analysis.case import Case
from ddpbench.analysis.command import Rerun
from ddpbench.analysis.cores import crowded, need
from ddpbench.analysis.evidence import enough, too_few_for_a_verdict
from ddpbench.analysis.loader_cures import OF_KIND, first_command, loader_cures
from ddpbench.analysis.pipeline.offers import Cure
from ddpbench.analysis.pipeline.stealing import decodes_on_device
from ddpbench.analysis.summary import compute_dtype
from ddpbench.analysis.surroundings import WHO_RUNS
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.prediction import Change
from ddpbench.record.record import Record
from ddpbench.record.verdict import Verdict

DIAGNOSIS_S, PROOF_S = 120.0, 55.0
"""What a diagnosis takes about where nothing limits it, and trying cures behind it."""

FITS = 0.9
"""The fraction of a device's memory that a doubled batch may be expected to fill."""

Next = Callable[[Rerun, Case], Cure | str]
"""What to try: a cure, or the command alone where that says it all; empty where there is nothing."""


def fewer_launches(run: Rerun, case: Case) -> Cure | str:
    """Against a host that is too slow to issue kernels: CUDA graphs, then more work a kernel."""
    if run.record.config.compile == "off":
        command, change = run.command(compile=("off", "reduce-overhead")), Change(compile="reduce-overhead")
        return Cure(change.words, "CUDA graphs: the host issues a step's kernels at once", command, change)
    command, change = larger_batch(run, case), Change(batch_size=2 * run.record.config.batch_size)
    seen = case.around.device is not None and case.around.device.launch_gap is not None
    return Cure(change.words, "more work for every kernel that is issued", command, change if seen else None) if command else ""


def less_sync(run: Rerun, case: Case) -> str:
    """Against gradients that take too long: half the bytes, then fewer all-reduces an image."""
    config = run.record.config
    if run.record.environment.backend == "nccl" and config.engine == "ddp" and config.comm_hook == "none":
        return run.command(comm_hook=("none", "fp16"))
    return larger_batch(run, case)


def faster_compute(run: Rerun, case: Case) -> str:
    """Against nothing: the device is busy. Tensor cores, then fused kernels, then a larger batch."""
    record, config, cuda = run.record, run.record.config, run.record.environment.device_type == "cuda"
    if record.attestation is not None and compute_dtype(record.attestation) in ("float32", "tf32"):
        return run.command(precision=(config.precision, "amp-fp16" if cuda else "amp-bf16"))
    if cuda and config.compile == "off":
        return run.command(compile=("off", "default"))
    return larger_batch(run, case) if cuda else ""


def larger_batch(run: Rerun, case: Case) -> str:
    """Twice the batch, where the device has the memory for it."""
    batch, peak, total = run.record.config.batch_size, case.summary.peak_bytes, case.summary.total_bytes
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
    """Against other processes: which they are, and the run once more when they are gone."""
    return f"{WHO_RUNS} && {run.command()}"


def more_evidence(run: Rerun, case: Case) -> str:
    """Against doubt: ranks that do not take turns on the cores or, where they do not, more rounds; of a diagnosis, more time.

    Of a loader that shares the device with the training a run alone tells too little, however long.
    """
    if decodes_on_device(run.record) and case.around.diagnosis is None and not too_few_for_a_verdict(run.record):
        return run.diagnose()
    if crowded(run.record) and not too_few_for_a_verdict(run.record):
        return fewer_at_once(run)
    if case.around.diagnosis is not None:
        usual_s = DIAGNOSIS_S if "--no-verify" in run.typed else DIAGNOSIS_S + PROOF_S
        return run.diagnose(time_limit=(ceil(max(usual_s, 2 * (run.record.config.time_limit or usual_s))),))
    return more_rounds(run)


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
    return run.with_ranks(ranks).command(**({"threads": (threads,)} if threads < node.threads else {}))


def more_rounds(run: Rerun) -> str:
    """Against too little evidence: all the rounds that were asked for, and a figure's least; against noise in those, twice as many."""
    return run.command(**rounds_to_ask_for(run.record))


def rounds_to_ask_for(record: Record) -> Mapping[str, tuple[object, ...]]:
    """The fields, and their values, with which another run has the evidence that this one lacks."""
    asked = record.asked or record.config
    wanted = {name: (number,) for name, number in enough(record).items() if number != getattr(asked, name)}
    if len(record.rounds) < asked.rounds:
        return {**wanted, **({"time_limit": ()} if record.status == "ok" else {})}
    return wanted or {"rounds": (2 * asked.rounds,)}


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
