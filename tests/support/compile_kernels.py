"""Compile all fused kernels for a GPU, which need not be there. Prints the name of each kernel, its dtype, and the bytes that it spills."""

from __future__ import annotations

import inspect
import itertools
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ddpbench.kernels import backward, forward, pool, sgd, tiles, update

FEATURE_MAPS = {"y", "other", "out", "grad", "second_grad", "masked_grad", "y_grad", "other_grad"}
TYPES = {
    **dict.fromkeys(("rows", "channels", "tiles", "cells", "programs", "height", "width", "size"), "i32"),
    "positive": "*u8",
    "position": "*i8",
    "batches": "*i64",
    "counts": "*i32",
    **dict.fromkeys(("tensors", "blocks", "target"), "*i64"),
    **dict.fromkeys(("lr", "weight_decay", "momentum"), "fp32"),
}
FLAGS = ("ADDS", "NORMALIZES_OTHER", "HAS_SECOND", "HAS_MOMENTUM", "NESTEROV")
SIZES: dict[str, float] = {
    "MOMENTUM": 0.1,
    "EPS": 1e-5,
    "TILES": tiles.TILES_PER_PROGRAM,
    "STAGES": tiles.MAX_STAGES,
    "BLOCK": sgd.BLOCK,
    "BLOCK_ROWS": 32,
    "BLOCK_CHANNELS": 128,
    "BLOCK_PROGRAMS": 32,
    "BLOCK_CELLS": 16,
}
SUMS = ("statistics_kernel", "sum_gradients_kernel")


def kernels() -> list[triton.JITFunction]:
    """All kernels that are launched; other functions are part of them."""
    found = [each for module in (forward, backward, pool, update) for name, each in inspect.getmembers(module) if name.endswith("_kernel")]
    return list(dict.fromkeys(found))


def compile_for(target: GPUTarget, kernel: triton.JITFunction, dtype: str, flags: dict[str, bool]) -> str:
    """The PTX of ``kernel`` for feature maps of ``dtype``."""
    constants = {name: {**SIZES, **flags}[name] for name in kernel.arg_names if name.isupper()}
    signature = {name: "constexpr" if name in constants else type_of(name, dtype) for name in kernel.arg_names}
    places = {name: (number,) for number, name in enumerate(kernel.arg_names)}
    aligned = {places[name]: [["tt.divisibility", 16]] for name, kind in signature.items() if kind.startswith("*") or name == "channels"}
    warps = sgd.WARPS if kernel.__module__ == update.__name__ else tiles.SUM_WARPS if kernel.__name__ in SUMS else tiles.MAP_WARPS
    source = ASTSource(kernel, signature, {places[name]: value for name, value in constants.items()}, aligned)
    return str(triton.compile(source, target=target, options={"num_warps": warps}).asm["ptx"])


def spilled_bytes(ptx: str) -> int:
    """The bytes of registers that the assembler moves to memory."""
    (architecture,) = re.findall(r"^\.target (\w+)", ptx, re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        command = [triton.knobs.nvidia.ptxas.path, "-v", f"-arch={architecture}", str(source), "-o", str(source.with_suffix(".cubin"))]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    (spilled,) = re.findall(r"(\d+) bytes spill stores", said)
    return int(spilled)


def type_of(name: str, dtype: str) -> str:
    return f"*{dtype}" if name in FEATURE_MAPS else TYPES.get(name, "*fp32")


target = GPUTarget("cuda", int(sys.argv[1]), 32)
for kernel, dtype in itertools.product(kernels(), ("fp16", "bf16", "fp32")):
    names = [name for name in FLAGS if name in kernel.arg_names]
    for values in itertools.product((False, True), repeat=len(names)):
        ptx = compile_for(target, kernel, dtype, dict(zip(names, values, strict=True)))
        print(kernel.__name__, dtype, spilled_bytes(ptx))
