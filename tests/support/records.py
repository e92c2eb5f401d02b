"""Synthetic but realistic records with known figures for tests of analysis and report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ddpbench.record.config import Config, ResolvedConfig
from ddpbench.record.environment import Environment, RankPlacement, Software
from ddpbench.record.flags import flag_fields
from ddpbench.record.record import DatasetInfo, Job, ObservedPrecision, PeakThroughput, Record, Round, Warmup
from ddpbench.record.registry import PRECISIONS
from ddpbench.record.script import WatchedScript
from ddpbench.record.trace import COLLECTIVE_PHASES, EPOCH_START_PHASE, PHASES, SCRIPT_PHASE, Health, Memory, Numerics, Trace
from ddpbench.record.verdict import RunCommand, ScalingVerdict, Verdict

GIB = 2**30

STEADY = (1.0, 1.00575, 0.99425, 1.002875, 0.997125)
"""Step time factor per round: a coefficient of variation of 0.45% without drift."""

BUSY = {"data": 0.1, "host_to_device": 0.3, "broadcast": 0.2, "forward": 13.9, "backward": 27.3, "sync": 0.8, "optimizer": 1.4}
"""Phases in ms of a rank whose GPU is always busy: ResNet-50, amp-fp16, batch 256 on an H200."""

SOFTWARE = Software(
    ddpbench="0.1.0",
    python="3.12.3",
    torch="2.11.0+cu130",
    torchvision="0.26.0+cu130",
    accelerate="1.12.0",
    dali="2.4.0",
    cuda="13.0",
    cudnn="9.15.1",
    nccl="2.28.9",
    driver="580.95.05",
)

RESNET50 = ResolvedConfig(
    workload="resnet50",
    precision="amp-fp16",
    batch_size=256,
    image_size=224,
    optimizer_impl="fused",
    lr=0.01,
    momentum=0.9,
    weight_decay=1e-4,
    channels_last=True,
    loader="synthetic",
    workers=8,
    warmup=10,
    fresh=False,
    validate=False,
    device="cuda",
)

OBSERVED_PRECISION = ObservedPrecision(
    parameter_dtypes=["float32"],
    gradient_dtypes=["float32"],
    batch_norm_dtypes=["float32"],
    first_layer_dtype="float16",
    last_layer_dtype="float16",
    tf32_matmul=True,
    tf32_cudnn=True,
    loss_scale=65536.0,
    optimizer="SGD fused",
)


def matching_precision(precision: str) -> ObservedPrecision:
    """ObservedPrecision that matches ``precision``; torch's default TF32 is on for cuDNN and off for matmul."""
    if precision not in PRECISIONS:
        return OBSERVED_PRECISION
    spec = PRECISIONS[precision]
    matmul, cudnn = (False, True) if spec.tf32 is None else (spec.tf32, spec.tf32)
    held = sorted({spec.model_dtype, spec.batch_norm_dtype})
    shown = {
        "parameter_dtypes": held,
        "gradient_dtypes": held,
        "batch_norm_dtypes": [spec.batch_norm_dtype],
        "first_layer_dtype": spec.layer_dtype,
        "last_layer_dtype": spec.layer_dtype,
        "tf32_matmul": matmul,
        "tf32_cudnn": cudnn,
        "loss_scale": 65536.0 if spec.loss_scaling else None,
        "master_weight_dtype": "float32" if spec.master_weights else "",
    }
    return ObservedPrecision(**{**_fields(OBSERVED_PRECISION), **shown})


GPU_MEMORY = Memory(
    allocated_bytes=int(12.0 * GIB),
    reserved_bytes=int(13.4 * GIB),
    process_bytes=int(14.1 * GIB),
    device_used_bytes=int(14.6 * GIB),
    device_total_bytes=int(139.8 * GIB),
    host_rss_bytes=int(3.2 * GIB),
    workers_rss_bytes=int(9.6 * GIB),
)

CPU_MEMORY = Memory(host_rss_bytes=int(1.1 * GIB), workers_rss_bytes=int(0.4 * GIB))

GPU_HEALTH = Health(sm_mhz=1980.0, sm_mhz_min=1980.0, watts=242.0, celsius=41.0, other_processes=0, samples=30)


