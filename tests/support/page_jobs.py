"""Synthetic, judged jobs for the golden pages of the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import records
from msgspec.structs import replace
from records import BUSY, GPU_HEALTH, RESNET50, STEADY

from ddpbench.analysis.judge import judge
from ddpbench.record.record import DatasetInfo, Fault, Job, KernelActivity, Record, Warmup
from ddpbench.record.roles import BASELINE
from ddpbench.record.roofline import DeviceLimits, LayerWork, Roofline, Work

UNEVEN = (0.9975, 1.0021, 0.9989, 1.0034, 0.9981)
"""Step time factors that are uncorrelated with those of the first arm."""


def data_bound() -> Job:
    return single_run(records.data_bound())


def compute_bound() -> Job:
    return single_run(records.record(kernel_activity=KernelActivity(step_ms=44.6, kernel_ms=43.8)))


def roofline() -> Job:
    """Convolutions near the limit of the tensor cores, batch norm at that of the memory, a small layer that only launches."""

    def work(flops: float, num_bytes: float, kernels: int, ms: float) -> Work:
        return Work(flops=flops, num_bytes=num_bytes, kernels=kernels, ms=ms)

    layers = [
        LayerWork(name="conv1", kind="Conv2d", forward=work(6.0e10, 4.9e8, 2, 0.31), backward=work(6.0e10, 1.1e9, 2, 0.62)),
        LayerWork(name="bn1", kind="BatchNorm2d", forward=work(0, 1.23e9, 2, 0.39), backward=work(0, 2.06e9, 1, 0.71)),
        LayerWork(name="layer1.0.conv1", kind="Conv2d", forward=work(6.6e9, 2.1e8, 1, 0.08), backward=work(1.3e10, 5.1e8, 2, 0.15)),
        LayerWork(name="layer1.0.bn1", kind="BatchNorm2d", forward=work(0, 3.1e8, 2, 0.09), backward=work(0, 5.1e8, 1, 0.14)),
        LayerWork(name="fc", kind="Linear", forward=work(1.0e9, 5.2e6, 2, 0.007), backward=work(2.1e9, 1.4e7, 3, 0.012)),
        LayerWork(name="(optimizer)", kind="", forward=work(0, 4.6e8, 4, 0.12), backward=work(0, 0, 0, 0)),
    ]
    limits = DeviceLimits(matmul_tflops=742.0, copy_gb_per_s=4210.0, launch_us=4.4)
    return single_run(records.record(roofline=Roofline(layers=layers, limits=limits)))


def lone_cpu() -> Job:
    """One process on a CPU, on synthetic data: no other rank, no GPU, no file."""
    phases = {"data": 0.02, "forward": 61.0, "backward": 128.0, "optimizer": 4.0}
    place = records.environment(1, device="Intel(R) Xeon(R) CPU @ 2.20GHz", usable_cores=2.0)
    return single_run(records.cpu_run(ranks=[phases], environment=place))


def cpu_pair() -> Job:
    return single_run(records.cpu_run())


def many_ranks() -> Job:
    """24 GPUs of three nodes, one of them slow."""
    ranks = [{**BUSY, "forward": BUSY["forward"] + 0.01 * (7 * rank % 24)} for rank in range(24)]
    ranks[17] = {**BUSY, "forward": 16.1, "backward": 31.9}
    slow = {17: {"health": replace(GPU_HEALTH, sm_mhz=1620.0, celsius=83.0, throttle_reasons=["hw-thermal"])}}
    return single_run(records.record(ranks, traces=slow, environment=records.environment(24, nodes=3, usable_cores=120.0)))


def no_health() -> Job:
    """A GPU without NVML."""
    place = records.environment(1, health_unavailable_reason="NVML: Driver/library version mismatch")
    return single_run(records.record([{**BUSY, "broadcast": 0.0, "sync": 0.0}], environment=place, traces={0: {"health": None}}))


def noisy() -> Job:
    """Noisy rounds."""
    return single_run(records.record(longer=(1.0, 1.09, 0.97, 1.12, 1.03)))


def one_round() -> Job:
    return single_run(records.record(longer=(1.0,), config=replace(RESNET50, rounds=1)))


def killed() -> Job:
    fault = Fault(
        message="rank 2 (node-01) killed (SIGKILL?): last heartbeat at step 51 (backward), at most 0.25 s before it died",
        hint="possibly the kernel's OOM killer: check dmesg; "
        "finished rounds are in results/runs/20261121T012930Z-resnet50-amp-fp16-torch.json",
        rank=2,
        step=51,
        phase="backward",
    )
    return single_run(records.record(longer=STEADY[:2], status="failed", fault=fault))


def hung_before_the_first_round() -> Job:
    fault = Fault(
        message="rank 1 (node-01) hung at step 0 (data): no progress for 300 s",
        hint="rank 1 was in next_batch, /home/me/loader.py:31",
        rank=1,
    )
    nothing: dict[str, Any] = {"data": None, "observed_precision": None, "warmup": None, "peak_throughput": None}
    return single_run(records.record(longer=(), status="hung", fault=fault, **nothing))


def interrupted() -> Job:
    return single_run(records.record(longer=STEADY[:3], status="interrupted", fault=Fault(message="interrupted by SIGTERM")))


def cut_off() -> Job:
    """The record of a run that was killed with all its processes."""
    return single_run(records.record(longer=STEADY[:3], status="interrupted", fault=Fault(message="its process is gone")))


def running() -> Job:
    return single_run(records.record(longer=STEADY[:3], status="running"))


def invalid() -> Job:
    dead = {"numerics": records.numerics(nonfinite_step=11, last_loss=None)}
    unready = Warmup(build_s=1.9, first_batch_s=0.4, first_step_s=6.1, warmup_steps=100, warmup_converged=False)
    return single_run(records.record(traces={rank: dead for rank in range(4)}, warmup=unready))


def precisions() -> Job:
    """Four precisions, one of them without a figure."""
    dead = {0: {"numerics": records.numerics(nonfinite_step=11, last_loss=None)}}
    return job_of_arms(
        [
            arm(2.15, precision="torch-default"),
            arm(5.56, UNEVEN, precision="fp32"),
            arm(1.0, UNEVEN, precision="amp-fp16"),
            arm(0.99, precision="o2", traces=dead),
        ],
        "precision",
    )


def compiled() -> Job:
    """A compiled arm that starts later and is faster."""
    started = Warmup(build_s=2.1, first_batch_s=0.0, first_step_s=41.0, warmup_steps=20, warmup_converged=True, compile_cache="cold")
    return job_of_arms([arm(1.2, UNEVEN, compile="off"), replace(arm(1.0, compile="default"), warmup=started)], "compile")


def loaders_and_batches() -> Job:
    """Two swept fields; one arm ran out of memory, one is no faster than the first, and rounds were cut short by Ctrl-C."""
    fault = Fault(
        message="out of memory at batch 512: peak 138.9 of 139.8 GiB, 0.77 GiB more requested on rank 0 (node-01)",
        hint="use a smaller batch: -b N",
        out_of_memory=True,
    )
    stopped = {"status": "interrupted", "fault": Fault(message="interrupted by SIGINT")}
    return job_of_arms(
        [
            arm(1.0, STEADY[:3], loader="torch", batch_size=256, **stopped),
            arm(1.001, UNEVEN[:3], loader="dali-cpu", batch_size=256, **stopped),
            arm(1.0, (), loader="torch", batch_size=512, status="failed", fault=fault),
        ],
        "loader",
        "batch_size",
    )


def two_rounds() -> Job:
    """Two rounds, too few for an interval, one of them slow."""
    return single_run(records.record(longer=(1.0, 1.4), config=replace(RESNET50, rounds=2)))


def few_steps() -> Job:
    """Two rounds of two steps that mostly wait for data."""
    config = replace(RESNET50, loader="torch", data_dir="/data/imagenet", rounds=2, steps=2)
    phases = {**BUSY, "data": 400.0, "broadcast": 0.0, "sync": 0.0}
    files = DatasetInfo(loader="torch", dataset="imagenet", file_kind="jpegs", num_samples=1_281_167)
    return single_run(records.record([phases], longer=(1.0, 1.1), steps=2, config=config, data=files))


def neighbour() -> Job:
    """Two CPU ranks that always compute but get half a core each."""
    return single_run(records.cpu_run(traces={rank: {"cpu_s": 2.1} for rank in range(2)}))


def crowded() -> Job:
    """Four ranks with two threads each on two cores."""
    phases = {"data": 0.1, "broadcast": 0.9, "forward": 61.0, "backward": 128.0, "sync": 90.0, "optimizer": 4.0}
    two = records.environment(4, device="Intel(R) Xeon(R) CPU @ 2.20GHz", usable_cores=2.0, variables={"OMP_NUM_THREADS": "2"})
    return single_run(records.cpu_run(ranks=[phases] * 4, environment=two))


def slow_steps() -> Job:
    """A CPU on which a default round has one step."""
    return single_run(records.cpu_run(steps=1))


def loader_and_ceiling() -> Job:
    """A data-bound run compared with synthetic data."""
    return job_of_arms([records.data_bound(), arm(1.0, loader="synthetic", data_dir="/data/imagenet", workers=16)], "loader")


def processor_arms() -> Job:
    """Two precisions on CPU, interrupted when the second had one round less."""
    stopped = {"status": "interrupted", "fault": Fault(message="interrupted by SIGINT")}
    fast = {"forward": 31.0, "backward": 66.0, "optimizer": 4.0}
    float32 = records.cpu_run(longer=STEADY[:3], **stopped)
    config = replace(float32.config, precision="amp-bf16")
    bfloat16 = records.cpu_run(
        ranks=[fast] * 2, longer=UNEVEN[:2], config=config, observed_precision=records.matching_precision("amp-bf16"), **stopped
    )
    return job_of_arms([float32, bfloat16], "precision")


def accelerate_alone() -> Job:
    """Accelerate in a process group of one rank, without DDP."""
    place = records.environment(1, launcher="torchrun", backend="nccl")
    alone = {**BUSY, "broadcast": 0.0, "sync": 0.0}
    return single_run(records.record([alone], environment=place, config=replace(RESNET50, engine="accelerate")))


def many_arms() -> Job:
    """Eight noisy arms of four fields; one ran out of memory."""
    fault = Fault(
        message="out of memory at batch 512: peak 138.9 of 139.8 GiB, 0.77 GiB more requested on rank 0 (node-01)",
        hint="use a smaller batch: -b N",
        out_of_memory=True,
    )
    each = [
        {"precision": precision, "batch_size": batch, "engine": engine, "compile": compiled}
        for precision, batch in (("amp-fp16", 256), ("amp-bf16", 512))
        for engine in ("ddp", "accelerate")
        for compiled in ("off", "reduce-overhead")
    ]
    paces = [(1.0, 1.02 + 0.002 * index, 0.99, 1.01, 1.0) for index in range(len(each))]
    ends: list[dict[str, Any]] = [{}] * 7 + [{"status": "failed", "fault": fault}]
    arms = [
        arm(1 + index / 10, pace if end == {} else (), **settings, **end)
        for index, (settings, pace, end) in enumerate(zip(each, paces, ends, strict=True))
    ]
    return job_of_arms(arms, *each[0])


def engines() -> Job:
    """Both engines in a single process, for two rounds."""
    alone = {**BUSY, "broadcast": 0.0, "sync": 0.0}
    each = [replace(RESNET50, engine=engine, rounds=2) for engine in ("ddp", "accelerate")]
    return job_of_arms([records.record([alone], longer=(1.0, 1.003), config=config) for config in each], "engine")


def arm(slower: float, longer: tuple[float, ...] = STEADY, **changes: Any) -> Record:
    """An arm whose phases take ``slower`` times as long; ``changes`` are fields of its Config or Record."""
    settings = {name: changes.pop(name) for name in list(changes) if name in RESNET50.__struct_fields__}
    ranks = [{phase: slower * span for phase, span in BUSY.items()}] * 4
    return records.record(ranks, longer=longer, config=replace(RESNET50, **settings), **changes)


def watched_script() -> Job:
    return watching(records.watched_script())


def script_without_loader() -> Job:
    return watching(records.script_without_loader())


def script_only_watched() -> Job:
    """A diagnosis of the same script, which could only watch it."""
    record = records.script_without_loader()
    assert record.script is not None
    script = replace(record.script, only_watched="no-loader", ended_early=True)
    return replace(watching(replace(record, role=BASELINE, script=script)), kind="diagnose")


def watching(record: Record) -> Job:
    judge(record)
    command = ["torchrun", "--nproc_per_node=4", "-m", "ddpbench", "watch", "train.py", "--epochs", "3"]
    return Job(started="2026-11-21T01:29:30Z", command=command, kind="watch", records=[record])


def single_run(record: Record) -> Job:
    return job_of_arms([record])


def job_of_arms(arms: list[Record], *swept: str) -> Job:
    for record in arms:
        settled = {name: getattr(record.config, name) for name in swept}
        record.requested = replace(records.requested_config(record.config), **settled)
    job = records.job(*arms, swept=swept)
    for record in arms:
        judge(record, swept=job.swept)
    return job


PAGE_JOBS: Mapping[str, Callable[[], Job]] = {
    scene.__name__.replace("_", "-"): scene
    for scene in (
        data_bound,
        compute_bound,
        roofline,
        lone_cpu,
        cpu_pair,
        many_ranks,
        no_health,
        noisy,
        one_round,
        killed,
        hung_before_the_first_round,
        interrupted,
        cut_off,
        running,
        invalid,
        precisions,
        compiled,
        loaders_and_batches,
        two_rounds,
        few_steps,
        neighbour,
        crowded,
        slow_steps,
        loader_and_ceiling,
        processor_arms,
        accelerate_alone,
        many_arms,
        engines,
        watched_script,
        script_without_loader,
        script_only_watched,
    )
}
