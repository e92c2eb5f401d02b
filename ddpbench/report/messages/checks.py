"""The sentence and the hint of every check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from ddpbench.analysis.checks.rounds import MAX_ROUND_CV
from ddpbench.analysis.command import TOP_COMMAND
from ddpbench.analysis.evidence import MIN_ROUNDS, MIN_STEPS
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
    RereadFiles,
    SharedGpu,
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
from ddpbench.record.text import pluralize
from ddpbench.report.messages.phrases import format_ranks, format_starved_ranks
from ddpbench.report.messages.sentence import Quantity, Sentence, counted, sentence_text


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
            return "something outside ddpbench sets the precision: the workload itself, or NVIDIA_TF32_OVERRIDE"
        case NonfiniteLoss():
            return "a lower --lr" + (", or `--precision amp-bf16`" if check.computes_in_float16 else "")
        case SkippedSteps(severity="error"):
            return f"{_settled_loss_scale(record)}; `--precision amp-bf16` needs none"
        case FrozenParameters():
            return "every update was skipped, or the optimizer was given other parameters"
        case ParamsOutOfSync():
            return "gradients are not averaged over all ranks"
        case Noisy():
            return f"`--rounds {check.suggested_rounds}` narrows the interval" if check.suggested_rounds else ""
        case Drift():
            return "a longer --warmup, if the first rounds are the slower ones; else heat or other work"
        case Relocated():
            return "arms of the same rounds still compare; for the figure of one machine let it run there from the beginning"
        case MeasurementTooShort():
            return ", ".join(_more_rounds(check))
        case Throttled():
            return "too hot, or too little power: `nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`"
        case SharedGpu():
            return "`nvidia-smi` lists them"
        case AllocRetry():
            return "a smaller --batch-size"
        case ImplausibleMfu():
            return "the ceiling was measured on a busy device, or not all of the model ran"
        case ImplausibleEfficiency():
            return "one rank is no measure before it runs as fast as any other: nothing else on the machine, more --rounds"
        case OversubscribedCpu():
            fewer = f"`-j {check.suggested_workers}`" if check.suggested_workers else "fewer ranks or threads"
            return f"{fewer}, or more cores"
        case NoisyNeighbour():
            return f"`{TOP_COMMAND}` shows who else computes here"
        case NoInfiniband():
            if check.disabled_by:
                return f"`unset {' '.join(check.disabled_by)}`: NCCL was told to keep off it"
            return "is libibverbs there, and /dev/infiniband in the container? `NCCL_DEBUG=INFO` tells why it is not used"
        case UnequalNodes():
            return "all nodes go at the pace of the slowest"
        case RereadFiles():
            return "a larger data set shows what storage gives"
        case FilesSkipped():
            return "the record names them: repair them, or take them away"
        case NotValidated():
            return "a --data-dir may have some, and so has the set that --loader torch reads without one"
        case UnusedLossScale() | SkippedSteps() | PowerCapped() | Remeasured():
            return ""
        case _:
            assert_never(check)


def _finding(check: AnyCheck, record: Record) -> str | Sentence:
    match check:
        case PrecisionMismatch():
            return f"asked for {record.config.precision}, but {', '.join(_mismatches(check))}"
        case UnusedLossScale():
            return f"--static-loss-scale {check.loss_scale:g} is not used: {record.config.precision} does not scale the loss"
        case NonfiniteLoss():
            return f"loss not finite, step {check.step}, rank {check.rank}"
        case SkippedSteps():
            number, updates = counted(check.skipped, "update")
            return "the loss scaler skipped ", number, f"{updates} of {check.steps}" + (", two in a row" if check.in_a_row else "")
        case FrozenParameters():
            return f"no parameter changed in round {check.round_index + 1}, rank {check.rank}"
        case ParamsOutOfSync():
            return f"ranks ended round {check.round_index + 1} with different parameters"
        case Noisy():
            return "the rounds vary by ", Quantity(check.round_cv, f"{check.round_cv:.1%}"), f" (more than {MAX_ROUND_CV:.0%})"
        case Drift():
            change = Quantity(abs(check.change), f"{abs(check.change):.1%}")
            return "the last two rounds are ", change, f" {'slower' if check.change < 0 else 'faster'} than the first two"
        case Relocated():
            rounds = " and again from round ".join(str(index + 1) for index in check.round_indices)
            return f"on other GPUs or hosts from round {rounds} on, where the journal was gone on with"
        case MeasurementTooShort():
            return *counted(check.rounds, "round"), " and ", *counted(check.steps, "step"), _limit(check)
        case Throttled():
            return f"{format_ranks(record, check.ranks)}: {', '.join(check.reasons)}"
        case PowerCapped():
            return f"{format_ranks(record, check.ranks)}: clocks held down by the power limit, as on many a busy GPU"
        case Remeasured():
            rounds = ", ".join(str(index + 1) for index in check.round_indices)
            return f"measured a second time for {', '.join(check.reasons)}: round {rounds}"
        case SharedGpu():
            return f"{format_ranks(record, check.ranks)}: {pluralize(check.other_processes, 'other process', 'es')} on the GPU"
        case AllocRetry():
            return "the allocator ran out of memory and tried again ", *counted(check.retries, "time")
        case ImplausibleMfu():
            return Quantity(check.mfu, f"{check.mfu:.0%}"), " of the ceiling measured on this device"
        case ImplausibleEfficiency():
            doubts = baseline_doubts_text(check.baseline_doubts, record)
            return f"{check.efficiency:.1%} of {record.world_size} times one rank; of the one rank: {doubts}"
        case OversubscribedCpu():
            on = f" on {check.host}" if record.environment.nodes > 1 else ""
            return *_cpu_demand(check), f" > {pluralize(check.usable_cores, 'usable core')}{on}"
        case NoisyNeighbour():
            return f"{format_starved_ranks(record, check.cores_by_rank)} in computing"
        case NoInfiniband():
            devices = record.environment.infiniband_devices
            there = f"{', '.join(devices)} {'are' if len(devices) > 1 else 'is'} there"
            return f"NCCL goes over sockets between nodes: no InfiniBand used although {there}"
        case UnequalNodes():
            return "; ".join(_imbalances(check))
        case RereadFiles():
            return "the timed rounds read the same files more than once, from memory and not from storage"
        case FilesSkipped():
            were = "was" if check.files == 1 else "were"
            return *counted(check.files, "file"), f" could not be read, and {were} left out, as --skip-bad allows"
        case NotValidated():
            return "no accuracy: there are no held-out data"
        case _:
            assert_never(check)


def _launches_prefix(check: AnyCheck, record: Record) -> str:
    """``launches 2, 3 of 3: ``; empty if all launches have the check."""
    if not check.launches:
        return ""
    return f"launch{'es' * (len(check.launches) > 1)} {', '.join(map(str, check.launches))} of {record.config.launches}: "


def _mismatches(check: PrecisionMismatch) -> Iterator[str]:
    """What differs from the requested precision."""
    yield from (f"layers compute in {dtype}" for dtype in check.layer_dtypes)
    yield from (f"BatchNorm is {dtype}" for dtype in check.batch_norm_dtypes)
    yield from (f"parameters are {dtype}" for dtype in check.parameter_dtypes)
    yield from (f"gradients are {dtype}" for dtype in check.gradient_dtypes)
    if check.master_weights is not None:
        yield f"there are {'' if check.master_weights else 'no '}master weights"
    if check.loss_scaler is not None:
        yield f"there is {'a' if check.loss_scaler else 'no'} loss scaler"
    if check.requested_loss_scale is not None:
        yield from (f"the loss scale is {scale:g}, not {check.requested_loss_scale:g}" for scale in check.loss_scales)
    if check.tf32_matmul is not None:
        yield f"TF32 is {'on' if check.tf32_matmul else 'off'} for matmul, {'on' if check.tf32_cudnn else 'off'} for cuDNN"


def _settled_loss_scale(record: Record) -> str:
    if record.config.static_loss_scale is not None:
        return "a lower --static-loss-scale"
    return "more --warmup lets the loss scale settle"


def _limit(check: MeasurementTooShort) -> str:
    """Why there are not more, or how many are needed."""
    if check.limited_by is None:
        return f"; a figure needs {MIN_ROUNDS} rounds and {MIN_STEPS} steps"
    return f", as many as {'the time limit' if check.limited_by == 'time-limit' else 'a minute'} allows"


def _more_rounds(check: MeasurementTooShort) -> Iterator[str]:
    """What would give the figure enough rounds and steps."""
    if check.remedy:
        yield "a longer --time-limit" if check.remedy == "longer-time-limit" else "let it run to its end"
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
            return f"it has {pluralize(doubt.rounds, 'round')}, and a figure needs {MIN_ROUNDS}"
        case CheckedBaseline():
            return check_text(doubt.check, record)
        case LowerClock():
            return f"its GPU ran at {doubt.sm_mhz:.0f} MHz, all of them at {doubt.all_sm_mhz:.0f}"
        case SlowRankZero():
            return f"rank 0, on which it trains, is {doubt.excess_fraction:.0%} slower than the others by itself"
        case SlowWholeBatch():
            return f"its whole batch runs {doubt.excess_fraction:.0%} slower an image than the share that a rank of {doubt.ranks} has"
        case UnknownDoubt():
            return "nothing that was measured tells why: measure again, with more --rounds"
        case _:
            assert_never(doubt)
