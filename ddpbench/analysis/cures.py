"""What to try next against a limit: a command that measures the cure beside what was run, or nothing."""

from __future__ import annotations

from collections import Counter
from math import ceil

from ddpbench.analysis.command import command
from ddpbench.analysis.straggler import StragglerNote
from ddpbench.analysis.summary import Summary, compute_dtype
from ddpbench.record.record import Record

HEADROOM = 1.15
"""Workers to have, over those that would just keep up."""

FITS = 0.9
"""The fraction of a device's memory that a doubled batch may be expected to fill."""


def more_data(record: Record, wanted_over_given: float) -> str:
    """Against a loader that gives too little: more workers while there are cores, then another decoder, then the ceiling."""
    config, workers = record.config, record.config.workers or 0
    affordable = _cores_a_rank(record) - 1
    if workers < affordable:
        needed = ceil(HEADROOM * wanted_over_given * max(workers, 1))
        return command(record, workers=(workers, min(needed, affordable)))
    if config.loader == "torch" and record.data is not None and "JPEG" in record.data.description:
        return _install_dali(record) + command(record, loader=("torch", "dali-cpu"))
    return against_synthetic(record)


def against_synthetic(record: Record) -> str:
    """What the loader costs altogether: the same run beside one on a batch that is there already."""
    loader = record.config.loader
    return "" if loader == "synthetic" else command(record, loader=(loader, "synthetic"))


def fewer_launches(record: Record, summary: Summary) -> str:
    """Against a host that is too slow to issue kernels: CUDA graphs, then more work a kernel."""
    if record.config.compile == "off":
        return command(record, compile=("off", "reduce-overhead"))
    return larger_batch(record, summary)


def less_sync(record: Record, summary: Summary) -> str:
    """Against gradients that take too long: half the bytes, then fewer all-reduces an image."""
    config = record.config
    if record.environment.backend == "nccl" and config.engine == "ddp" and config.comm_hook == "none":
        return command(record, comm_hook=("none", "fp16"))
    return larger_batch(record, summary)


def faster_compute(record: Record, summary: Summary) -> str:
    """Against nothing: the device is busy. Tensor cores, then fused kernels, then a larger batch."""
    config, cuda = record.config, record.environment.device_type == "cuda"
    if record.attestation is not None and compute_dtype(record.attestation) in ("float32", "tf32"):
        return command(record, precision=(config.precision, "amp-fp16" if cuda else "amp-bf16"))
    if cuda and config.compile == "off":
        return command(record, compile=("off", "default"))
    return larger_batch(record, summary) if cuda else ""


def larger_batch(record: Record, summary: Summary) -> str:
    """Twice the batch, where the device has the memory for it."""
    batch, peak, total = record.config.batch_size or 0, summary.peak_bytes, summary.total_bytes
    if peak is not None and total is not None and 2 * peak > FITS * total:
        return ""
    return command(record, batch_size=(batch, 2 * batch))


def look_at(record: Record, slow: StragglerNote) -> str:
    """Against one slow rank: what tells whether it is its data, its GPU or its host."""
    if slow.kind == "data" and record.config.loader != "synthetic":
        return command(record, loader=("synthetic",))
    there = f"ssh {slow.host} " if record.environment.nodes > 1 else ""
    gpu = next(place.device_id for place in record.environment.places if place.rank == slow.rank)
    if not gpu or slow.kind in ("host", "data"):
        return f"{there}top -b -n 1"
    if slow.kind == "host to device":
        return f"{there}nvidia-smi topo -m"
    return f"{there}nvidia-smi -q -i {gpu} -d CLOCK,PERFORMANCE,TEMPERATURE,POWER"


def more_rounds(record: Record) -> str:
    """Against noise: twice the evidence."""
    return command(record, rounds=(2 * record.config.rounds,))


def _cores_a_rank(record: Record) -> int:
    """Usable cores for each rank of the tightest node."""
    ranks = Counter(place.host for place in record.environment.places)
    return int(min(place.usable_cores / ranks[place.host] for place in record.environment.places))


def _install_dali(record: Record) -> str:
    software = record.environment.software
    if software.dali:
        return ""
    return f"pip install nvidia-dali-cuda{'120' if (software.cuda or '').startswith('12') else '130'} && "
