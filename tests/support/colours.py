"""Telling by its colour which image of ``imagery.image_tree`` without texture one is."""

from __future__ import annotations

import imagery
import torch
from torch import Tensor

from ddpbench.data.normalize import NORMALIZATION


def levels_off(images: Tensor, labels: Tensor) -> float:
    """How far the mean colour of an image, normalised (B, 3, S, S), is off its label's at most, in levels of 255."""
    known = NORMALIZATION["imagenet"]
    means = images.double().mean((2, 3)).cpu() * torch.tensor(known.std) + torch.tensor(known.mean)
    expected = torch.tensor([imagery.colour(int(label)) for label in labels])
    return float((means * 255 - expected).abs().max())
