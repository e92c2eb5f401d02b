"""Digests of samples: equal if and only if all tensors, arrays, images and values in them are."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence, Set
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

DIGEST_BYTES = 16
MAX_NESTING = 32


class NotComparable(Exception):
    """A sample holds an object whose content cannot be seen. Its message is the class."""


def digest(sample: Any) -> bytes:
    """The digest of a nested sample. Raises NotComparable."""
    found = blake2b(digest_size=DIGEST_BYTES)
    for part in _content(sample, 0):
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.digest()


def part_digests(sample: Any) -> tuple[bytes, ...]:
    """The digests of those items of a sample that may identify it: all but numbers, which may be labels or counters.

    If all are numbers, or there are no items, that of the whole.
    """
    items: Sequence[Any] = []
    if isinstance(sample, Mapping):
        items = list(sample.values())
    elif isinstance(sample, (list, tuple)):
        items = sample
    return tuple(digest(item) for item in items if not _is_number(item)) or (digest(sample),)


def _is_number(item: Any) -> bool:
    if isinstance(item, (Tensor, np.ndarray)):
        return item.ndim == 0 or max(item.shape) == 1
    return item is None or isinstance(item, (bool, int, float, complex, np.generic))


def _content(value: Any, depth: int) -> Iterator[bytes]:
    """The type, the shape and the bytes of all that is in ``value``."""
    if depth > MAX_NESTING:
        raise NotComparable(type(value).__name__)
    yield f"{type(value).__module__}.{type(value).__qualname__}".encode()
    match value:
        case None | bool() | int() | float() | complex() | str() | bytes():
            yield repr(value).encode("utf-8", "surrogatepass")
        case Tensor():
            yield from _tensor(value)
        case np.ndarray() if value.dtype != object:
            yield f"{value.dtype.str}{value.shape}".encode()
            yield value.tobytes()
        case np.ndarray():
            yield from _content(value.tolist(), depth + 1)
        case np.generic():
            yield value.tobytes()
        case Mapping():
            yield from sorted(digest((key, item)) for key, item in value.items())
        case list() | tuple():
            yield str(len(value)).encode()
            for item in value:
                yield from _content(item, depth + 1)
        case Set():
            yield from sorted(digest(item) for item in value)
        case _ if type(value).__module__.partition(".")[0] == "PIL":
            yield f"{value.mode}{value.size}".encode()
            yield value.tobytes()
        case _:
            if (found := attributes(value)) is None:
                raise NotComparable(type(value).__name__)
            yield from _content(found, depth + 1)


def _tensor(value: Tensor) -> Iterator[bytes]:
    if value.layout != torch.strided or value.is_quantized:
        raise NotComparable(f"{type(value).__name__} ({value.layout})")
    yield f"{value.dtype}{tuple(value.shape)}".encode()
    flat = value.detach().cpu().reshape(-1).clone(memory_format=torch.contiguous_format)  # a single element may have any stride otherwise
    yield flat.view(torch.uint8).numpy().tobytes()


def attributes(value: Any) -> dict[str, Any] | None:
    """The attributes of an instance of a class in Python, which hides nothing; None of another."""
    found = dict(getattr(value, "__dict__", None) or {})
    for owner in type(value).__mro__[:-1]:
        for name, each in vars(owner).items():
            if isinstance(each, (types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType)):
                return None  # a class in C
            if isinstance(each, types.MemberDescriptorType) and hasattr(value, name):
                found[name] = getattr(value, name)
    return found or None
