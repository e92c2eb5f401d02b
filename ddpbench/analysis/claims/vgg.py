"""The claims of the VGG16 sweep: half precision pays on a V100, and only in memory on the two GPUs before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddpbench.analysis.cells import batches, by_precision, cells, is_quick
from ddpbench.analysis.claims.answer import Answer, gain, missing, of_ratios, over, row_of
from ddpbench.analysis.effects import Ratio, ratio, speedup
from ddpbench.analysis.measures import SECONDS, gpu_memory
from ddpbench.record.published import Publication
from ddpbench.record.record import Job, Record

WORKLOAD = "vgg16-cifar10"

HALVES = ("o2", "amp-fp16")

LARGEST = 2048
"""The batch that the source draws its conclusions at."""


def half_pays_on_v100(publication: Publication, job: Job) -> Answer:
    return _at_the_largest_batch(publication, job, ["V100"])


def half_does_not_pay_before(publication: Publication, job: Job) -> Answer:
    return _at_the_largest_batch(publication, job, ["1080 Ti", "TITAN X"])


def _at_the_largest_batch(publication: Publication, job: Job, gpus: Sequence[str]) -> Answer:
    there = cells(job, WORKLOAD)
    batch = _largest(there)
    measure, base = gpu_memory(there), by_precision(there, "fp32", batch)
    ratios, words = [], []
    for name in HALVES:
        other = by_precision(there, name, batch)
        fast, held = speedup(base, other), ratio(measure, base, other)
        for gpu in gpus:
            first, theirs = (row_of(publication, WORKLOAD, each, LARGEST, gpu) for each in ("fp32", name))
            ratios.append(Ratio(f"{name}'s speed over fp32's, {gpu}", over(first.seconds, theirs.seconds), fast))
            ratios.append(Ratio(f"{name}'s memory over fp32's, {gpu}", over(theirs.memory_mb, first.memory_mb), held))
        words.append(gain(name, ratios[-2], ratios[-1], other))
    known = "; ".join(filter(None, words))
    asked = batch if is_quick(job) else LARGEST
    needed = {f"{name} at batch {asked}": by_precision(there, name, asked) for name in ("fp32", *HALVES)}
    answer = of_ratios(ratios, [f"at batch {batch} {known}" if known else ""], missing(needed, SECONDS, measure))
    return replace(answer, holds=answer.holds if batch == asked else None)


def _largest(records: Sequence[Record]) -> int | None:
    """The largest batch that all precisions finished; else that fp32 and another did; else the largest."""
    done = {
        size: [name for name in HALVES if _finished(records, name, size)] for size in batches(records) if _finished(records, "fp32", size)
    }
    most = max(map(len, done.values()), default=0)
    return max((size for size, halves in done.items() if len(halves) == most), default=max(batches(records), default=None))


def _finished(records: Sequence[Record], name: str, batch: int) -> bool:
    found = by_precision(records, name, batch)
    return found is not None and bool(SECONDS.values(found))
