"""Resample rounds with replacement, to see how often a verdict repeats.

Every resample draws whole rounds (Efron and Tibshirani 1993, chapter 6), the same ones in all records of a job: rounds of one index share
the machine's state, and so stay paired. Few rounds have few distinct resamples, whose means also vary too little. So each duration also
gets Gaussian noise with the standard deviation of its rounds divided by their number: then the mean of a resample varies exactly by its
standard error (a smoothed bootstrap).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log, sqrt
from random import Random
from statistics import fmean, stdev

import msgspec

from ddpbench.analysis.collective_wait import collective_waits, subsample_round
from ddpbench.analysis.stats import coefficient_of_variation
from ddpbench.record.diagnosis import Diagnosis, LoaderBenchmark
from ddpbench.record.record import CollectiveWait, KernelActivity, Record, Round
from ddpbench.record.trace import Trace

RESAMPLES = 100
SEED = 1

STEPS_KEPT = 4
"""Steps per round that a resample keeps; totals are of all steps."""

BENCHMARK_BLOCKS = 5
"""Blocks of a loader benchmark whose rates show its uncertainty: batches come in bursts, so they are not independent samples."""

PhaseNoise = dict[tuple[int, str], float]
"""Standard normal deviates by rank and phase, shared by all records of a resample."""


def resamples(records: Sequence[Record | None], number: int = RESAMPLES) -> Iterator[list[Record | None]]:
    """Yield ``number`` resamples of ``records``; None stays None. The same records give the same resamples."""
    random = Random(SEED)
    arms = [_RoundSampler(record) if record and record.rounds else None for record in records]
    indices = sorted({index for arm in arms if arm for index in arm.by_index})
    reference = max((arm for arm in arms if arm), key=lambda arm: len(arm.by_index), default=None)
    paired_deviations = [arm.paired_deviation(reference) if arm else 0.0 for arm in arms]
    ranks = {rank for arm in arms if arm for rank, _ in arm.deviation}
    phases = dict.fromkeys(phase for arm in arms if arm for _, phase in arm.deviation)
    for _ in range(number):
        drawn = random.choices(indices, k=len(indices))
        noise = {(rank, phase): random.gauss(0, 1) for rank in sorted(ranks) for phase in phases}
        yield [
            arm.resample(drawn, noise, reference, deviation, random) if arm else record
            for arm, record, deviation in zip(arms, records, paired_deviations, strict=True)
        ]


def single_rounds(records: Sequence[Record | None]) -> Iterator[list[Record | None]]:
    """Yield ``records`` with one round each, for every round of the first; None for a record that lacks it.

    The means of any resample lie between those of single rounds. So if every single round shows the same bottleneck, all resamples do, and
    need not be judged one by one.
    """
    first = records[0]
    for timed in first.rounds if first else []:
        yield [record and _single_round(timed.index, record) for record in records]


def resampled_loader(diagnosis: Diagnosis | None, rng: Random) -> Diagnosis | None:
    """``diagnosis`` with noise on the rates of its loader benchmarks."""
    if diagnosis is None or not diagnosis.loader_benchmarks:
        return diagnosis
    benchmarks = [
        msgspec.structs.replace(each, elapsed_s=each.elapsed_s * _noise_factor(rng.gauss(0, 1), _rate_error(each)))
        for each in diagnosis.loader_benchmarks
    ]
    return msgspec.structs.replace(diagnosis, loader_benchmarks=benchmarks)


@dataclass(frozen=True)
class _RoundSampler:
    """Resamples the rounds of one record, with few steps each."""

    record: Record

    @cached_property
    def by_index(self) -> dict[int, Round]:
        return {timed.index: _subsampled(timed) for timed in self.record.rounds}

    @cached_property
    def deviation(self) -> dict[tuple[int, str], float]:
        """By rank and phase, the standard deviation over rounds as a fraction of the mean, at most 1; 0 for a single round."""
        found = {}
        for rank, traces in self.record.traces_by_rank.items():
            for phase in traces[0].phases:
                means = [trace.total_ms(phase) / trace.steps for trace in traces]
                found[rank, phase] = min(1.0, stdev(means) / fmean(means)) if len(means) > 1 and fmean(means) > 0 else 0.0
        return found

    def resample(
        self, indices: Sequence[int], noise: PhaseNoise, reference: _RoundSampler | None, paired_deviation: float, rng: Random
    ) -> Record:
        """The rounds at ``indices``, renumbered in that order. Rounds that this record lacks are skipped.

        ``paired_deviation`` is that of this sampler to ``reference``, the record with the most rounds. A record with a single round uses
        the deviation of ``reference``.
        """
        kept = [(place, self.by_index[index]) for place, index in enumerate(indices) if index in self.by_index]
        kept = kept or [(0, rng.choice(list(self.by_index.values())))]
        rounds = len(self.by_index)
        deviation = reference.deviation if rounds == 1 and reference else self.deviation
        shared_factor = _noise_factor(rng.gauss(0, 1), paired_deviation / rounds)
        factors = {key: shared_factor * _noise_factor(value, deviation.get(key, 0.0) / rounds) for key, value in noise.items()}
        noisy = {index: _scaled(timed, factors) for index, timed in {timed.index: timed for _, timed in kept}.items()}
        return msgspec.structs.replace(
            self.record,
            rounds=[msgspec.structs.replace(noisy[timed.index], index=place) for place, timed in kept],
            kernel_activity=self._noisy_kernel_activity(rng),
        )

    def paired_deviation(self, reference: _RoundSampler | None) -> float:
        """The standard deviation over shared rounds of the log ratio to ``reference``, in which shared noise cancels; 0 for itself."""
        if reference is None or reference is self:
            return 0.0
        shared = self.by_index.keys() & reference.by_index.keys()
        ratios = [log(self.by_index[index].samples_per_s / reference.by_index[index].samples_per_s) for index in sorted(shared)]
        return min(1.0, stdev(ratios)) if len(ratios) > 1 else 0.0

    def _noisy_kernel_activity(self, rng: Random) -> KernelActivity | None:
        """The kernel activity, profiled only once, with the variation of a round."""
        activity, throughputs = self.record.kernel_activity, [timed.samples_per_s for timed in self.record.rounds]
        if activity is None or len(throughputs) < 2:
            return activity
        return msgspec.structs.replace(
            activity, kernel_ms=activity.kernel_ms * _noise_factor(rng.gauss(0, 1), coefficient_of_variation(throughputs))
        )


def _single_round(index: int, record: Record) -> Record | None:
    rounds = [timed for timed in record.rounds if timed.index == index]
    return msgspec.structs.replace(record, rounds=rounds, kernel_activity=None) if rounds else None  # profiled after the rounds


def _subsampled(timed: Round) -> Round:
    """The round with about ``STEPS_KEPT`` steps, and the collective waits of all its steps."""
    return msgspec.structs.replace(
        subsample_round(timed, max(1, _num_kept_steps(timed) // STEPS_KEPT)), collective_wait=collective_waits(timed)
    )


def _num_kept_steps(timed: Round) -> int:
    return len(timed.traces[0].host_data_ms)


def _noise_factor(deviate: float, deviation: float) -> float:
    return max(0.1, 1 + deviate * deviation)


def _rate_error(benchmark: LoaderBenchmark) -> float:
    """The standard error of the benchmark's rate, a fraction."""
    block_size = len(benchmark.intervals_ms) // BENCHMARK_BLOCKS
    if not block_size:
        return 0.0
    means = [fmean(benchmark.intervals_ms[block * block_size : (block + 1) * block_size]) for block in range(BENCHMARK_BLOCKS)]
    return min(1.0, stdev(means) / fmean(means) / sqrt(BENCHMARK_BLOCKS)) if fmean(means) > 0 else 0.0


