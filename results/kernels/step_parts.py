"""Where the time of a step goes, kernel by kernel, from a trace that ``ddpbench run --profile`` has written.

    ddpbench vgg16-cifar10 --amp --fast --gpus 1 --rounds 2 --profile
    python results/kernels/step_parts.py TRACE.json.gz TARGET.json --parameters 33650624 --copy-gb-per-s 4205

The limit of a part is the time in which a copy moves the bytes that its kernels must read and write per parameter.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from pathlib import Path
from typing import Any

PARTS = {
    "check for infinite gradients": "_amp_foreach_non_finite",
    "optimizer": "Fused(Sgd|Adam)",
    "gradients into the buckets of DDP": "vectorized_elementwise_kernel.*AUnaryFunctor<float, float, float.*MulFunctor",
    "casts of weights and gradients": "triton_.*to_copy",
    "compiled kernels": "triton_",
    "convolutions and matrix products": "xmma|nvjet|cutlass|cudnn|cublas|splitKreduce|AddPadding",
}
"""Patterns of kernel names; the first that matches counts."""

BYTES_PER_PARAMETER = {
    "check for infinite gradients": 8,  # unscaling by 1 reads and writes them
    "optimizer": 20,  # reads weight, gradient and momentum; writes weight and momentum
    "gradients into the buckets of DDP": 8,
    "casts of weights and gradients": 12,  # reads and writes both, one in float32, the other in float16
}

PROFILED_STEPS = 5


def part_of(kernel: str) -> str:
    return next((part for part, pattern in PARTS.items() if re.search(pattern, kernel)), "other kernels")


def read_kernels(trace: Path) -> list[dict[str, Any]]:
    """Kernels and copies on the device, in the order of their starts."""
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return sorted((each for each in events if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")), key=lambda each: each["ts"])


def main(trace: Path, target: Path, parameters: int, copy_gb_per_s: float) -> None:
    """Write milliseconds per step of every part of ``trace`` to ``target``."""
    kernels = read_kernels(trace)
    step_ms = dict.fromkeys([*PARTS, "other kernels"], 0.0)
    for kernel in kernels:
        step_ms[part_of(kernel["name"])] += kernel["dur"] / 1e3 / PROFILED_STEPS
    span_ms = (kernels[-1]["ts"] + kernels[-1]["dur"] - kernels[0]["ts"]) / 1e3 / PROFILED_STEPS
    step_ms["between kernels, in the profiler"] = span_ms - sum(step_ms.values())
    limits = {part: count * parameters / copy_gb_per_s / 1e6 for part, count in BYTES_PER_PARAMETER.items()}
    command = f"python results/kernels/step_parts.py {trace.name} {target.name} --parameters {parameters} --copy-gb-per-s {copy_gb_per_s:g}"
    parts = [{"part": part, "ms": round(ms, 4), "limit_ms": limits.get(part)} for part, ms in step_ms.items()]
    target.write_text(json.dumps({"command": command, "kernels_per_step": len(kernels) / PROFILED_STEPS, "parts": parts}, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, metavar="TRACE.json.gz")
    parser.add_argument("target", type=Path, metavar="TARGET.json")
    parser.add_argument("--parameters", type=int, required=True, help="of the model")
    parser.add_argument("--copy-gb-per-s", type=float, required=True, help="bytes that a copy reads and writes per second")
    main(**vars(parser.parse_args()))
