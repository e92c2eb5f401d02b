"""Checks of a figure: one small function each, which returns its numbers, sentence and hint, or None."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, pairwise
from statistics import fmean

from ddpbench.analysis.checks.node import (
    alloc_retry,
    cpu_starved,
    no_infiniband,
    noisy_neighbour,
    power_cap,
    rerun,
    shared_gpu,
    throttled,
    unequal_nodes,
)
from ddpbench.analysis.checks.precision import not_as_asked, unused_scale
from ddpbench.analysis.evidence import MIN_ROUNDS, MIN_STEPS, required_length, timed_steps
from ddpbench.analysis.stats import coefficient_of_variation
from ddpbench.analysis.summary import compute_mfu
from ddpbench.record.checks import Check
from ddpbench.record.diagnosis import BASELINE, BASELINE_REPEAT, COMPUTE_ONLY, INDEPENDENT, LOADER_IN_BACKGROUND, REPLAY, TRIAL_PREFIX
from ddpbench.record.record import Record
from ddpbench.record.registry import PRECISIONS
from ddpbench.record.scaling import INDEPENDENT_RANKS, NO_SYNC, SINGLE_NO_DDP, SINGLE_SHARD_BATCH, WITH_DATA, ddp_label
from ddpbench.record.text import pluralize
from ddpbench.record.trace import Trace

MAX_SKIPPED_FRACTION = 0.01
MAX_ROUND_CV = 0.01
MAX_DRIFT = 0.02

SKIPPED_STEP_HINTS = {
    False: "more --warmup lets the loss scale settle; `--precision amp-bf16` needs none",
    True: "a lower --static-loss-scale; `--precision amp-bf16` needs none",
}
"""Keyed by whether the loss scale is static."""

FIGURE_CHECKS = ("noisy", "drift", "few-rounds")
"""Checks that concern only how well the rounds support their figure."""

TIME_LIMITED_LABELS = frozenset(
    {
        BASELINE,
        BASELINE_REPEAT,
        COMPUTE_ONLY,
        INDEPENDENT,
        REPLAY,
        LOADER_IN_BACKGROUND,
        SINGLE_NO_DDP,
        INDEPENDENT_RANKS,
        SINGLE_SHARD_BATCH,
        NO_SYNC,
        WITH_DATA,
    }
)
"""Labels of trainings of a diagnosis or a scaling job, whose time limit decides the number of rounds."""

SEVERITY_ORDER = ("blocks", "warns", "informs")

CUT_SHORT_STATUSES = ("running", "interrupted", "hung")
"""Statuses of a run that was cut short without an error in it."""

CheckRule = Callable[[Record], Check | None]


def run_checks(record: Record) -> list[Check]:
    """The checks that apply to ``record``: those that block its figure, then warnings, then notes.

    If the figure is blocked, the checks of how well it is supported are left out.
    """
    spoken = [check for each in CHECK_RULES if record.rounds and (check := each(record))]
    if any(check.severity == "blocks" for check in spoken):
        spoken = [check for check in spoken if check.code not in FIGURE_CHECKS]
    return sorted(spoken, key=lambda check: SEVERITY_ORDER.index(check.severity))


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
        code="not-finite",
        severity="blocks",
        sentence=f"loss not finite, step {step}, rank {rank}",
        numbers={"step": step, "rank": rank},
        hint="a lower --lr" + (", or `--precision amp-bf16`" if _computes_in_float16(record) else ""),
    )


def skipped_steps(record: Record) -> Check | None:
    """One skip after a growth of the loss scale is healthy; many, or two in a row, mean that the run hardly trains.

    A training from scratch finds its loss scale by skipping: skips before its first update are not counted.
    """
    static = record.config.static_loss_scale is not None
    finding = bool(record.config.fresh) and not static
    skipped = sorted({before + step for before, trace in _timeline(record) for step in _skipped(trace, finding)})
    if not skipped:
        return None
    timed = timed_steps(record)
    in_a_row = any(after - before == 1 for before, after in pairwise(skipped))
    dead = in_a_row or (len(skipped) > 1 and len(skipped) > MAX_SKIPPED_FRACTION * timed)
    return Check(
        code="skipped-steps",
        severity="blocks" if dead else "informs",
        sentence=f"the loss scaler skipped {pluralize(len(skipped), 'update')} of {timed}" + (", two in a row" if in_a_row else ""),
        numbers={"skipped": len(skipped), "steps": timed},
        hint=(SKIPPED_STEP_HINTS[static] if dead else ""),
    )


def frozen(record: Record) -> Check | None:
    """By the checksums of all parameters; a checksum of 0 was not taken."""
    for timed in record.rounds:
        for trace in timed.traces:
            if trace.numerics.params_checksum_before == trace.numerics.params_checksum_after != 0:
                return Check(
                    code="frozen",
                    severity="blocks",
                    sentence=f"no parameter changed in round {timed.index + 1}, rank {trace.rank}",
                    numbers={"round": timed.index + 1, "rank": trace.rank},
                    hint="every update was skipped, or the optimizer was given other parameters",
                )
    return None


def diverged(record: Record) -> Check | None:
    apart = [timed.index + 1 for timed in record.rounds if not timed.params_in_sync]
    if not apart:
        return None
    return Check(
        code="diverged",
        severity="blocks",
        sentence=f"ranks ended round {apart[0]} with different parameters",
        numbers={"round": apart[0]},
        hint="gradients are not averaged over all ranks",
    )


def noisy(record: Record) -> Check | None:
    """Only the variation of rounds counts: that of steps is a pattern (bursts of a loader), not noise."""
    if len(record.rounds) < 2:
        return None
    spread = coefficient_of_variation([timed.images_per_s for timed in record.rounds])
    if spread <= MAX_ROUND_CV:
        return None
    return Check(
        code="noisy",
        severity="warns",
        sentence=f"the rounds vary by {spread:.1%} (more than {MAX_ROUND_CV:.0%})",
        numbers={"variation": spread},
        hint=_more_rounds_hint(record),
    )


def _more_rounds_hint(record: Record) -> str:
    """Twice as many rounds, once; empty for trainings whose command decides their number."""
    asked = record.requested or record.config
    return f"`--rounds {2 * asked.rounds}` narrows the interval" if asked.rounds <= MIN_ROUNDS and not _is_time_limited(record) else ""


def drift(record: Record) -> Check | None:
    figures = [timed.images_per_s for timed in record.rounds]
    if len(figures) < 4:
        return None
    change = fmean(figures[-2:]) / fmean(figures[:2]) - 1
    if abs(change) <= MAX_DRIFT:
        return None
    return Check(
        code="drift",
        severity="warns",
        sentence=f"the last two rounds are {abs(change):.1%} {'slower' if change < 0 else 'faster'} than the first two",
        numbers={"change": change},
        hint="a longer --warmup, if the first rounds are the slower ones; else heat or other work",
    )


def moved(record: Record) -> Check | None:
    if not record.relocations:
        return None
    turns = [f"{move.first_round + 1}" for move in record.relocations]
    return Check(
        code="moved",
        severity="warns",
        sentence=f"on other GPUs or hosts from round {' and again from round '.join(turns)} on, where the journal was gone on with",
        numbers={"moves": len(turns)},
        hint="arms of the same rounds still compare; for the figure of one machine let it run there from the beginning",
    )


def few_rounds(record: Record) -> Check | None:
    """A warning if the user's flags, or an early end, leave too few; a note if ddpbench chose as many as the time allowed."""
    rounds, timed, asked = len(record.rounds), timed_steps(record), record.requested or record.config
    if rounds >= MIN_ROUNDS and timed >= MIN_STEPS:
        return None
    by_time = record.status == "ok" and (_is_time_limited(record) or (rounds >= MIN_ROUNDS and not asked.steps and not asked.epochs))
    seen = f"{pluralize(rounds, 'round')} and {pluralize(timed, 'step')}"
    limit = "the time limit" if _is_time_limited(record) else "a minute"
    needed = f"a figure needs {MIN_ROUNDS} rounds and {MIN_STEPS} steps"
    return Check(
        code="few-rounds",
        severity="informs" if by_time else "warns",
        sentence=f"{seen}, as many as {limit} allows" if by_time else f"{seen}; {needed}",
        numbers={"rounds": rounds, "steps": timed},
        hint=", ".join(_more_evidence_hints(record)),
    )


