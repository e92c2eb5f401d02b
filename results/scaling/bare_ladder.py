"""What DDP itself keeps of one GPU's speed: a loop that measures nothing, on one rank and on all of them in turn, in one launch.

    torchrun --nproc_per_node=4 results/scaling/bare_ladder.py resnet50 40 bare-resnet50-4gpu.json

The second word is the steps of a window. Every training lives on its GPUs from the first window on, which is not counted, and those
whose turn it is not are idle. On all ranks there are DDP as it is, without its broadcast of buffers, with NCCL on a high-priority stream,
and with NCCL held to so many thread blocks (``max_ctas``). Prints and writes what each keeps of as many times one rank; where buffers are
not broadcast, of one that does not broadcast them either.
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
    laid_out = arms(dist.get_world_size())
    windows: dict[str, Iterator[float]] = {}
    for name, (ranks, settings, of_ddp) in laid_out.items():
        group = dist.new_group(list(range(ranks)), backend="nccl", pg_options=nccl(**settings))
        if rank < ranks:
            windows[name] = bare.bare_windows(model, BATCH, device, steps, WARMUP, process_group=group, **of_ddp)
    images_per_s: dict[str, list[float]] = {name: [] for name in laid_out}
    gc.disable()
    for number in range(ROUNDS + 1):
        for name, (ranks, _, _) in laid_out.items():
            dist.all_reduce(torch.zeros(1))  # on the processors: nobody's GPU waits
            slowest_s = torch.tensor(next(windows[name]) if name in windows else 0.0)
            dist.all_reduce(slowest_s, dist.ReduceOp.MAX)
            if number:  # the first is each training's warm-up
                images_per_s[name].append(ranks * BATCH * steps / float(slowest_s))
    if rank == 0:
        kept = {
            name: ratio_of([ranks * each for each in images_per_s["1, no broadcast" if of_ddp else "1"]], images_per_s[name])
            for name, (ranks, _, of_ddp) in laid_out.items()
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
