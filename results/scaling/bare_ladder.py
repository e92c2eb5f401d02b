"""Scaling efficiency of DDP itself: a loop without measurements, on one rank and on all ranks in turn, in one launch.

    torchrun --nproc_per_node=4 results/scaling/bare_ladder.py resnet50 40 bare-resnet50-4gpu.json

The second argument is the number of steps per window. Every training stays on its GPUs from the first window on, which is not counted;
the others are idle meanwhile. The arms on all ranks are plain DDP, DDP without its broadcast of buffers, with NCCL on a high-priority
stream, and with NCCL limited to a number of thread blocks (``max_ctas``). Prints and writes the efficiency of each relative to one rank;
without the broadcast of buffers, relative to one rank that does not broadcast them either.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness-tax"))

import bare

from ddpbench.analysis.stats import ratio_of
from ddpbench.machine.fingerprint import speed_variables

BATCH, ROUNDS, WARMUP = 256, 6, 20
MAX_CTAS = (2, 4, 8, 16)
QUIET = {"broadcast_buffers": False}


def nccl(**settings: int) -> dist.ProcessGroupNCCL.Options:
    """Options of a process group; ``is_high_priority_stream`` is its own, the others are of NCCL's configuration."""
    options = dist.ProcessGroupNCCL.Options()
    options.is_high_priority_stream = bool(settings.pop("is_high_priority_stream", False))
    for name, value in settings.items():
        setattr(options.config, name, value)
    return options


def arms(ranks: int) -> dict[str, tuple[int, dict[str, int], dict[str, Any]]]:
    """Name -> on how many ranks, NCCL's settings, DDP's."""
    return {
        "1": (1, {}, {}),
        "1, no broadcast": (1, {}, QUIET),
        f"{ranks}": (ranks, {}, {}),
        f"{ranks}, no broadcast": (ranks, {}, QUIET),
        f"{ranks}, high priority": (ranks, {"is_high_priority_stream": 1}, {}),
        **{f"{ranks}, max_ctas {most}": (ranks, {"max_ctas": most}, {}) for most in MAX_CTAS},
    }


def main(model: str, steps: int, target: Path) -> None:
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
    arms_by_name = arms(dist.get_world_size())
    windows: dict[str, Iterator[float]] = {}
    for name, (ranks, settings, of_ddp) in arms_by_name.items():
        group = dist.new_group(list(range(ranks)), backend="nccl", pg_options=nccl(**settings))
        if rank < ranks:
            windows[name] = bare.bare_windows(model, BATCH, device, steps, WARMUP, process_group=group, **of_ddp)
    images_per_s: dict[str, list[float]] = {name: [] for name in arms_by_name}
    gc.disable()
    for number in range(ROUNDS + 1):
        for name, (ranks, _, _) in arms_by_name.items():
            dist.all_reduce(torch.zeros(1))  # on the CPU, so that no GPU waits
            slowest_s = torch.tensor(next(windows[name]) if name in windows else 0.0)
            dist.all_reduce(slowest_s, dist.ReduceOp.MAX)
            if number:  # the first is each training's warm-up
                images_per_s[name].append(ranks * BATCH * steps / float(slowest_s))
    if rank == 0:
        kept = {
            name: ratio_of([ranks * each for each in images_per_s["1, no broadcast" if of_ddp else "1"]], images_per_s[name])
            for name, (ranks, _, of_ddp) in arms_by_name.items()
        }
        for name, ratio in kept.items():
            print(f"{name}: {sum(images_per_s[name]) / ROUNDS:,.0f} images/s, {ratio.center:.2%} ({ratio.low:.2%} to {ratio.high:.2%})")
        result = {
            "command": f"torchrun --nproc_per_node={dist.get_world_size()} results/scaling/bare_ladder.py {model} {steps}",
            "gpu": torch.cuda.get_device_name(),
            "torch": str(torch.__version__),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "variables": speed_variables(),
            "batch_size": BATCH,
            "images_per_s": images_per_s,
            "kept": {name: [ratio.center, ratio.low, ratio.high] for name, ratio in kept.items()},
        }
        target.write_text(json.dumps(result, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
