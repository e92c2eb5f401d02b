"""torchvision's transforms of single images, applied to whole batches on any device.

Pixels are the same, bit for bit. Random transforms draw for each image, as the originals do, but from a generator of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torchvision import transforms as v1
from torchvision.transforms import v2

from ddpbench.loaders.errors import NotSupportedError
from ddpbench.loaders.image_crops import is_of_timm

BatchTransform = Callable[[Tensor, torch.Generator], Tensor]
"""Takes images of N x C x H x W, and what to draw from; returns new or the same images."""

AS_TENSORS = (v1.PILToTensor, v2.PILToTensor, v2.ToImage)
"""Images are tensors of uint8 already."""

ERASING_ATTEMPTS = 10
"""Draws of RandomErasing that may not fit into the image."""


def batch_transforms(steps: Sequence[Any]) -> list[BatchTransform]:
    """Each of ``steps`` for a whole batch. Raises NotSupportedError if one of them is unknown, or they leave no tensors."""
    if not any(type(each) in AS_TENSORS or _makes_floats(each) for each in steps):
        raise NotSupportedError("its transform returns no tensors")
    return [batch for each in steps for batch in _batch_transform(each)]


def flattened(transform: Any) -> list[Any]:
    """The single steps of ``transform``, which may consist of others."""
    if type(transform) in (v1.Compose, v2.Compose):
        return [step for each in transform.transforms for step in flattened(each)]
    inner = _inner(transform)
    return [transform] if inner is None else flattened(inner)


def _calls_inner(self: Any, image: Any) -> Any:
    return self.transforms(image)


def _inner(transform: Any) -> Any:
    """What the presets of torchvision's reference scripts pass an image on to, without doing anything to it; None of other transforms."""
    call = getattr(vars(type(transform)).get("__call__"), "__code__", None)
    code = _calls_inner.__code__
    if call is None or (call.co_code, call.co_names, call.co_argcount) != (code.co_code, code.co_names, code.co_argcount):
        return None
    return vars(transform).get("transforms")


def _batch_transform(transform: Any) -> Sequence[BatchTransform]:
    kind = type(transform)
    if kind in (*AS_TENSORS, v2.ToPureTensor):
        return ()
    if _makes_floats(transform):
        return (_to_unit_range,)
    if kind in (v1.RandomHorizontalFlip, v2.RandomHorizontalFlip):
        return (partial(_flip, transform.p, -1),)
    if kind in (v1.RandomVerticalFlip, v2.RandomVerticalFlip):
        return (partial(_flip, transform.p, -2),)
    if kind in (v1.RandomCrop, v2.RandomCrop):
        return (_random_crop(transform),)
    if kind in (v1.RandomErasing, v2.RandomErasing):
        return (_random_erasing(transform),)
    if (kind is v1.ConvertImageDtype and transform.dtype == torch.float32) or (kind is v2.ToDtype and _is_to_float(transform)):
        return (_to_unit_range if kind is v1.ConvertImageDtype else partial(_deterministic, transform),)
    if kind in (v1.Normalize, v2.Normalize):
        return (partial(_deterministic, transform),)
    raise NotSupportedError(f"its transform {kind.__name__} is not known for batches")


def _makes_floats(transform: Any) -> bool:
    return type(transform) in (v1.ToTensor, v2.ToTensor) or is_of_timm(transform, "MaybeToTensor")


def _is_to_float(transform: v2.ToDtype) -> bool:
    return bool(transform.scale) and transform.dtype == torch.float32


def _to_unit_range(images: Tensor, _: torch.Generator) -> Tensor:
    """Divides by a tensor: on a GPU, the quotient by a number is a product with its reciprocal, which rounds otherwise."""
    if images.dtype != torch.uint8:
        return images
    return images.to(torch.get_default_dtype()).div_(torch.full((), 255.0, device=images.device))


def _deterministic(transform: Callable[[Tensor], Tensor], images: Tensor, _: torch.Generator) -> Tensor:
    return transform(images)


