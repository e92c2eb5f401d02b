"""The bytes that --roofline counts for seven layers, beside those that the GPU's counters read.

    python results/roofline/counters.py counters-h200.json

Runs forward and backward of each layer under Nsight Compute (ncu), which flushes the caches before every kernel, and compares the sums.
Without a GPU it only counts.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ddpbench.machine.device import describe_device
from ddpbench.training.layer_tracker import LayerTracker
from ddpbench.training.roofline import OperatorCounter


class AddShortcut(nn.Module):
    """The sum of the input and another tensor of its shape, drawn once."""

    shortcut: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.shortcut is None:
            self.shortcut = torch.randn_like(x)
        return x + self.shortcut


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "1x1 convolution": (lambda: nn.Conv2d(64, 256, 1, bias=False), (64, 56, 56)),
    "3x3 convolution": (lambda: nn.Conv2d(64, 64, 3, padding=1, bias=False), (64, 56, 56)),
    "batch norm": (lambda: nn.BatchNorm2d(256), (256, 56, 56)),
    "ReLU": (nn.ReLU, (256, 56, 56)),
    "max-pool": (lambda: nn.MaxPool2d(3, 2, 1), (64, 112, 112)),
    "shortcut addition": (AddShortcut, (256, 56, 56)),
    "average pool": (lambda: nn.AdaptiveAvgPool2d(1), (2048, 7, 7)),
}
"""Layers of ResNet-50 with the shape of their input, without the batch."""

METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
UNITS = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


def forward_and_backward(name: str, batch_size: int, device: torch.device) -> Callable[[], None]:
    """A call that runs the layer once in each direction, on float16 in channels-last order; on a CPU float32."""
    build, shape = LAYERS[name]
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    layer = build().to(device, dtype, memory_format=torch.channels_last)
    x = torch.randn(batch_size, *shape, device=device).to(dtype).contiguous(memory_format=torch.channels_last).requires_grad_()
    gradient = torch.randn_like(layer(x))
    wanted: list[Tensor] = [x, *layer.parameters()]

    def run() -> None:
        torch.autograd.grad(layer(x), wanted, gradient)

    return run


def counted_bytes(run: Callable[[], None]) -> float:
    with OperatorCounter(LayerTracker({}), "cuda" if torch.cuda.is_available() else "cpu") as counter:
        run()
    return sum(place.num_bytes for place in counter.counted.values())


def measured_bytes(name: str, batch_size: int) -> float:
    """Bytes that the kernels of the layer move to and from the GPU's memory, by ncu."""
    words = ["ncu", "--profile-from-start", "off", "--clock-control", "none", "--csv", "--metrics", ",".join(METRICS)]
    child = [sys.executable, __file__, "--only", name, "--batch", str(batch_size)]
    done = subprocess.run([*words, *child], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        sys.exit(f"ncu failed: {done.stdout}{done.stderr}")
    lines = done.stdout[done.stdout.index('"ID"') :].splitlines()
    rows = [row for row in csv.DictReader(lines) if row["Metric Name"] in METRICS]
    return sum(float(row["Metric Value"].replace(",", "")) * UNITS[row["Metric Unit"]] for row in rows)


def run_once(name: str, batch_size: int) -> None:
    """The part that ncu profiles: one call, after others that choose the algorithm."""
    torch.backends.cudnn.benchmark = True
    run = forward_and_backward(name, batch_size, torch.device("cuda"))
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    run()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


def main(target: Path, batch_size: int) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows: list[dict[str, Any]] = []
    for name in LAYERS:
        counted = counted_bytes(forward_and_backward(name, batch_size, device))
        measured = measured_bytes(name, batch_size) if device.type == "cuda" else None
        rows.append({"layer": name, "counted_bytes": counted, "measured_bytes": measured})
        print(f"{name:16} {counted / 1e9:8.4f} GB", f"{counted / measured:6.3f} of ncu" if measured else "")
    command = f"python results/roofline/counters.py {target.name} --batch {batch_size}"
    result = {"command": command, "device": describe_device(device).name, "torch": str(torch.__version__), "layers": rows}
    target.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path, nargs="?", default=Path("counters.json"))
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--only", choices=LAYERS, help="run one layer, for ncu")
    options = parser.parse_args()
    if options.only:
        run_once(options.only, options.batch)
    else:
        main(options.target, options.batch)
