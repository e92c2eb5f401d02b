"""The classic augmentation of CIFAR-10, for whole batches on the device: crop out of a black frame, and flip."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

PADDING = 4
"""Black pixels around an image."""


class CropAndFlip:
    """Every image's random view, of the 162 that a frame of four pixels and a mirror allow, in one gather for the batch."""

    def __init__(self, images: Tensor, generator: torch.Generator) -> None:
        """``images`` are uint8 (N, S, S, C), on the generator's device."""
        self._padded = pad(images, (0, 0, PADDING, PADDING, PADDING, PADDING)).flatten(1, 2)
        self._crop_indices = crop_indices(images.shape[1]).to(images.device)
        self._side, self._generator = images.shape[1], generator

    def __getitem__(self, indices: Tensor) -> Tensor:
        """The images of those ``indices`` (B,), each seen in a way of its own: uint8 (B, S, S, C)."""
        drawn = torch.randint(len(self._crop_indices), indices.shape, generator=self._generator, device=indices.device)
        return self._padded[indices[:, None], self._crop_indices[drawn]].view(len(indices), self._side, self._side, -1)


def crop_indices(side: int) -> Tensor:
    """(V, side * side): for every view, where its pixels lie in a framed image, row by row."""
    framed = side + 2 * PADDING
    places = torch.arange(framed * framed).view(framed, framed)
    offsets = range(2 * PADDING + 1)
    crops = torch.stack([places[top : top + side, left : left + side] for top in offsets for left in offsets])
    return torch.cat([crops, crops.flip(2)]).flatten(1)
