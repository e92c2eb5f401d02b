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
    fp32, amp, with_earlier = _gemm(job)
    other = with_earlier if with_earlier and with_earlier.rounds else amp
    published = find_row(publication, "gemm-mlp", "fp32").seconds, find_row(publication, "gemm-mlp", "amp-fp16").seconds
    ratio = PublishedRatio("AMP's speed over fp32's", ratio_of_published(*published), speedup(fp32, other))
    text = f"{ratio.text} times as fast{explain_ratio(ratio.measured, other)}" if ratio.measured else ""
    return check_ratios([ratio], [text], missing_cells({"fp32": fp32, "amp-fp16": other}))


def gemm_uses_more_memory(publication: Publication, job: Job) -> ClaimCheck:
    fp32, amp, with_earlier = _gemm(job)
    rows = (find_row(publication, "gemm-mlp", name).max_memory_allocated_bytes for name in ("amp-fp16", "fp32"))
    earlier_ratio = PublishedRatio(
        "AMP's memory over fp32's, the earlier model alive", ratio_of_published(*rows), paired_ratio(ALLOCATED, fp32, with_earlier)
    )
    clean_ratio = PublishedRatio("AMP's memory over fp32's, clean", None, paired_ratio(ALLOCATED, fp32, amp))
    missing = missing_cells({"fp32": fp32, "amp-fp16": amp, f"amp-fp16 with the {role_name(EARLIER_MODEL_ALIVE)}": with_earlier}, ALLOCATED)
    texts = [
        f"{earlier_ratio.text} with the {role_name(EARLIER_MODEL_ALIVE)} as published" if earlier_ratio.measured else "",
        f"{clean_ratio.text} clean" if clean_ratio.measured else "",
    ]
    reason = ""
    if earlier_ratio.measured and clean_ratio.measured and earlier_ratio.measured.center > 1:
        leftover_fraction = (earlier_ratio.measured.center - clean_ratio.measured.center) / (earlier_ratio.measured.center - 1)
        reason = f": {'most' if leftover_fraction > 0.5 else 'part'} of the increase, {leftover_fraction:.0%}, comes from the earlier model"
    return check_ratios([earlier_ratio, clean_ratio], [", ".join(filter(None, texts)) + reason], missing)


def mnist_takes_the_same_time(publication: Publication, job: Job) -> ClaimCheck:
    fp32, amp = _mnist(job, "fp32", 0), _mnist(job, "amp-fp16", 0)
    published = (find_row(publication, "mnist-cnn", name, 512).seconds for name in ("amp-fp16", "fp32"))
    ratio = PublishedRatio("AMP's time over fp32's", ratio_of_published(*published), paired_ratio(SECONDS, fp32, amp))
    text = f"{ratio.text}{explain_ratio(ratio.measured, amp)}" if ratio.measured else ""
    return check_ratios([ratio], [text], missing_cells({"fp32": fp32, "amp-fp16": amp}))


def mnist_takes_less_memory(publication: Publication, job: Job) -> ClaimCheck:
    fp32 = _mnist(job, "fp32", 0)
    base = find_row(publication, "mnist-cnn", "fp32", 512).max_memory_allocated_bytes
    ratios, texts, needed = [], [], {"fp32": fp32}
    for batch_index, (batch, label) in enumerate({512: "the same batch", 1024: "twice the batch"}.items()):
        published = ratio_of_published(find_row(publication, "mnist-cnn", "amp-fp16", batch).max_memory_allocated_bytes, base)
        amp = needed[f"amp-fp16 at {label}"] = _mnist(job, "amp-fp16", batch_index)
        ratios.append(PublishedRatio(f"AMP's memory at {label} over fp32's", published, paired_ratio(ALLOCATED, fp32, amp)))
        texts.append(f"{ratios[-1].text} at {label}" if ratios[-1].measured else "")
    return check_ratios(ratios, [", ".join(filter(None, texts))], missing_cells(needed, ALLOCATED))


def another_bottleneck(publication: Publication, job: Job) -> ClaimCheck:
    records = {f"{record.config.precision} batch {record.config.batch_size}": record for record in matching_records(job, "mnist-cnn")}
    found = {name: (verdict, record) for name, record in records.items() if (verdict := find_bottleneck(record, summarize(record)))}
    holds = all_or_unknown(None if verdict.kind == "inconclusive" else verdict.kind != "compute-bound" for verdict, _ in found.values())
    texts = [f"{name} is {verdict.kind}: {explain_verdict(verdict, record).claim}" for name, (verdict, record) in found.items()]
    return ClaimCheck(measured_sentence(texts, missing_cells(records or {"mnist-cnn": None})), holds)


def _gemm(job: Job) -> tuple[Record | None, Record | None, Record | None]:
    """The records of fp32, clean amp-fp16, and amp-fp16 with the earlier model alive."""
    records = matching_records(job, "gemm-mlp")
    return (
        find_by_precision(records, "fp32"),
        find_by_precision(records, "amp-fp16"),
        find_by_precision(records, "amp-fp16", role=EARLIER_MODEL_ALIVE),
    )


def _mnist(job: Job, precision: str, batch_index: int) -> Record | None:
    """The record of ``precision`` at the batch size of that index, smallest first."""
    records = matching_records(job, "mnist-cnn")
    sizes = batch_sizes(records)
    return find_by_precision(records, precision, sizes[batch_index]) if batch_index < len(sizes) else None
