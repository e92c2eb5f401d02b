"""The overhead of ddpbench's measurements: its loop and the bare one, alternating ABBA inside one job.

    torchrun --nproc_per_node=1 results/harness-tax/tax.py resnet50 40 out.json [--precision amp-bf16] [--pairs 16] [--fast]

The second argument is the number of steps per window. With ``--fast`` or ``--compile``, the bare loop has the same kernels, and replays its
whole step as one CUDA graph if ddpbench replays its own. Both trainings stay on the device and take turns, so that the noise of a
launch cancels in every pair. Prints and writes the ratio of throughputs, ddpbench over bare, with a 95% paired t-interval on the logs.
"""

from __future__ import annotations

import argparse
import gc
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import torch
from bare import bare_windows, unchanged

from ddpbench.analysis.stats import ratio_of
from ddpbench.bench.arm import Arm
from ddpbench.bench.preflight import prepare_job
from ddpbench.kernels import fuse
from ddpbench.machine.progress_marker import ProgressMarker, Watchdog
from ddpbench.record.config import Config, ResolvedConfig
from ddpbench.record.request import OutputOptions, Request
from ddpbench.training.engines import BROADCAST_FLAG

WARMUP = 20
DTYPES = {"amp-fp16": torch.float16, "amp-bf16": torch.bfloat16}


def like(config: ResolvedConfig) -> dict[str, Any]:
    """Settings of the bare loop for the same kernels and the same DDP as in ``config``."""
    kernels = torch.compile if config.compile != "off" else fuse if config.fused_kernels else unchanged
    ddp = {BROADCAST_FLAG: config.broadcast_buffers}
    return {"dtype": DTYPES[config.precision], "prepare": kernels, "in_graph": config.cuda_graph, **ddp}


def main(asked: Config, target: Path, pairs: int) -> None:
    """Measure ``pairs`` pairs of windows and write them to ``target``."""
    workload, steps = asked.workload, asked.steps or 1
    (config,), world, _ = prepare_job(Request(arms=[asked], output=OutputOptions(output_dir=str(target.parent)), command=sys.argv))
    world.init_process_group()
    marker = ProgressMarker(600.0)
    arm = Arm(config, world, marker)
    arm.activate()
    images = config.batch_size * steps * world.size
    bare = bare_windows(workload, config.batch_size, world.device.torch_device, steps, WARMUP, **like(config))
    next(bare)
    ours: list[float] = []
    theirs: list[float] = []

    def measured() -> None:
        watchdog = Watchdog(marker, world.store.heartbeat, lambda seconds: None, lambda: None)
        watchdog.start()
        timed = arm.run_round(len(ours))
        watchdog.stop()
        if timed is not None:
            ours.append(timed.samples_per_s)

    def unmeasured() -> None:
        gc.disable()  # as in ddpbench's rounds, so that both run without its pauses
        theirs.append(images / world.all_max(next(bare)))
        gc.enable()

    for pair in range(pairs):
        for turn in (measured, unmeasured) if pair % 2 == 0 else (unmeasured, measured):
            turn()
    if world.rank_env.is_rank0:
        ratio = ratio_of(theirs, ours)
        words = shlex.join(target.name if word == str(target) else word for word in sys.argv[1:])
        result = {
            "command": f"torchrun --nproc_per_node={world.size} results/harness-tax/tax.py {words}",
            "gpu": world.device.name,
            "gpus": world.size,
            "torch": str(torch.__version__),
            "workload": workload,
            "batch_size": config.batch_size,
            "steps": steps,
            "ddpbench_images_per_s": ours,
            "bare_images_per_s": theirs,
            "ratio": ratio.center,
            "ratio_low": ratio.low,
            "ratio_high": ratio.high,
        }
        target.write_text(json.dumps(result, indent=1) + "\n")
        print(f"{workload} on {world.size} x {world.device.name}: {ratio.center:.4f} ({ratio.low:.4f} to {ratio.high:.4f}) of bare")
    arm.park()
    world.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", metavar="WORKLOAD")
    parser.add_argument("steps", type=int, metavar="STEPS", help="per window")
    parser.add_argument("target", type=Path, metavar="TARGET.json")
    parser.add_argument("--precision", choices=DTYPES, default="amp-fp16")
    parser.add_argument("--pairs", type=int, default=16, help="of windows (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, help="per GPU (default: the workload's)")
    parser.add_argument("--fast", action="store_true", help="fused kernels in CUDA graphs, in both loops")
    parser.add_argument("--compile", choices=("off", "default"), help="in both loops")
    options = vars(parser.parse_args())
    target, pairs = options.pop("target"), options.pop("pairs")
    main(Config(**options), target, pairs)
