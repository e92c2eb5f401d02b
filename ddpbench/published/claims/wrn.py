"""Claims of the Wide-ResNet post: Apex levels on two GPUs, O3, two slow CPU cores."""

from __future__ import annotations

from math import log

from ddpbench.analysis.metrics import MEAN_LOSS, SECONDS, gpu_memory_metric, last_accuracy, paired_ratio, speedup
from ddpbench.analysis.stats import Interval
from ddpbench.published.claims.answer import (
    ClaimCheck,
    check_ratios,
    find_row,
    format_gain,
    measured_sentence,
    missing_cells,
    ratio_of_published,
)
from ddpbench.published.effect_size import PublishedRatio, all_or_unknown, data_wait_fraction
from ddpbench.published.publications import Publication
from ddpbench.published.sweep_points import batch_sizes, find_by_precision, matching_records, records_of_family
from ddpbench.record.record import Job, Record
from ddpbench.record.text import pluralize

WORKLOAD = "wrn28x10-cifar10"
LEVELS = ("O1", "O2")

SAME_TIME_TOLERANCE = 0.10
"""Times that differ by up to this fraction are "almost the same"."""

CHANCE_ACCURACY = 0.10
"""The accuracy of guessing among CIFAR-10's ten classes."""


def levels_on_t4(publication: Publication, job: Job) -> ClaimCheck:
    return _check_levels(publication, job, "Tesla T4")


def levels_on_p100(publication: Publication, job: Job) -> ClaimCheck:
    return _check_levels(publication, job, "Tesla P100")


def _check_levels(publication: Publication, job: Job, gpu: str) -> ClaimCheck:
    records = _protocol_records(job)
    memory_metric = gpu_memory_metric(records)
    base, published_base = find_by_precision(records, "O0"), find_row(publication, WORKLOAD, "O0", gpu=gpu)
    ratios, texts = [], []
    for level in LEVELS:
        other, published_row = find_by_precision(records, level), find_row(publication, WORKLOAD, level, gpu=gpu)
        speed_ratio = PublishedRatio(
            f"{level}'s speed over O0's", ratio_of_published(published_base.seconds, published_row.seconds), speedup(base, other)
        )
        memory_ratio = PublishedRatio(
            f"{level}'s memory over O0's",
            ratio_of_published(published_row.memory_mib, published_base.memory_mib),
            paired_ratio(memory_metric, base, other),
        )
        ratios += [speed_ratio, memory_ratio]
        texts.append(format_gain(level, speed_ratio, memory_ratio, other))
    return check_ratios(
        ratios, texts, missing_cells({level: find_by_precision(records, level) for level in ("O0", *LEVELS)}, SECONDS, memory_metric)
    )


def o3_does_not_converge(publication: Publication, job: Job) -> ClaimCheck:
    records = _protocol_records(job)
    base, other = find_by_precision(records, "O0"), find_by_precision(records, "O3")
    traces = [trace for timed in (other.rounds if other else ()) for trace in timed.traces]
    nonfinite_steps = [trace.numerics.nonfinite_step for trace in traces if trace.numerics.nonfinite_step is not None]
    if nonfinite_steps:
        return ClaimCheck(f"here the loss of O3 is not finite from step {min(nonfinite_steps):,} on", True)
    base_accuracy, accuracy = last_accuracy(base), last_accuracy(other)
    if accuracy is None or base_accuracy is None:
        return ClaimCheck(missing_cells({"O0": base, "O3": other}, MEAN_LOSS) or "no accuracy was measured", None)
    explanation = f"here O3 ends at {accuracy:.1%}, O0 at {base_accuracy:.1%}"
    if base_accuracy < 2 * CHANCE_ACCURACY:
        return ClaimCheck(f"{explanation}: O0 itself has not converged after so few steps", None)
    return ClaimCheck(explanation, accuracy <= (CHANCE_ACCURACY + base_accuracy) / 2)


def two_cores_hide_the_level(publication: Publication, job: Job) -> ClaimCheck:
    """Check the arms with a larger batch size than the protocol's.

    Holds if the levels take the same time for each model, and the smallest model waits for data at least as long as the largest.
    """
    family = records_of_family(job.records, WORKLOAD)
    large_batch = [record for record in family if record.config.batch_size != batch_sizes(family)[0]]
    models = list(dict.fromkeys(record.config.workload for record in sorted(large_batch, key=lambda record: -record.num_parameters)))
    ratios, texts, waits = [], [], []
    needed: dict[str, Record | None] = {}
    for model in models:
        records = [record for record in large_batch if record.config.workload == model]
        base = find_by_precision(records, "O0")
        time_ratios = [
            PublishedRatio(f"{level}'s time over O0's, {model}", None, paired_ratio(SECONDS, base, find_by_precision(records, level)))
            for level in LEVELS
        ]
        needed |= {f"{model} under {level}": find_by_precision(records, level) for level in ("O0", *LEVELS)}
        if base is None or any(each.measured is None for each in time_ratios):
            continue
        wait, cores = data_wait_fraction(base), base.config.cores or base.environment.placements[0].usable_cores
        texts.append(
            f"{model} takes {time_ratios[0].text} of O0's time under O1 and {time_ratios[1].text} under O2, "
            f"and O0 waits {wait or 0:.0%} of a step "
            f"for {pluralize(base.config.workers, 'worker')} on {pluralize(cores, 'core')}"
        )
        ratios += time_ratios
        waits.append(wait or 0.0)
    if len(models) < 2:
        return ClaimCheck("needs O0, O1 and O2 at batch 512, 2 workers and 2 cores, for two model sizes", None, ratios)
    same = all_or_unknown(_is_same_time(each.measured) for each in ratios)
    holds = all_or_unknown([same, waits[-1] >= waits[0]]) if len(waits) == len(models) else None
    return ClaimCheck(measured_sentence(texts, missing_cells(needed)), holds, ratios)


def _protocol_records(job: Job) -> list[Record]:
    """The Wide-ResNet records at the protocol's batch size, the smallest in the job."""
    records = matching_records(job, WORKLOAD)
    return [record for record in records if record.config.batch_size == batch_sizes(records)[0]]


def _is_same_time(ratio: Interval | None) -> bool | None:
    """Whether the whole interval is near 1; None if only part of it is."""
    if ratio is None:
        return None
    near = {abs(log(bound)) <= log(1 + SAME_TIME_TOLERANCE) for bound in (ratio.low, ratio.center, ratio.high)}
    return near.pop() if len(near) == 1 else None
