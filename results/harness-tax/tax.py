"""The overhead of ddpbench's measurements: its loop and the bare one, alternating ABBA inside one job.

    torchrun --nproc_per_node=1 results/harness-tax/tax.py resnet50 40 out.json [--precision amp-bf16] [--pairs 16] [--fast]

The second argument is the number of steps per window. With ``--fast``, the bare loop has the fused kernels, too, and replays its whole step
as one CUDA graph. Both trainings stay on the device and take turns, so that the noise of a
launch cancels in every pair. Prints and writes the ratio of throughputs, ddpbench over bare, with a 95% paired t-interval on the logs.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shlex
import sys
from pathlib import Path

import torch
from bare import bare_windows, unchanged

from ddpbench.analysis.stats import ratio_of
from ddpbench.bench.arm import Arm
from ddpbench.bench.preflight import prepare_job
from ddpbench.kernels import fuse
from ddpbench.machine.progress_marker import ProgressMarker, Watchdog
from ddpbench.record.config import Config
from ddpbench.record.request import OutputOptions, Request

WARMUP = 20
DTYPES = {"amp-fp16": torch.float16, "amp-bf16": torch.bfloat16}


def main(
    workload: str, steps: int, target: Path, precision: str, pairs: int, batch_size: int | None, fast: bool, compile_mode: str
) -> None:
    """Measure ``pairs`` pairs of windows and write them to ``target``."""
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # as torch's documentation asks before the capture of DDP
    asked = Config(workload=workload, precision=precision, steps=steps, batch_size=batch_size, fast=fast, compile=compile_mode)
    (config,), world, _ = prepare_job(Request(arms=[asked], output=OutputOptions(output_dir=str(target.parent)), command=sys.argv))
    world.init_process_group()
    marker = ProgressMarker(600.0)
    arm = Arm(config, world, marker)
    arm.activate()
    images = (config.batch_size or 0) * steps * world.size
    prepare = fuse if fast else torch.compile if config.compile != "off" else unchanged
    settings = {"dtype": DTYPES[precision], "prepare": prepare, "in_graph": fast}
    bare = bare_windows(workload, config.batch_size or 0, world.device.torch_device, steps, WARMUP, **settings)
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
    parser.add_argument("--compile", dest="compile_mode", choices=("off", "default"), default="off", help="in both loops")
    main(**vars(parser.parse_args()))
