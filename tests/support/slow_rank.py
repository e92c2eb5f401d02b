"""A workload and a loader that delay one rank by DELAY_S per step, with another rank and kind of delay in every window of rounds.

LATE lists kind and rank per window, such as ``data@0 host@3``: rank 0 waits for data, then the host of rank 3 is late.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from statistics import fmean

import torch
from delayed_loader import DelayedLoader
from torch import nn

from ddpbench.analysis.ranks import own_ms
from ddpbench.bench.arm import Arm
from ddpbench.data.loaders.synthetic import open_synthetic
from ddpbench.data.shard import Shard
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.loaders import LoaderSpec
from ddpbench.record.trace import Trace
from ddpbench.workloads.registry import WorkloadSpec

WINDOW = 5
"""Rounds per window, judged together like one run."""

LATE = os.environ.get("LATE", "").split()
DELAY_S = float(os.environ.get("DELAY_S", "0"))
RANK = os.environ.get("RANK", "0")

REPORT_DIR = os.environ.get("REPORT_DIR", "")
"""The folder to which each rank writes its rounds, if set."""

controls_ms: list[float] = []
"""Control time per step of this round in ms."""

now = ""
"""Kind and rank of the delay in this round; empty between rounds."""

measured = Arm._measure_round


def in_its_window(arm: Arm, index: int) -> Trace:
    """Measure a round with the delay of its window; a remeasured round stays in the same window."""
    global now
    now = LATE[index // WINDOW] if LATE else ""
    controls_ms.clear()
    touched = getrusage(RUSAGE_SELF).ru_minflt
    try:
        trace = measured(arm, index)
    finally:
        now = ""
    if REPORT_DIR:
        pages = (getrusage(RUSAGE_SELF).ru_minflt - touched) / trace.steps
        control_ms = fmean(controls_ms) if controls_ms else None
        report = {"own_ms": own_ms(trace), "pages": pages, "control_ms": control_ms}
        (Path(REPORT_DIR) / f"{index}-{RANK}.json").write_text(json.dumps(report))
    return trace


Arm._measure_round = in_its_window  # type: ignore[method-assign]


def late(kind: str) -> bool:
    return now == f"{kind}@{RANK}"


def stand_still() -> None:
    """Delay after synchronizing, so that host run-ahead cannot hide it."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    time.sleep(DELAY_S)


class Net(nn.Module):
    """A small CNN. On CPU its delay is compute or sleep; on GPU it is a device or a host delay."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 14 * 14, classes)
        )
        self.more = torch.randn(256, 256)
        self.control = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU()).requires_grad_(False)
        self.controlled = torch.randn(8, 3, 32, 32)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not images.is_meta:
            if late("compute"):
                self.compute(images.device)
            if late("host"):
                stand_still()
        output: torch.Tensor = self.net(images)
        if images.device.type == "cpu":
            self.time_control()  # after the net on every rank: an idle core starts slowly
        return output

    def time_control(self) -> None:
        """Time constant work without communication: the speed of this rank's core in this step."""
        begin = time.perf_counter()
        self.control(self.controlled)
        controls_ms.append(1000 * (time.perf_counter() - begin))

    def compute(self, device: torch.device) -> None:
        if device.type == "cuda":
            torch.cuda._sleep(int(DELAY_S * 1e6 * torch.cuda.get_device_properties(device).clock_rate / 1e3))
            return
        end = time.thread_time() + DELAY_S  # CPU time: contention extends it
        while time.thread_time() < end:
            torch.mm(self.more, self.more)


def build(image_size: int, classes: int) -> nn.Module:
    return Net(classes)


def open_late(config: ResolvedConfig, shard: Shard) -> DelayedLoader:
    return DelayedLoader(open_synthetic(config, shard), lambda: stand_still() if late("data") else None)


net = WorkloadSpec(
    name="straggling",
    help="one rank late",
    dataset="cifar10",
    image_size=32,
    classes=10,
    model="slow_rank:build",
    batch_cuda=8192,  # so that the GPU is the bottleneck, not its host
    batch_cpu=32,
)
loader = LoaderSpec(
    name="late", help="one rank late", factory="slow_rank:open_late", reads_dataset=False, on_device=True, datasets=("cifar10",)
)