def _scaled(timed: Round, factors: dict[tuple[int, str], float]) -> Round:
    """The round with each phase of each rank multiplied by its factor. The mean of the added time over ranks lengthens the round."""
    traces, ranks = [_scaled_trace(trace, factors) for trace in timed.traces], len(timed.traces)
    added_s = sum(_total_ms(new) - _total_ms(old) for new, old in zip(traces, timed.traces, strict=True)) / ranks / 1000
    sync, waits = sum(factors[trace.rank, "sync"] for trace in timed.traces) / ranks, timed.collective_wait
    assert waits is not None, "a subsampled round stores its collective waits"
    return msgspec.structs.replace(
        timed,
        traces=[msgspec.structs.replace(trace, wall_s=max(0.1 * trace.wall_s, trace.wall_s + added_s)) for trace in traces],
        wall_s=max(0.1 * timed.wall_s, timed.wall_s + added_s),
        collective_wait=CollectiveWait(
            peer_data_wait_ms=sync * waits.peer_data_wait_ms,
            min_rank_ms=sync * waits.min_rank_ms,
            min_rank_sync_ms=sync * waits.min_rank_sync_ms,
        ),
    )


def _total_ms(trace: Trace) -> float:
    return sum(trace.totals_ms.values()) if trace.totals_ms else sum(trace.total_ms(phase) for phase in trace.phases)


def _scaled_trace(trace: Trace, factors: dict[tuple[int, str], float]) -> Trace:
    return msgspec.structs.replace(
        trace,
        phases_ms={phase: [factors[trace.rank, phase] * span for span in spans] for phase, spans in trace.phases_ms.items()},
        totals_ms={phase: factors[trace.rank, phase] * trace.total_ms(phase) for phase in trace.phases},
    )
