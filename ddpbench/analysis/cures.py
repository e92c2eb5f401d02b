"""What to try next against a limit: a command that measures the cure beside what was run, or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from math import ceil, fsum

from ddpbench.analysis.command import Rerun
from ddpbench.analysis.cores import crowded, need
from ddpbench.analysis.evidence import enough, too_few_for_a_verdict
from ddpbench.analysis.ranks import COMPUTE
from ddpbench.analysis.summary import Summary, compute_dtype
from ddpbench.analysis.surroundings import WHO_RUNS
from ddpbench.record.record import Record

HEADROOM = 1.15
"""Workers to have, over those that would just keep up."""

FITS = 0.9
"""The fraction of a device's memory that a doubled batch may be expected to fill."""

Cure = Callable[[Rerun, Summary], str]


def more_data(run: Rerun, summary: Summary) -> str:
    """Against a loader that gives too little: more workers while there are cores, then another decoder, then the ceiling."""
    record, workers = run.record, run.record.config.workers or 0
    affordable = _cores_a_rank(record) - 1
    if workers < affordable:
        wanted_over_given = (summary.step_ms or 0) / fsum(summary.phases_ms[phase] for phase in COMPUTE)
        needed = ceil(HEADROOM * wanted_over_given * max(workers, 1))
        return run.command(workers=(workers, min(needed, affordable)))
    if record.config.loader == "torch" and record.data is not None and "JPEG" in record.data.description:
        return _install_dali(record) + run.command(loader=("torch", "dali-cpu"))
    return against_synthetic(run, summary)


def against_synthetic(run: Rerun, summary: Summary) -> str:
    """What the loader costs altogether: the same run beside one on a batch that is there already."""
    loader = run.record.config.loader
    return "" if loader == "synthetic" else run.command(loader=(loader, "synthetic"))


def fewer_launches(run: Rerun, summary: Summary) -> str:
    """Against a host that is too slow to issue kernels: CUDA graphs, then more work a kernel."""
    if run.record.config.compile == "off":
        return run.command(compile=("off", "reduce-overhead"))
    return larger_batch(run, summary)


def less_sync(run: Rerun, summary: Summary) -> str:
    """Against gradients that take too long: half the bytes, then fewer all-reduces an image."""
    config = run.record.config
    if run.record.environment.backend == "nccl" and config.engine == "ddp" and config.comm_hook == "none":
        return run.command(comm_hook=("none", "fp16"))
    return larger_batch(run, summary)


def faster_compute(run: Rerun, summary: Summary) -> str:
    """Against nothing: the device is busy. Tensor cores, then fused kernels, then a larger batch."""
    record, config, cuda = run.record, run.record.config, run.record.environment.device_type == "cuda"
    if record.attestation is not None and compute_dtype(record.attestation) in ("float32", "tf32"):
        return run.command(precision=(config.precision, "amp-fp16" if cuda else "amp-bf16"))
    if cuda and config.compile == "off":
        return run.command(compile=("off", "default"))
    return larger_batch(run, summary) if cuda else ""


def larger_batch(run: Rerun, summary: Summary) -> str:
    """Twice the batch, where the device has the memory for it."""
    batch, peak, total = run.record.config.batch_size or 0, summary.peak_bytes, summary.total_bytes
    if peak is not None and total is not None and 2 * peak > FITS * total:
        return ""
    return run.command(batch_size=(batch, 2 * batch))


def look_at(run: Rerun, summary: Summary) -> str:
    """Against one slow rank: what tells whether it is its data, its GPU or its host."""
    record, slow = run.record, summary.slow
    if slow is None:
        return ""
    if slow.kind == "data" and record.config.loader != "synthetic":
        return against_synthetic(run, summary)
    there = f"ssh {slow.host} " if record.environment.nodes > 1 else ""
    gpu = next(place.device_id for place in record.environment.places if place.rank == slow.rank)
    if not gpu or slow.kind in ("host", "data"):
        return there + WHO_RUNS
    if slow.kind == "host to device":
        return f"{there}nvidia-smi topo -m"
    return f"{there}nvidia-smi -q -i {gpu} -d CLOCK,PERFORMANCE,TEMPERATURE,POWER"


def who_else(run: Rerun, summary: Summary) -> str:
    """Against other processes: which they are, and the run once more when they are gone."""
    return f"{WHO_RUNS} && {run.command()}"


def more_evidence(run: Rerun, summary: Summary) -> str:
    """Against doubt: ranks that do not take turns on the cores or, where they do not, more rounds."""
    crowding = crowded(run.record) and not too_few_for_a_verdict(run.record)
    return fewer_at_once(run) if crowding else more_rounds(run)


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


CURES: Mapping[str, Cure] = {
    "straggler": look_at,
    "noisy-neighbour": who_else,
    "data-bound": more_data,
    "host-to-device-bound": against_synthetic,
    "launch-bound": fewer_launches,
    "sync-bound": less_sync,
    "compute-bound": faster_compute,
    "inconclusive": more_evidence,
}
"""By the kind of the verdict."""


def _cores_a_rank(record: Record) -> int:
    """Usable cores for each rank of the tightest node."""
    ranks = Counter(place.host for place in record.environment.places)
    return int(min(place.usable_cores / ranks[place.host] for place in record.environment.places))


def _install_dali(record: Record) -> str:
    software = record.environment.software
    if software.dali:
        return ""
    return f"pip install nvidia-dali-cuda{'120' if (software.cuda or '').startswith('12') else '130'} && "
