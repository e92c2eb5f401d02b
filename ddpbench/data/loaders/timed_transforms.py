"""Times each transform of torchvision's Compose while a sample is loaded whose parts are wanted.

The class is patched, not the objects of a script: a dataset keeps its transform, and a copy of it would lose what it caches. Outside of a
timed sample nothing changes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from ddpbench.data.batch_timing import Stopwatch

COMPOSES = {"torchvision.transforms.transforms": "__call__", "torchvision.transforms.v2._container": "forward"}
"""Modules with a Compose, and the method that applies its transforms."""

_composes: set[Any] = set()
"""The classes that are patched."""

_sample = threading.local()
"""``watch``: of the sample that this thread is loading."""


@contextmanager
def timing_transforms(watch: Stopwatch) -> Iterator[None]:
    """Tell ``watch`` what each transform takes that this thread applies inside. Modules that are not imported are none of its business."""
    for name, method in COMPOSES.items() if len(_composes) < len(COMPOSES) else ():
        if (module := sys.modules.get(name)) and (compose := getattr(module, "Compose", None)):  # which may be half imported
            _patch(compose, method)
    before, _sample.watch = getattr(_sample, "watch", None), watch
    try:
        yield
    finally:
        _sample.watch = before


def _patch(compose: Any, method: str) -> None:
    if compose in _composes:
        return
    own: Callable[..., Any] = getattr(compose, method)

    def timed(self: Any, *inputs: Any) -> Any:
        watch = getattr(_sample, "watch", None)
        if watch is None or type(self) is not compose:
            return own(self, *inputs)
        for transform in self.transforms:
            begin_s = perf_counter()
            outputs = transform(*inputs)
            if type(transform) not in _composes:  # whose own transforms have been timed
                watch.add_part(_name(transform), perf_counter() - begin_s)
            inputs = outputs if len(inputs) > 1 else (outputs,)
        return inputs if len(inputs) > 1 else inputs[0]

    _composes.add(compose)
    setattr(compose, method, timed)


def _name(transform: Any) -> str:
    """Of its class, or of a function."""
    return getattr(transform, "__name__", type(transform).__name__)