def _more_evidence_hints(record: Record) -> Iterator[str]:
    """What would give the figure enough rounds and steps."""
    asked, wanted = record.requested or record.config, required_length(record)
    if _is_time_limited(record):
        yield "a longer --time-limit"
        return
    if len(record.rounds) < asked.rounds:
        if record.status == "ok" and asked.time_limit is not None:
            yield "a longer --time-limit"
        elif record.status in CUT_SHORT_STATUSES:
            yield "let it run to its end"
    if more := [f"--{name} {number}" for name, number in wanted.items() if number != getattr(asked, name)]:
        yield f"`{' '.join(more)}` or more"


def _is_time_limited(record: Record) -> bool:
    return record.label in TIME_LIMITED_LABELS or record.label.startswith(TRIAL_PREFIX) or record.label == ddp_label(record.world_size)


def recycled(record: Record) -> Check | None:
    if record.data is None or not record.data.reread:
        return None
    return Check(
        code="recycled",
        severity="informs",
        sentence="the timed rounds read the same files more than once, from memory and not from storage",
        hint="a larger data set shows what storage gives",
    )


def left_out(record: Record) -> Check | None:
    told = (trace.loader_stats.skipped_files for trace in record.traces if trace.loader_stats)
    files = len(set(chain.from_iterable(told)))
    if not files:
        return None
    return Check(
        code="left-out",
        severity="informs",
        sentence=f"{pluralize(files, 'file')} could not be read, and {'was' if files == 1 else 'were'} left out, as --skip-bad allows",
        numbers={"files": files},
        hint="the record names them: repair them, or take them away",
    )


