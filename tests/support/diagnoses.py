"""Synthetic diagnoses with known figures, one for every bottleneck and root cause."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import records
from msgspec.structs import replace
from records import BUSY, RESNET50, STEADY

from ddpbench.analysis.judge import judge_all
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.diagnosis import Diagnosis, H2DBandwidth, LoaderBenchmark, NodeState, Storage
from ddpbench.record.environment import Environment
from ddpbench.record.loader_stats import CpuUsage, LoaderStats
from ddpbench.record.record import DatasetInfo, Job, KernelActivity, Record
from ddpbench.record.roles import BASELINE, COMPUTE_ONLY, INDEPENDENT, LOADER_IN_BACKGROUND, REPLAY, Role
from ddpbench.record.roofline import DeviceLimits, FusedWork, LayerWork, Roofline, Work

PIL_MS = {"read": 0.1, "decode": 5.9, "augment": 2.1, "collate": 1.0}
"""CPU milliseconds per image in a worker of the loader ``torch``."""

WORK = {phase: span for phase, span in BUSY.items() if phase != "data"}
IMAGENET = DatasetInfo(loader="torch", dataset="imagenet", file_kind="jpegs", num_samples=1_281_167)
CIFAR = DatasetInfo(loader="torch", dataset="cifar10", num_samples=50_000)
TORCH = replace(RESNET50, loader="torch", data_dir="/data/imagenet", workers=15)
UNEVEN = (0.9981, 1.0034, 0.9975, 1.0021, 0.9989)
STEPS = 20
XEON = "Intel(R) Xeon(R) CPU @ 2.20GHz"


def make_loader_stats(images: int, cpu_ms: Mapping[str, float], wall_ms: Mapping[str, float] | None = None, **more: Any) -> LoaderStats:
    """LoaderStats of ``images`` images; ``cpu_ms`` and ``wall_ms`` are milliseconds per image."""
    wall = {**cpu_ms, **(wall_ms or {})}
    return LoaderStats(
        samples=images,
        cpu_s={stage: images * span / 1000 for stage, span in cpu_ms.items()},
        wall_s={stage: images * span / 1000 for stage, span in wall.items()},
        **more,
    )


def data_wait(batch: int, images_per_s: float, work: Mapping[str, float] = WORK) -> float:
    """Data wait in ms per step of a rank whose loader delivers ``images_per_s``."""
    return 1000 * batch / images_per_s - sum(work.values()) - 0.4


def judged_once(build: Callable[..., Job]) -> Callable[..., Job]:
    """Cache the judged job of ``build``. Every call returns a copy, because tests modify jobs."""
    judged: dict[str, bytes] = {}

    @wraps(build)
    def copied(*args: Any, **changes: Any) -> Job:
        asked = repr((args, changes))
        if asked not in judged:
            judged[asked] = pickle.dumps(build(*args, **changes))
        job: Job = pickle.loads(judged[asked])
        return job

    return copied


@judged_once
def diagnosis(
    given: float | None,
    *,
    ranks: int = 4,
    cores: float = 64.0,
    config: ResolvedConfig = TORCH,
    work: Mapping[str, float] = WORK,
    device: Mapping[str, float] | None = None,
    no_sync: Mapping[str, float] | None = None,
    replay: Mapping[str, float] | None = None,
    background: Mapping[str, float] | None = None,
    rank_phases: Mapping[int, Mapping[str, float]] | None = None,
    cpu_ms: Mapping[str, float] = PIL_MS,
    wall_ms: Mapping[str, float] | None = None,
    wall_ms_of: Mapping[int, Mapping[str, float]] | None = None,
    stats: Mapping[str, Any] | None = None,
    busy: float = 0.3,
    others: float = 0.2,
    throttled: float | None = None,
    benchmark_rate: float | None = None,
    storage: Storage | None = None,
    files: DatasetInfo = IMAGENET,
    place: Environment | None = None,
    longer: tuple[float, ...] = UNEVEN,
    lead_ms: float | None = None,
    kernel_activity: KernelActivity | None = None,
    pageable: float = 12e9,
    single_rank_rate: float | None = None,
    background_delivery: float | None = None,
) -> Job:
    """A judged job like that of ``diagnose``.

    ``given`` is the rate in images/s of a rank's loader, for which the run waits; None if it does not wait. ``work`` holds the
    phases of the run in ms, and ``device`` and the others those of the control runs if they differ. ``cpu_ms`` and
    ``wall_ms`` are costs per image in a worker, ``stats`` more fields of LoaderStats. ``busy`` is the share of the ``cores`` that the job
    uses, ``others`` are cores used by other processes, and ``throttled`` those withheld by a quota.
    ``background_delivery`` is the fraction of a batch that the background loader delivered per step.
    """
    place = place or records.environment(ranks, usable_cores=cores)
    batch = config.batch_size or 0
    wait = 0.1 if given is None else data_wait(batch, given, work)
    phases = [{**work, "data": wait, **(rank_phases or {}).get(rank, {})} for rank in range(ranks)]
    step_s = (max(sum(each.values()) for each in phases) + 0.4) / 1000
    images, wall_s = batch * STEPS, step_s * STEPS

    def of_rank(rank: int, factor: float) -> dict[str, Any]:
        return {
            "loader_stats": make_loader_stats(images, cpu_ms, (wall_ms_of or {}).get(rank, wall_ms), **(stats or {})),
            "cpu_s": factor * busy * cores * wall_s / ranks,
            "cpu_usage": CpuUsage(
                num_cores=int(cores) if throttled is None else 4 * int(cores),
                busy_s=factor * (busy * cores + others) * wall_s,
                wall_s=factor * wall_s,
                throttled_s=None if throttled is None else factor * throttled * wall_s,
                cpu_pressure_fraction=0.3,
            ),
        }

    lead = {} if lead_ms is None else {"host_lead_ms": [lead_ms] * STEPS}
    common: dict[str, Any] = {"environment": place, "data": files}
    if place.device_type == "cpu":
        common |= {"observed_precision": records.matching_precision(config.precision), "num_parameters": 11_689_512}
    run = records.record(phases, longer=longer, config=config, traces={rank: of_rank(rank, 1.0) | lead for rank in range(ranks)}, **common)
    resident = replace(config, loader="synthetic", data_dir=None)

    def training(role: Role, changed: Mapping[str, float] | None, config: ResolvedConfig = config) -> Record:
        each = {**work, "data": 0.1, **(device or {}), **(changed or {})}
        given = (
            {"loader_stats": LoaderStats(samples=round(background_delivery * images))}
            if role == LOADER_IN_BACKGROUND and background_delivery is not None
            else {}
        )
        traces = {rank: {**lead, **given} for rank in range(ranks)}
        return records.record([each] * ranks, longer=STEADY, config=config, role=role, traces=traces, **common)

    trainings = [
        training(COMPUTE_ONLY, None, resident),
        *(
            [training(INDEPENDENT, {"sync": 0.0, "broadcast": 0.0, **(no_sync or {})}, replace(resident, engine="none"))]
            if ranks > 1
            else []
        ),
        training(REPLAY, {"host_to_device": 0.5, **(replay or {})}),
        training(LOADER_IN_BACKGROUND, background if background is not None else {"forward": work.get("forward", 0.0) * 1.05}),
    ]
    run.role, run.requested = BASELINE, replace(records.requested_config(config), loader=config.loader, workers=config.workers)
    trainings[0].kernel_activity = kernel_activity
    job = records.job(run, *trainings)
    job.kind = "diagnose"
    place_in = next(at for at, word in enumerate(job.command) if word == "ddpbench")
    job.command.insert(place_in + 1, "diagnose")
    speed = benchmark_rate or given or 9000.0
    job.diagnosis = Diagnosis(
        loader=config.loader or "",
        node_states=[
            NodeState(
                host=host,
                affinity_cores=int(cores) if throttled is None else 4 * int(cores),
                cpu_quota_cores=None if throttled is None else cores,
                slurm_cores=None,
                shm_free_bytes=400 * 10**9,
                usable_memory_bytes=1500 * 10**9,
                other_busy_cores=others,
            )
            for host in dict.fromkeys(each.host for each in place.placements)
        ],
        loader_benchmarks=[benchmark_of(rank, speed, batch, cpu_ms) for rank in range(ranks)],
        single_rank_loader_benchmark=benchmark_of(0, single_rank_rate or 1.4 * speed, batch, cpu_ms) if ranks > 1 else None,
        storage=storage
        or Storage(path="/data/imagenet", file_system="ext4", num_files=1_281_167, bytes_per_file=110e3, cached_fraction=1.0, **FAST),
        h2d_bandwidth=None
        if place.device_type == "cpu"
        else H2DBandwidth(pinned_bytes_per_s=52e9, pageable_bytes_per_s=pageable, bytes_per_sample=602_112.0),
    )
    judge_all(job)
    return job


FAST: dict[str, Any] = {"warm_files_per_s": 140_000.0, "cold_files_per_s": 20_000.0, "verified": True}


def benchmark_of(rank: int, speed: float, batch: int, cpu_ms: Mapping[str, float]) -> LoaderBenchmark:
    images = 40 * batch
    return LoaderBenchmark(
        rank=rank,
        elapsed_s=images / speed,
        samples=images,
        intervals_ms=[1000 * batch / speed] * 40,
        first_batch_s=1.8,
        loader_cpu_s=images * sum(cpu_ms.values()) / 1000,
        main_process_cpu_s=images * 0.003 / 1000,
        workers_rss_bytes=9 * 2**30,
        loader_stats=make_loader_stats(images, cpu_ms),
    )


SMALL: dict[str, Any] = {"forward": 20.0, "backward": 40.0, "optimizer": 2.0}
"""Phases of a rank on one core: 8 images in 62.4 ms."""


def cpu_diagnosis(given: float | None, **changes: Any) -> Job:
    """A diagnosis of two CPU ranks with one thread each on two cores."""
    config = records.cpu_run().config
    common: dict[str, Any] = {
        "ranks": 2,
        "cores": 2.0,
        "work": SMALL,
        "config": replace(config, **{"loader": "torch", "data_dir": "/data/imagenet", "workers": 1, **changes.pop("settings", {})}),
        "place": records.environment(2, device=XEON, usable_cores=changes.get("cores", 2.0), variables={"OMP_NUM_THREADS": "1"}),
        "busy": 0.95,
        "others": 0.02,
    }
    return diagnosis(given, **{**common, **changes})


def too_few_workers() -> Job:
    return diagnosis(430.0, config=replace(TORCH, workers=2), cpu_ms={"read": 0.1, "decode": 2.4, "augment": 1.6, "collate": 0.5}, busy=0.2)


def too_few_cores() -> Job:
    return diagnosis(320.0, cores=16.0, config=replace(TORCH, workers=3), busy=0.96)


def oversubscribed() -> Job:
    wall_ms = {stage: 8 * span for stage, span in PIL_MS.items()}
    return diagnosis(290.0, cores=16.0, config=replace(TORCH, workers=16), wall_ms=wall_ms, busy=0.97)


def quota() -> Job:
    """A quota of 16 of 64 cores, of which the job wants 25."""
    return diagnosis(300.0, cores=16.0, busy=0.95, throttled=9.8)


def slow_storage() -> Job:
    slow = Storage(
        path="/data/imagenet",
        file_system="nfs4",
        num_files=1_281_167,
        bytes_per_file=110e3,
        cached_fraction=0.05,
        warm_files_per_s=90e3,
        cold_files_per_s=3100.0,
    )
    return diagnosis(380.0, wall_ms={"read": 30.0}, storage=slow)


def slow_decode() -> Job:
    """Decode alone exceeds these cores; they could do the rest twice."""
    return diagnosis(1050.0, cpu_ms={"read": 0.05, "decode": 14.0, "augment": 1.5, "collate": 0.3}, busy=0.96)


def heavy_augmentation() -> Job:
    return diagnosis(1050.0, cpu_ms={"read": 0.05, "decode": 1.5, "augment": 14.0, "collate": 0.3}, busy=0.96)


def slow_collate() -> Job:
    return diagnosis(1050.0, cpu_ms={"read": 0.05, "decode": 1.2, "augment": 0.5, "collate": 14.0}, busy=0.96)


def slow_handoff() -> Job:
    cheap = {"read": 0.05, "decode": 0.9, "augment": 0.4, "collate": 0.1}
    wait = data_wait(256, 2500.0)
    return diagnosis(2500.0, cpu_ms=cheap, stats={"handoff_ms": 0.9 * wait, "head_of_line_fraction": 0.0}, benchmark_rate=2600.0)


def head_of_line() -> Job:
    cheap = {"read": 0.05, "decode": 1.2, "augment": 0.6, "collate": 0.1}
    return diagnosis(4100.0, cpu_ms=cheap, stats={"handoff_ms": 0.4, "head_of_line_fraction": 0.85}, benchmark_rate=4300.0)


def far_away(sharing: float = 1.0, **changes: Any) -> Job:
    """Four workers wait for remote storage for every sample and hardly use the CPU."""
    wait = {"cpu_ms": {"sample": 0.2, "collate": 0.1}, "wall_ms": {"sample": 12.0}, "stats": {"runqueue_wait_s": 0.1}}
    return diagnosis(330.0, config=replace(TORCH, workers=4), single_rank_rate=330.0 * sharing, **{**wait, **changes})


def storage_of_ones_own() -> Job:
    """Reading and decoding are one function that hardly uses the CPU."""
    return far_away(cpu_ms={"decode": 0.3, "augment": 0.2, "collate": 0.1}, wall_ms={"decode": 12.0})


def storage_on_busy_cores() -> Job:
    """Others keep all cores busy, but the kernel reports hardly any run-queue wait of workers."""
    return diagnosis(700.0, wall_ms={"read": 30.0}, stats={"runqueue_wait_s": 0.1}, busy=0.3, others=44.0)


def storage_or_cores() -> Job:
    """Workers wait for files and all cores are busy: the cause is ambiguous."""
    return diagnosis(700.0, wall_ms={"read": 30.0}, busy=0.97)


def one_rank() -> Job:
    cheap = {"read": 0.1, "decode": 1.0, "augment": 0.6, "collate": 0.1}
    return diagnosis(None, rank_phases={2: {"data": 60.0}}, cpu_ms=cheap, wall_ms_of={2: {"read": 8.0}})


def last_of_slow_ranks() -> Job:
    """All loaders are equally slow, and the others wait for the marginally slowest rank."""
    cheap = {"read": 0.05, "decode": 1.5, "augment": 14.0, "collate": 0.3}
    return diagnosis(None, rank_phases={2: {"data": 200.0}}, cpu_ms=cheap, wall_ms_of={2: {"augment": 14.4}}, busy=0.96)


def loader_contends_cpu() -> Job:
    slowed = {"forward": 31.0, "backward": 61.0}
    return cpu_diagnosis(
        None, work={**SMALL, **slowed}, device=SMALL, background=slowed, cpu_ms={"decode": 3.0, "augment": 0.9, "collate": 0.1}
    )


def decode_on_the_cores_that_train() -> Job:
    """Decoding exceeds two cores even without training; with the background loader a step takes four times as long."""
    slowed = {"forward": 40.0, "backward": 80.0}
    cpu_ms = {"read": 0.1, "decode": 24.0, "augment": 0.3, "collate": 0.1}
    return cpu_diagnosis(36.0, work={**SMALL, **slowed}, device=SMALL, background={"forward": 80.0, "backward": 160.0}, cpu_ms=cpu_ms)


def loader_contends_gpu(**changes: Any) -> Job:
    slowed = {"forward": 19.0, "backward": 36.0}
    config = replace(TORCH, loader="dali-gpu", workers=8)
    return diagnosis(
        None, config=config, work={**WORK, **slowed}, device=WORK, background=slowed, cpu_ms={}, benchmark_rate=17_974.0, **changes
    )


def noisy_neighbour() -> Job:
    wall_ms = {stage: 2.5 * span for stage, span in {"decode": 1.6, "augment": 0.8, "collate": 0.2}.items()}
    return diagnosis(2000.0, wall_ms=wall_ms, cpu_ms={"read": 0.05, "decode": 1.6, "augment": 0.8, "collate": 0.2}, busy=0.4, others=38.0)


def neighbour_on_processors() -> Job:
    slowed = {**SMALL, "forward": 36.0, "backward": 74.0}
    return cpu_diagnosis(None, work=slowed, background=slowed, busy=0.5, others=0.98, cpu_ms={"decode": 0.2})


def host_to_device() -> Job:
    cheap = {"read": 0.05, "decode": 0.9, "augment": 0.4, "collate": 0.1}
    config = replace(TORCH, pin_memory=False)
    return diagnosis(None, config=config, work={**WORK, "host_to_device": 18.0}, device=WORK, cpu_ms=cheap, pageable=6e9)


def replay_bound() -> Job:
    cheap = {"read": 0.05, "decode": 0.9, "augment": 0.4, "collate": 0.1}
    return diagnosis(
        None, work={**WORK, "forward": 22.0}, device=WORK, replay={"forward": 21.8}, background={"forward": 14.2}, cpu_ms=cheap
    )


def with_layers(job: Job, fused: FusedWork | None) -> Job:
    """``job`` with the roofline of its compute-only run: 20 of its 44.4 ms in layers that fused kernels would replace."""
    nothing = Work(flops=0, num_bytes=0, kernels=0, ms=0)
    layers = [
        LayerWork(name=name, kind="", forward=Work(flops=0, num_bytes=1e9, kernels=1, ms=ms), backward=nothing)
        for name, ms in (("conv", 23.0), ("bn", 20.0))
    ]
    limits = DeviceLimits(matmul_tflops=700.0, copy_gb_per_s=4000.0, launch_us=4.0)
    job.records[1].roofline = Roofline(layers=layers, limits=limits, fused=fused)
    return job


def launch_bound() -> Job:
    cheap = {"read": 0.05, "decode": 0.9, "augment": 0.4, "collate": 0.1}
    return diagnosis(None, cpu_ms=cheap, kernel_activity=KernelActivity(step_ms=44.4, kernel_ms=21.0), lead_ms=0.2)


def sync_bound() -> Job:
    cheap = {"read": 0.05, "decode": 0.9, "augment": 0.4, "collate": 0.1}
    return diagnosis(None, work={**WORK, "sync": 14.0}, cpu_ms=cheap)


def compute_bound() -> Job:
    return diagnosis(None, cpu_ms={"read": 0.05, "decode": 0.9, "augment": 0.4, "collate": 0.1})


@judged_once
def competing() -> Job:
    """Compute-bound in half of the rounds and data-bound in the others."""
    cheap = {"decode": 0.9, "augment": 0.4, "collate": 0.1}
    job, slow = diagnosis(None, cpu_ms=cheap), diagnosis(4550.0, cpu_ms=cheap)
    job.records[0].rounds[1::2] = slow.records[0].rounds[1::2]
    judge_all(job)
    return job


def cifar_per_sample() -> Job:
    """Two ranks on two cores that crop and flip per sample, for a very small model."""
    fast = {"forward": 3.0, "backward": 5.5, "optimizer": 0.5}
    cpu_ms, wall_ms = {"augment": 0.20, "collate": 0.004}, {"augment": 0.26, "collate": 0.005}
    settings = {"workload": "wrn10x1-cifar10", "data_dir": "/data/cifar10", "batch_size": 128, "image_size": 32}
    return cpu_diagnosis(3600.0, settings=settings, work=fast, cpu_ms=cpu_ms, wall_ms=wall_ms, files=CIFAR, busy=0.98)


DIAGNOSES: Mapping[str, tuple[Callable[[], Job], str, str | None]] = {
    scene.__name__.replace("_", "-"): (scene, kind, cause)
    for scene, kind, cause in (
        (too_few_workers, "data-bound", "too-few-workers"),
        (too_few_cores, "data-bound", "too-few-cores"),
        (oversubscribed, "data-bound", "oversubscribed"),
        (quota, "data-bound", "quota"),
        (slow_storage, "data-bound", "storage"),
        (slow_decode, "data-bound", "decode"),
        (heavy_augmentation, "data-bound", "augment"),
        (slow_collate, "data-bound", "collate"),
        (slow_handoff, "data-bound", "handoff"),
        (head_of_line, "data-bound", "head-of-line"),
        (far_away, "data-bound", "too-few-workers"),
        (storage_of_ones_own, "data-bound", "storage"),
        (storage_on_busy_cores, "data-bound", "storage"),
        (storage_or_cores, "data-bound", None),
        (one_rank, "straggler", "one-rank"),
        (last_of_slow_ranks, "data-bound", "augment"),
        (loader_contends_cpu, "loader-contends-cpu", None),
        (decode_on_the_cores_that_train, "data-bound", "decode"),
        (loader_contends_gpu, "loader-contends-gpu", None),
        (noisy_neighbour, "noisy-neighbour", None),
        (neighbour_on_processors, "noisy-neighbour", None),
        (host_to_device, "host-to-device-bound", None),
        (replay_bound, "host-to-device-bound", None),
        (launch_bound, "launch-bound", None),
        (sync_bound, "sync-bound", None),
        (compute_bound, "compute-bound", None),
        (competing, "inconclusive", None),
        (cifar_per_sample, "data-bound", "augment"),
    )
}
"""Name -> builder, expected bottleneck, and expected cause; None if ambiguous or without cause."""
