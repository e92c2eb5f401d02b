"""The claims of the Tesla T4 comparison: a chain of matrix products gains, a small CNN on MNIST does not."""

from __future__ import annotations

from ddpbench.analysis.bottleneck.verdict import verdict
from ddpbench.analysis.metrics import ALLOCATED, SECONDS, speedup, times
from ddpbench.analysis.summary import summarise
from ddpbench.published.claims.answer import Answer, missing, of_ratios, over, row_of, sentence
from ddpbench.published.effect_size import PublishedRatio, explained, together
from ddpbench.published.publications import Publication
from ddpbench.published.sweep_points import LEFTOVERS, batches, by_precision, cells
from ddpbench.record.record import Job, Record


def gemm_is_faster(publication: Publication, job: Job) -> Answer:
    fp32, amp, alive = _gemm(job)
    other = alive if alive and alive.rounds else amp
    published = row_of(publication, "gemm-mlp", "fp32").seconds, row_of(publication, "gemm-mlp", "amp-fp16").seconds
    here = PublishedRatio("AMP's speed over fp32's", over(*published), speedup(fp32, other))
    words = f"{here.words} times as fast{explained(here.here, other)}" if here.here else ""
    return of_ratios([here], [words], missing({"fp32": fp32, "amp-fp16": other}))


def gemm_uses_more_memory(publication: Publication, job: Job) -> Answer:
    fp32, amp, alive = _gemm(job)
    rows = (row_of(publication, "gemm-mlp", name).max_memory_allocated_bytes for name in ("amp-fp16", "fp32"))
    beside = PublishedRatio("AMP's memory over fp32's, the earlier model alive", over(*rows), times(ALLOCATED, fp32, alive))
    clean = PublishedRatio("AMP's memory over fp32's, clean", None, times(ALLOCATED, fp32, amp))
    lacking = missing({"fp32": fp32, "amp-fp16": amp, f"amp-fp16 with the {LEFTOVERS}": alive}, ALLOCATED)
    words = [f"{beside.words} with the {LEFTOVERS} as published" if beside.here else "", f"{clean.words} clean" if clean.here else ""]
    whose = ""
    if beside.here and clean.here and beside.here.center > 1:
        leftovers = (beside.here.center - clean.here.center) / (beside.here.center - 1)
        whose = f": {'most' if leftovers > 0.5 else 'part'} of the increase, {leftovers:.0%}, is leftovers"
    return of_ratios([beside, clean], [", ".join(filter(None, words)) + whose], lacking)


def mnist_takes_the_same_time(publication: Publication, job: Job) -> Answer:
    fp32, amp = _mnist(job, "fp32", 0), _mnist(job, "amp-fp16", 0)
    published = (row_of(publication, "mnist-cnn", name, 512).seconds for name in ("amp-fp16", "fp32"))
    here = PublishedRatio("AMP's time over fp32's", over(*published), times(SECONDS, fp32, amp))
    words = f"{here.words}{explained(here.here, amp)}" if here.here else ""
    return of_ratios([here], [words], missing({"fp32": fp32, "amp-fp16": amp}))


def mnist_takes_less_memory(publication: Publication, job: Job) -> Answer:
    fp32 = _mnist(job, "fp32", 0)
    base = row_of(publication, "mnist-cnn", "fp32", 512).max_memory_allocated_bytes
    ratios, words, needed = [], [], {"fp32": fp32}
    for place, (batch, how) in enumerate({512: "the same batch", 1024: "twice the batch"}.items()):
        published = over(row_of(publication, "mnist-cnn", "amp-fp16", batch).max_memory_allocated_bytes, base)
        amp = needed[f"amp-fp16 at {how}"] = _mnist(job, "amp-fp16", place)
        ratios.append(PublishedRatio(f"AMP's memory at {how} over fp32's", published, times(ALLOCATED, fp32, amp)))
        words.append(f"{ratios[-1].words} at {how}" if ratios[-1].here else "")
    return of_ratios(ratios, [", ".join(filter(None, words))], missing(needed, ALLOCATED))


def another_bottleneck(publication: Publication, job: Job) -> Answer:
    cases = {f"{record.config.precision} batch {record.config.batch_size}": record for record in cells(job, "mnist-cnn")}
    found = {name: limit for name, record in cases.items() if (limit := verdict(record, summarise(record)))}
    holds = together(None if limit.kind == "inconclusive" else limit.kind != "compute-bound" for limit in found.values())
    words = [f"{name} is {limit.kind}: {limit.says}" for name, limit in found.items()]
    return Answer(sentence(words, missing(cases or {"mnist-cnn": None})), holds)


def _gemm(job: Job) -> tuple[Record | None, Record | None, Record | None]:
    """fp32, clean amp-fp16, and amp-fp16 with the earlier model alive."""
    there = cells(job, "gemm-mlp")
    return by_precision(there, "fp32"), by_precision(there, "amp-fp16"), by_precision(there, "amp-fp16", label=LEFTOVERS)


def _mnist(job: Job, precision: str, place: int) -> Record | None:
    """The cell of a precision at the smallest batch, or the next."""
    there = cells(job, "mnist-cnn")
    sizes = batches(there)
    return by_precision(there, precision, sizes[place]) if place < len(sizes) else None
