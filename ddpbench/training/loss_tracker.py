"""Records losses and skipped updates of the training loop without waiting for the device."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from ddpbench.record.trace import Numerics

SCALAR_BYTES = 8

INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


IsSkipped = torch.Tensor | bool
"""Whether the loss scaler skips an update: a tensor on the device, not 0 if it does, where the device decides."""


class SkippedUpdates:
    """Finds out whether the loss scaler skips an update."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._is_skipped: IsSkipped = True
        optimizer.register_step_pre_hook(self._begin_update)

    def _begin_update(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """If the scaler skips an update, it passes ``found_inf`` to a fused optimizer, and does not call any other."""
        found_inf = getattr(optimizer, "found_inf", None)
        self._is_skipped = False if found_inf is None else found_inf

    def pop(self) -> IsSkipped:
        """Whether the update since the last call was skipped."""
        is_skipped, self._is_skipped = self._is_skipped, True
        return is_skipped


class LossTracker:
    """Keeps references to all losses and loss-scaler decisions of a round.

    ``finish`` reads them. With ``log_loss`` the host also waits for every loss, like a script that prints it.
    """

    def __init__(self, log_loss: bool) -> None:
        self._log_loss = log_loss
        self._losses: list[torch.Tensor] = []
        self._skipped: list[IsSkipped] = []

    def reset(self) -> None:
        """Start a new round."""
        self._losses.clear()
        self._skipped.clear()

    def record_step(self, loss: torch.Tensor, is_skipped: IsSkipped) -> None:
        """Record one issued step, and whether its update is skipped."""
        kept = loss.detach()
        if kept.untyped_storage().nbytes() > SCALAR_BYTES:
            kept = kept.clone()  # MSELoss's mean is a view of the storage of all its squares, which must not be kept alive
        self._losses.append(kept)
        self._skipped.append(is_skipped)
        if self._log_loss:
            loss.item()

    def finish(self, loss_scale: float | None, checksum_before: int, checksum_after: int) -> Numerics:
        """Read the round's numbers from the device.

        ``checksum_before`` and ``checksum_after`` are checksums of the parameters.
        """
        losses = torch.stack(self._losses).double().tolist()
        return Numerics(
            first_loss=_finite(losses[0]),
            last_loss=_finite(losses[-1]),
            mean_loss=_finite(sum(losses) / len(losses)),
            nonfinite_step=next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), None),
            skipped_steps=[step for step, is_skipped in enumerate(self._skipped) if is_skipped],
            loss_scale=loss_scale,
            params_checksum_before=checksum_before,
            params_checksum_after=checksum_after,
        )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@torch.no_grad()
def parameter_checksum(parameters: Iterable[torch.Tensor]) -> int:
    """A checksum over the bits of all ``parameters``.

    Computed on their device; equal on ranks with the same model.
    """
    bits = (parameter.detach().flatten().view(INTEGER_OF_SIZE[parameter.element_size()]) for parameter in parameters)
    sums = [words.sum(dtype=torch.int64) for words in bits]
    weights = torch.arange(1, len(sums) + 1, device=sums[0].device)
    return int((torch.stack(sums) * weights).sum())
