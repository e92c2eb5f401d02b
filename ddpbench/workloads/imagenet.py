"""torchvision's classification models. ``imagenet.NAME`` builds torchvision's model NAME."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torchvision
from torch import nn

from ddpbench.record.errors import UsageError


def build(name: str, image_size: int, classes: int) -> nn.Module:
    """torchvision's model ``name`` with new weights: images (B, 3, S, S) to scores (B, classes).

    GoogLeNet and Inception are built without auxiliary heads, so that plain cross-entropy fits. Raises UsageError if the architecture
    does not support ``image_size``.
    """
    arguments: dict[str, Any] = {"num_classes": classes}
    if name in ("googlenet", "inception_v3"):
        arguments |= {"aux_logits": False, "init_weights": True}
    elif name.startswith("vit_"):
        arguments["image_size"] = image_size
    elif name == "maxvit_t":
        arguments["input_size"] = (image_size, image_size)
    try:
        model: nn.Module = torchvision.models.get_model(name, **arguments)
    except (ValueError, AssertionError) as problem:
        raise UsageError(f"{name} does not support images of {image_size} px: {problem}", "choose another --image-size") from problem
    return model


def __getattr__(name: str) -> Callable[[int, int], nn.Module]:
    if name not in torchvision.models.list_models(module=torchvision.models):
        raise AttributeError(f"torchvision {torchvision.__version__} has no model '{name}'")
    return partial(build, name)
