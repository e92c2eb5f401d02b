"""The claims of the VGG16 sweep: half precision pays on a V100, and only in memory on the two GPUs before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ddpbench.analysis.metrics import SECONDS, gpu_memory, speedup, times
from ddpbench.published.claims.answer import Answer, gain, missing, of_ratios, over, row_of
from ddpbench.published.effect_size import PublishedRatio, together
from ddpbench.published.publications import Publication
from ddpbench.published.sweep_points import batches, by_precision, cells, is_quick
from ddpbench.record.record import Job, Record

WORKLOAD = "vgg16-cifar10"

HALVES = ("o2", "amp-fp16")

Halves = Mapping[str, tuple[PublishedRatio, PublishedRatio]]
"""Of each half precision, its speed and its memory over fp32's."""

PUBLISHED = (128, 256, 512, 1024, 2048)
LARGEST = PUBLISHED[-1]
"""The batch that the source draws its conclusions at."""


def half_pays_on_v100(publication: Publication, job: Job) -> Answer:
    """At the largest batch, unless the rounds at another show another effect than was published of it."""
    there = cells(job, WORKLOAD)
    others = {
        size: _ratios(publication, there, size, size, "V100") for size in batches(there) if size in PUBLISHED and size != _largest(there)
    }
    words = [_against(size, found) for size, found in others.items()]
    answer = _at_the_largest_batch(publication, job, ["V100"], words)
    shown = [each for found in others.values() for pair in found.values() for each in pair if each.here and each.here.has_interval]
    return replace(answer, holds=together([answer.holds, *(each.agrees is not False for each in shown)]))


def half_does_not_pay_before(publication: Publication, job: Job) -> Answer:
    return _at_the_largest_batch(publication, job, ["1080 Ti", "TITAN X"])


def _at_the_largest_batch(publication: Publication, job: Job, gpus: Sequence[str], beside: Sequence[str] = ()) -> Answer:
    """``beside`` is told after what the answer rests on."""
    there = cells(job, WORKLOAD)
    batch = _largest(there)
    of_gpus = [_ratios(publication, there, batch, LARGEST, gpu) for gpu in gpus]
    words = [gain(name, *of_gpus[0][name], by_precision(there, name, batch)) for name in HALVES]
    known = "; ".join(filter(None, words))
    asked = batch if is_quick(job) else LARGEST
    needed = {f"{name} at batch {asked}": by_precision(there, name, asked) for name in ("fp32", *HALVES)}
    ratios = [each for name in HALVES for found in of_gpus for each in found[name]]
    told = [f"at batch {batch} {known}" if known else "", *beside]
    answer = of_ratios(ratios, told, missing(needed, SECONDS, gpu_memory(there)))
    return replace(answer, holds=answer.holds if batch == asked else None)


def _ratios(publication: Publication, there: Sequence[Record], batch: int | None, published: int, gpu: str) -> Halves:
    """Beside those published of ``gpu``."""
    measure, base = gpu_memory(there), by_precision(there, "fp32", batch)
    found = {}
    for name in HALVES:
        other = by_precision(there, name, batch)
        first, theirs = (row_of(publication, WORKLOAD, each, published, gpu) for each in ("fp32", name))
        fast = PublishedRatio(f"{name}'s speed over fp32's, {gpu}", over(first.seconds, theirs.seconds), speedup(base, other))
        held = PublishedRatio(f"{name}'s memory over fp32's, {gpu}", over(theirs.memory_mb, first.memory_mb), times(measure, base, other))
        found[name] = fast, held
    return found


def _against(batch: int, found: Halves) -> str:
    """``at batch 128 o2 1.20 times as fast with 0.97 of the memory (published 1.20, 0.97)``; empty where nothing is known."""
    told = []
    for name, (fast, held) in found.items():
        if words := gain(name, fast, held, None):
            told.append(f"{words} (published {fast.published:.2f}, {held.published:.2f})")
    return f"at batch {batch} {', '.join(told)}" if told else ""


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
