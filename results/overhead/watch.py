"""Overhead of ``ddpbench watch``: the same training loop without and with its hooks, in short windows of one process, ABBA.

    python results/overhead/watch.py watch-h100.json
    torchrun --nproc_per_node=2 results/overhead/watch.py watch-2-cpu-ranks.json

Every window installs the hooks and lets them find the model. Then a window without hooks removes them, so that both kinds follow the same
pause and the same warm-up. On a GPU a window lasts from the end of one step to the end of another, on the device's clock: the device never
waits for a window to begin. The ratio is the 20% trimmed mean over pairs of windows: a virtual machine stops the host at times, for longer
than what is measured; the untrimmed mean is in the record.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils.data import DataLoader, Dataset

from ddpbench.analysis.stats import Interval, log_t_interval, log_trimmed_ci, ratio_of
from ddpbench.machine.device import describe_device
from ddpbench.report.format import format_with_interval
from ddpbench.script.observe.hooks import hooked
from ddpbench.script.observe.observer import Observer

FIND_STEPS, CALIBRATION_STEPS, ISSUED_STEPS = 2, 10, 10
SHAPES = {"cpu": (256, 64), "cuda": (2048, 1024)}
"""Width of the layers and batch size: on a GPU, a layer takes longer than the host takes to issue it."""


@dataclass(frozen=True)
class Plan:
    """The windows for one length of a step."""

    step_ms: float
    pairs_fraction: float  # of the pairs that were asked for
    warmup_steps: int
    steps: int


PLANS = (Plan(2.0, 1.0, 32, 32), Plan(40.0, 0.25, 4, 4))


@dataclass(frozen=True)
class Result:
    """Seconds of each window for one length of a step, the pairs in ABBA order."""

    step_ms: float  # without hooks, median
    issue_ms: float | None  # of it, what the host takes to issue the step to an idle GPU; None on the CPU
    layers: int
    steps: int  # of a window
    bare_s: list[float]
    watched_s: list[float]
    throughput_ratio: list[float]  # with hooks over without: trimmed mean, 95% interval
    untrimmed_ratio: list[float]


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
        blocks = [part for _ in range(layers) for part in (nn.Linear(width, width, device=device), nn.ReLU())]
        self._model: nn.Module = nn.Sequential(*blocks)
        if dist.is_initialized():
            self._model = nn.parallel.DistributedDataParallel(self._model)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-4, foreach=True)
        self._loader = DataLoader(Ready(torch.randn(batch, width, device=device)), batch, collate_fn=uncollated)

    def window_s(self, plan: Plan, is_watched: bool) -> float:
        """Seconds of a window of ``plan``."""
        with ExitStack() as stack:
            observer = Observer()
            hooks = stack.enter_context(hooked(observer))
            self._train(iter(self._loader), FIND_STEPS)
            if not is_watched:
                stack.close()
            batches = iter(self._loader)
            self._train(batches, plan.warmup_steps)
            seconds = self._seconds(batches, plan.steps)
            if is_watched and (observer.problem or not hooks.models.name or observer.num_batches < plan.steps):
                raise SystemExit(f"the hooks did not see the training: {observer.problem or observer.num_batches}")
            return seconds

    def calibration_ms(self) -> float:
        """Time of a step, the same on all ranks."""
        batches = iter(self._loader)
        self._train(batches, CALIBRATION_STEPS)
        found = torch.tensor(1000 * self._seconds(batches, CALIBRATION_STEPS) / CALIBRATION_STEPS)
        if dist.is_initialized():
            dist.broadcast(found, 0)
        return float(found)

    def issue_ms(self) -> float | None:
        """Median time in which the host issues a step to an idle GPU; None on the CPU."""
        if self._device.type == "cpu":
            return None
        batches, found = iter(self._loader), []
        for _ in range(ISSUED_STEPS):
            torch.cuda.synchronize(self._device)
            begin_s = perf_counter()
            self._train(batches, 1)
            found.append(1000 * (perf_counter() - begin_s))
        return median(found)

    def _seconds(self, batches: Iterator[Tensor], steps: int) -> float:
        """Time of ``steps`` steps, from the end of the step before."""
        if self._device.type == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            self._train(batches, steps)
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) / 1000
        if dist.is_initialized():
            dist.barrier()
        begin_s = perf_counter()
        self._train(batches, steps)
        return perf_counter() - begin_s

    def _train(self, batches: Iterator[Tensor], steps: int) -> None:
        for _ in range(steps):
            loss = self._model(next(batches).to(self._device)).square().mean()
            loss.backward()
            self._optimizer.step()
            self._optimizer.zero_grad()


def measure(plan: Plan, device: torch.device, pairs: int) -> Result:
    """Pairs of windows without and with hooks, with steps of about ``plan.step_ms``."""
    layers = 4
    for _ in range(2):  # the time of a step grows with the layers
        layers = max(1, round(layers * plan.step_ms / Loop(layers, device).calibration_ms()))
    loop = Loop(layers, device)
    loop.calibration_ms()
    issue_ms = loop.issue_ms()
    bare_s: list[float] = []
    watched_s: list[float] = []
    for pair in range(max(1, round(plan.pairs_fraction * pairs))):
        for is_watched in (False, True) if pair % 2 == 0 else (True, False):
            (watched_s if is_watched else bare_s).append(loop.window_s(plan, is_watched))
    ratios = [ratio_of(watched_s, bare_s, interval) for interval in (log_trimmed_ci, log_t_interval)]
    return Result(1000 * median(bare_s) / plan.steps, issue_ms, layers, plan.steps, bare_s, watched_s, *map(to_list, ratios))


def to_list(interval: Interval) -> list[float]:
    return [interval.center, interval.low, interval.high]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target", type=Path)
    parser.add_argument("--pairs", type=int, default=100, help="of windows with short steps; a quarter of it with long ones")
    options = parser.parse_args()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cuda" if torch.cuda.is_available() and ranks == 1 else "cpu")
    if ranks > 1:
        dist.init_process_group("gloo")
    found = [measure(plan, device, options.pairs) for plan in PLANS]
    if ranks == 1 or dist.get_rank() == 0:
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
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
