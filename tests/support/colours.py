"""Identify untextured images of ``sample_datasets.image_tree`` by colour."""

from __future__ import annotations

import sample_datasets
import torch
from torch import Tensor

from ddpbench.data.normalize import NORMALIZATION


def levels_off(images: Tensor, labels: Tensor) -> float:
    """Largest deviation of mean colours of normalised images (B, 3, S, S) from their labels' colours, in levels of 255."""
    known = NORMALIZATION["imagenet"]
    means = images.double().mean((2, 3)).cpu() * torch.tensor(known.std) + torch.tensor(known.mean)
    expected = torch.tensor([sample_datasets.colour(int(label)) for label in labels])
    return float((means * 255 - expected).abs().max())
