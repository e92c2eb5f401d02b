"""torch's global switches, set and read only here.

TF32 is set through the older ``allow_tf32`` flags, which also set the newer ``fp32_precision``. The reverse does not hold: after
``fp32_precision`` alone is set, torch raises when inductor's autotuning reads an older view.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def set_tf32(tf32: bool | None) -> None:
    """TF32 on or off for matrix products and for cuDNN's convolutions; ``None`` is as torch ships them."""
    matmul, cudnn = _DEFAULT_TF32 if tf32 is None else (tf32, tf32)
    torch.backends.cuda.matmul.allow_tf32 = matmul
    torch.backends.cudnn.allow_tf32 = cudnn


def get_tf32() -> tuple[bool, bool]:
    """(matrix products, cuDNN's convolutions) as kernels read them now, however they were set."""
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]
    return matmul.fp32_precision == "tf32", conv.fp32_precision == "tf32"


_DEFAULT_THREADS = torch.get_num_threads()
_DEFAULT_TF32 = get_tf32()


def set_num_threads(threads: int | None) -> None:
    """How many threads an operator on the processor uses; None is as torch found it."""
    torch.set_num_threads(threads or _DEFAULT_THREADS)


@contextmanager
def cudnn_benchmark_disabled() -> Iterator[None]:
    """cuDNN takes the algorithm that it expects most of: to try all for a shape that comes a few times takes longer than they do."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def configure_backends(tf32: bool | None) -> None:
    """TF32 as ``set_tf32`` has it, and cuDNN tries its algorithms for each new shape. What it chose then it keeps.

    So this comes before the first step of a model, also of one that is only tried.
    """
    set_tf32(tf32)
    torch.backends.cudnn.benchmark = True


def gc_freeze() -> None:
    """Modules never become garbage, and every collection would look through all of them."""
    gc.collect()
    gc.freeze()
