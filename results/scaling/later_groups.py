"""Step time of DDP on the first process group, and on groups created later in the same launch.

    NCCL_NVLS_ENABLE=0 torchrun --standalone --nproc_per_node=2 results/scaling/later_groups.py one,destroy,many

The argument lists what follows after the first group has trained: ``bus``, large all-reduces; ``one``, a group of rank 0 alone, which
trains, and with ``destroy`` ends; ``many``, six more groups of all ranks. With ``lazy`` each group connects at its first use instead of at
its creation. Prints, per rank, the milliseconds of a step by the wall clock, and of forward, backward and optimizer by CUDA events.
"""

from __future__ import annotations

import os
import sys
from time import perf_counter

import torch
import torchvision
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

BATCH, WARMUP, STEPS, MORE_GROUPS = 256, 8, 20, 6
BUS_MB = (1, 25, 100, 1000)
BACKENDS = "cpu:gloo,cuda:nccl"


class Bench:
    """A ResNet-50 in mixed precision that trains on a given process group."""

    def __init__(self, device: torch.device) -> None:
        torch.manual_seed(0)
        self.host = dist.new_group(backend="gloo")
        self.model = torchvision.models.resnet50().to(device).to(memory_format=torch.channels_last)
        self.images = torch.randn(BATCH, 3, 224, 224, device=device).contiguous(memory_format=torch.channels_last)
        self.labels = torch.randint(0, 1000, (BATCH,), device=device)
        self.loss_of, self.scaler = torch.nn.CrossEntropyLoss(), torch.amp.GradScaler("cuda")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6, momentum=0.9, fused=True)

    def measure(
        self, name: str, group: dist.ProcessGroup | None = None, *, alone: bool = False, ddp: bool = True, synced: bool = False
    ) -> None:
        """Print a line. With ``alone`` only rank 0 trains; with ``synced`` the host waits for every step."""
        line = None
        if dist.get_rank() == 0 or not alone:
            training = DistributedDataParallel(self.model, process_group=group, gradient_as_bucket_view=True) if ddp else self.model
            self._train(training, WARMUP, False)
            if not alone:
                dist.all_reduce(torch.zeros(1))
            begin = perf_counter()
            marks = self._train(training, STEPS, synced)
            wall_ms = 1e3 * (perf_counter() - begin) / STEPS
            spans = [sorted(step[at].elapsed_time(step[at + 1]) for step in marks)[STEPS // 2] for at in range(3)]
            line = "step {:.2f} fwd {:.2f} bwd {:.2f} opt {:.2f}".format(wall_ms, *spans)
            del training
            for parameter in self.model.parameters():
                parameter.grad = None
        of_ranks: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(of_ranks, line, group=self.host)
        if dist.get_rank() == 0:
            print(f"{name:<26}", "   ".join(line or "-" for line in of_ranks), flush=True)

    def _train(self, training: torch.nn.Module, steps: int, synced: bool) -> list[list[torch.cuda.Event]]:
        marks = []
        for _ in range(steps):
            step = [self._mark()]
            with torch.autocast("cuda", dtype=torch.float16):
                found = training(self.images)
                step.append(self._mark())
                loss = self.loss_of(found, self.labels)
            self.scaler.scale(loss).backward()
            step.append(self._mark())
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad(set_to_none=True)
            step.append(self._mark())
            marks.append(step)
            if synced:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        return marks

    @staticmethod
    def _mark() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def use_the_links(device: torch.device) -> None:
    for size in BUS_MB:
        buffer = torch.zeros(size * 250_000, device=device)
        for _ in range(5):
            dist.all_reduce(buffer)
    torch.cuda.synchronize()


def main(words: list[str]) -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True
    dist.init_process_group(BACKENDS, device_id=None if "lazy" in words else device)
    bench, all_ranks = Bench(device), list(range(dist.get_world_size()))
    bench.measure("fresh")
    bench.measure("fresh again")
    bench.measure("fresh, synced", synced=True)
    if "bus" in words:
        use_the_links(device)
        bench.measure("after bus")
    if "one" in words:
        one = dist.new_group([0], backend=BACKENDS)
        bench.measure("after new_group([0])")
        bench.measure("on [0], rank 0 alone", one, alone=True)
        bench.measure("after training on [0]")
        bench.measure("again")
        bench.measure("synced", synced=True)
        bench.measure("none", ddp=False)
        bench.measure("after none")
        if "destroy" in words:
            if dist.get_rank() == 0:
                dist.destroy_process_group(one)
            bench.measure("after destroying [0]")
    if "many" in words:
        for number in range(MORE_GROUPS):
            bench.measure(f"on group {number} of all", dist.new_group(all_ranks, backend=BACKENDS))
        bench.measure("on the default again")
    dist.barrier(group=bench.host)
    os._exit(0)  # the groups end with their process


if __name__ == "__main__":
    main(sys.argv[1].split(","))