def not_validated(record: Record) -> Check | None:
    """Only if accuracy was requested, not if it is a by-product of fresh rounds."""
    asked = record.requested
    if not (asked and (asked.validate or asked.epochs)):
        return None
    if any(trace.numerics.accuracy is not None for trace in record.traces):
        return None
    return Check(
        code="not-validated",
        severity="informs",
        sentence="no accuracy: there are no held-out data",
        hint="a --data-dir may have some, and so has the set that --loader torch reads without one",
    )


def implausible(record: Record) -> Check | None:
    share = compute_mfu(record)
    if share is None or share <= 1:
        return None
    return Check(
        code="implausible",
        severity="warns",
        sentence=f"{share:.0%} of the ceiling measured on this device",
        numbers={"mfu": share},
        hint="the ceiling was measured on a busy device, or not all of the model ran",
    )


def _skipped(trace: Trace, is_finding_scale: bool) -> list[int]:
    """The skipped steps of a round; if it starts by finding its loss scale, without those before the first update."""
    steps = trace.numerics.skipped_steps
    return [step for place, step in enumerate(steps) if not (is_finding_scale and step == place)]


def _computes_in_float16(record: Record) -> bool:
    spec = PRECISIONS.get(record.config.precision)
    return spec is not None and spec.layer_dtype == "float16"


def _timeline(record: Record) -> Iterator[tuple[int, Trace]]:
    """Every trace with the number of timed steps before its round."""
    before = 0
    for timed in record.rounds:
        yield from ((before, trace) for trace in timed.traces)
        before += timed.traces[0].steps


CHECK_RULES: tuple[CheckRule, ...] = (
    not_as_asked,
    unused_scale,
    not_finite,
    skipped_steps,
    frozen,
    diverged,
    noisy,
    drift,
    moved,
    few_rounds,
    throttled,
    power_cap,
    rerun,
    shared_gpu,
    alloc_retry,
    cpu_starved,
    noisy_neighbour,
    no_infiniband,
    unequal_nodes,
    recycled,
    left_out,
    not_validated,
    implausible,
)
"""The checks of every record."""
