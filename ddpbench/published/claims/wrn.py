"""The claims of the Wide-ResNet post: what Apex's levels gain on two GPUs, where O3 ends, and what two weak cores hide."""

from __future__ import annotations

from math import log

from ddpbench.analysis.metrics import MEAN_LOSS, SECONDS, gpu_memory, last_accuracy, speedup, times
from ddpbench.analysis.stats import Interval
from ddpbench.published.claims.answer import Answer, gain, missing, of_ratios, over, row_of, sentence
from ddpbench.published.effect_size import PublishedRatio, together, wait_for_data
from ddpbench.published.publications import Publication
from ddpbench.published.sweep_points import batches, by_precision, cells, related
from ddpbench.record.record import Job, Record
from ddpbench.record.text import count

WORKLOAD = "wrn28x10-cifar10"
LEVELS = ("O1", "O2")

ALMOST_THE_SAME = 0.10
"""Times this near to each other are "almost the same"."""

CHANCE = 0.10
"""The accuracy of guessing among CIFAR-10's ten classes."""


def levels_on_t4(publication: Publication, job: Job) -> Answer:
    return _levels(publication, job, "Tesla T4")


def levels_on_p100(publication: Publication, job: Job) -> Answer:
    return _levels(publication, job, "Tesla P100")


def _levels(publication: Publication, job: Job, gpu: str) -> Answer:
    there = _protocol_cells(job)
    measure = gpu_memory(there)
    base, first = by_precision(there, "O0"), row_of(publication, WORKLOAD, "O0", gpu=gpu)
    ratios, words = [], []
    for level in LEVELS:
        other, theirs = by_precision(there, level), row_of(publication, WORKLOAD, level, gpu=gpu)
        fast = PublishedRatio(f"{level}'s speed over O0's", over(first.seconds, theirs.seconds), speedup(base, other))
        held = PublishedRatio(f"{level}'s memory over O0's", over(theirs.memory_mb, first.memory_mb), times(measure, base, other))
        ratios += [fast, held]
        words.append(gain(level, fast, held, other))
    return of_ratios(ratios, words, missing({level: by_precision(there, level) for level in ("O0", *LEVELS)}, SECONDS, measure))


def o3_does_not_converge(publication: Publication, job: Job) -> Answer:
    there = _protocol_cells(job)
    base, other = by_precision(there, "O0"), by_precision(there, "O3")
    traces = [trace for timed in (other.rounds if other else ()) for trace in timed.traces]
    lost = [trace.numerics.nonfinite_step for trace in traces if trace.numerics.nonfinite_step is not None]
    if lost:
        return Answer(f"here the loss of O3 is not finite from step {min(lost):,} on", True)
    usual, reached = last_accuracy(base), last_accuracy(other)
    if reached is None or usual is None:
        return Answer(missing({"O0": base, "O3": other}, MEAN_LOSS) or "no accuracy was measured", None)
    told = f"here O3 ends at {reached:.1%}, O0 at {usual:.1%}"
    if usual < 2 * CHANCE:
        return Answer(f"{told}: O0 itself has not converged after so few steps", None)
    return Answer(told, reached <= (CHANCE + usual) / 2)


def two_cores_hide_the_level(publication: Publication, job: Job) -> Answer:
    """On the cells of a larger batch than the protocol's: of each model, and worse for the smaller one."""
    family = related(job.records, WORKLOAD)
    larger = [record for record in family if record.config.batch_size != batches(family)[0]]
    models = list(dict.fromkeys(record.config.workload for record in sorted(larger, key=lambda record: -record.parameters)))
    ratios, words, waits = [], [], []
    needed: dict[str, Record | None] = {}
    for model in models:
        there = [record for record in larger if record.config.workload == model]
        base = by_precision(there, "O0")
        ours = [
            PublishedRatio(f"{level}'s time over O0's, {model}", None, times(SECONDS, base, by_precision(there, level))) for level in LEVELS
        ]
        needed |= {f"{model} under {level}": by_precision(there, level) for level in ("O0", *LEVELS)}
        if base is None or any(each.here is None for each in ours):
            continue
        wait, cores = wait_for_data(base), base.config.cores or base.environment.places[0].usable_cores
        words.append(
            f"{model} takes {ours[0].words} of O0's time under O1 and {ours[1].words} under O2, and O0 waits {wait or 0:.0%} of a step "
            f"for {count(base.config.workers, 'worker')} on {count(cores, 'core')}"
        )
        ratios += ours
        waits.append(wait or 0.0)
    if len(models) < 2:
        return Answer("it needs O0, O1 and O2 at batch 512 with 2 workers on 2 cores, of this model and a smaller one", None, ratios)
    same = together(_almost_the_same(each.here) for each in ratios)
    holds = together([same, waits[-1] >= waits[0]]) if len(waits) == len(models) else None
    return Answer(sentence(words, missing(needed)), holds, ratios)


def _protocol_cells(job: Job) -> list[Record]:
    """The Wide-ResNets of the protocol's batch, the smallest."""
    there = cells(job, WORKLOAD)
    return [record for record in there if record.config.batch_size == batches(there)[0]]


def _almost_the_same(here: Interval | None) -> bool | None:
    """None where only a part of the interval is near 1."""
    if here is None:
        return None
    near = {abs(log(bound)) <= log(1 + ALMOST_THE_SAME) for bound in (here.low, here.center, here.high)}
    return near.pop() if len(near) == 1 else None
