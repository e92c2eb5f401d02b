"""The forward of the model in bfloat16, where autocast takes that to be safe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ddpbench.machine.fingerprint import emulates_bfloat16
from ddpbench.record.screening import CureCode, Obstacle
from ddpbench.script.cures.cure import Training

_MISSING = object()


class Bf16Autocast:
    """``torch.autocast(device, torch.bfloat16)`` around the forward of each model. It changes numbers."""

    code: CureCode = "bf16-autocast"

    def obstacle(self, training: Training) -> Obstacle | None:
        if training.is_compiled:
            return "compiled"
        if any(isinstance(each, nn.DataParallel) for each in training.models):
            return "replicated"  # its replicas would call the forward of the original
        if training.precision != "torch-default" or any(each.dtype != torch.float32 for each in training.parameters):
            return "other-precision"
        is_emulated = emulates_bfloat16() if training.device.type == "cpu" else not torch.cuda.is_bf16_supported(including_emulation=False)
        return "no-bfloat16" if is_emulated else None

    @contextmanager
    def switched_on(self, training: Training) -> Iterator[None]:
        models = training.own_modules()
        before = [vars(model).get("forward", _MISSING) for model in models]
        try:
            for model in models:
                model.forward = torch.autocast(training.device.type, torch.bfloat16)(model.forward)
            yield
        finally:
            for model, forward in zip(models, before, strict=True):
                if forward is _MISSING:
                    vars(model).pop("forward", None)
                else:
                    vars(model)["forward"] = forward