H200_TFLOPS = {"float32": 51.0, "tf32": 384.0, "float16": 761.0, "bfloat16": 788.0}


def environment(ranks: int = 4, *, nodes: int = 1, device: str = "NVIDIA H200", usable_cores: float = 60.0, **changes: Any) -> Environment:
    """``ranks`` spread evenly over ``nodes`` named node-01, node-02 ...; a ``device`` with CPU in its name gives CPU ranks."""
    cpu = "CPU" in device
    local = ranks // nodes
    places = [
        RankPlacement(
            rank=rank,
            host=f"node-{rank // local + 1:02}",
            pid=4000 + rank,
            local_rank=rank % local,
            node_rank=rank // local,
            device_name=device,
            device_id="" if cpu else f"GPU-{rank:08x}",
            device_total_bytes=None if cpu else GPU_MEMORY.device_total_bytes,
            usable_cores=usable_cores,
        )
        for rank in range(ranks)
    ]
    common: dict[str, Any] = {
        "software": SOFTWARE,
        "world_size": ranks,
        "nodes": nodes,
        "launcher": "torchrun" if ranks > 1 else "python",
        "backend": "none" if ranks == 1 else "gloo" if cpu else "nccl",
        "device_type": "cpu" if cpu else "cuda",
        "placements": places,
        "os": "Ubuntu 24.04.3 LTS",
        "cpu": "Intel(R) Xeon(R) Platinum 8468",
    }
    return Environment(**{**common, **changes})


def trace(rank: int, step_ms: float, phases: Mapping[str, float], *, steps: int = 20, batch: int = 256, **changes: Any) -> Trace:
    """A round of equal steps of one rank; missing ``phases`` take no time."""
    cpu = changes.get("memory") is CPU_MEMORY
    names = [name for name in (EPOCH_START_PHASE, *PHASES, SCRIPT_PHASE) if name in PHASES or name in phases]
    phases_ms = {phase: [phases.get(phase, 0.0)] * steps for phase in names}
    common: dict[str, Any] = {
        "rank": rank,
        "steps": steps,
        "samples": batch * steps,
        "wall_s": step_ms * steps / 1000,
        "phases_ms": phases_ms,
        "host_data_ms": phases_ms["data"],
        "host_lead_ms": [] if cpu else [0.8 * phases.get("forward", 0.0) + 0.8 * phases.get("backward", 0.0)] * steps,
        "host_issue_ms": [] if cpu else [0.1 * phases.get("forward", 0.0) + 0.001 * step for step in range(steps)],
        "memory": GPU_MEMORY,
        "numerics": numerics(),
        "health": None if cpu else GPU_HEALTH,
    }
    return Trace(**{**common, **changes})


def numerics(first_loss: float | None = 7.03, last_loss: float | None = 6.41, **changes: Any) -> Numerics:
    """Numerics of a valid round: parameters changed, nothing was skipped."""
    return Numerics(
        **{"first_loss": first_loss, "last_loss": last_loss, "params_checksum_before": 1, "params_checksum_after": 2, **changes}
    )


