"""Overhead of ``ddpbench watch``: the same training loop without and with its hooks, in short windows of one process, ABBA.

    python results/overhead/watch.py watch-h100.json
    torchrun --nproc_per_node=2 results/overhead/watch.py watch-2-cpu-ranks.json

Every window installs the hooks and lets them find the model. Then a window without hooks removes them. So both kinds follow the same
pause and the same warm-up, in which the hooks also create their CUDA events. Batches are ready, and on the device. On a GPU, whose work
takes several times as long as the host takes to issue it, the host's share is timed as well: how long it takes to issue one step to an idle
GPU. Prints and writes the throughput with hooks over that without, as the 20% trimmed mean of paired ratios: a virtual machine pauses the
host at times, which is much longer than what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils.data import DataLoader, Dataset

from ddpbench.analysis.stats import log_t_interval, log_trimmed_ci, ratio_of, trimmed_ci
from ddpbench.machine.device import describe_device
from ddpbench.report.format import format_with_interval
from ddpbench.script.hooks import hooked
from ddpbench.script.observer import Observer
from ddpbench.script.step_clock import READ_STEPS

FIND_STEPS, CALIBRATION_STEPS = 2, 10
SHAPES = {"cpu": (256, 64), "cuda": (2048, 1024)}
"""Width of the layers and batch size: on a GPU, a layer takes several times as long as the host takes to issue it."""


@dataclass(frozen=True)
class Plan:
    """The windows for one length of a step."""

    step_ms: float
    pairs: int
    warmup_steps: int
    steps: int
    issued_steps: int  # on a GPU, issued one by one after the window; as many as the hooks read at once


PLANS = (Plan(2.0, 100, 64, 32, READ_STEPS), Plan(40.0, 60, 6, 4, 0))


@dataclass
class Windows:
    """All windows of one kind."""

    window_s: list[float] = field(default_factory=list)
    issue_us: list[float] = field(default_factory=list)  # host's time per step, the mean of ``issued_steps``


@dataclass(frozen=True)
class Result:
    """Windows for one length of a step, the pairs in ABBA order."""

    step_ms: float  # without hooks, mean
    layers: int
    steps: int  # of a window
    bare: Windows
    watched: Windows
    throughput_ratio: list[float]  # with hooks over without: trimmed mean, 95% interval
    untrimmed_ratio: list[float]
    host_us: list[float] | None  # more per step with hooks


class Ready(Dataset[Tensor]):
    """Batches that are ready, so that the loader costs little."""

    def __init__(self, batch: Tensor) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return 1_000_000 * len(self._batch)

    def __getitems__(self, indices: list[int]) -> Tensor:
        return self._batch


def uncollated(batch: Any) -> Any:
    return batch


class Loop:
    """A training loop with a model of ``layers`` equal layers, under DDP if there are ranks."""

    def __init__(self, layers: int, device: torch.device) -> None:
        self._device = device
        width, batch = SHAPES[device.type]
        blocks = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
        self._model: nn.Module = nn.Sequential(*blocks).to(device)
        if dist.is_initialized():
            self._model = nn.parallel.DistributedDataParallel(self._model)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-4, foreach=True)
        self._loader = DataLoader(Ready(torch.randn(batch, width, device=device)), batch, collate_fn=uncollated)

    def add_window(self, plan: Plan, windows: Windows, is_watched: bool) -> None:
        """Measure a window, and add it to ``windows``."""
        with ExitStack() as stack:
            observer = Observer()
            hooks = stack.enter_context(hooked(observer))
            self._seconds(iter(self._loader), FIND_STEPS)
            if not is_watched:
                stack.close()
            batches = iter(self._loader)
            self._seconds(batches, plan.warmup_steps)
            windows.window_s.append(self._seconds(batches, plan.steps))
            if self._device.type == "cuda" and plan.issued_steps:
                issued_s = sum(self._issue_s(batches) for _ in range(plan.issued_steps))
                windows.issue_us.append(1e6 * issued_s / plan.issued_steps)
            if is_watched and (observer.problem or not hooks.models.name or observer.num_batches < plan.steps):
                raise SystemExit(f"the hooks did not see the training: {observer.problem or observer.num_batches}")

    def calibration_ms(self) -> float:
        """Time of a step, the same on all ranks."""
        batches = iter(self._loader)
        self._seconds(batches, CALIBRATION_STEPS)
        found = torch.tensor(1000 * self._seconds(batches, CALIBRATION_STEPS) / CALIBRATION_STEPS)
        if dist.is_initialized():
            dist.broadcast(found, 0)
        return float(found)

    def _seconds(self, batches: Iterator[Tensor], steps: int) -> float:
        """Time of ``steps`` steps, until the device and all ranks have finished them."""
        begin_s = perf_counter()
        for _ in range(steps):
            self._step(batches)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        if dist.is_initialized():
            dist.barrier()
        return perf_counter() - begin_s

    def _issue_s(self, batches: Iterator[Tensor]) -> float:
        """Time in which the host issues one step to an idle device."""
        begin_s = perf_counter()
        self._step(batches)
        issued_s = perf_counter() - begin_s
        torch.cuda.synchronize(self._device)
        return issued_s

    def _step(self, batches: Iterator[Tensor]) -> None:
        loss = self._model(next(batches).to(self._device)).square().mean()
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


def measure(plan: Plan, device: torch.device) -> Result:
    """Pairs of windows without and with hooks, with steps of about ``plan.step_ms``."""
    layers = 4
    for _ in range(4):  # the time of a step grows with the layers
        layers = max(1, round(layers * plan.step_ms / Loop(layers, device).calibration_ms()))
    loop, bare, watched = Loop(layers, device), Windows(), Windows()
    for pair in range(plan.pairs):
        for is_watched in (False, True) if pair % 2 == 0 else (True, False):
            loop.add_window(plan, watched if is_watched else bare, is_watched)
    ratio, untrimmed = (ratio_of(watched.window_s, bare.window_s, interval) for interval in (log_trimmed_ci, log_t_interval))
    more_us = [after - before for before, after in zip(bare.issue_us, watched.issue_us, strict=True)]
    host = trimmed_ci(more_us) if len(more_us) > 1 else None
    return Result(
        step_ms=1000 * sum(bare.window_s) / len(bare.window_s) / plan.steps,
        layers=layers,
        steps=plan.steps,
        bare=bare,
        watched=watched,
        throughput_ratio=[ratio.center, ratio.low, ratio.high],
        untrimmed_ratio=[untrimmed.center, untrimmed.low, untrimmed.high],
        host_us=[host.center, host.low, host.high] if host else None,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target", type=Path)
    parser.add_argument("--pairs", type=int, help="of windows, for every length of a step")
    options = parser.parse_args()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cuda" if torch.cuda.is_available() and ranks == 1 else "cpu")
    if ranks > 1:
        dist.init_process_group("gloo")
    plans = [Plan(**{**asdict(plan), "pairs": options.pairs or plan.pairs}) for plan in PLANS]
    found = [measure(plan, device) for plan in plans]
    if not ranks > 1 or dist.get_rank() == 0:
        launcher = f"torchrun --nproc_per_node={ranks}" if ranks > 1 else "python"
        record = {
            "command": f"{launcher} results/overhead/watch.py {' '.join(sys.argv[1:])}",
            "device": describe_device(device).name,
            "torch": str(torch.__version__),
            "threads": torch.get_num_threads(),
            "ranks": ranks,
            "steps": [asdict(each) for each in found],
        }
        options.target.write_text(json.dumps(record, indent=1) + "\n")
        for each in found:
            print(f"step of {each.step_ms:.2f} ms: {format_with_interval(*each.throughput_ratio)} of the throughput without hooks")
            if each.host_us:
                print(f"  {format_with_interval(*each.host_us)} microseconds of the host per step")
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