def _flip(probability: float, dim: int, images: Tensor, generator: torch.Generator) -> Tensor:
    is_flipped = torch.rand(len(images), generator=generator, device=images.device) < probability
    return torch.where(is_flipped.view(-1, 1, 1, 1), images.flip(dim), images)


def _random_crop(transform: v1.RandomCrop | v2.RandomCrop) -> BatchTransform:
    """Padding with a constant value, then a crop at a random place."""
    height, width = transform.size
    sides, fill = _sides(transform), _fill_value(transform.fill)
    if transform.padding_mode != "constant" or transform.pad_if_needed or fill is None:
        raise NotSupportedError("its RandomCrop pads with other than one value")

    def crop(images: Tensor, generator: torch.Generator) -> Tensor:
        padded = pad(images, sides, value=fill)
        number, channels, rows, columns = padded.shape
        if rows < height or columns < width:
            raise ValueError(f"Required crop size {(height, width)} is larger than input image size {(rows, columns)}")
        device = images.device
        first_row = torch.randint(rows - height + 1, (number, 1), generator=generator, device=device)
        first_column = torch.randint(columns - width + 1, (number, 1), generator=generator, device=device)
        row = (first_row + torch.arange(height, device=device)).view(number, 1, height, 1)
        column = (first_column + torch.arange(width, device=device)).view(number, 1, 1, width)
        image = torch.arange(number, device=device).view(number, 1, 1, 1)
        return padded[image, torch.arange(channels, device=device).view(1, channels, 1, 1), row, column]

    return crop


def _random_erasing(transform: v1.RandomErasing | v2.RandomErasing) -> BatchTransform:
    """In some images, a random rectangle is replaced by a value, or by normally distributed ones."""
    low, high = (math.log(each) for each in transform.ratio)
    given = transform.value
    value = None if given is None or isinstance(given, str) else torch.tensor(given, dtype=torch.float32).view(1, -1, 1, 1)

    def erase(images: Tensor, generator: torch.Generator) -> Tensor:
        number, _, height, width = images.shape
        device = images.device

        def uniform(*shape: int) -> Tensor:
            return torch.rand(number, *shape, generator=generator, device=device)

        area = height * width * (transform.scale[0] + uniform(ERASING_ATTEMPTS) * (transform.scale[1] - transform.scale[0]))
        ratio = torch.exp(low + uniform(ERASING_ATTEMPTS) * (high - low))
        shapes = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], 2).round().long()
        fits = (shapes < torch.tensor([height, width], device=device)).all(2)
        chosen = shapes[torch.arange(number, device=device), fits.int().argmax(1)]  # the first that fits
        high_wide = chosen.view(number, 2, 1, 1, 1).unbind(1)
        top, left = ((uniform(1, 1, 1) * (edge - length + 1)).long() for edge, length in zip((height, width), high_wide, strict=True))
        row, column = torch.arange(height, device=device).view(-1, 1), torch.arange(width, device=device)
        inside = (row >= top) & (row < top + high_wide[0]) & (column >= left) & (column < left + high_wide[1])
        is_erased = fits.any(1) & (uniform() < transform.p)
        fill = torch.empty_like(images).normal_(generator=generator) if value is None else value.to(images)
        return torch.where(inside & is_erased.view(-1, 1, 1, 1), fill, images)

    return erase


def _sides(transform: v1.RandomCrop | v2.RandomCrop) -> list[int]:
    """The widths of padding at the left, right, top and bottom."""
    padding = transform.padding
    if padding is None or isinstance(padding, int):
        return [padding or 0] * 4
    if isinstance(transform, v2.RandomCrop):
        return list(padding)
    left, top, right, bottom = list(padding) * (4 // len(padding))
    return [left, right, top, bottom]


def _fill_value(fill: Any) -> float | None:
    """The only value of ``fill``; None if there are several."""
    if isinstance(fill, dict):
        fill = next(iter(fill.values())) if len(fill) == 1 else None
    if fill is None:
        return 0.0
    if isinstance(fill, int | float):
        return float(fill)
    values = {float(each) for each in fill}
    return values.pop() if len(values) == 1 else None
