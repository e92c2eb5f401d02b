"""End of a loader: closed, killed with its rank, or by a damaged image or dead worker."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import sample_datasets
import torch
from open_loaders import NO_DALI, config, opened, take
from polling import wait_until
from torch.utils.data import DataLoader, Dataset

from ddpbench.data.batch_timing import Stopwatch
from ddpbench.data.datasets.samples import Collate, Sample
from ddpbench.data.loaders.start_workers import no_torch_sigchld_handler
from ddpbench.data.loaders.workers import DataLoaderAdapter
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import BenchError
from ddpbench.record.record import DatasetInfo


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample_datasets.image_tree(tmp_path_factory.mktemp("tree"))


class Collecting(Dataset[Sample]):
    """Collect garbage in the worker, as Python does wait_until."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Sample:
        gc.collect()
        return torch.zeros(3, 8, 8), index


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("loader", ["torch", "torch-uint8"])
def test_damaged_image_is_named_by_torch_loaders(loader: str, workers: int, tmp_path: Path) -> None:
    check_damaged_image_is_named(config(loader, tmp_path, workers=workers), tmp_path)


@NO_DALI
def test_damaged_image_is_named_by_dali(tmp_path: Path) -> None:
    check_damaged_image_is_named(config("dali-cpu", tmp_path), tmp_path)


def check_damaged_image_is_named(settled: ResolvedConfig, root: Path) -> None:
    damaged = sample_datasets.image_tree(root) / "train" / "n00000002" / "1.JPEG"
    sample_datasets.truncate(damaged)
    with opened(settled) as live, pytest.raises(BenchError, match=str(damaged)) as error:
        take(live, 9)
    assert "\n" not in error.value.message


def test_failed_worker_start_restores_the_sigchld_handler() -> None:
    def start() -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)  # as torch does with its own handler
        raise OSError("no more processes")

    before = signal.getsignal(signal.SIGCHLD)
    with pytest.raises(OSError, match="no more processes"), no_torch_sigchld_handler():
        start()
    assert signal.signal(signal.SIGCHLD, before) is before


@pytest.mark.slow
def test_dead_worker_is_reported_with_its_signal(tree: Path) -> None:
    with opened(config("torch", tree, workers=2)) as live:
        take(live, 1)
        victim = live.worker_pids()[1]
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(BenchError, match=rf"loader worker {victim} died: SIGKILL"):
            take(live, 100)


def test_closing_ends_the_workers(tree: Path) -> None:
    with opened(config("torch", tree, workers=2, prefetch=3)) as live:
        pids = live.worker_pids()
        assert len(set(pids)) == 2
        assert all(psutil.pid_exists(pid) for pid in pids)
        assert live.max_prefetched == 6
        take(live, 1)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert live.worker_pids() == []


@NO_DALI
def test_closing_ends_the_dali_threads(tree: Path) -> None:
    with opened(config("dali-cpu", tree)) as live:  # creates what DALI keeps permanently
        take(live, 1)
    threads = psutil.Process().num_threads
    before = threads()
    with opened(config("dali-cpu", tree, workers=4, prefetch=3)) as live:
        take(live, 1)
        assert threads() >= before + 4
        assert (live.worker_pids(), live.max_prefetched) == ([], 3)
    assert wait_until(lambda: threads() <= before, 30)


@NO_DALI
def test_workers_start_while_a_dali_pipeline_is_garbage(tree: Path) -> None:
    gc.disable()
    try:
        with opened(config("dali-cpu", tree)) as live:
            take(live, 1)
            garbage = [live.host._pool._pipelines]  # type: ignore[attr-defined]
            garbage.append(garbage)
        del live, garbage
        collate = Collate(Stopwatch())
        workers = DataLoaderAdapter(
            DataLoader(Collecting(), num_workers=1, collate_fn=collate), DatasetInfo(loader="collecting"), torch.abs
        )
        workers.next_batch()
        workers.close()
    finally:
        gc.enable()


@pytest.mark.slow
def test_hung_workers_exit_with_their_killed_rank(tree: Path) -> None:
    script = """
import sys, time, torch
from ddpbench.data.loaders.open import open_loader
from ddpbench.data.shard import Shard
from ddpbench.bench.resolve import resolve_config
from ddpbench.record.config import Config
asked = Config(
    workload="resnet18", loader="torch", data_dir=sys.argv[1], batch_size=2, image_size=32, workers=2, channels_last=True
)
loader = open_loader(resolve_config(asked, False, 1), Shard("imagenet", 1000, 0, 1, torch.device("cpu")))
loader.next_batch(lambda: None)
print(*loader.worker_pids(), flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script, str(tree)], stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout
        workers = [psutil.Process(int(pid)) for pid in rank.stdout.readline().split()]
        for worker in workers:
            worker.suspend()
        rank.kill()
    assert len(workers) == 2
    assert wait_until(lambda: not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers), 30)


def test_workers_ignore_ctrl_c(tree: Path) -> None:
    with opened(config("torch", tree, workers=1)) as live:
        take(live, 1)
        os.kill(live.worker_pids()[0], signal.SIGINT)
        take(live, 12)
