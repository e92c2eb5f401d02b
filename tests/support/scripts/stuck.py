"""A training script with something wrong in it: a rank that stands still, fails, dies, or does other things than the others."""

import argparse
import os
import signal
import sys
import threading
import time

import torch
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH, FEATURES = 4, 8


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--at", type=int, default=20, help="the step at which it happens")
    parser.add_argument("--rank", type=int, default=1, help="the rank in which it happens; -1: all")
    parser.add_argument("--batches", type=int, default=100_000)
    parser.add_argument("--short-rank", type=int, default=-1, help="a rank with half of the batches")
    parser.add_argument("--single", action="store_true", help="no process group")
    parser.add_argument("--inference", action="store_true", help="no update")
    parser.add_argument("--thread", action="store_true", help="train in a thread")
    parser.add_argument("--fork", action="store_true", help="train in a child, too, which prints its number")
    parser.add_argument(
        "--what", choices=["sleep", "stop", "collective", "kill", "raise", "leave", "evaluate", "slow", "nothing"], default="nothing"
    )
    return parser.parse_args()


def stand_still() -> None:
    while True:
        time.sleep(1)


def happen(what: str) -> None:
    if what == "sleep":
        stand_still()
    if what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "collective":
        dist.barrier()
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "raise":
        raise ValueError("no such luck")
    if what == "leave":
        os._exit(7)
    if what == "slow":
        time.sleep(6)


def main() -> None:
    options = parse()
    if options.fork and not os.fork():
        print("child", os.getpid(), flush=True)
    if options.thread:
        thread = threading.Thread(target=train, args=(options,))
        thread.start()
        thread.join()
        print("joined")
    else:
        train(options)


def train(options: argparse.Namespace) -> None:
    rank = int(os.environ.get("RANK", "0"))
    model: nn.Module = nn.Linear(FEATURES, 2)
    if "RANK" in os.environ and not options.single:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = options.batches // 2 if rank == options.short_rank else options.batches
    here = options.rank in (rank, -1)
    for step, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(batches * BATCH, FEATURES)), BATCH)):
        if step == options.at and here:
            happen(options.what)
        loss = model(x).sum()
        if not options.inference:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        time.sleep(0.01)
    if options.what == "evaluate" and here:
        time.sleep(7)
    sys.stdout.write("trained\n")


if __name__ == "__main__":
    main()
