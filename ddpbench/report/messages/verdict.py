"""The sentences of a verdict: the bottleneck or loss, how sure it is, why, and the next step."""

from __future__ import annotations

from msgspec.structs import asdict
from typing_extensions import assert_never

from ddpbench.record.record import Record
from ddpbench.record.screening import CureCode
from ddpbench.record.verdict import (
    ChangeDataLoader,
    ChangeTraining,
    NextStep,
    RaiseTimeLimit,
    ReduceRanks,
    RunCommand,
    ScalingVerdict,
    TrySettings,
    Verdict,
)
from ddpbench.report.messages.bottlenecks import Explanation, explain_bottleneck
from ddpbench.report.messages.causes import cause_name, cause_text
from ddpbench.report.messages.shared_handles import open_text

FIRST_CHANGES = ("shared_handles", "divide_samples")
"""What a ChangeDataLoader has besides arguments: changes of the dataset that come before."""

DIVIDE_TEXT = "divide the samples among workers (torch.utils.data.get_worker_info)"


def explain_verdict(verdict: Verdict, record: Record) -> Explanation:
    """The bottleneck of ``record`` and the numbers that show it and its cause."""
    explanation = explain_bottleneck(verdict.evidence, record)
    if verdict.cause_evidence is None:
        return explanation
    return explanation._replace(reason=f"{explanation.reason}; {cause_text(verdict.cause_evidence, record)}")


def verdict_label(verdict: Verdict | ScalingVerdict) -> str:
    """``data-bound``, ``probably sync-bound``."""
    return f"probably {verdict.kind}" if verdict.is_probable else verdict.kind


def verdict_heading(verdict: Verdict | ScalingVerdict) -> str:
    """``DATA-BOUND, PROBABLY TOO FEW CORES``; the cause only if the kind does not name it already."""
    cause = ""
    if isinstance(verdict, Verdict) and verdict.kind == "data-bound" and verdict.cause:
        cause = f"probably {cause_name(verdict.cause)}" if verdict.is_cause_probable else cause_name(verdict.cause)
    return ", ".join(filter(None, [verdict_label(verdict), cause])).upper()


def repeatability_text(verdict: Verdict | ScalingVerdict) -> str:
    """``81% of bootstrap resamples agree; the runner-up is straggler``.

    Empty if the verdict is certain or states its own shares.
    """
    shares = []
    if verdict.is_probable:
        shares.append(f"{verdict.repeatability:.0%} of bootstrap resamples agree{_runner_up(verdict.runner_up)}")
    if isinstance(verdict, Verdict) and verdict.is_cause_probable:
        of = "of these" if shares else "of bootstrap resamples"
        runner_up = cause_name(verdict.cause_runner_up) if verdict.cause_runner_up else None
        shares.append(f"{verdict.cause_repeatability:.0%} {of} name this cause{_runner_up(runner_up)}")
    return "; ".join(shares)


def verdict_sentence(verdict: Verdict | ScalingVerdict, explanation: Explanation) -> str:
    """The verdict in one sentence: bottleneck, cost, reason, and repeatability if not certain."""
    confidence = repeatability_text(verdict)
    return f"{verdict_label(verdict)}: {explanation.claim}; {explanation.reason}" + (f" ({confidence})" if confidence else "")


def next_step_text(step: NextStep) -> str:
    """The command to run, or what to change: ``DataLoader(..., num_workers=4)``."""
    match step:
        case RunCommand():
            return step.command
        case RaiseTimeLimit():
            return "a longer --time-limit"
        case TrySettings():
            return f"ddpbench diagnose, which tries {', '.join(step.cures)}"
        case ReduceRanks():
            return f"at most {step.max_ranks_per_node} ranks per node"
        case ChangeDataLoader():
            return dataloader_call(step)
        case ChangeTraining():
            return "; ".join(_training_change(each, step) for each in step.cures)
        case _:
            assert_never(step)


def _training_change(cure: CureCode, change: ChangeTraining) -> str:
    """The line that switches ``cure`` on."""
    match cure:
        case "channels-last":
            return "model.to(memory_format=torch.channels_last)"
        case "fused-optimizer":
            return f"{' and '.join(dict.fromkeys(change.optimizers)) or 'the optimizer'}(..., fused=True)"
        case "fused-kernels":
            return "ddpbench.kernels.fuse(model)"
        case "tf32-products":
            return 'torch.set_float32_matmul_precision("high")'
        case "bf16-autocast":
            return f'torch.autocast("{change.device_type}", torch.bfloat16) around the forward of the model'
        case "null":
            raise AssertionError("does nothing")
    assert_never(cure)


def dataloader_call(change: ChangeDataLoader) -> str:
    """The call to write in the script: ``DataLoader(..., num_workers=4)``, and what must be changed before."""
    if change.resident:
        return "ddpbench.loaders.resident(loader)"
    if change.decode_on_gpu:
        return "ddpbench.loaders.decode_on_gpu(loader)"
    if change.ready_indices:
        return "a sampler that draws the indices of an epoch at once"
    arguments = {name: value for name, value in asdict(change).items() if value is not None and name not in FIRST_CHANGES}
    call = f"DataLoader(..., {', '.join(f'{name}={value}' for name, value in arguments.items())})"
    first = [open_text(change.shared_handles), DIVIDE_TEXT if change.divide_samples else ""]
    return ", then ".join([*filter(None, first), call])


def _runner_up(name: str | None) -> str:
    return f"; the runner-up is {name}" if name else ""
