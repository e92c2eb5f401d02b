"""Speed of a training step with the fused kernels and without them: the bare training loop, all arms in one process.

    torchrun --standalone --nproc_per_node=1 results/kernels/steps.py resnet50 512 resnet50-512.json

The arms take turns, forwards and backwards (ABBA), so that drifts of the machine cancel. ``fused`` is ``ddpbench.kernels.fuse``; ``-graph``
replays the whole step as a CUDA graph. Prints the median of images per second, and the ratio of each arm to the first one, over pairs of
windows of the same round, with a 95% t-interval on the logs; writes these and the images per second of all windows.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness-tax"))

from bare import bare_windows, start_rank, unchanged, windows_in_turn

from ddpbench.analysis.stats import ratio_of
from ddpbench.kernels import fuse
from ddpbench.machine.backends import configure_backends
from ddpbench.machine.device import describe_device

ARMS: dict[str, dict[str, Any]] = {
    "compiled": {"prepare": torch.compile},
    "compiled-graph": {"prepare": torch.compile, "in_graph": True},
    "eager": {"prepare": unchanged},
    "eager-graph": {"prepare": unchanged, "in_graph": True},
    "fused": {"prepare": fuse},
    "fused-graph": {"prepare": fuse, "in_graph": True},
}
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
WARMUP = 20


def main(model: str, batch_size: int, target: Path, arms: list[str], dtype: str, steps: int, rounds: int) -> None:
    """Measure ``rounds`` windows of each arm and write them to ``target``."""
    device = start_rank()
    configure_backends(tf32=True)
    trainings = {name: bare_windows(model, batch_size, device, steps, WARMUP, DTYPES[dtype], **ARMS[name]) for name in arms}
    images = batch_size * steps * dist.get_world_size()
    speeds = {name: [images / each for each in seconds] for name, seconds in windows_in_turn(trainings, rounds, device).items()}
    if dist.get_rank() == 0:
        ratios = {name: ratio_of(speeds[arms[0]], speeds[name]) for name in arms[1:]}
        words = f"{model} {batch_size} {target.name} --arms {','.join(arms)} --dtype {dtype} --steps {steps} --rounds {rounds}"
        result = {
            "command": f"torchrun --nproc_per_node={dist.get_world_size()} results/kernels/steps.py {words}",
            "device": describe_device(device).name,
            "torch": str(torch.__version__),
            "images_per_s": speeds,
            "ratio_to_first": {name: [ratio.center, ratio.low, ratio.high] for name, ratio in ratios.items()},
        }
        target.write_text(json.dumps(result, indent=1) + "\n")
        for name, found in speeds.items():
            ratio = f"  {ratios[name].center:.3f} ({ratios[name].low:.3f} to {ratios[name].high:.3f})" if name in ratios else ""
            print(f"{model} {batch_size} {dtype} {name:12} {median(found):8,.0f} images/s{ratio}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="name of a model of torchvision")
    parser.add_argument("batch_size", type=int, metavar="BATCH", help="per GPU")
    parser.add_argument("target", type=Path, metavar="TARGET.json")
    parser.add_argument("--arms", type=lambda words: words.split(","), default=list(ARMS), help="default: " + ",".join(ARMS))
    parser.add_argument("--dtype", choices=DTYPES, default="fp16", help="of autocast (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="per window (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=6, help="default: %(default)s")
    main(**vars(parser.parse_args()))
