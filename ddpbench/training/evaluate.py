"""What a training has learnt, as samples tell that it has not seen."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ddpbench.distributed.collectives import guard_oom
from ddpbench.machine.backends import cudnn_benchmark_disabled
from ddpbench.training.session import Session

HeldOutBatches = Iterable[tuple[torch.Tensor, torch.Tensor]]
"""This rank's share of the samples, and their labels, in batches on the device."""


def evaluate_accuracy(session: Session, held_out: HeldOutBatches) -> float:
    """The fraction of held-out samples that the model names right, over the shares of all ranks.

    Raises DoesNotFit on every rank where one of them ran out of memory.
    """
    world, where = session.world, f"at batch {session.config.batch_size} in validation"
    right, seen = guard_oom(world, where, lambda: _num_correct(session, held_out))
    return world.all_sum(right) / world.all_sum(seen)


def _num_correct(session: Session, held_out: HeldOutBatches) -> tuple[float, int]:
    """How many of this rank's samples the model names right, of how many."""
    right, seen = torch.zeros((), device=session.world.device.torch_device), 0
    session.model.eval()
    with torch.no_grad(), session.engine.autocast(), cudnn_benchmark_disabled():  # the last batch of a share is of a size of its own
        for samples, labels in held_out:
            right += (session.model(samples).argmax(1) == labels).sum()
            seen += len(labels)
    session.model.train()
    return float(right), seen
