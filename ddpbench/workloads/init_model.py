"""A model with the weights that its seed draws."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import nn

from ddpbench.record.names import import_object


def init_model(model: str, image_size: int | None, classes: int, seed: int) -> nn.Module:
    """The model with the weights that follow from ``seed``, on the host."""
    torch.manual_seed(seed)
    built: nn.Module = import_object(model)(image_size, classes)
    return built


init_model_cached = lru_cache(maxsize=2)(init_model)
"""Trainings that begin anew draw the same in all arms of a round, and the same to enter it; VGG16 takes half a second each time."""
