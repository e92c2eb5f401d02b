"""Claims of the VGG16 sweep: half precision pays on a V100; older GPUs only save memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ddpbench.analysis.metrics import SECONDS, gpu_memory_metric, paired_ratio, speedup
from ddpbench.published.claims.answer import ClaimCheck, check_ratios, find_row, format_gain, missing_cells, ratio_of_published
from ddpbench.published.effect_size import PublishedRatio, all_or_unknown
from ddpbench.published.publications import Publication
from ddpbench.published.sweep_points import batch_sizes, find_by_precision, is_quick, matching_records
from ddpbench.record.record import Job, Record

WORKLOAD = "vgg16-cifar10"

HALF_PRECISIONS = ("o2", "amp-fp16")

HalfPrecisionRatios = Mapping[str, tuple[PublishedRatio, PublishedRatio]]
"""Half precision -> its speed and memory relative to fp32."""

PUBLISHED_BATCH_SIZES = (128, 256, 512, 1024, 2048)
LARGEST_PUBLISHED_BATCH = PUBLISHED_BATCH_SIZES[-1]
"""The batch size at which the source draws its conclusions."""


def half_pays_on_v100(publication: Publication, job: Job) -> ClaimCheck:
    """Check the largest batch size.

    The claim also fails if the rounds at another batch size contradict its published effect.
    """
    records = matching_records(job, WORKLOAD)
    other_sizes = {
        size: _half_precision_ratios(publication, records, size, size, "V100")
        for size in batch_sizes(records)
        if size in PUBLISHED_BATCH_SIZES and size != _largest_batch(records)
    }
    texts = [_format_batch_ratios(size, found) for size, found in other_sizes.items()]
    answer = _check_at_largest_batch(publication, job, ["V100"], texts)
    measured = [
        each for found in other_sizes.values() for pair in found.values() for each in pair if each.measured and each.measured.has_interval
    ]
    return replace(answer, holds=all_or_unknown([answer.holds, *(each.agrees is not False for each in measured)]))


def half_does_not_pay_before(publication: Publication, job: Job) -> ClaimCheck:
    return _check_at_largest_batch(publication, job, ["1080 Ti", "TITAN X"])


def _check_at_largest_batch(publication: Publication, job: Job, gpus: Sequence[str], further_texts: Sequence[str] = ()) -> ClaimCheck:
    """Check the ratios at the largest batch size; ``further_texts`` go at the end of the explanation."""
    records = matching_records(job, WORKLOAD)
    batch = _largest_batch(records)
    of_gpus = [_half_precision_ratios(publication, records, batch, LARGEST_PUBLISHED_BATCH, gpu) for gpu in gpus]
    gain_texts = [format_gain(name, *of_gpus[0][name], find_by_precision(records, name, batch)) for name in HALF_PRECISIONS]
    gains = "; ".join(filter(None, gain_texts))
    required_batch = batch if is_quick(job) else LARGEST_PUBLISHED_BATCH
    needed = {f"{name} at batch {required_batch}": find_by_precision(records, name, required_batch) for name in ("fp32", *HALF_PRECISIONS)}
    ratios = [each for name in HALF_PRECISIONS for found in of_gpus for each in found[name]]
    explanations = [f"at batch {batch} {gains}" if gains else "", *further_texts]
    answer = check_ratios(ratios, explanations, missing_cells(needed, SECONDS, gpu_memory_metric(records)))
    return replace(answer, holds=answer.holds if batch == required_batch else None)


def _half_precision_ratios(
    publication: Publication, records: Sequence[Record], batch: int | None, published: int, gpu: str
) -> HalfPrecisionRatios:
    """Ratios of each half precision to fp32, with those published for ``gpu``."""
    memory_metric, base = gpu_memory_metric(records), find_by_precision(records, "fp32", batch)
    found = {}
    for name in HALF_PRECISIONS:
        other = find_by_precision(records, name, batch)
        published_fp32, published_row = (find_row(publication, WORKLOAD, each, published, gpu) for each in ("fp32", name))
        speed_ratio = PublishedRatio(
            f"{name}'s speed over fp32's, {gpu}", ratio_of_published(published_fp32.seconds, published_row.seconds), speedup(base, other)
        )
        memory_ratio = PublishedRatio(
            f"{name}'s memory over fp32's, {gpu}",
            ratio_of_published(published_row.memory_mib, published_fp32.memory_mib),
            paired_ratio(memory_metric, base, other),
        )
        found[name] = speed_ratio, memory_ratio
    return found


def _format_batch_ratios(batch: int, ratios: HalfPrecisionRatios) -> str:
    """``at batch 128 o2 1.20 times as fast with 0.97 of the memory (published 1.20, 0.97)``; empty if nothing is known."""
    parts = []
    for name, (speed_ratio, memory_ratio) in ratios.items():
        if gain := format_gain(name, speed_ratio, memory_ratio, None):
            parts.append(f"{gain} (published {speed_ratio.published:.2f}, {memory_ratio.published:.2f})")
    return f"at batch {batch} {', '.join(parts)}" if parts else ""


def _largest_batch(records: Sequence[Record]) -> int | None:
    """The largest batch size that all precisions finished.

    Else the largest that fp32 and one other finished, that fp32 finished, or any.
    """
    finished_by_size = {
        size: [name for name in HALF_PRECISIONS if _finished(records, name, size)]
        for size in batch_sizes(records)
        if _finished(records, "fp32", size)
    }
    max_finished = max(map(len, finished_by_size.values()), default=0)
    return max(
        (size for size, halves in finished_by_size.items() if len(halves) == max_finished), default=max(batch_sizes(records), default=None)
    )


def _finished(records: Sequence[Record], name: str, batch: int) -> bool:
    found = find_by_precision(records, name, batch)
    return found is not None and bool(SECONDS.values(found))
