"""An arm that does not train: it all-reduces DDP's own buckets, step after step."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ddpbench.analysis.rounds import collect_round
from ddpbench.bench.arm import Arm, ArmOptions
from ddpbench.distributed.bandwidth import AllReduceBench
from ddpbench.distributed.world import World
from ddpbench.machine.progress_marker import ProgressMarker
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.record import Round
from ddpbench.record.registry import PRECISIONS
from ddpbench.record.trace import PHASES, Memory, Numerics, Trace

HOOK_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}

ALLREDUCE_ROUND_S, MIN_ALLREDUCE_STEPS, MAX_ALLREDUCE_STEPS = 0.5, 4, 200
"""Shorter than a training round: all-reduces alone settle sooner."""


class AllReduceArm(Arm):
    """``get_bucket_bytes`` returns DDP's bucket sizes in bytes, empty until DDP has trained; a round before that returns None."""

    def __init__(
        self,
        config: ResolvedConfig,
        world: World,
        marker: ProgressMarker,
        options: ArmOptions,
        *,
        get_bucket_bytes: Callable[[], list[int]],
    ) -> None:
        super().__init__(config, world, marker, options)
        self._get_bucket_bytes = get_bucket_bytes

    def activate(self) -> None:
        """Do nothing: there is no training to put on the device."""

    def run_round(self, index: int) -> Round | None:
        if not (sizes := self._get_bucket_bytes()):
            return None
        self._marker.enter("all-reducing the buckets")
        world = self._world
        gradient_dtype, wire_dtype = gradient_and_wire_dtype(self.config)
        benchmark = AllReduceBench([size * wire_dtype.itemsize // gradient_dtype.itemsize for size in sizes], world, wire_dtype)
        benchmark.time_all_reduce()
        step_s = world.all_max(benchmark.time_all_reduce())
        steps = self.config.steps or min(MAX_ALLREDUCE_STEPS, max(MIN_ALLREDUCE_STEPS, round(ALLREDUCE_ROUND_S / step_s)))
        world.barrier()
        trace = self._trace([benchmark.time_all_reduce() for _ in range(steps)])
        del benchmark
        world.device.empty_cache()
        self._marker.enter("gathering the round")
        traces = world.gather(trace)
        return collect_round(index, traces, "none") if traces else None

    def _trace(self, steps_s: list[float]) -> Trace:
        """A trace whose steps are all sync. It counts the images whose gradients a training would have summed."""
        zeros = [0.0] * len(steps_s)
        phases_ms = {phase: [round(1e3 * step_s, 4) for step_s in steps_s] if phase == "sync" else zeros for phase in PHASES}
        return Trace(
            rank=self._world.rank,
            steps=len(steps_s),
            samples=len(steps_s) * self.config.batch_size,
            wall_s=sum(steps_s),
            phases_ms=phases_ms,
            host_data_ms=zeros,
            host_lead_ms=[],
            memory=Memory(),
            numerics=Numerics(first_loss=None, last_loss=None),
        )


def gradient_and_wire_dtype(config: ResolvedConfig) -> tuple[torch.dtype, torch.dtype]:
    """The dtype of gradients, and the dtype that a communication hook sends them as."""
    gradients: torch.dtype = getattr(torch, PRECISIONS[config.precision].model_dtype)
    return gradients, HOOK_DTYPES.get(config.comm_hook, gradients)
