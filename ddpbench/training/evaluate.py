"""Accuracy of a trained model on held-out samples."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ddpbench.distributed.collectives import guard_oom
from ddpbench.machine.backends import cudnn_benchmark_disabled
from ddpbench.training.session import Session

HeldOutBatches = Iterable[tuple[torch.Tensor, torch.Tensor]]
"""Batches of this rank's shard on the device: samples and their labels."""


def evaluate_accuracy(session: Session, held_out: HeldOutBatches) -> float:
    """Fraction of held-out samples that the model classifies correctly, over all ranks.

    Raises OutOfMemory on every rank if any rank runs out of memory.
    """
    world, where = session.world, f"at batch {session.config.batch_size} in validation"
    num_correct, num_samples = guard_oom(world, where, lambda: _num_correct(session, held_out))
    return world.all_sum(num_correct) / world.all_sum(num_samples)


def _num_correct(session: Session, held_out: HeldOutBatches) -> tuple[float, int]:
    """Number of this rank's samples that the model classifies correctly, and number of samples."""
    num_correct, num_samples = torch.zeros((), device=session.world.device.torch_device), 0
    session.model.eval()
    with torch.no_grad(), session.engine.autocast(), cudnn_benchmark_disabled():  # the last batch has another size
        for samples, labels in held_out:
            num_correct += (session.model(samples).argmax(1) == labels).sum()
            num_samples += len(labels)
    session.model.train()
    return float(num_correct), num_samples
