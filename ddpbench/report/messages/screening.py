"""Sentences about screened cures: why one was not tried, and what one gains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddpbench.analysis.screening import is_within_rounding, loss_deviations
from ddpbench.record.remedy import Advice, MeasuredGain, ScreenedRemedy
from ddpbench.record.screening import CHANGES_NUMBERS, LossComparison, Obstacle
from ddpbench.record.verdict import ChangeTraining
from ddpbench.report.format import format_rounded
from ddpbench.report.messages.predictions import gain_text

OBSTACLES: Mapping[Obstacle, str] = {
    "already-on": "the script has it already",
    "compiled": "the model is compiled",
    "no-convolutions": "no weights of two-dimensional convolutions",
    "volumes": "weights of three-dimensional convolutions",
    "other-memory": "parameters in a flat buffer, in shared memory, or sharded",
    "other-optimizer": "an optimizer of another class than those of torch that have it",
    "many-optimizers": "too many optimizers",
    "own-implementation": "the script has chosen an implementation",
    "loss-scaler": "under a GradScaler, the first fused step of SGD would leave its momentum uninitialised",
    "fused-moments": "the fused optimizer of the script would misread an older checkpoint in another memory format",
    "bucket-views": "gradients are views of DDP's buckets, in the memory format of the start",
    "other-precision": "the model computes in another precision already",
    "no-bfloat16": "the device has no instructions for bfloat16",
    "no-tf32": "the device has no instructions for TF32",
    "mostly-convolutions": "most weights are those of convolutions, for which TF32 is on by default",
    "replicated": "nn.DataParallel replicates the model",
    "own-forward": "the script has replaced the forward of the model",
    "sparse-gradients": "gradients are sparse",
    "unreadable": "an error of the model or the optimizer when they were inspected",
    "no-model": "the model, or its optimizer, has been freed",
    "needs-channels-last": "only in channels-last order",
    "nothing-to-fuse": "no BatchNorm before a ReLU",
    "deterministic": "the script asks for deterministic algorithms",
    "second-derivatives": "gradients are differentiated again",
    "captured": "the script replays a CUDA graph",
    "no-device-kernel": "not implemented for the device",
    "disturbed": "windows skipped updates, or the loss was not finite",
    "no-memory": "takes more than half of the free memory of the GPU",
    "no-time": "no time left",
}


COMPILE_TEXT = "only fresh launches show what it gains, and how long it compiles first; no losses were compared:"


def obstacle_text(remedy: ScreenedRemedy) -> str:
    """Why it was not tried; empty if it was."""
    if remedy.obstacle is None:
        return ""
    needed = f": takes about {remedy.needed_s:.0f} s" if remedy.needed_s is not None else ""
    return f"{OBSTACLES[remedy.obstacle]}{needed}"


def no_time_text(remedies: Sequence[ScreenedRemedy]) -> str:
    """Which were left out, and how long they take together with the null cure, which takes as long as another."""
    times_s = [each.needed_s or 0.0 for each in remedies]
    seconds = sum(times_s) + max(times_s)
    return f"not tried: {', '.join(each.code for each in remedies)}; a --time-limit of {seconds:.0f} s more is enough"


def screened_gain_text(remedy: ScreenedRemedy) -> str:
    """``1.94x (1.94 to 1.97)``, and what speaks against it; or why there is no gain."""
    if remedy.failure:
        return f"failed: {remedy.failure}"
    gain = remedy.measured
    if gain is None or remedy.obstacle:
        return f"{'not tried' if gain is None else 'not judged'}: {obstacle_text(remedy)}"
    on_top = f" on top of {' and '.join(remedy.on_top_of)}" if remedy.on_top_of else ""
    doubt = "" if remedy.is_kept else ", a loss" if gain.high < 1 else ", too little" if remedy.is_gain else ", no gain"
    numbers = ", changes numbers" if {remedy.code, *remedy.on_top_of} & {*CHANGES_NUMBERS} else ""
    return f"{gain_text(gain.center, gain.low, gain.high)}{on_top}{doubt}{numbers}"


def loss_comparison_text(losses: LossComparison | None) -> str:
    """``differ by 0.003% in 20 updates, two runs without by 0.001%``, and what that shows; or that they were not compared."""
    found = loss_deviations(losses) if losses else None
    if losses is None or found is None:
        return "not compared: no time or memory left, or they were not seen"
    changed, plain = (f"{100 * each:.2g}%" for each in found)
    limit = "; this finds mistakes, and says nothing of final accuracy" if is_within_rounding(losses) else ": more than rounding"
    return f"differ by {changed} in {losses.updates} updates, two runs without by {plain}{limit}"


def computing_gain_text(advice: Advice) -> str:
    """``computing alone 1.94x (1.94 to 1.97): SCREENED, NOT PROVED``. Only a fresh start proves. Empty without such a gain."""
    gain, change = advice.computing_gain, advice.computing
    if gain is None or change is None:
        return ""
    numbers = "; changes numbers" if {*change.cures} & {*CHANGES_NUMBERS} else ""
    return f"computing alone {gain_text(gain.center, gain.low, gain.high)}: SCREENED, NOT PROVED{numbers}"


def faster_text(change: ChangeTraining, gain: MeasuredGain) -> str:
    """``channels-last computes 1.94 times as fast``."""
    verb = "computes" if len(change.cures) == 1 else "compute"
    return f"{' with '.join(change.cures)} {verb} {format_rounded(gain.center, 3)} times as fast"
