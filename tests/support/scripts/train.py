"""A training script as users write them, without a word of ddpbench. Its flags choose what it does."""

import argparse
import atexit
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset, get_worker_info

FEATURES, CLASSES, BATCH = 16, 4, 8


class Points(Dataset):
    def __init__(self, batches: int, as_dict: bool, sample_ms: float, fatal_worker: int) -> None:
        self.length, self.as_dict, self.sample_ms, self.fatal_worker = batches * BATCH, as_dict, sample_ms, fatal_worker

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.sample_ms / 1000)
        worker = get_worker_info()
        if worker and worker.id == self.fatal_worker:
            os.kill(os.getpid(), signal.SIGKILL)
        x, y = torch.randn(FEATURES), index % CLASSES
        return {"inputs": {"x": x}, "y": y} if self.as_dict else (x, y)


class Batch:
    """A batch of the script's own class, iterable like a pair of tensors."""

    def __init__(self, samples: list[Any]) -> None:
        self.x = torch.stack([x for x, _ in samples])
        self.y = torch.tensor([y for _, y in samples])

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter((self.x, self.y))


class Stream(IterableDataset):
    def __init__(self, batches: int) -> None:
        self.length = batches * BATCH

    def __iter__(self) -> Iterator[Any]:
        return ((torch.randn(FEATURES), index % CLASSES) for index in range(self.length))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--sample-ms", type=float, default=0.0)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--data", choices=["points", "dict", "stream", "list", "object"], default="points")
    parser.add_argument("--fatal-worker", type=int, default=-1)
    parser.add_argument("--late-rank", type=int, default=-1)
    parser.add_argument("--signal", type=int)
    parser.add_argument("--exit", type=int)
    parser.add_argument("--swallow", choices=["never", "once", "always"], default="never")
    for switch in (
        "persistent",
        "validate",
        "save",
        "new-loader",
        "accelerate",
        "compile",
        "idle",
        "fail",
        "interrupt",
        "fork",
        "chdir",
        "stdin",
        "log",
        "count",
        "diverge",
    ):
        parser.add_argument(f"--{switch}", action="store_true")
    parser.add_argument("--losses", action="store_true")
    return parser.parse_args()


def update(optimizer: torch.optim.Optimizer, options: argparse.Namespace) -> None:
    try:
        optimizer.step()
    except SystemExit:
        if options.swallow == "never":
            raise
        if options.swallow == "once":
            options.swallow = "never"
        time.sleep(0.1)
    optimizer.zero_grad()


def finish(options: argparse.Namespace) -> None:
    """What a script does in ``finally``."""
    if options.losses:
        if dist.is_initialized():
            dist.barrier()
        sys.stdout.write("finally\n")
        atexit.register(sys.stdout.write, "at exit\n")


def make_loader(options: argparse.Namespace) -> Any:
    if options.data == "list":
        return [(torch.randn(BATCH, FEATURES), torch.zeros(BATCH, dtype=torch.long)) for _ in range(options.batches)]
    if options.data == "stream":
        return DataLoader(Stream(options.batches), BATCH, num_workers=options.workers)
    data = Points(options.batches, options.data == "dict", options.sample_ms, options.fatal_worker)
    sampler = DistributedSampler(data) if dist.is_initialized() else None
    collate = Batch if options.data == "object" else None
    return DataLoader(data, BATCH, sampler=sampler, num_workers=options.workers, persistent_workers=options.persistent, collate_fn=collate)


def run_epoch(model: nn.Module, loader: Any, optimizer: Any, accelerator: Any, options: argparse.Namespace) -> None:
    for index, batch in enumerate(loader):
        x, y = (batch["inputs"]["x"], batch["y"]) if options.data == "dict" else batch
        loss = nn.functional.cross_entropy(model(x), y) * (float("nan") if options.diverge else 1)
        if options.losses:
            sys.stdout.write(f"loss {loss.item().hex()}\n")
        if os.environ.get("RANK") == str(options.late_rank):
            time.sleep(0.03)
        accelerator.backward(loss) if accelerator else loss.backward()
        if (index + 1) % options.accumulate == 0:
            update(optimizer, options)
        if options.log:
            time.sleep(0.005)
    if options.count:
        sys.stdout.write(f"batches {index + 1}\n")


def validate(model: nn.Module, validation: Any) -> None:
    model.eval()
    with torch.no_grad():
        for (x,) in validation:
            model(x)
            time.sleep(0.005)
    model.train()


def main() -> None:
    options = parse()
    torch.manual_seed(0)
    if "RANK" in os.environ and not options.accelerate:
        dist.init_process_group("gloo")
    if options.chdir:
        os.chdir("/")
    if options.stdin:
        print("read", sys.stdin.readline().strip())
    if options.idle:
        return
    model: nn.Module = nn.Sequential(nn.Linear(FEATURES, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, CLASSES))
    loader, validation = make_loader(options), DataLoader(TensorDataset(torch.randn(64, FEATURES)), BATCH)
    accelerator = None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if options.accelerate:
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    elif dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(model)
    if options.compile:
        model = torch.compile(model, backend="eager")
    try:
        for epoch in range(options.epochs):
            if options.new_loader and epoch:
                loader = make_loader(options)
            run_epoch(model, loader, optimizer, accelerator, options)
            if options.validate:
                validate(model, validation)
            if options.save:
                torch.save(model, "model.pt")
    finally:
        finish(options)
    weights = sum(each.double().sum().item() for each in model.parameters())
    sys.stdout.write(f"weights {weights:.9f}\nrandom {torch.rand(1).item()}\n")  # one write: two ranks share a pipe
    if options.fork and os.fork() == 0:
        return  # the child, too, runs to the end of the script
    if options.fork:
        os.wait()
    if dist.is_initialized():
        dist.destroy_process_group()
    if options.fail:
        raise ValueError("no such luck")
    if options.interrupt:
        raise KeyboardInterrupt
    if options.signal:
        os.kill(os.getpid(), options.signal)
    if options.exit is not None:
        sys.exit(options.exit)


if __name__ == "__main__":
    main()
