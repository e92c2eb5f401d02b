"""The sentence and the hint of every check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from typing_extensions import assert_never

from ddpbench.analysis.command import TOP_COMMAND
from ddpbench.analysis.run_length import MIN_ROUNDS, MIN_STEPS
from ddpbench.analysis.scaling.ladder import MAX_EFFICIENCY
from ddpbench.record.checks import (
    AllocRetry,
    AnyBaselineDoubt,
    AnyCheck,
    CheckedBaseline,
    Drift,
    FilesSkipped,
    FrozenParameters,
    Imbalance,
    ImplausibleEfficiency,
    ImplausibleMfu,
    LowerClock,
    MeasurementTooShort,
    NoInfiniband,
    Noisy,
    NoisyBaseline,
    NoisyNeighbour,
    NonfiniteLoss,
    NotValidated,
    OversubscribedCpu,
    ParamsOutOfSync,
    PowerCapped,
    PrecisionMismatch,
    Relocated,
    Remeasured,
    RepeatedSamples,
    RereadFiles,
    SharedGpu,
    SharedHandles,
    ShortBaseline,
    SkippedSteps,
    SlowRankZero,
    SlowWholeBatch,
    Throttled,
    UnequalNodes,
    UnknownDoubt,
    UnusedLossScale,
)
from ddpbench.record.record import Record
from ddpbench.record.text import numbered, pluralize
from ddpbench.record.trace import RetryReason
from ddpbench.report.messages.phrases import format_ranks, format_starved_ranks
from ddpbench.report.messages.sample_comparison import repeated_text
from ddpbench.report.messages.sentence import Quantity, Sentence, counted, sentence_text
from ddpbench.report.messages.shared_handles import handle_names, open_text

LENGTH_LIMITS = {
    "time-limit": "time limit",
    "one-minute": "in one minute",
    "steps": "--steps",
    "script": "all that the script trained; more epochs help",
}
"""What a measurement that could not have more rounds or steps was limited by."""

RETRY_REASONS: dict[RetryReason, str] = {"throttle": "GPU clocks throttled"}


def check_text(check: AnyCheck, record: Record) -> str:
    """What a check of ``record`` found, in one sentence."""
    return sentence_text(check_sentence(check, record))


def check_sentence(check: AnyCheck, record: Record) -> Sentence:
    """What a check of ``record`` found, in the parts of one sentence."""
    found = _finding(check, record)
    return (_launches_prefix(check, record), *((found,) if isinstance(found, str) else found))


def check_hint(check: AnyCheck, record: Record) -> str:
    """What to do about a check of ``record``; empty if there is nothing to do."""
    match check:
        case PrecisionMismatch():
            return "the workload or NVIDIA_TF32_OVERRIDE overrides the precision"
        case NonfiniteLoss():
            if record.script is not None:
                return "the training has diverged: its steps may do other work than those of a sound one"
            return "a lower --lr" + (", or `--precision amp-bf16`" if check.computes_in_float16 else "")
        case SkippedSteps(severity="error"):
            return f"{_loss_scale_hint(record)}; `--precision amp-bf16` needs no loss scale"
        case FrozenParameters():
            return "every update was skipped, or the optimizer holds other parameters"
        case ParamsOutOfSync():
            return "gradients are not averaged over all ranks"
        case Noisy():
            return f"`--rounds {check.suggested_rounds}` narrows the interval" if check.suggested_rounds else ""
        case Drift() if record.script:
            return "check for heat and other load"
        case Drift():
            return "a longer --warmup if the first rounds are slower; otherwise check for heat and other load"
        case Relocated():
            return "arms remain comparable within a round; for one machine's throughput, measure from scratch"
        case MeasurementTooShort():
            return ", ".join(_more_rounds(check))
        case Throttled():
            return "overheating or too little power: `nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`"
        case SharedGpu():
            return "`nvidia-smi` lists them"
        case AllocRetry():
            return "a smaller batch" if record.script else "a smaller --batch-size"
        case ImplausibleMfu():
            return "the peak was measured on a busy device, or part of the model did not run"
        case ImplausibleEfficiency():
            return "repeat on an otherwise idle machine, with more --rounds"
        case OversubscribedCpu(severity="info"):
            return ""
        case OversubscribedCpu():
            workers = f"DataLoader(num_workers={check.suggested_workers})" if record.script else f"`-j {check.suggested_workers}`"
            fewer = workers if check.suggested_workers else "fewer ranks or threads"
            return f"{fewer}, or more cores"
        case NoisyNeighbour():
            return f"`{TOP_COMMAND}` shows the other processes"
        case NoInfiniband():
            if check.disabled_by:
                return f"`unset {' '.join(check.disabled_by)}`: it disables InfiniBand"
            return "check for libibverbs, and /dev/infiniband in the container; `NCCL_DEBUG=INFO` shows the reason"
        case UnequalNodes():
            return "the slowest node sets the pace"
        case RereadFiles():
            return "use a larger dataset to measure storage"
        case FilesSkipped():
            return "the record lists them; repair or remove them"
        case SharedHandles():
            return f"{open_text(check.handles)}, with its first sample or in worker_init_fn"
        case RepeatedSamples():
            return "torch.utils.data.get_worker_info() in its __iter__ returns the number of the worker, and of all workers"
        case NotValidated():
            return "use a --data-dir with a validation split, or --loader torch without --data-dir"
        case UnusedLossScale() | SkippedSteps() | PowerCapped() | Remeasured():
            return ""
        case _:
            assert_never(check)


def _finding(check: AnyCheck, record: Record) -> str | Sentence:
    match check:
        case PrecisionMismatch():
            return f"requested {record.config.precision}, but {', '.join(_mismatches(check))}"
        case UnusedLossScale():
            return f"--static-loss-scale {check.loss_scale:g} is ignored: {record.config.precision} does not scale the loss"
        case NonfiniteLoss():
            return f"non-finite loss at step {check.step} on rank {check.rank}"
        case SkippedSteps():
            skipped = Quantity(check.skipped, f"{check.skipped:,}")
            return (
                "the loss scaler skipped ",
                skipped,
                f" of {pluralize(check.steps, 'update')}" + (", two in a row" if check.in_a_row else ""),
            )
        case FrozenParameters():
            return f"no parameter changed in round {check.round_index + 1} on rank {check.rank}"
        case ParamsOutOfSync():
            return f"parameters differ between ranks after round {check.round_index + 1}"
        case Noisy():
            return "rounds vary by ", Quantity(check.round_cv, f"{check.round_cv:.1%}")
        case Drift():
            change = Quantity(abs(check.change), f"{abs(check.change):.1%}")
            return "the last two rounds are ", change, f" {'slower' if check.change < 0 else 'faster'} than the first two"
        case Relocated():
            rounds = " and again from round ".join(str(index + 1) for index in check.round_indices)
            return f"resumed on other GPUs or hosts from round {rounds}"
        case MeasurementTooShort():
            return *counted(check.rounds, "round"), ", ", *counted(check.steps, "step"), _limit(check)
        case Throttled():
            return f"{format_ranks(record, check.ranks)}: {', '.join(check.reasons)}"
        case PowerCapped():
            return f"{format_ranks(record, check.ranks)}: the power limit lowers clocks"
        case Remeasured():
            reasons = ", ".join(RETRY_REASONS[reason] for reason in check.reasons)
            return f"{numbered('round', [index + 1 for index in check.round_indices])} measured again: {reasons}"
        case SharedGpu():
            return f"{format_ranks(record, check.ranks)}: {pluralize(check.other_processes, 'other process', 'es')} on the GPU"
        case AllocRetry():
            return "the caching allocator ran out of memory and retried ", *counted(check.retries, "time")
        case ImplausibleMfu():
            return "MFU is ", Quantity(check.mfu, f"{check.mfu:.0%}"), " of the peak measured on this device"
        case ImplausibleEfficiency():
            doubts = baseline_doubts_text(check.baseline_doubts, record)
            return f"efficiency {check.efficiency:.1%} exceeds {MAX_EFFICIENCY:.0%}: unreliable 1-rank baseline; {doubts}"
        case OversubscribedCpu():
            on = f" on {check.host}" if record.environment.nodes > 1 else ""
            unknown = "; they share cores only if all of them compute, which was not measured" if check.severity == "info" else ""
            return *_cpu_demand(check), f" > {pluralize(check.usable_cores, 'usable core')}{on}{unknown}"
        case NoisyNeighbour():
            return f"{format_starved_ranks(record, check.cores_by_rank)} while computing"
        case NoInfiniband():
            return f"NCCL uses sockets between nodes, not InfiniBand ({', '.join(record.environment.infiniband_devices)})"
        case UnequalNodes():
            return "; ".join(_imbalances(check))
        case RereadFiles():
            return "rounds read the same files again, from the page cache"
        case FilesSkipped():
            return *counted(check.files, "unreadable file"), " skipped, as --skip-bad allows"
        case SharedHandles():
            names = handle_names(check.handles)
            shared = f"{pluralize(check.workers, 'worker')} share {names}, open before they were forked"
            return f"{shared}: samples may be mixed up until each opens its own"
        case RepeatedSamples():
            return repeated_text(record, check.workers)
        case NotValidated():
            return "no accuracy: the dataset has no validation split"
        case _:
            assert_never(check)


def _launches_prefix(check: AnyCheck, record: Record) -> str:
    """``launches 2, 3 of 3: ``; empty if all launches have the check."""
    if not check.launches:
        return ""
    return f"{numbered('launch', check.launches, plural='es')} of {record.config.launches}: "


def _mismatches(check: PrecisionMismatch) -> Iterator[str]:
    """What differs from the requested precision."""
    yield from (f"layers compute in {dtype}" for dtype in check.layer_dtypes)
    yield from (f"BatchNorm is {dtype}" for dtype in check.batch_norm_dtypes)
    yield from (f"parameters are {dtype}" for dtype in check.parameter_dtypes)
    yield from (f"gradients are {dtype}" for dtype in check.gradient_dtypes)
    if check.master_weights is not None:
        yield f"master weights are {'present' if check.master_weights else 'missing'}"
    if check.loss_scaler is not None:
        yield f"the loss scaler is {'active' if check.loss_scaler else 'missing'}"
    if check.requested_loss_scale is not None:
        yield from (f"the loss scale is {scale:g}, not {check.requested_loss_scale:g}" for scale in check.loss_scales)
    if check.tf32_matmul is not None:
        yield f"TF32 is {'on' if check.tf32_matmul else 'off'} for matmul, {'on' if check.tf32_cudnn else 'off'} for cuDNN"


def _loss_scale_hint(record: Record) -> str:
    if record.config.static_loss_scale is not None:
        return "a lower --static-loss-scale"
    return "more --warmup lets the loss scale settle"


def _limit(check: MeasurementTooShort) -> str:
    """What limited their number, or how many are needed."""
    if check.limited_by is None:
        return f"; the minimum is {MIN_ROUNDS} rounds and {MIN_STEPS} steps"
    return f" ({LENGTH_LIMITS[check.limited_by]})"


def _more_rounds(check: MeasurementTooShort) -> Iterator[str]:
    """What would give the figure enough rounds and steps."""
    if check.remedy:
        yield "a longer --time-limit" if check.remedy == "longer-time-limit" else "let it run to completion"
    suggested = {"rounds": check.suggested_rounds, "steps": check.suggested_steps}
    if flags := [f"--{name} {number}" for name, number in suggested.items() if number]:
        yield f"`{' '.join(flags)}` or more"


def _cpu_demand(check: OversubscribedCpu) -> Sentence:
    """``4 ranks x 16 workers + 4``, ``2 ranks x 3 threads``."""
    ranks = f"{pluralize(check.ranks, 'rank')} x "
    if check.workers:
        return ranks, *counted(check.workers, "worker"), f" + {check.ranks * check.threads_per_rank}"
    return ranks, *counted(check.threads_per_rank, "thread")


def _imbalances(check: UnequalNodes) -> Iterator[str]:
    if check.ranks:
        yield _imbalance(check.ranks, "rank")
    if check.usable_cores:
        yield _imbalance(check.usable_cores, "usable core")


def _imbalance(found: Imbalance, noun: str) -> str:
    """``2 ranks on n2, 4 on n1``."""
    least = int(found.least) if found.least == int(found.least) else found.least
    return f"{pluralize(least, noun)} on {found.least_host}, {found.most:g} on {found.most_host}"


def baseline_doubts_text(doubts: Sequence[AnyBaselineDoubt], record: Record) -> str:
    """The reasons to doubt the 1-rank run of the scaling job of ``record`` as its baseline."""
    return "; ".join(_baseline_doubt_text(doubt, record) for doubt in doubts)


def _baseline_doubt_text(doubt: AnyBaselineDoubt, record: Record) -> str:
    match doubt:
        case NoisyBaseline():
            return f"its rounds vary by {doubt.round_cv:.1%}"
        case ShortBaseline():
            return f"it has {pluralize(doubt.rounds, 'round')}, the minimum is {MIN_ROUNDS}"
        case CheckedBaseline():
            return check_text(doubt.check, record)
        case LowerClock():
            return f"its GPU ran at {doubt.sm_mhz:.0f} MHz, but at {doubt.all_sm_mhz:.0f} with all ranks"
        case SlowRankZero():
            return f"it runs on rank 0, which is {doubt.excess_fraction:.0%} slower than the others"
        case SlowWholeBatch():
            slower = f"{doubt.excess_fraction:.0%} slower per {record.sample_unit}"
            return f"its full batch is {slower} than the per-rank batch of {doubt.ranks} ranks"
        case UnknownDoubt():
            return "cause unknown, measure again with more --rounds"
        case _:
            assert_never(doubt)
