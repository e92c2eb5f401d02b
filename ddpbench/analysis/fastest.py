"""Find the fastest of several arms: by how much, whether that is clear, and what to run next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import comb

from ddpbench.analysis.command import CommandBuilder
from ddpbench.analysis.compare import comparable_estimate, same_devices, throughput_ratio
from ddpbench.analysis.remedies.training_rules import longer_run_fields
from ddpbench.analysis.stats import PairedRatio, log_t_interval
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Job, Record
from ddpbench.record.verdict import NextStep, RunCommand

MAX_EQUIVALENT_RATIO = 1.02
"""Arms are equivalent if the whole interval of their ratio is below this."""

FAMILY_WISE_ERROR_RATE = 0.05
"""Fraction of jobs in which one of several equal arms may be called faster than another."""

CLEARLY_SLOWER_RATIO = 1.5
"""An arm that the best beats by this factor in every shared round is no rival, even with too few rounds for an interval."""


MIN_LATER_START_S = 1.0
"""A start that is later by less needs no mention."""

COMPARED_WITH_SYNTHETIC = ("straggler", "host-to-device-bound")
"""Bottlenecks whose next step may be a comparison with --loader synthetic, which this job already was."""


@dataclass(frozen=True)
class BestArm:
    """The fastest arm (``best``) and those not clearly slower (``tied``).

    ``ratio`` is its throughput as a multiple of that of ``compared_to``: the first arm of the job if that is clearly slower, else the
    closest of the clearly slower ones; if no arm is, the one with the greatest upper bound. The rounds that select the best also time it,
    and one of many equal arms always looks good: so the interval is Bonferroni-corrected over all pairs of arms.
    """

    best: Record
    tied: Sequence[Record]  # includes the best, in the order of the job
    compared_to: Record
    ratio: PairedRatio
    candidates: Sequence[Record]
    left_out: Sequence[Record] = ()  # arms on synthetic data beside several loaders

    @property
    def is_clear(self) -> bool:
        """Whether it is faster than ``compared_to`` beyond the noise."""
        return self.ratio.is_above_one

    @property
    def is_ceiling(self) -> bool:
        """Whether the best uses synthetic data and was compared with a loader: the ratio is the cost of the loader."""
        return self.best.config.loader == SYNTHETIC and bool(self.with_loader)

    @property
    def with_loader(self) -> Sequence[Record]:
        """The compared arms that use a loader."""
        return [record for record in self.candidates if record.config.loader != SYNTHETIC]

    @property
    def are_equivalent(self) -> bool:
        """Whether all arms are equally fast for practical purposes."""
        return not self.is_clear and self.ratio.has_interval and self.ratio.high < MAX_EQUIVALENT_RATIO


@dataclass(frozen=True)
class BreakEven:
    """How much later the fastest arm starts because it compiles, and when it has processed more samples all the same.

    Both in seconds; ``after_s`` counts from the beginning of both arms.
    """

    later_start_s: float
    after_s: float


def break_even(found: BestArm) -> BreakEven | None:
    """The break-even of a fastest arm that runs torch.compile, or fused kernels, with one that does not.

    None if that does not start earlier, or is not clearly slower. An arm that compiles starts as late as the latest with the same mode: the
    others may run what that one has compiled. An arm with fused kernels starts later by what Triton compiled; the rest is what the first
    arm of a job loads.
    """
    best, other = found.best.warmup, found.compared_to.warmup
    compiles, other_compiles = (record.config.compile != "off" for record in (found.best, found.compared_to))
    is_fused, other_is_fused = (record.config.fused_kernels for record in (found.best, found.compared_to))
    if not (found.is_clear and best and other):
        return None
    if other_compiles:
        later_s = 0.0
    elif compiles:
        alike = [record.warmup for record in found.candidates if record.config.compile == found.best.config.compile]
        later_s = max(warmup.start_s for warmup in alike if warmup) - other.start_s
    else:
        later_s = best.kernel_compile_s if is_fused and not other_is_fused else 0.0
    ratio = found.ratio.center
    return BreakEven(later_s, other.start_s + ratio * later_s / (ratio - 1)) if later_s >= MIN_LATER_START_S else None


def find_best_arm(records: Sequence[Record]) -> BestArm | None:
    """The fastest arm of a job; None if fewer than two have a figure, or they share no rounds.

    Arms with synthetic data count only if fewer than two others can be compared.
    """
    comparable = [record for record in records if comparable_estimate(record) and same_devices(record, records[0])]
    with_loader = [record for record in comparable if record.config.loader != SYNTHETIC]
    compared = with_loader if len(with_loader) > 1 else comparable
    if len(compared) < 2:
        return None
    best = max(compared, key=lambda record: record.throughput.samples_per_s if record.throughput else 0.0)
    for_all_pairs = partial(log_t_interval, confidence=1 - FAMILY_WISE_ERROR_RATE / comb(len(compared), 2))
    others = [(record, found) for record in compared if record is not best and (found := throughput_ratio(best, record, for_all_pairs))]
    if len(others) < len(compared) - 1:
        return None
    slower = [(record, found) for record, found in others if found.is_above_one]
    compared_to, ratio = (
        min(slower, key=lambda pair: (pair[0] is not records[0], pair[1].center)) if slower else max(others, key=_upper_bound)
    )
    no_rivals = [record for record, found in others if found.is_above_one or found.low >= CLEARLY_SLOWER_RATIO]
    tied = [record for record in compared if not any(record is other for other in no_rivals)]
    left_out = [record for record in comparable if not any(record is other for other in compared)]
    return BestArm(best, tied, compared_to, ratio, compared, left_out)


def next_step_after_comparison(best: BestArm, job: Job) -> NextStep | None:
    """The next step: the fastest arm alone, or the comparison with more rounds if it is unclear which that is.

    An arm with none of the compared flags was run before, and a run on synthetic data is not worth repeating: then the command is that of
    the verdict on this arm, or on the arm with a loader.
    """
    if not (best.is_clear or best.are_equivalent):
        return _more_rounds(best, job)
    usable = [record for record in best.tied if record.config.loader != SYNTHETIC or not best.with_loader]
    if usable:
        builder = CommandBuilder(usable[0], job.kind)
        if any(map(builder.has_flag, job.swept)):
            return RunCommand(builder.command())
        return usable[0].verdict.next if usable[0].verdict else None
    verdict = best.with_loader[0].verdict
    return verdict.next if verdict and verdict.kind not in COMPARED_WITH_SYNTHETIC else None


def _more_rounds(best: BestArm, job: Job) -> RunCommand | None:
    if "workload" in job.swept:  # one run cannot train several workloads
        return None
    configs = [record.requested or record.config for record in job.records]
    arms = {name: tuple(dict.fromkeys(getattr(each, name) for each in configs)) for name in job.swept}
    shortest = min(best.candidates, key=lambda record: (len(record.rounds), record.rounds[0].traces[0].steps))
    more = longer_run_fields(shortest)
    return RunCommand(CommandBuilder.of(job.records[0], job).command(**arms, **more)) if more else None


def _upper_bound(pair: tuple[Record, PairedRatio]) -> float:
    return pair[1].high


KNEE_FRACTION = 0.95
"""Fraction of the highest throughput that counts as almost as fast."""


@dataclass(frozen=True)
class BatchKnee:
    """The smallest of the measured batches that reaches KNEE_FRACTION of the fastest."""

    batch_size: int
    fraction: float  # of the throughput of the fastest that it reaches
    is_reached: bool  # whether a larger batch than the knee was measured, and so more would gain little


def find_batch_knee(found: BestArm, swept: Sequence[str]) -> BatchKnee | None:
    """The knee of arms that differ in batch size only."""
    if [*swept] != ["batch_size"]:
        return None
    throughput = {record.config.batch_size: _samples_per_s(record) for record in found.candidates}
    highest = _samples_per_s(found.best)
    batch_size = min(batch for batch, reached in throughput.items() if reached >= KNEE_FRACTION * highest)
    return BatchKnee(batch_size, throughput[batch_size] / highest, is_reached=batch_size < max(throughput))


def _samples_per_s(record: Record) -> float:
    assert record.throughput is not None, "candidates have a figure"
    return record.throughput.samples_per_s
