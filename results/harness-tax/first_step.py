"""How much later ddpbench ends its first training step than a bare script with the same kernels: seconds since the launch.

    python results/harness-tax/first_step.py resnet50 512 first-step.json [--compile default] [--times 3] [--cached 1]

Launches the bare loop of ``bare.py`` and ``ddpbench run`` in turn, each time under torchrun, with a ResNet: first with empty caches of
Triton, inductor and the CUDA driver, then again with the caches that the cold launches have filled. Before, the modules of ddpbench are
compiled, as pip does when it installs them, and torch's libraries are read, so that no launch reads them from disk. Every launch is
written as soon as it has ended.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from statistics import median
from time import time

PACKAGE = Path(__file__).resolve().parents[2] / "ddpbench"
CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
CHUNK_BYTES = 2**24
LAUNCHED, SIDES = "LAUNCHED_AT_S", ("bare", "ddpbench")


def report_step(number: int) -> None:
    """At the end of the update ``number``, print the seconds since the launch and end this process, and with it the launch."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    updates = count(1)

    def updated(*_: object) -> None:
        if next(updates) == number:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            print(f"first step {time() - float(os.environ[LAUNCHED]):.3f}", flush=True)
            os._exit(0)

    register_optimizer_step_post_hook(updated)


def run_bare(model: str, batch_size: int, compile_mode: str) -> None:
    import torch
    from bare import bare_windows
    from torch import distributed as dist

    report_step(1)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    dist.init_process_group(device_id=device if device.type == "cuda" else None)
    torch.backends.cudnn.benchmark = True
    if compile_mode == "off":
        from ddpbench.kernels import fuse as prepare
    else:
        from torch import compile as prepare
    next(bare_windows(model, batch_size, device, steps=1, warmup=0, prepare=prepare))


def run_ddpbench(model: str, batch_size: int, compile_mode: str) -> None:
    report_step(1 if compile_mode == "off" else 2)  # the first step of a compiled model is eager, to observe its precision
    fast = ["--fast"] if compile_mode == "off" else ["--compile", compile_mode]
    records = Path(os.environ[CACHES[0]]).parent / "records"
    sys.argv = ["ddpbench", model, "--amp", "-b", str(batch_size), *fast, "-o", str(records)]
    runpy.run_module("ddpbench", run_name="__main__", alter_sys=True)


def read_libraries() -> None:
    """Read the libraries of torch, and of the packages beside it, into the page cache."""
    torch_folder = find_spec("torch").submodule_search_locations[0]
    for library in Path(torch_folder).parent.rglob("*.so*"):
        with library.open("rb") as file:
            while file.read(CHUNK_BYTES):
                pass


def launch(side: str, words: list[str], caches: Path) -> float:
    """Seconds from the launch to the end of the first step."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=1", __file__, *words, "--side", side]
    environment = {**os.environ, **{name: str(caches / side / name) for name in CACHES}, LAUNCHED: str(time())}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True) as started:
        try:
            printed, _ = started.communicate(timeout=300)
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
    return float(printed.rpartition("first step ")[2])


def main(model: str, batch_size: int, target: Path, compile_mode: str, times: int, cached: int) -> None:
    """Measure ``times`` cold launches of each side, each followed by ``cached`` cached ones, and write them to ``target``."""
    compileall.compile_dir(PACKAGE, quiet=1)
    read_libraries()
    words = [model, str(batch_size), target.name, "--compile", compile_mode]
    command = f"python results/harness-tax/first_step.py {' '.join(words)} --times {times} --cached {cached}"
    found: dict[str, dict[str, list[float]]] = {state: {side: [] for side in SIDES} for state in ("cold", "cached")}
    turns = (SIDES, SIDES[::-1])
    for number in range(times):
        with tempfile.TemporaryDirectory() as caches:
            for state, order in [("cold", turns[number % 2]), *(("cached", turns[(number + again) % 2]) for again in range(cached))]:
                for side in order:
                    found[state][side].append(launch(side, words, Path(caches)))
                    target.write_text(json.dumps({"command": command, "seconds": found}, indent=1) + "\n")
    for state, sides in ((state, sides) for state, sides in found.items() if all(sides.values())):
        bare, ours = (median(sides[side]) for side in SIDES)
        print(f"{model} {batch_size}, {state}: first step of ddpbench after {ours:.1f} s, of the bare script after {bare:.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="WORKLOAD")
    parser.add_argument("batch_size", type=int, metavar="BATCH", help="per GPU")
    parser.add_argument("target", type=Path, metavar="TARGET.json")
    parser.add_argument("--compile", dest="compile_mode", default="off", help="off: fused kernels (default: %(default)s)")
    parser.add_argument("--times", type=int, default=3, help="cold launches of each (default: %(default)s)")
    parser.add_argument("--cached", type=int, default=1, help="cached launches of each after a cold one (default: %(default)s)")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    settings = vars(parser.parse_args())
    side = settings.pop("side")
    if side is None:
        main(**settings)
    else:
        run = run_bare if side == "bare" else run_ddpbench
        run(settings["model"], settings["batch_size"], settings["compile_mode"])
