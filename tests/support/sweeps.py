"""Synthetic jobs whose rounds train from scratch: sweeps, reproductions and crossovers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import records
from msgspec.structs import replace

from ddpbench.published.publications import PublishedMean, load_publication
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.record import DatasetInfo, Fault, Job, Record, Round
from ddpbench.record.registry import find_precision
from ddpbench.record.roles import EARLIER_MODEL_ALIVE, side_role
from ddpbench.record.trace import Memory

MIB = 2**20
SPREAD = (-1.2, 0.4, 0.0, 1.3, -0.5)
"""Five values of mean 0 and standard deviation nearly 1."""

VGG = ResolvedConfig(
    workload="vgg16-cifar10",
    precision="fp32",
    batch_size=128,
    image_size=32,
    optimizer_impl="fused",
    lr=0.01,
    momentum=0.9,
    weight_decay=1e-4,
    channels_last=True,
    loader="tensor",
    workers=0,
    warmup=10,
    device="cuda",
    fresh=True,
    steps=100,
)

COMPUTES = {"data": 0.1, "forward": 3.0, "backward": 6.0, "optimizer": 0.9}
WAITS = {"data": 8.3, "forward": 0.5, "backward": 1.0, "optimizer": 0.2}
"""A step of 10 ms with 83% data wait."""


def repeats(mean: float, sd: float = 0.0, rounds: int = 5) -> list[float]:
    """Values with about this mean and standard deviation; the order depends on the mean, so that arms are uncorrelated."""
    turn = round(1000 * mean) % 5
    return [mean + sd * place for place in (SPREAD[turn:] + SPREAD[:turn])[:rounds]]


def sweep_point(
    workload: str = "vgg16-cifar10",
    name: str = "fp32",
    batch: int = 128,
    *,
    seconds: Sequence[float] = (5.0, 5.1, 4.9, 5.05, 4.95),
    accuracy: Sequence[float | None] = (),
    process: int | Sequence[int] | None = None,
    allocated: int | None = None,
    phases: dict[str, float] = COMPUTES,
    device: str = "NVIDIA H200",
    settings: dict[str, Any] | None = None,
    numerics: dict[str, Any] | None = None,
    steps: int = 20,
    **changes: Any,
) -> Record:
    """One sweep point: rounds last ``seconds`` and end at ``accuracy``; steps divide the time like ``phases``."""
    config = replace(VGG, workload=workload, precision=find_precision(name).name, batch_size=batch, **(settings or {}))
    place = records.environment(1, device=device)
    cpu = place.device_type == "cpu"
    rounds = []
    for index, wall_s in enumerate(seconds):
        step_ms = 1000 * wall_s / steps
        share = step_ms / sum(phases.values())
        on_gpu = process[index] if isinstance(process, Sequence) else process
        held = Memory(host_rss_bytes=900 * MIB) if cpu else Memory(process_bytes=on_gpu, allocated_bytes=allocated)
        reached = accuracy[index] if index < len(accuracy) else None
        shown = records.numerics(**{"last_loss": 1.2, "mean_loss": 1.7, "accuracy": reached, **(numerics or {})})
        spans = {phase: share * span for phase, span in phases.items()}
        traced = records.trace(0, step_ms, spans, steps=steps, batch=batch, memory=held, numerics=shown)
        rounds.append(Round(index=index, traces=[traced], samples=batch * steps, wall_s=wall_s))
    fields: dict[str, Any] = {
        "config": config,
        "environment": place,
        "status": "ok",
        "num_parameters": 33_650_624,
        "data": DatasetInfo(loader="tensor", dataset="cifar10", num_samples=50_000),
        "observed_precision": records.matching_precision(config.precision),
        "rounds": rounds,
    }
    return Record(**{**fields, **changes})


def no_memory(name: str, batch: int) -> Record:
    fault = Fault(
        message=f"out of memory at batch {batch}: peak 138.9 of 139.8 GiB, 13.4 GiB more requested on rank 0 (node-01)",
        hint="use a smaller batch: -b N",
        out_of_memory=True,
    )
    return sweep_point(name=name, batch=batch, seconds=(), status="failed", fault=fault)


def job(*cells: Record, swept: Sequence[str] = ("precision", "batch_size"), command: str = "sweep vgg16-cifar10") -> Job:
    return Job(started="2026-11-21T01:29:30Z", command=["ddpbench", *command.split()], swept=list(swept), records=list(cells))


def reproducing(name: str, job: Job) -> Job:
    """``job`` as a reproduction of the published experiment ``name``."""
    return replace(job, kind=f"reproduce {name}")


def published_vgg(gpu: str) -> Job:
    """The published sweep of a GPU as a job."""
    rows = [row for row in load_publication("vgg16-cifar10-batch-sweep").experiments[0].rows if row.gpu == gpu]
    cells = []
    for row in rows:
        assert isinstance(row.seconds, PublishedMean)
        assert isinstance(row.memory_mib, PublishedMean)
        assert row.accuracy_percent is not None
        cells.append(
            sweep_point(
                name=row.precision,
                batch=row.batch_size or 0,
                seconds=repeats(row.seconds.mean, row.seconds.std),
                accuracy=[each / 100 for each in repeats(row.accuracy_percent.mean, row.accuracy_percent.std)],
                process=[round(each * MIB) for each in repeats(row.memory_mib.mean, row.memory_mib.std)],
                device=gpu,
            )
        )
    return job(*cells)


def sweep() -> Job:
    """Three precisions at three batch sizes; AMP is out of memory at the largest, o2 is invalid at the smallest."""
    cells = []
    for batch, wall_s in ((128, 0.92), (256, 1.31), (512, 2.24)):
        for name, factor in (("fp32", 1.0), ("o2", 0.61), ("amp-fp16", 0.66)):
            if (name, batch) == ("amp-fp16", 512):
                cells.append(no_memory(name, batch))
            else:
                each = {"status": "invalid"} if (name, batch) == ("o2", 128) else {}
                cells.append(
                    sweep_point(
                        name=name,
                        batch=batch,
                        seconds=repeats(factor * wall_s, 0.01 * wall_s),
                        accuracy=repeats(0.41 + batch / 4000, 0.02),
                        process=int((1500 + 6 * batch * factor) * MIB),
                        **each,
                    )
                )
    return job(*cells)


def t4(wait: float = 0.83) -> Job:
    """The Tesla T4 experiment with plausible H200 results."""
    gemm = {"loader": "synthetic", "momentum": 0.0, "set_to_none": False}
    small = {"loader": "torch", "workers": 2, "epochs": 20, "steps": None}
    waits = {"data": 10 * wait, "forward": 3.3 * (1 - wait), "backward": 6.0 * (1 - wait), "optimizer": 0.7 * (1 - wait)}
    return job(
        sweep_point("gemm-mlp", "fp32", 512, seconds=repeats(0.62, 0.001), allocated=1_392_000_000, settings=gemm),
        sweep_point("gemm-mlp", "amp-fp16", 512, seconds=repeats(0.080, 0.0002), allocated=1_438_000_000, settings=gemm),
        sweep_point(
            "gemm-mlp", "amp-fp16", 512, seconds=repeats(0.081, 0.0002), allocated=1_619_000_000, settings=gemm, role=EARLIER_MODEL_ALIVE
        ),
        sweep_point("mnist-cnn", "fp32", 512, seconds=repeats(98.2, 0.4), allocated=417_400_000, phases=waits, settings=small),
        sweep_point("mnist-cnn", "amp-fp16", 512, seconds=repeats(97.4, 0.5), allocated=175_500_000, phases=waits, settings=small),
        sweep_point("mnist-cnn", "amp-fp16", 1024, seconds=repeats(96.9, 0.5), allocated=320_700_000, phases=waits, settings=small),
        command="reproduce t4-tensor-cores",
    )


def wrn(*extra: Record) -> Job:
    """The Wide-ResNet experiment: O3 diverges, and batch 512 on two cores for two models."""

    def levels(workload: str, batch: int, seconds: Sequence[float], phases: dict[str, float], **changes: Any) -> list[Record]:
        settings = {"epochs": 10, "steps": None, **({"loader": "torch", "workers": 2} if batch == 512 else {})}
        named = zip(("O0", "O1", "O2"), seconds, (11_300, 7_400, 6_900), (0.867, 0.861, 0.872), strict=True)
        return [
            sweep_point(
                workload,
                name,
                batch,
                seconds=repeats(wall_s, 0.002 * wall_s),
                accuracy=repeats(reached, 0.004),
                process=held * MIB,
                phases=phases,
                settings=settings,
                **changes,
            )
            for name, wall_s, held, reached in named
        ]

    dead = sweep_point(
        "wrn28x10-cifar10",
        "O3",
        seconds=repeats(80.0),
        accuracy=[0.1] * 5,
        process=6_800 * MIB,
        status="invalid",
        numerics={"nonfinite_step": 41, "last_loss": None, "mean_loss": None},
    )
    return job(
        *levels("wrn28x10-cifar10", 128, (301.0, 112.0, 104.0), COMPUTES, num_parameters=36_500_000),
        dead,
        *levels("wrn28x10-cifar10", 512, (420.0, 411.0, 409.0), {**WAITS, "data": 4.1}, num_parameters=36_500_000),
        *levels("wrn16x4-cifar10", 512, (402.0, 401.0, 400.0), WAITS, num_parameters=2_750_000),
        *extra,
        command="reproduce wrn-cifar10-apex-levels",
    )


def imagenet(gains: tuple[float, float] = (1.01, 1.02), phases: dict[str, float] = WAITS) -> Job:
    cells = []
    for workload, gain, wall_s in (("resnet18", gains[0], 40.0), ("resnet50", gains[1], 44.0)):
        for name, factor in (("fp32", 1.0), ("o2", gain)):
            settings = {"loader": "torch", "workers": 4, "steps": 360}
            cells.append(sweep_point(workload, name, 128, seconds=repeats(wall_s / factor, 0.1), phases=phases, settings=settings))
    return job(*cells, command="reproduce imagenet-resnet-slurm-vs-container")


def disc(cpu_s: Sequence[float], gpu_s: Sequence[float], depths: Sequence[int], sd: float = 0.01, device: str = "NVIDIA H200") -> Job:
    """Both devices at every depth, with the published parameter counts."""
    cells = []
    for depth, first, second in zip(depths, cpu_s, gpu_s, strict=True):
        common: dict[str, Any] = {"accuracy": [0.998] * 5, "num_parameters": disc_parameters(depth)}
        cells.append(
            sweep_point(
                f"disc-mlp-{depth}", batch=100, seconds=repeats(first, sd * first), device="Some CPU", role=side_role("CPU"), **common
            )
        )
        cells.append(
            sweep_point(
                f"disc-mlp-{depth}", batch=100, seconds=repeats(second, sd * second), device=device, role=side_role("GPU"), **common
            )
        )
    return job(*cells, swept=("workload",), command="crossover disc-mlp")


def disc_parameters(depth: int) -> int:
    """Weights and biases of layers 2, 4, 8, ... 2^depth, 2."""
    sizes = [2**layer for layer in range(1, depth + 1)] + [2]
    return sum(before * after + after for before, after in pairwise(sizes))


def crossing_disc(device: str = "NVIDIA H200") -> Job:
    """A compute-bound CPU and a launch-bound GPU with a crossover near depth 10."""
    depths = range(2, 13)
    cpu_s = [0.4 + 0.08 * depth + disc_parameters(depth) * 4.5e-6 for depth in depths]
    gpu_s = [1.1 + 0.29 * depth + disc_parameters(depth) * 2e-8 for depth in depths]
    return disc(cpu_s, gpu_s, list(depths), device=device)


def crossing_threads(rounds: int = 3) -> Job:
    """One CPU with one and two threads at eleven depths, with a crossover near 15,000 parameters."""
    cells = []
    for depth in range(2, 13):
        parameters = disc_parameters(depth)
        for threads, wall_s in ((1, 0.3 + 4.5e-6 * parameters), (2, 0.33 + 2.6e-6 * parameters)):
            changes: dict[str, Any] = {"role": side_role(f"CPU, {threads} thread{'s' * (threads > 1)}"), "sample_unit": "point"}
            seconds = repeats(wall_s, (0.006 + 0.001 * threads) * wall_s, rounds)
            settings = {"threads": threads, "device": "cpu", "rounds": rounds}
            name = f"disc-mlp-{depth}"
            cells.append(
                sweep_point(name, batch=100, seconds=seconds, device="Some CPU", num_parameters=parameters, settings=settings, **changes)
            )
    return job(*cells, swept=("workload", "threads"), command="crossover disc-mlp")


PUBLISHED: dict[str, Callable[[], Job]] = {
    "t4-tensor-cores": t4,
    "wrn-cifar10-apex-levels": wrn,
    "vgg16-cifar10-batch-sweep": lambda: published_vgg("V100"),
    "disc-mlp-cpu-vs-gpu": crossing_disc,
    "imagenet-resnet-slurm-vs-container": imagenet,
}
"""A complete job of every published experiment."""


def unfinished(whole: Callable[[], Job]) -> Iterator[Job]:
    """Unfinished variants of a job: missing, unstarted or failed arms, fewer rounds, or nothing."""
    count = len(whole().records)
    begun: dict[str, Any] = {"rounds": [], "data": None, "observed_precision": None, "warmup": None}
    for place in range(count):
        there = whole().records
        yield job(*there[:place], command="reproduce")
        yield job(*there[:place], *(replace(record, status="interrupted", **begun) for record in there[place:]), command="reproduce")
        broken = replace(there[place], status="failed", rounds=[], fault=Fault(message="out of memory at batch 1: ...", out_of_memory=True))
        yield job(*there[:place], broken, *there[place + 1 :], command="reproduce")
        fewer = [replace(record, rounds=record.rounds[: 2 if at < place else 1]) for at, record in enumerate(there)]
        yield job(*fewer, command="reproduce")