def record(
    ranks: Sequence[Mapping[str, float]] = (BUSY,) * 4,
    *,
    unexplained_ms: float = 0.4,
    longer: Sequence[float] = STEADY,
    steps: int = 20,
    config: ResolvedConfig = RESNET50,
    traces: Mapping[int, Mapping[str, Any]] | None = None,
    **changes: Any,
) -> Record:
    """A finished, unjudged run; all rounds are equal except for ``longer``.

    ``ranks`` holds the phases in ms per rank, and ``longer`` one step time factor per round. Ranks synchronize in every step, so one
    that is early waits for the latest in ``sync``, in addition to the given ``sync``. ``traces`` changes fields of every
    Trace of a rank, ``changes`` fields of the Record. For another device pass ``environment=environment(...)``.
    """
    place = changes.get("environment") or environment(len(ranks))
    cpu = place.device_type == "cpu"
    own_ms = [unexplained_ms + sum(span for phase, span in phases.items() if phase not in COLLECTIVE_PHASES) for phases in ranks]
    step_ms = max(own + sum(phases.get(phase, 0.0) for phase in COLLECTIVE_PHASES) for own, phases in zip(own_ms, ranks, strict=True))
    batch = config.batch_size or 0
    rounds = []
    for index, factor in enumerate(longer):
        seen = []
        for rank, (phases, own) in enumerate(zip(ranks, own_ms, strict=True)):
            waited = {**phases, "sync": step_ms - own - phases.get("broadcast", 0.0)}
            common: dict[str, Any] = {"numerics": numerics(7.03 - 0.124 * index, 6.906 - 0.124 * index)}
            common |= {"memory": CPU_MEMORY} if cpu else {"health": GPU_HEALTH}
            common |= (traces or {}).get(rank, {})
            lasting = {phase: factor * span for phase, span in waited.items()}
            health = common.get("health")
            if health is not None and health.watts is not None:
                common["health"] = Health(**{**_fields(health), "energy_j": health.watts * factor * step_ms * steps / 1000})
            seen.append(trace(rank, factor * step_ms, lasting, steps=steps, batch=batch, **common))
        rounds.append(Round(index=index, traces=seen, samples=batch * steps * len(ranks), wall_s=factor * step_ms * steps / 1000))
    common_fields: dict[str, Any] = {
        "config": config,
        "environment": place,
        "status": "ok",
        "num_parameters": 25_557_032,
        "flops_per_sample": 24.5e9,
        "data": DatasetInfo(loader=config.loader or "synthetic", num_batches=1),
        "observed_precision": matching_precision(config.precision),
        "warmup": Warmup(build_s=1.9, first_batch_s=0.4, first_step_s=6.1, warmup_steps=20, warmup_converged=True),
        "peak_throughput": None
        if cpu
        else PeakThroughput(matmul_tflops={"float32": 51.0, "tf32": 384.0, "float16": 761.0, "bfloat16": 788.0}),
        "rounds": rounds,
    }
    return Record(**{**common_fields, **changes})


def data_bound(**changes: Any) -> Record:
    """Four H200s on an ImageNet folder with 16 workers each: data-bound, rank 2 most of all."""

    def phases(data: float, broadcast: float) -> dict[str, float]:
        work = {"host_to_device": 3.2, "forward": 13.9, "backward": 27.3, "sync": 1.2, "optimizer": 1.4}
        return {"data": data, "broadcast": broadcast, **work}

    def health(watts: float, celsius: float) -> dict[str, Any]:
        return {"health": Health(sm_mhz=1980.0, sm_mhz_min=1980.0, watts=watts, celsius=celsius, other_processes=0, samples=140)}

    config = replace(RESNET50, loader="torch", data_dir="/data/imagenet", workers=16)
    common: dict[str, Any] = {
        "ranks": [phases(139.8, 0.0), phases(133.0, 6.8), phases(176.9, 0.0), phases(130.7, 9.1)],
        "unexplained_ms": 2.5,
        "steps": 64,
        "config": config,
        "traces": {0: health(244.0, 42.0), 1: health(243.0, 41.0), 2: health(241.0, 41.0), 3: health(240.0, 40.0)},
        "data": DatasetInfo(loader="torch", dataset="imagenet", file_kind="jpegs", num_samples=1_281_167),
    }
    return record(**{**common, **changes})


def cpu_run(**changes: Any) -> Record:
    """Two CPU ranks with gloo on a small synthetic batch."""
    phases = {"data": 0.1, "broadcast": 0.9, "forward": 61.0, "backward": 128.0, "sync": 9.0, "optimizer": 4.0}
    asked = {"workload": "resnet18", "precision": "fp32", "batch_size": 8, "image_size": 64, "workers": 1, "warmup": 2, "device": "cpu"}
    config = replace(RESNET50, **asked)
    attested = {
        "first_layer_dtype": "float32",
        "last_layer_dtype": "float32",
        "loss_scale": None,
        "tf32_matmul": False,
        "tf32_cudnn": False,
    }
    common: dict[str, Any] = {
        "ranks": [phases, phases],
        "environment": environment(2, device="Intel(R) Xeon(R) CPU @ 2.20GHz", usable_cores=2.0),
        "config": config,
        "observed_precision": ObservedPrecision(**{**_fields(OBSERVED_PRECISION), **attested}),
        "num_parameters": 11_689_512,
        "flops_per_sample": 0.9e9,
    }
    return record(**{**common, **changes})


