"""All situations."""

from __future__ import annotations

from situations.places import busy_neighbours, groups, one_core
from situations.situation import Situation

CIFAR, TREE = "situations.workloads:light_cifar", "situations.workloads:light"
SMALL_TREE, HEAVY_TREE = "situations.workloads:small", "situations.workloads:heavy"
DENSE_TREE = "situations.workloads:dense"


def spoilt(loader: str, workers: int = 1, workload: str = TREE) -> tuple[str, ...]:
    return (workload, "--loader", f"situations.spoilt:{loader}", "-j", str(workers))


SITUATIONS = (
    Situation(
        name="slow-storage",
        done="a file object that limits every reader to 100 kB/s",
        words=spoilt("slow_storage", 2),
        tree=True,
        kind="data-bound",
        causes=("storage",),
    ),
    Situation(
        name="slow-storage-user-dataset",
        done="the same file object below a user-defined ImageFolder that reads and decodes in one function",
        words=spoilt("own_folder", 2),
        tree=True,
        kind="data-bound",
        causes=("storage",),
    ),
    Situation(
        name="slow-decode",
        done="8 ms of CPU time per image in decoding",
        words=spoilt("slow_decode"),
        tree=True,
        kind="data-bound",
        causes=("decode",),
    ),
    Situation(
        name="heavy-augmentation",
        done="8 ms of CPU time per image in augmentation",
        words=spoilt("heavy_augmentation"),
        tree=True,
        kind="data-bound",
        causes=("augment",),
    ),
    Situation(
        name="slow-collate",
        done="8 ms of CPU time per image in collate",
        steps=15,
        words=spoilt("slow_collate"),
        tree=True,
        kind="data-bound",
        causes=("collate",),
    ),
    Situation(
        name="too-few-workers",
        done="one worker per rank; each sample arrives 12 ms after its request, and any number of requests may overlap",
        words=(CIFAR, "--loader", "situations.spoilt:far_away", "-j", "1"),
        kind="data-bound",
        causes=("too-few-workers",),
    ),
    Situation(
        name="too-many-workers",
        done="8 workers per rank on two cores, and 3 ms of CPU time per image in decoding",
        words=spoilt("some_decode", 8, SMALL_TREE),
        tree=True,
        kind="data-bound",
        causes=("oversubscribed",),
    ),
    Situation(
        name="quota",
        done="a cgroup quota of one core on two cores" if groups() else "pinned to one of two cores with taskset",
        words=spoilt("some_decode", 1),
        tree=True,
        kind="data-bound",
        causes=("quota",) if groups() else ("too-few-cores", "decode"),
        place=one_core,
    ),
    Situation(
        name="one-rank-slow-data",
        done="the throttled file object on rank 1 only",
        words=spoilt("slow_on_one_rank", 1),
        tree=True,
        kind="straggler",
        causes=("one-rank",),
    ),
    Situation(
        name="one-rank-slow-computing",
        done="a forward that sleeps for 50 ms on rank 1",
        steps=30,
        words=("misbehaving:late", "--loader", "tensor"),
        variables={"FAULT_RANK": "1"},
        kind="straggler",
    ),
    Situation(
        name="heavy-tail",
        done="one image in 64 takes 0.8 s; four workers per rank are enough on average",
        steps=24,
        words=(*spoilt("heavy_tail", 4, HEAVY_TREE), "--prefetch", "1"),
        tree=True,
        kind="data-bound",
        causes=("head-of-line",),
    ),
    Situation(
        name="handoff",
        done="40 ms of work per batch in the trainer process",
        words=spoilt("slow_take_over", 1),
        tree=True,
        kind="data-bound",
        causes=("handoff",),
    ),
    Situation(
        name="busy-neighbour",
        done="a busy process on every core, and a training that needs almost no data",
        words=("situations.workloads:heavy_cifar", "--loader", "tensor"),
        kind="noisy-neighbour",
        place=busy_neighbours,
    ),
    Situation(
        name="loader-contends-cpu",
        done="3 ms of CPU time per image in decoding, on the cores of ranks that hardly wait for data",
        words=spoilt("some_decode", 1, HEAVY_TREE),
        tree=True,
        kind="loader-contends-cpu",
    ),
    Situation(
        name="sync-bound",
        done="13 million parameters, and two images per step",
        steps=15,
        words=("situations.workloads:wide_cifar", "--loader", "tensor"),
        kind="sync-bound",
    ),
    Situation(
        name="compute-bound",
        done="convolutions, and data in memory",
        steps=6,
        words=("situations.workloads:dense_cifar", "--loader", "tensor"),
        kind="compute-bound",
    ),
    Situation(
        name="well-fed",
        done="the same convolutions, and a cheap file loader that keeps up",
        steps=6,
        words=spoilt("fine", 1, DENSE_TREE),
        tree=True,
        kind="compute-bound",
    ),
    Situation(
        name="cifar-per-sample",
        done="CIFAR-10's crop and flip sample by sample, for a small network",
        steps=40,
        words=("situations.workloads:small_cifar", "--loader", "torch", "-j", "1"),
        kind="data-bound",
        causes=("augment",),
    ),
    Situation(
        name="pageable-copies",
        done="batches of large images, copied from pageable memory",
        words=(*spoilt("pageable", 8, "alexnet"), "--no-pin-memory", "-b", "64", "--precision", "amp-bf16", "--lr", "0.0001"),
        tree=True,
        kind="host-to-device-bound",
        cuda=True,
    ),
    Situation(
        name="slow-pin-path",
        done="a pin-memory thread that takes 40 ms per batch",
        words=spoilt("slow_pinning", 8),
        tree=True,
        kind="data-bound",
        causes=("handoff",),
        cuda=True,
    ),
    Situation(
        name="launch-bound",
        done="four hundred almost empty kernels",
        steps=100,
        words=("situations.workloads:deep_cifar", "--loader", "tensor"),
        kind="launch-bound",
        cuda=True,
    ),
    Situation(
        name="dali-gpu-contends",
        done="JPEGs decoded on the training GPU",
        words=("resnet18", "--amp", "--loader", "dali-gpu", "-j", "8"),
        kind="loader-contends-gpu",
        cuda=True,
    ),
)
"""Two ranks on two cores each; with ``cuda`` two GPUs (or the only one) and all cores."""
