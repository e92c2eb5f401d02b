"""Claims of the Tesla T4 comparison: matrix products gain, a small MNIST CNN does not."""

from __future__ import annotations

from ddpbench.analysis.bottleneck.verdict import find_bottleneck
from ddpbench.analysis.metrics import ALLOCATED, SECONDS, paired_ratio, speedup
from ddpbench.analysis.summary import summarize
from ddpbench.published.claims.answer import ClaimCheck, check_ratios, find_row, measured_sentence, missing_cells, ratio_of_published
from ddpbench.published.effect_size import PublishedRatio, all_or_unknown, explain_ratio
from ddpbench.published.publications import Publication
from ddpbench.published.sweep_points import batch_sizes, find_by_precision, matching_records
from ddpbench.record.record import Job, Record
from ddpbench.record.roles import EARLIER_MODEL_ALIVE
from ddpbench.report.messages.roles import role_name
from ddpbench.report.messages.verdict import explain_verdict


def gemm_is_faster(publication: Publication, job: Job) -> ClaimCheck:
    fp32, amp, alive = _gemm(job)
    other = alive if alive and alive.rounds else amp
    published = find_row(publication, "gemm-mlp", "fp32").seconds, find_row(publication, "gemm-mlp", "amp-fp16").seconds
    here = PublishedRatio("AMP's speed over fp32's", ratio_of_published(*published), speedup(fp32, other))
    words = f"{here.text} times as fast{explain_ratio(here.measured, other)}" if here.measured else ""
    return check_ratios([here], [words], missing_cells({"fp32": fp32, "amp-fp16": other}))


def gemm_uses_more_memory(publication: Publication, job: Job) -> ClaimCheck:
    fp32, amp, alive = _gemm(job)
    rows = (find_row(publication, "gemm-mlp", name).max_memory_allocated_bytes for name in ("amp-fp16", "fp32"))
    beside = PublishedRatio(
        "AMP's memory over fp32's, the earlier model alive", ratio_of_published(*rows), paired_ratio(ALLOCATED, fp32, alive)
    )
    clean = PublishedRatio("AMP's memory over fp32's, clean", None, paired_ratio(ALLOCATED, fp32, amp))
    lacking = missing_cells({"fp32": fp32, "amp-fp16": amp, f"amp-fp16 with the {role_name(EARLIER_MODEL_ALIVE)}": alive}, ALLOCATED)
    words = [
        f"{beside.text} with the {role_name(EARLIER_MODEL_ALIVE)} as published" if beside.measured else "",
        f"{clean.text} clean" if clean.measured else "",
    ]
    whose = ""
    if beside.measured and clean.measured and beside.measured.center > 1:
        leftovers = (beside.measured.center - clean.measured.center) / (beside.measured.center - 1)
        whose = f": {'most' if leftovers > 0.5 else 'part'} of the increase, {leftovers:.0%}, is leftovers"
    return check_ratios([beside, clean], [", ".join(filter(None, words)) + whose], lacking)


def mnist_takes_the_same_time(publication: Publication, job: Job) -> ClaimCheck:
    fp32, amp = _mnist(job, "fp32", 0), _mnist(job, "amp-fp16", 0)
    published = (find_row(publication, "mnist-cnn", name, 512).seconds for name in ("amp-fp16", "fp32"))
    here = PublishedRatio("AMP's time over fp32's", ratio_of_published(*published), paired_ratio(SECONDS, fp32, amp))
    words = f"{here.text}{explain_ratio(here.measured, amp)}" if here.measured else ""
    return check_ratios([here], [words], missing_cells({"fp32": fp32, "amp-fp16": amp}))


def mnist_takes_less_memory(publication: Publication, job: Job) -> ClaimCheck:
    fp32 = _mnist(job, "fp32", 0)
    base = find_row(publication, "mnist-cnn", "fp32", 512).max_memory_allocated_bytes
    ratios, words, needed = [], [], {"fp32": fp32}
    for place, (batch, how) in enumerate({512: "the same batch", 1024: "twice the batch"}.items()):
        published = ratio_of_published(find_row(publication, "mnist-cnn", "amp-fp16", batch).max_memory_allocated_bytes, base)
        amp = needed[f"amp-fp16 at {how}"] = _mnist(job, "amp-fp16", place)
        ratios.append(PublishedRatio(f"AMP's memory at {how} over fp32's", published, paired_ratio(ALLOCATED, fp32, amp)))
        words.append(f"{ratios[-1].text} at {how}" if ratios[-1].measured else "")
    return check_ratios(ratios, [", ".join(filter(None, words))], missing_cells(needed, ALLOCATED))


def another_bottleneck(publication: Publication, job: Job) -> ClaimCheck:
    cases = {f"{record.config.precision} batch {record.config.batch_size}": record for record in matching_records(job, "mnist-cnn")}
    found = {name: (limit, record) for name, record in cases.items() if (limit := find_bottleneck(record, summarize(record)))}
    holds = all_or_unknown(None if limit.kind == "inconclusive" else limit.kind != "compute-bound" for limit, _ in found.values())
    words = [f"{name} is {limit.kind}: {explain_verdict(limit, record).claim}" for name, (limit, record) in found.items()]
    return ClaimCheck(measured_sentence(words, missing_cells(cases or {"mnist-cnn": None})), holds)


def _gemm(job: Job) -> tuple[Record | None, Record | None, Record | None]:
    """The records of fp32, clean amp-fp16, and amp-fp16 with the earlier model alive."""
    there = matching_records(job, "gemm-mlp")
    return (
        find_by_precision(there, "fp32"),
        find_by_precision(there, "amp-fp16"),
        find_by_precision(there, "amp-fp16", role=EARLIER_MODEL_ALIVE),
    )


def _mnist(job: Job, precision: str, batch_index: int) -> Record | None:
    """The record of ``precision`` at the batch size of that index, smallest first."""
    there = matching_records(job, "mnist-cnn")
    sizes = batch_sizes(there)
    return find_by_precision(there, precision, sizes[batch_index]) if batch_index < len(sizes) else None