def watched_script(data_ms: float = 60.0, script_ms: float = 2.0, **changes: Any) -> Record:
    """A user's own training script on four H200s, watched."""
    phases = {"data": data_ms, "host_to_device": 3.2, "forward": 13.9, "backward": 27.3, "sync": 1.2, "optimizer": 1.4, "script": script_ms}
    config = replace(RESNET50, workload="train.py", loader="DataLoader", workers=4)
    script = WatchedScript(
        model="DistributedDataParallel(ResNet)",
        optimizers=["SGD"],
        dataset="ImageFolder",
        num_samples=1_281_167,
        batches=3_753,
        epochs=3,
        batches_per_update=2,
        training_s=500.0,
        outside_s={"validation": 40.0, "checkpoint": 5.0, "between-epochs": 2.5},
    )
    traces = {rank: {"numerics": Numerics(first_loss=None, last_loss=None)} for rank in range(4)}
    common: dict[str, Any] = {
        "ranks": [phases] * 4,
        "unexplained_ms": 0.0,
        "config": config,
        "traces": traces,
        "observed_precision": None,
        "warmup": None,
        "peak_throughput": None,
        "flops_per_sample": None,
        "sample_unit": "sample",
        "script": script,
        "data": DatasetInfo(loader="DataLoader", num_samples=script.num_samples),
    }
    return record(**{**common, **changes})


def script_without_loader() -> Record:
    """A watched script that trains with FSDP2, and whose batches come from no DataLoader, so that its steps are updates."""
    phases = {"forward": 13.9, "backward": 27.3, "sync": 4.6, "optimizer": 1.4, "script": 62.0}
    record = watched_script(ranks=[phases] * 4, sample_unit="rank update", data=None)
    assert record.script is not None
    script = replace(
        record.script, model="FSDPLlama", dataset="", num_samples=None, step="update", epochs=0, batches_per_update=1, outside_s={}
    )
    rounds = [
        replace(timed, samples=4 * timed.traces[0].steps, traces=[replace(trace, samples=trace.steps) for trace in timed.traces])
        for timed in record.rounds
    ]
    return replace(record, script=script, config=replace(record.config, engine="fsdp", workers=0, batch_size=1), rounds=rounds)


def job(*records: Record, swept: Sequence[str] = ()) -> Job:
    """A job of these records, with its command."""
    return Job(started="2026-11-21T01:29:30Z", command=typed(records, swept), swept=list(swept), records=list(records))


def typed(arms: Sequence[Record], swept: Sequence[str] = ()) -> list[str]:
    """The command of ``arms`` as a user types it: with ``--amp``, and torchrun as in its tutorials."""
    asked = [record.requested or record.config for record in arms]
    fields = {field.name: field for field in flag_fields(Config)}
    shared = replace(asked[0], **{name: fields[name].default for name in swept})
    lists = [(fields[name].option, ",".join(dict.fromkeys(str(getattr(each, name)) for each in asked))) for name in swept]
    words = " ".join([*shared.to_argv(), *(word for pair in lists for word in pair)]) + " "
    place = arms[0].environment
    start = "ddpbench" if place.launcher == "python" else f"torchrun --nproc_per_node={place.world_size // place.nodes} -m ddpbench"
    if place.nodes > 1:
        start = start.replace("torchrun", f"torchrun --nnodes={place.nodes} --rdzv_backend=c10d --rdzv_endpoint=node-01:29511")
    return [*start.split(), *words.replace("--precision amp-fp16 ", "--amp ").split()]


def requested_config(config: ResolvedConfig) -> Config:
    """``config`` before its automatic fields were resolved."""
    automatic = (
        "batch_size",
        "image_size",
        "optimizer_impl",
        "channels_last",
        "compile",
        "combo_kernels",
        "fused_kernels",
        "cuda_graph",
        "cudnn_benchmark_limit",
        "broadcast_buffers",
        "loader",
        "workers",
        "warmup",
        "lr",
        "momentum",
        "weight_decay",
        "fresh",
        "validate",
    )
    return Config(**{**_fields(config), "device": "auto", **dict.fromkeys(automatic)})


def _fields(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def next_command(verdict: Verdict | ScalingVerdict | None) -> str:
    """The next command of a verdict; empty if there is none."""
    return verdict.next.command if verdict and isinstance(verdict.next, RunCommand) else ""
