"""Times the collectives of FSDP2 (``fully_shard``) that compute waits for: all-gathers of parameters, reduce-scatters of gradients.

FSDP2 has no public hooks for them. Its own ones are the methods that are replaced here; without them, as in another version of torch, the
collectives count as forward and backward.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn

from ddpbench.machine.step_timer import SYNC
from ddpbench.script.observe.step_clock import StepClock

MODULES = "torch.distributed.fsdp._fully_shard"

COLLECTIVE_METHODS = {
    "_fsdp_param_group.FSDPParamGroup": ("pre_forward", "pre_backward", "post_backward"),
    "_fsdp_state.FSDPState": ("_root_post_backward_final_callback",),
}
"""Where the stream that trains waits: for an all-gather and its copy-out before a layer is computed, and for the reduce-scatters of the
layers before. On a CPU these methods contain the collectives themselves."""


def is_fully_sharded(model: nn.Module) -> bool:
    """Whether ``fully_shard`` has been called on ``model`` or one of its modules."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    sharded = getattr(fsdp, "FSDPModule", None)
    return sharded is not None and any(isinstance(each, sharded) for each in model.modules())


def time_collectives(clock: StepClock[Any], replace: Callable[[Any, str, Any], None], compute_phase: Callable[[], int]) -> None:
    """Count the time in these methods as sync. ``compute_phase`` is what they interrupt."""
    for place, names in COLLECTIVE_METHODS.items():
        module_name, _, class_name = place.partition(".")
        owner = getattr(sys.modules.get(f"{MODULES}.{module_name}"), class_name, None)
        for name in names:
            method = vars(owner).get(name) if owner else None
            if callable(method):
                replace(owner, name, _timed(method, clock, compute_phase))


def _timed(method: Callable[..., Any], clock: StepClock[Any], compute_phase: Callable[[], int]) -> Callable[..., Any]:
    @wraps(method)
    def timed(*arguments: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling() or not clock.is_timing:
            return method(*arguments, **options)
        clock.mark(compute_phase())
        result = method(*arguments, **options)
        clock.mark(SYNC)
        return result

    return timed
