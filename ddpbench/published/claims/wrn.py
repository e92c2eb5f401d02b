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
    there = _protocol_records(job)
    measure = gpu_memory_metric(there)
    base, first = find_by_precision(there, "O0"), find_row(publication, WORKLOAD, "O0", gpu=gpu)
    ratios, words = [], []
    for level in LEVELS:
        other, theirs = find_by_precision(there, level), find_row(publication, WORKLOAD, level, gpu=gpu)
        fast = PublishedRatio(f"{level}'s speed over O0's", ratio_of_published(first.seconds, theirs.seconds), speedup(base, other))
        held = PublishedRatio(
            f"{level}'s memory over O0's", ratio_of_published(theirs.memory_mib, first.memory_mib), paired_ratio(measure, base, other)
        )
        ratios += [fast, held]
        words.append(format_gain(level, fast, held, other))
    return check_ratios(
        ratios, words, missing_cells({level: find_by_precision(there, level) for level in ("O0", *LEVELS)}, SECONDS, measure)
    )


def o3_does_not_converge(publication: Publication, job: Job) -> ClaimCheck:
    there = _protocol_records(job)
    base, other = find_by_precision(there, "O0"), find_by_precision(there, "O3")
    traces = [trace for timed in (other.rounds if other else ()) for trace in timed.traces]
    lost = [trace.numerics.nonfinite_step for trace in traces if trace.numerics.nonfinite_step is not None]
    if lost:
        return ClaimCheck(f"here the loss of O3 is not finite from step {min(lost):,} on", True)
    usual, reached = last_accuracy(base), last_accuracy(other)
    if reached is None or usual is None:
        return ClaimCheck(missing_cells({"O0": base, "O3": other}, MEAN_LOSS) or "no accuracy was measured", None)
    told = f"here O3 ends at {reached:.1%}, O0 at {usual:.1%}"
    if usual < 2 * CHANCE_ACCURACY:
        return ClaimCheck(f"{told}: O0 itself has not converged after so few steps", None)
    return ClaimCheck(told, reached <= (CHANCE_ACCURACY + usual) / 2)


def two_cores_hide_the_level(publication: Publication, job: Job) -> ClaimCheck:
    """Check the arms with a larger batch size than the protocol's.

    Holds if the levels take the same time for each model, and the smallest model waits for data at least as long as the largest.
    """
    family = records_of_family(job.records, WORKLOAD)
    larger = [record for record in family if record.config.batch_size != batch_sizes(family)[0]]
    models = list(dict.fromkeys(record.config.workload for record in sorted(larger, key=lambda record: -record.num_parameters)))
    ratios, words, waits = [], [], []
    needed: dict[str, Record | None] = {}
    for model in models:
        there = [record for record in larger if record.config.workload == model]
        base = find_by_precision(there, "O0")
        ours = [
            PublishedRatio(f"{level}'s time over O0's, {model}", None, paired_ratio(SECONDS, base, find_by_precision(there, level)))
            for level in LEVELS
        ]
        needed |= {f"{model} under {level}": find_by_precision(there, level) for level in ("O0", *LEVELS)}
        if base is None or any(each.measured is None for each in ours):
            continue
        wait, cores = data_wait_fraction(base), base.config.cores or base.environment.placements[0].usable_cores
        words.append(
            f"{model} takes {ours[0].text} of O0's time under O1 and {ours[1].text} under O2, and O0 waits {wait or 0:.0%} of a step "
            f"for {pluralize(base.config.workers, 'worker')} on {pluralize(cores, 'core')}"
        )
        ratios += ours
        waits.append(wait or 0.0)
    if len(models) < 2:
        return ClaimCheck("it needs O0, O1 and O2 at batch 512 with 2 workers on 2 cores, of this model and a smaller one", None, ratios)
    same = all_or_unknown(_is_same_time(each.measured) for each in ratios)
    holds = all_or_unknown([same, waits[-1] >= waits[0]]) if len(waits) == len(models) else None
    return ClaimCheck(measured_sentence(words, missing_cells(needed)), holds, ratios)


def _protocol_records(job: Job) -> list[Record]:
    """The Wide-ResNet records at the protocol's batch size, the smallest in the job."""
    there = matching_records(job, WORKLOAD)
    return [record for record in there if record.config.batch_size == batch_sizes(there)[0]]


def _is_same_time(ratio: Interval | None) -> bool | None:
    """Whether the whole interval is near 1; None if only part of it is."""
    if ratio is None:
        return None
    near = {abs(log(bound)) <= log(1 + SAME_TIME_TOLERANCE) for bound in (ratio.low, ratio.center, ratio.high)}
    return near.pop() if len(near) == 1 else None
