"""Time the optimizer steps of a training script, without ddpbench.

    python time_steps.py [options] SCRIPT [arguments of the script]
    python time_steps.py [options] -m MODULE [arguments]

Counts the steps of the first optimizer that makes one. The window begins at step ``--after`` and ends ``--seconds`` later, at a multiple of
``--every`` steps (an epoch's, so that starts of epochs count), or at step ``--until``. Then prints one line of JSON and ends the process.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import multiprocessing
import os
import runpy
import sys
import time

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--after", type=int, default=10, help="step at which the window begins")
    parser.add_argument("--until", type=int, help="step at which it ends, the same on every rank")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--every", type=int, default=1, help="end after a multiple of so many steps")
    parser.add_argument("--repeat-batches", type=int, default=0, help="every DataLoader repeats its first N batches, from memory")
    parser.add_argument("--endless", action="store_true", help="repeat them without end, for loaders that the script never restarts")
    parser.add_argument("--loader", action="append", default=[], metavar="NAME=VALUE", help="argument that every DataLoader gets")
    parser.add_argument("-m", action="store_true", dest="is_module", help="SCRIPT is a module")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser.parse_args()


def count_steps(asked: argparse.Namespace) -> None:
    first: list[object] = []
    seen = {"steps": 0, "start_s": time.perf_counter(), "cpu_s": time.process_time()}

    def after_step(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        first or first.append(optimizer)
        if optimizer is not first[0]:
            return
        seen["steps"] += 1
        now_s, steps = time.perf_counter(), seen["steps"] - asked.after
        if steps == 0:
            seen.update(start_s=now_s, cpu_s=time.process_time())
        elapsed_s = now_s - seen["start_s"]
        if steps > 0 and (steps + asked.after >= asked.until if asked.until else elapsed_s >= asked.seconds and steps % asked.every == 0):
            finish(steps, elapsed_s, time.process_time() - seen["cpu_s"])

    register_optimizer_step_post_hook(after_step)


def finish(steps: int, elapsed_s: float, cpu_s: float) -> None:
    if os.environ.get("RANK", "0") == "0":
        line = {"steps": steps, "seconds": round(elapsed_s, 3), "ms_per_step": round(1000 * elapsed_s / steps, 3)}
        line["cpu_ms_per_step"] = round(1000 * cpu_s / steps, 3)  # of this process, workers not included
        os.write(1, f"\n{json.dumps(line)}\n".encode())
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(0)


def repeat_batches(number: int, is_endless: bool) -> None:
    """Every iteration of a DataLoader hands out its first batches again and again, as many as it has per epoch."""
    real_iter, kept = DataLoader.__iter__, {}

    def batches(loader: DataLoader):  # type: ignore[type-arg, no-untyped-def]
        if id(loader) not in kept:
            real = real_iter(loader)
            kept[id(loader)] = loader, list(itertools.islice(real, number))
            if hasattr(real, "_shutdown_workers"):
                real._shutdown_workers()
            loader._iterator = None
        found = itertools.cycle(kept[id(loader)][1])
        try:
            per_epoch = None if is_endless else len(loader)
        except TypeError:  # a stream
            per_epoch = None
        for batch in itertools.islice(found, per_epoch):
            yield batch.copy() if isinstance(batch, (dict, list)) else batch  # loops replace what is in them

    DataLoader.__iter__ = batches  # type: ignore[method-assign, assignment]


def set_arguments(words: list[str]) -> None:
    real_init = DataLoader.__init__
    given = {name: ast.literal_eval(value) for name, value in (word.split("=", 1) for word in words)}

    def init(loader, *args, **kwargs) -> None:  # type: ignore[no-untyped-def]
        wanted = kwargs | given
        if not wanted.get("num_workers"):  # a DataLoader without workers refuses these
            wanted = {name: value for name, value in wanted.items() if name not in ("persistent_workers", "prefetch_factor")}
        real_init(loader, *args, **wanted)

    DataLoader.__init__ = init  # type: ignore[method-assign]


def main() -> None:
    asked = options()
    count_steps(asked)
    if asked.loader:
        set_arguments(asked.loader)
    if asked.repeat_batches:
        repeat_batches(asked.repeat_batches, asked.endless)
    sys.argv = [asked.script, *asked.arguments]
    if asked.is_module:
        sys.path[0] = os.getcwd()
        runpy.run_module(asked.script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(asked.script))
        runpy.run_path(asked.script, run_name="__main__")
    sys.exit("the script ended before the window did")


if __name__ == "__main__":
    main()
