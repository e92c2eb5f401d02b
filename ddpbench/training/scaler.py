"""Loss scaling: dynamic, static, or none. Nothing here waits for the device."""

from __future__ import annotations

import torch

from ddpbench.machine.device import Device
from ddpbench.record.registry import PrecisionSpec


class StaticGradScaler(torch.amp.GradScaler):
    """A loss scale that neither grows nor backs off; an update with gradients that overflowed is skipped all the same.

    Gradients in half are unscaled where they lie, which torch's scaler refuses: a model that is half throughout has no others.
    """

    def __init__(self, device: str, scale: float) -> None:
        super().__init__(device, init_scale=scale)
        self._static = float(scale)

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Ends the step; the scale is set to what it was."""
        super().update(self._static)

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16=True)


def make_loss_scaler(spec: PrecisionSpec, device: Device, static_scale: float | None) -> torch.amp.GradScaler:
    """The scaler of this precision, held at ``static_scale`` where that has a use; it passes everything through where nothing is scaled."""
    scale = spec.static_loss_scale(static_scale)
    if scale is not None:
        return StaticGradScaler(device.torch_device.type, scale)
    return torch.amp.GradScaler(device.torch_device.type, enabled=spec.loss_scaling)
