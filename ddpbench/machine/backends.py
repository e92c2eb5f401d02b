"""torch's global settings, which are set and read only here.

TF32 is set through the older ``allow_tf32`` flags, which also set the newer ``fp32_precision``. The reverse does not hold: if
only ``fp32_precision`` is set, torch raises when inductor's autotuning reads the older flag.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def set_tf32(tf32: bool | None) -> None:
    """Turn TF32 on or off for matrix products and cuDNN convolutions; ``None`` restores torch's defaults."""
    matmul, cudnn = _DEFAULT_TF32 if tf32 is None else (tf32, tf32)
    torch.backends.cuda.matmul.allow_tf32 = matmul
    torch.backends.cudnn.allow_tf32 = cudnn


@contextmanager
def tf32_for_a_while(tf32: bool) -> Iterator[None]:
    """Turn TF32 on or off, and back to what it was."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    set_tf32(tf32)
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def get_tf32() -> tuple[bool, bool]:
    """Whether TF32 is on for (matrix products, cuDNN convolutions), as kernels see it."""
    matmul, conv = torch.backends.cuda.matmul, getattr(torch.backends.cudnn, "conv", None)
    if conv is None:  # torch before 2.9 has the older flags only
        return matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    return matmul.fp32_precision == "tf32", conv.fp32_precision == "tf32"


_DEFAULT_THREADS = torch.get_num_threads()
_DEFAULT_TF32 = get_tf32()


def set_num_threads(threads: int | None) -> None:
    """Set the number of threads of a CPU operator; None restores torch's default."""
    torch.set_num_threads(threads or _DEFAULT_THREADS)


@contextmanager
def cudnn_benchmark_disabled() -> Iterator[None]:
    """Disable cuDNN benchmarking, for shapes that occur only a few times: trying all algorithms would take longer than it saves."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def configure_backends(tf32: bool | None, benchmark_limit: int = 10) -> None:
    """Set TF32 as ``set_tf32`` does, and turn on cuDNN benchmarking of ``benchmark_limit`` algorithms; 0 for all.

    cuDNN keeps the algorithm chosen for a shape, so call this before the first step of every model, dry runs included.
    """
    set_tf32(tf32)
    torch.backends.cudnn.benchmark = True
    if torch.backends.cudnn.is_available():
        torch.backends.cudnn.benchmark_limit = benchmark_limit
