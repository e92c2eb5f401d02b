"""The arm that does not train: DDP's own buckets, summed over all ranks, step after step."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ddpbench.bench.arm import Arm
from ddpbench.bench.gathering import collect
from ddpbench.bench.terms import Terms
from ddpbench.distributed.allreduce_bench import Buffers
from ddpbench.distributed.world import World
from ddpbench.machine.progress_marker import Pulse
from ddpbench.record.record import Round
from ddpbench.record.registry import PRECISIONS
from ddpbench.record.resolved import Settled
from ddpbench.record.trace import PHASES, Memory, Numerics, Trace

HOOKS = {"fp16": torch.float16, "bf16": torch.bfloat16}

ROUND_S, LEAST_STEPS, MOST_STEPS = 0.5, 4, 200
"""What only sums buckets is steady sooner than a training."""


class Communication(Arm):
    """``buckets`` tells their sizes in bytes, which DDP knows once it has trained; a turn before that gives no round."""

    def __init__(self, config: Settled, world: World, pulse: Pulse, terms: Terms, *, buckets: Callable[[], list[int]]) -> None:
        super().__init__(config, world, pulse, terms)
        self._buckets = buckets

    def enter(self) -> None:
        """There is no training to be put on the device."""

    def round(self, index: int) -> Round | None:
        if not (sizes := self._buckets()):
            return None
        self._pulse.enter("summing buckets")
        world = self._world
        gradients, sent = wire(self.config)
        buffers = Buffers([size * sent.itemsize // gradients.itemsize for size in sizes], world, sent)
        buffers.reduce()
        step_s = world.most(buffers.reduce())
        steps = self.config.steps or min(MOST_STEPS, max(LEAST_STEPS, round(ROUND_S / step_s)))
        world.barrier()
        trace = self._trace([buffers.reduce() for _ in range(steps)])
        del buffers
        world.device.release()
        self._pulse.enter("gathering the round")
        traces = world.gather(trace)
        return collect(index, traces, "none") if traces else None

    def _trace(self, steps_s: list[float]) -> Trace:
        """All of a step is sync. Its images are those whose gradients it would have summed."""
        nothing = [0.0] * len(steps_s)
        phases_ms = {phase: [round(1e3 * step_s, 4) for step_s in steps_s] if phase == "sync" else nothing for phase in PHASES}
        return Trace(
            rank=self._world.rank,
            steps=len(steps_s),
            images=len(steps_s) * self.config.batch_size,
            wall_s=sum(steps_s),
            phases_ms=phases_ms,
            host_data_ms=nothing,
            lead_ms=[],
            memory=Memory(),
            numerics=Numerics(first_loss=None, last_loss=None),
        )


def wire(config: Settled) -> tuple[torch.dtype, torch.dtype]:
    """The dtype of gradients, and the one that a communication hook sends them as."""
    gradients: torch.dtype = getattr(torch, PRECISIONS[config.precision].model)
    return gradients, HOOKS.get(config.comm_hook, gradients)
