"""Settings that make computing faster, tried in turn with a script's own while it trains on batches that are ready: what was measured.

A screened gain is that of computing alone, in a training that was changed while it ran. It says what to try in a fresh start.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ddpbench.record.private import FreeText
from ddpbench.record.ranges import AtLeastOne, Elapsed, Seconds

CureCode = Literal[
    "null",  # a switch that does nothing: what it seems to gain is noise
    "channels-last",  # memory format of weights (N, C, H, W)
    "fused-kernels",  # of BatchNorm, addition, ReLU and max-pool
    "fused-optimizer",  # one kernel for the whole update
    "tf32-products",  # of float32 matrices, on Tensor Cores
    "bf16-autocast",  # around the forward of the model
]

NULL: CureCode = "null"

CHANGES_NUMBERS: tuple[CureCode, ...] = ("tf32-products", "bf16-autocast")
"""Cures that compute in another precision. The others only round differently."""

Obstacle = Literal[
    "already-on",
    "compiled",  # the model: what Dynamo guards on is not switched
    "no-convolutions",  # with weights of four dimensions
    "volumes",  # weights of five dimensions, which have a memory format of their own
    "other-memory",  # weights in a flat buffer, in shared memory, or sharded
    "other-optimizer",  # of a class that is not torch's own, or that has no fused implementation
    "many-optimizers",
    "own-implementation",  # the script has chosen one: foreach, differentiable
    "loss-scaler",  # fused SGD under a GradScaler: the first step overflows, and leaves a momentum that is not initialised
    "fused-moments",  # the script's own fused optimizer would misread moments of an older checkpoint, in another memory format
    "bucket-views",  # gradients are views of DDP's buckets, whose memory format is that of the start
    "other-precision",  # the model computes in another precision than float32
    "no-bfloat16",  # the device has no instructions for it
    "no-tf32",
    "mostly-convolutions",  # which compute in TF32 unless the script forbids it
    "replicated",  # by nn.DataParallel
    "own-forward",  # the script has replaced that of the instance
    "sparse-gradients",
    "unreadable",  # whether it applies could not be found out
    "no-model",  # it, or its optimizer, has been freed
    "needs-channels-last",  # which has gained nothing, or is not tried
    "nothing-to-fuse",  # no BatchNorm before a ReLU
    "deterministic",  # the script asks for algorithms that are, which the kernels are not known to be
    "second-derivatives",  # which the kernels do not have
    "captured",  # the script replays a CUDA graph
    "no-device-kernel",  # there is no fused implementation for the device
    "disturbed",  # windows skipped updates, or the loss was not finite, again and again
    "no-memory",  # it would take more than half of what is free on the device
    "no-time",
]
"""Why a cure was not tried."""


class ScreenedCure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One cure. Window ``i`` without it and window ``i`` with it took turns; the cures of ``on_top_of`` were on in both."""

    code: CureCode
    on_top_of: list[CureCode] = []
    without_s: list[Elapsed] = []  # mean step of each window, on rank 0
    with_s: list[Elapsed] = []
    first_use_s: Seconds | None = None  # that its first steps took longer; no part of the windows
    obstacle: Obstacle | None = None
    needed_s: Seconds | None = None  # for its trial, if there was no time
    failure: FreeText = ""


class LossComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Losses of the same updates, from one snapshot of the training. None if not finite."""

    cures: list[CureCode]
    updates: AtLeastOne = 20
    first: float | None = None  # loss of the training, at the present loss scale; None if unknown
    plain: list[list[float | None]]  # of two runs of the script as it is
    changed: list[float | None]  # with ``cures``


class Screening(msgspec.Struct, frozen=True, kw_only=True):
    """The cures in the order in which they were tried; one that gained nothing may come twice."""

    cures: list[ScreenedCure] = []
    loss_comparison: LossComparison | None = None  # with all cures that are kept and only round; None if there were none, or no time
    allows_numerics: bool = False  # settings that change numbers may be advised
