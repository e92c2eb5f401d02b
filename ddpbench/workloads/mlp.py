"""Networks of Linear layers.

``mlp.disc10`` builds the network of ten layers for the disc, and so on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from torch import nn


def gemm(image_size: None, classes: int) -> nn.Module:
    """Three Linear layers, ReLU between: rows (B, classes) to rows (B, classes).

    Width 4,096 has 50,343,936 parameters.
    """
    return _linear([classes] * 4)


def disc(layers: int, image_size: None, classes: int) -> nn.Module:
    """``layers`` Linear layers, ReLU between: points (B, 2) to scores (B, classes).

    The widths are 2-4-8-...-2^layers-classes. Ten layers have 703,142 parameters.
    """
    return _linear([*(2**power for power in range(1, layers + 1)), classes])


def _linear(widths: Sequence[int]) -> nn.Module:
    steps = [module for in_features, out_features in pairwise(widths) for module in (nn.Linear(in_features, out_features), nn.ReLU())]
    return nn.Sequential(*steps[:-1])


def __getattr__(name: str) -> Callable[[None, int], nn.Module]:
    layers = re.fullmatch(r"disc(\d+)", name)
    if not layers:
        raise AttributeError(f"no network '{name}'")
    return partial(disc, int(layers[1]))
