"""Whether a figure may be believed: one small function a check. Each tells its numbers, its sentence and a hint, or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import fmean

from ddpbench.analysis.stats import variation
from ddpbench.analysis.straggler import THROTTLING
from ddpbench.analysis.summary import flops_utilisation
from ddpbench.record.catalogue import PRECISIONS
from ddpbench.record.record import Record
from ddpbench.record.trace import Trace
from ddpbench.record.verdict import Check

MOST_SKIPPED = 0.01
MOST_VARIATION = 0.01
MOST_DRIFT = 0.02
LEAST_ROUNDS, LEAST_STEPS = 5, 30

SEVERITY = ("blocks", "warns", "informs")

Rule = Callable[[Record], Check | None]
RULES: list[Rule] = []


def rule(function: Rule) -> Rule:
    """Adds ``function`` to the checks that every record goes through."""
    RULES.append(function)
    return function


def checks(record: Record) -> list[Check]:
    """The checks that have something to say about ``record``: those that block its figure, then those that warn, then the rest."""
    spoken = [check for each in RULES if record.rounds and (check := each(record))]
    return sorted(spoken, key=lambda check: SEVERITY.index(check.effect))


@rule
def not_as_asked(record: Record) -> Check | None:
    """The precision that ran is the one that was asked for, as far as it was observed."""
    seen, asked = record.attestation, PRECISIONS.get(record.config.precision)
    if seen is None or asked is None:
        return None
    layers = asked.autocast or "float32"
    wrong = [f"layers compute in {dtype}" for dtype in (seen.first_layer, seen.last_layer) if dtype and dtype != layers]
    if asked.loss_scaling != (seen.loss_scale is not None):
        wrong.append("there is a loss scaler" if seen.loss_scale is not None else "there is no loss scaler")
    if asked.tf32 is not None and (seen.tf32_matmul, seen.tf32_cudnn) != (asked.tf32, asked.tf32):
        wrong.append(f"TF32 is {'on' if seen.tf32_matmul else 'off'} for matmul, {'on' if seen.tf32_cudnn else 'off'} for cuDNN")
    if not wrong:
        return None
    return Check(
        name="not-as-asked",
        effect="blocks",
        sentence=f"asked for {asked.name}, but {', '.join(dict.fromkeys(wrong))}",
        hint="something outside ddpbench sets the precision: the workload itself, or NVIDIA_TF32_OVERRIDE",
    )


@rule
def not_finite(record: Record) -> Check | None:
    bad = [
        (before + trace.numerics.nonfinite_step, trace.rank)
        for before, trace in _timeline(record)
        if trace.numerics.nonfinite_step is not None
    ]
    if not bad:
        return None
    step, rank = min(bad)
    return Check(
        name="not-finite",
        effect="blocks",
        sentence=f"loss not finite, step {step}, rank {rank}",
        numbers={"step": step, "rank": rank},
        hint="a lower --lr, or --precision amp-bf16",
    )


@rule
def skipped_steps(record: Record) -> Check | None:
    """One skip after a growth of the loss scale is healthy; many, or two in a row, mean that the run hardly trains."""
    skipped = sorted({before + step for before, trace in _timeline(record) for step in trace.numerics.skipped_steps})
    if not skipped:
        return None
    steps = _steps(record)
    in_a_row = any(after - before == 1 for before, after in pairwise(skipped))
    dead = in_a_row or (len(skipped) > 1 and len(skipped) > MOST_SKIPPED * steps)
    times = "one update" if len(skipped) == 1 else f"{len(skipped)} updates"
    return Check(
        name="skipped-steps",
        effect="blocks" if dead else "informs",
        sentence=f"the loss scaler skipped {times} of {steps}" + (", two in a row" if in_a_row else ""),
        numbers={"skipped": len(skipped), "steps": steps},
        hint="more --warmup lets the loss scale settle; --precision amp-bf16 needs none" if dead else "",
    )


@rule
def frozen(record: Record) -> Check | None:
    """By the checksums of all parameters; 0 is one that was not taken."""
    for timed in record.rounds:
        for trace in timed.traces:
            if trace.numerics.parameters_before == trace.numerics.parameters_after != 0:
                return Check(
                    name="frozen",
                    effect="blocks",
                    sentence=f"no parameter changed in round {timed.index + 1}, rank {trace.rank}",
                    numbers={"round": timed.index + 1, "rank": trace.rank},
                    hint="every update was skipped, or the optimizer was given other parameters",
                )
    return None


@rule
def diverged(record: Record) -> Check | None:
    apart = [timed.index + 1 for timed in record.rounds if not timed.digests_agree]
    if not apart:
        return None
    return Check(
        name="diverged",
        effect="blocks",
        sentence=f"ranks ended round {apart[0]} with different parameters",
        numbers={"round": apart[0]},
        hint="gradients are not averaged over all ranks",
    )


@rule
def noisy(record: Record) -> Check | None:
    """The spread of rounds alone: that of steps is a shape (a loader's bursts), no noise."""
    if len(record.rounds) < 2:
        return None
    spread = variation([timed.images_per_s for timed in record.rounds])
    if spread <= MOST_VARIATION:
        return None
    return Check(
        name="noisy",
        effect="warns",
        sentence=f"the rounds vary by {spread:.1%} (more than {MOST_VARIATION:.0%})",
        numbers={"variation": spread},
        hint="more --rounds, longer ones with --steps, and no other work on this machine",
    )


@rule
def drift(record: Record) -> Check | None:
    figures = [timed.images_per_s for timed in record.rounds]
    if len(figures) < 4:
        return None
    change = fmean(figures[-2:]) / fmean(figures[:2]) - 1
    if abs(change) <= MOST_DRIFT:
        return None
    return Check(
        name="drift",
        effect="warns",
        sentence=f"the last two rounds are {abs(change):.1%} {'slower' if change < 0 else 'faster'} than the first two",
        numbers={"change": change},
        hint="not at rest yet: more --warmup, more --rounds",
    )


@rule
def few_rounds(record: Record) -> Check | None:
    rounds, steps = len(record.rounds), _steps(record)
    if rounds >= LEAST_ROUNDS and steps >= LEAST_STEPS:
        return None
    return Check(
        name="few-rounds",
        effect="warns",
        sentence=f"{_count(rounds, 'round')} and {_count(steps, 'step')}; a figure needs {LEAST_ROUNDS} and {LEAST_STEPS}",
        numbers={"rounds": rounds, "steps": steps},
        hint=f"--rounds {LEAST_ROUNDS} or more, without --steps",
    )


@rule
def throttled(record: Record) -> Check | None:
    slowed = [(trace.rank, THROTTLING.intersection(trace.health.throttle_reasons)) for _, trace in _timeline(record) if trace.health]
    ranks = sorted({rank for rank, reasons in slowed if reasons})
    if not ranks:
        return None
    reasons = sorted({reason for _, seen in slowed for reason in seen})
    return Check(
        name="throttled",
        effect="warns",
        sentence=f"{_where(record, ranks)}: {', '.join(reasons)}",
        numbers={"ranks": len(ranks), "first_rank": ranks[0]},
        hint="too hot, or too little power: nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",
    )


@rule
def power_cap(record: Record) -> Check | None:
    ranks = sorted({trace.rank for _, trace in _timeline(record) if trace.health and "sw-power-cap" in trace.health.throttle_reasons})
    if not ranks:
        return None
    return Check(
        name="power-cap",
        effect="informs",
        sentence=f"{_where(record, ranks)}: clocks held down by the power limit, as on many a busy GPU",
        numbers={"ranks": len(ranks), "first_rank": ranks[0]},
    )


@rule
def rerun(record: Record) -> Check | None:
    again = [timed.index + 1 for timed in record.rounds if any(trace.retried_for for trace in timed.traces)]
    if not again:
        return None
    reasons = sorted({trace.retried_for for _, trace in _timeline(record) if trace.retried_for})
    return Check(
        name="rerun",
        effect="informs",
        sentence=f"measured a second time for {', '.join(reasons)}: round {', '.join(map(str, again))}",
        numbers={"rounds": len(again)},
    )


@rule
def shared_gpu(record: Record) -> Check | None:
    visitors = {trace.rank: trace.health.other_processes for _, trace in _timeline(record) if trace.health and trace.health.other_processes}
    if not visitors:
        return None
    most = max(visitors.values())
    return Check(
        name="shared-gpu",
        effect="warns",
        sentence=f"{_where(record, sorted(visitors))}: {_count(most, 'other process', 'es')} on the GPU",
        numbers={"ranks": len(visitors), "other_processes": most},
        hint="nvidia-smi lists them",
    )


@rule
def alloc_retry(record: Record) -> Check | None:
    retries = sum(trace.memory.allocator_retries for _, trace in _timeline(record))
    if not retries:
        return None
    return Check(
        name="alloc-retry",
        effect="warns",
        sentence=f"the allocator ran out of memory and tried again {_count(retries, 'time')}",
        numbers={"retries": retries},
        hint="a smaller --batch-size",
    )


@rule
def cpu_starved(record: Record) -> Check | None:
    """Loader workers and trainers against the cores of their node: affinity, cgroup quota and SLURM, whichever is least."""
    cores = {place.host: place.usable_cores for place in record.environment.places}
    ranks = Counter(place.host for place in record.environment.places)
    workers = 0 if record.config.loader == "synthetic" else record.config.workers or 0
    threads = _trainer_threads(record)
    host = min(cores, key=lambda name: cores[name] - ranks[name] * (workers + threads))
    needed = ranks[host] * (workers + threads)
    if needed <= cores[host]:
        return None
    room = max(int(cores[host] / ranks[host]) - threads, 1)
    loading = f"{_count(ranks[host], 'rank')} x {_count(workers, 'worker')} + " if workers else "trainers: "
    return Check(
        name="cpu-starved",
        effect="warns",
        sentence=f"{loading}{ranks[host] * threads} > {cores[host]:g} usable cores" + (f" on {host}" if len(cores) > 1 else ""),
        numbers={"ranks": ranks[host], "workers": workers, "trainer_threads": threads, "usable_cores": cores[host]},
        hint=f"-j {room}, or more cores" if workers else "fewer ranks or threads, or more cores",
    )


@rule
def recycled(record: Record) -> Check | None:
    if record.data is None or not record.data.recycled:
        return None
    return Check(
        name="recycled",
        effect="informs",
        sentence="the timed rounds read the same files more than once, from memory and not from storage",
        hint="a larger data set shows what storage gives",
    )


@rule
def implausible(record: Record) -> Check | None:
    share = flops_utilisation(record)
    if share is None or share <= 1:
        return None
    return Check(
        name="implausible",
        effect="warns",
        sentence=f"{share:.0%} of the ceiling measured on this device",
        numbers={"mfu": share},
        hint="the ceiling was measured on a busy device, or not all of the model ran",
    )


def _timeline(record: Record) -> Iterator[tuple[int, Trace]]:
    """Every trace with the number of timed steps before its round."""
    before = 0
    for timed in record.rounds:
        yield from ((before, trace) for trace in timed.traces)
        before += timed.traces[0].steps


def _steps(record: Record) -> int:
    return sum(timed.traces[0].steps for timed in record.rounds)


def _trainer_threads(record: Record) -> int:
    """Cores that one trainer process keeps busy: one that feeds a GPU, or the threads that a CPU rank computes with."""
    threads = record.environment.variables.get("OMP_NUM_THREADS", "")
    return int(threads) if record.environment.device_type == "cpu" and threads.isdecimal() else 1


def _where(record: Record, ranks: list[int]) -> str:
    """``rank 2 (node-01)``, or ``4 ranks`` where it is more than one."""
    if len(ranks) > 1:
        return f"{len(ranks)} ranks"
    return next(f"rank {place.rank} ({place.host})" for place in record.environment.places if place.rank == ranks[0])


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{plural}"
