"""Overhead of ``ddpbench watch``: the same training loop with and without its hooks, in turns, for a short and a long step.

python results/overhead/watch.py results/overhead/watch-cpu.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ddpbench.analysis.stats import ratio_of
from ddpbench.machine.device import describe_device
from ddpbench.report.format import format_with_interval
from ddpbench.script.hooks import hooked
from ddpbench.script.observer import Observer

STEP_MS = (2.0, 40.0)
WARMUP_STEPS, CALIBRATION_STEPS = 12, 30
WIDTH, BATCH = 256, 64


@dataclass(frozen=True)
class Result:
    """Seconds of each window for one length of a step; windows of a pair follow each other, in ABBA order."""

    step_ms: float  # bare
    layers: int
    steps: int  # of a window
    bare_s: list[float]
    watched_s: list[float]
    ratio: float  # watched to bare
    low: float
    high: float


class Batches(Dataset[Tensor]):
    """Batches that are ready, so that the loader costs next to nothing."""

    def __init__(self, number: int) -> None:
        self._batch, self._number = torch.randn(BATCH, WIDTH), number

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: int) -> Tensor:
        return self._batch


class Loop:
    """A training loop with a model of ``layers`` equal layers."""

    def __init__(self, layers: int, device: torch.device) -> None:
        self._device = device
        blocks = [part for _ in range(layers) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self._model = nn.Sequential(*blocks).to(device)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-4, foreach=True)

    def window_s(self, steps: int, context: AbstractContextManager[Any]) -> float:
        """Seconds of ``steps`` steps after a warm-up, in ``context``."""
        with context:
            batches = iter(DataLoader(Batches(WARMUP_STEPS + steps), batch_size=None))
            self._train(batches, WARMUP_STEPS)
            begin_s = perf_counter()
            self._train(batches, steps)
            return perf_counter() - begin_s

    def _train(self, batches: Iterator[Tensor], steps: int) -> None:
        for _ in range(steps):
            images = next(batches).to(self._device, non_blocking=True)
            loss = self._model(images).square().mean()
            loss.backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def measure(step_ms: float, device: torch.device, pairs: int, window_s: float) -> Result:
    """Bare and watched windows in turns, with steps of about ``step_ms``."""
    layers = 4
    for _ in range(4):  # the time of a step grows with the layers
        found_ms = 1000 * Loop(layers, device).window_s(CALIBRATION_STEPS, nullcontext()) / CALIBRATION_STEPS
        layers = max(1, round(layers * step_ms / found_ms))
    loop, steps = Loop(layers, device), max(5, round(1000 * window_s / step_ms))
    bare_s: list[float] = []
    watched_s: list[float] = []
    for pair in range(pairs):
        kinds = [(bare_s, nullcontext()), (watched_s, hooked(Observer()))]
        for seconds, context in kinds if pair % 2 == 0 else reversed(kinds):
            seconds.append(loop.window_s(steps, context))
    ratio = ratio_of(bare_s, watched_s)
    return Result(1000 * sum(bare_s) / len(bare_s) / steps, layers, steps, bare_s, watched_s, ratio.center, ratio.low, ratio.high)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target", type=Path)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--window-s", type=float, default=1.0)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = [measure(step_ms, device, options.pairs, options.window_s) for step_ms in STEP_MS]
    record = {
        "command": f"python results/overhead/watch.py {' '.join(sys.argv[1:])}",
        "device": describe_device(device).name,
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "steps": [asdict(each) for each in found],
    }
    options.target.write_text(json.dumps(record, indent=1) + "\n")
    for each in found:
        print(f"step of {each.step_ms:.2f} ms: watched takes {format_with_interval(each.ratio, each.low, each.high)} times as long")


if __name__ == "__main__":
    main()
