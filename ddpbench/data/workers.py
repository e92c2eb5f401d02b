"""The loader ``torch``: DataLoader and its worker processes, as most people run it."""

from __future__ import annotations

import gc
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.utils.data import DataLoader

from ddpbench.data import folder, sets
from ddpbench.data.delivery import delivery
from ddpbench.data.loader import Batch
from ddpbench.data.pixels import in_layout
from ddpbench.data.plan import ShardPlan
from ddpbench.data.samples import ArraySamples, TreeSamples, array_transform, collate, tree_transform
from ddpbench.machine.signals import end_with_parent
from ddpbench.record.config import Config
from ddpbench.record.errors import BenchError
from ddpbench.record.record import Data

SHORT_OF_MEMORY = "short of memory, or of shared memory? see dmesg and 'df /dev/shm'; fewer workers (-j) or a smaller batch (-b) take less"


def open_workers(config: Config, dataset: str, classes: int, rank: int, world_size: int, device: torch.device) -> Workers:
    """Decoding starts at once, in ``config.workers`` processes that keep ``config.prefetch`` batches each; with none, in this one."""
    assert config.batch_size, "settled"
    samples, data = _samples(config, dataset)
    plan = ShardPlan(len(samples), config.batch_size, rank, world_size, config.seed, config.shuffle)
    return Workers(data_loader(samples, plan, config, rank, device), data, config.channels_last, device)


def _samples(config: Config, dataset: str) -> tuple[TreeSamples | ArraySamples, Data]:
    if dataset != "imagenet":
        arrays = sets.train(dataset, config.data_dir)
        transform = array_transform(dataset, config.image_size, config.augment)
        data = Data(loader="torch", description=arrays.description, images=len(arrays.labels), made=arrays.made)
        return ArraySamples(arrays, transform), data
    assert config.data_dir, "checked"
    assert config.image_size, "settled"
    tree = folder.read(config.data_dir)
    data = Data(loader="torch", description=tree.description, images=len(tree.files), made=tree.made)
    return TreeSamples(tree, tree_transform(config.image_size, config.augment)), data


def data_loader(
    samples: TreeSamples | ArraySamples, batches: Iterable[list[int]], config: Config, rank: int, device: torch.device
) -> DataLoader[Any]:
    """A DataLoader with the workers that ``config`` asks for, over ``batches`` of sample numbers."""
    assert config.workers is not None, "settled"
    return DataLoader(
        samples,
        batch_sampler=batches,
        num_workers=config.workers,
        prefetch_factor=config.prefetch if config.workers else None,
        collate_fn=collate,
        pin_memory=config.pin_memory and device.type == "cuda",
        worker_init_fn=tie_to_rank,
        generator=torch.Generator().manual_seed(config.seed + rank),
    )


def tie_to_rank(worker: int) -> None:
    """Run in a worker: it ends with its rank, however that ends, and leaves Ctrl-C and SLURM's signals, which reach all, to it."""
    end_with_parent(signal.SIGKILL)
    for left in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(left, signal.SIG_IGN)


class Workers:
    """Batches of a DataLoader. Where its plan never ends, its workers start once and never wait for an epoch's end."""

    def __init__(self, batches: DataLoader[Any], data: Data, channels_last: bool | None, device: torch.device) -> None:
        self.data = data
        self.in_flight = batches.num_workers * (batches.prefetch_factor or 0)
        self._deliver = delivery(device, lambda samples: in_layout(samples, channels_last))
        earlier, handler = multiprocessing.active_children(), signal.getsignal(signal.SIGCHLD)
        gc.collect()  # a worker would collect the garbage it inherits, and hang where that had threads, as a DALI pipeline has
        self._batches: Iterator[Batch | BenchError] = iter(batches)
        self._processes = [child for child in multiprocessing.active_children() if child not in earlier]
        if signal.getsignal(signal.SIGCHLD) is not handler:
            # torch's own raises wherever this process stands when a worker dies, in the middle of a step or of closing;
            # without it the death is noticed within 5 s, where a batch is asked for
            signal.signal(signal.SIGCHLD, handler)

    def next_batch(self, in_hand: Callable[[], None]) -> Batch:
        try:
            batch = next(self._batches)
        except (RuntimeError, OSError, EOFError) as problem:  # what a dead worker had handed over can often not be read either
            if ended := self._first_to_end():
                raise BenchError(f"loader worker {ended.pid} died: {_manner(ended)}", SHORT_OF_MEMORY) from problem
            raise
        if isinstance(batch, BenchError):
            raise batch
        in_hand()
        return self._deliver(*batch)

    def worker_pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.pid is not None]

    def close(self) -> None:
        if self._processes:
            self._batches._shutdown_workers()  # type: ignore[attr-defined]  # there is no public way, and a traceback may keep the iterator alive
            self._processes = []

    def _first_to_end(self) -> BaseProcess | None:
        """The worker that is dead or dies within a second."""
        ended = wait([process.sentinel for process in self._processes], timeout=1)
        return next((process for process in self._processes if process.sentinel in ended), None)


def _manner(ended: BaseProcess) -> str:
    """``SIGKILL``, or ``exit code 1``."""
    ended.join()
    code = ended.exitcode or 0
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
