"""What a training minimises, by the name that a workload gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

LOSSES: Mapping[str, Callable[[], nn.Module]] = {"cross-entropy": nn.CrossEntropyLoss, "mse": nn.MSELoss}
