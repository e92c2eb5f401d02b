"""All cures, in the order in which they are tried: each on top of those before it that are kept.

A memory format decides which kernels an optimizer's state passes through, so it comes first. What changes numbers comes last, since it is
offered apart from the rest.
"""

from __future__ import annotations

from collections.abc import Mapping

from ddpbench.record.screening import CureCode, Obstacle
from ddpbench.script.cures.cure import Cure, Null, Training
from ddpbench.script.cures.kernels import FusedKernels
from ddpbench.script.cures.memory_format import ChannelsLast
from ddpbench.script.cures.optimizer import FusedOptimizer
from ddpbench.script.cures.precision import Bf16Autocast, Tf32Products

CURES: Mapping[CureCode, Cure] = {
    each.code: each for each in (Null(), ChannelsLast(), FusedKernels(), FusedOptimizer(), Tf32Products(), Bf16Autocast())
}


def obstacle(code: CureCode, training: Training) -> Obstacle | None:
    """Why the cure ``code`` is not tried in ``training``; None if it may be."""
    if not (training.models and training.optimizers):
        return "no-model"
    if training.replays_graphs:
        return "captured"
    try:
        return CURES[code].obstacle(training)
    except Exception:  # of an object of the script's own class, or of a library that is missing
        return "unreadable"
