"""Records losses and skipped updates of the training loop without waiting for the device."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from ddpbench.record.trace import Numerics

SCALAR_BYTES = 8

INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class LossTracker:
    """Keeps references to all losses and loss-scaler decisions of a round.

    ``finish`` reads them. With ``log_loss`` the host also waits for every loss, like a script that prints it.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, log_loss: bool) -> None:
        self._log_loss = log_loss
        self._losses: list[torch.Tensor] = []
        self._updates: list[torch.Tensor | bool] = []
        self._update_applied: torch.Tensor | bool = False
        optimizer.register_step_pre_hook(self._record_update)

    def _record_update(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Record whether the optimizer applies this update.

        If the scaler skips an update, it passes ``found_inf`` to a fused optimizer, and does not call any other.
        """
        found_inf = getattr(optimizer, "found_inf", None)
        self._update_applied = True if found_inf is None else found_inf

    def reset(self) -> None:
        """Start a new round."""
        self._losses.clear()
        self._updates.clear()

    def record_step(self, loss: torch.Tensor) -> None:
        """Record one issued step."""
        kept = loss.detach()
        if kept.untyped_storage().nbytes() > SCALAR_BYTES:
            kept = kept.clone()  # MSELoss's mean is a view of the storage of all its squares, which must not be kept alive
        self._losses.append(kept)
        self._updates.append(self._update_applied)
        self._update_applied = False
        if self._log_loss:
            loss.item()

    def finish(self, loss_scale: float | None, checksum_before: int, checksum_after: int) -> Numerics:
        """Read the round's numbers from the device.

        ``checksum_before`` and ``checksum_after`` are checksums of the parameters.
        """
        losses = torch.stack(self._losses).double().tolist()
        skipped = [step for step, update in enumerate(self._updates) if (update is False or (update is not True and bool(update)))]
        return Numerics(
            first_loss=_finite(losses[0]),
            last_loss=_finite(losses[-1]),
            mean_loss=_finite(sum(losses) / len(losses)),
            nonfinite_step=next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), None),
            skipped_steps=skipped,
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
