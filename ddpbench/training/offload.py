"""A training that is laid aside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class OffloadedState:
    """A training laid aside on the host, so that it holds nothing on the device while another arm runs."""

    model: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    scaler: Mapping[str, Any]
    updates_done: int  # where its schedule stands


def to_cpu(state: Any) -> Any:
    """A copy of ``state``, whatever tensors it holds, in host memory."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, Mapping):
        return {key: to_cpu(value) for key, value in state.items()}
    return [to_cpu(value) for value in state] if isinstance(state, list) else state
