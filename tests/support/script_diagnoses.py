"""Synthetic diagnoses of a user's own script on one CPU rank, with a known throughput of every window."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import records
from diagnoses import XEON
from msgspec.structs import replace

from ddpbench.analysis.judge import judge_all
from ddpbench.record.diagnosis import Diagnosis, LoaderBenchmark, NodeState, PixelDifference
from ddpbench.record.loader_stats import CpuUsage, LoaderStats
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.prediction import MissingMeasurement, Prediction, Scenario
from ddpbench.record.record import DatasetInfo, Fault, Job, Record
from ddpbench.record.roles import BASELINE, BASELINE_REPEAT, COMPUTE_ONLY, LOADER_IN_BACKGROUND, trial_role
from ddpbench.record.script import WatchedScript
from ddpbench.record.trace import Trace

BATCH, STEPS = 64, 20

PAUSED = (1_860.0, 2_930.0, 2_400.0, 182.0, 2_250.0, 2_700.0, 2_380.0, 2_610.0)
"""Samples/s of eight windows of computing, during one of which something else had the cores."""


def rates(center: float, rounds: int = 8) -> list[float]:
    """Samples/s of ``rounds`` windows that vary by about 1% around ``center``."""
    return [center * records.STEADY[index % len(records.STEADY)] for index in range(rounds)]


def window(figures: Sequence[float], wait: float = 0.0, script: float = 0.01, **changes: Any) -> Record:
    """A record with one window per figure, in samples/s. ``wait`` and ``script`` are fractions of a step; the rest is computing."""
    base_ms = 1000 * BATCH / figures[0]
    left = base_ms * (1 - wait - script)
    phases = {"data": wait * base_ms, "forward": 0.3 * left, "backward": 0.6 * left, "optimizer": 0.1 * left, "script": script * base_ms}
    cores = changes.pop("cores", 8.0)
    config = replace(
        records.watched_script().config,
        workload="train.py",
        precision="torch-default",
        batch_size=BATCH,
        device="cpu",
        workers=changes.pop("workers", 2),
    )
    common: dict[str, Any] = {
        "longer": [figures[0] / figure for figure in figures],
        "unexplained_ms": 0.0,
        "steps": STEPS,
        "config": config,
        "environment": records.environment(1, device=XEON, usable_cores=cores, variables={"OMP_NUM_THREADS": "1"}),
        "data": DatasetInfo(loader="DataLoader", num_samples=20_000),
        "script": WatchedScript(
            model="Net", optimizers=["SGD"], dataset="Pictures", num_samples=20_000, batches=3000, epochs=1, training_s=60.0
        ),
        "observed_precision": None,
        "warmup": None,
        "flops_per_sample": None,
        "sample_unit": "sample",
        "traces": {0: {"cpu_s": 1.0, **changes.pop("trace", {})}},
    }
    found = records.record([phases], **{**common, **changes})
    found.rounds = [replace(timed, traces=[_with_usage(trace, timed.wall_s, cores) for trace in timed.traces]) for timed in found.rounds]
    return found


def _with_usage(trace: Trace, wall_s: float, cores: float) -> Trace:
    usage = CpuUsage(num_cores=int(cores), busy_s=1.4 * wall_s, wall_s=wall_s, throttled_s=None, cpu_pressure_fraction=0.0)
    return replace(trace, cpu_s=1.3 * wall_s if trace.cpu_s else None, cpu_usage=usage)


def benchmark(samples_per_s: float, workers: int | None = None, cpu_ms: float = 0.2, wall_ms: float | None = None) -> LoaderBenchmark:
    samples = 40 * BATCH
    stats = LoaderStats(
        samples=samples,
        cpu_s={"sample": samples * cpu_ms / 1000},
        wall_s={"sample": samples * (wall_ms or cpu_ms) / 1000},
        runqueue_wait_s=0.0,
    )
    return LoaderBenchmark(
        rank=0,
        elapsed_s=samples / samples_per_s,
        samples=samples,
        intervals_ms=[1000 * BATCH / samples_per_s] * 40,
        first_batch_s=0.3,
        loader_cpu_s=samples * cpu_ms / 1000,
        main_process_cpu_s=samples * 0.005 / 1000,
        workers_rss_bytes=2**30,
        loader_stats=stats,
        workers=workers,
    )


def script_diagnosis(
    run: Sequence[float],
    compute_only: Sequence[float] | None,
    *,
    wait: float = 0.0,
    background: Sequence[float] | None = None,
    loader: LoaderBenchmark | None = None,
    all_cores: LoaderBenchmark | None = None,
    trials: Mapping[Scenario, Sequence[float] | str] | None = None,
    predictions: Sequence[Prediction] = (),
    cores: float = 8.0,
    workers: int = 2,
    stats: LoaderStats | None = None,
    shm_free_bytes: int = 8 * 2**30,
    **changes: Any,
) -> Job:
    """A judged job like that of ``diagnose train.py``. Figures are samples/s of windows; a trial that failed is its message."""
    common: dict[str, Any] = {"cores": cores, "workers": workers, **changes}
    own: dict[str, Any] = {**common, "wait": wait, "trace": {"loader_stats": stats} if stats else {}}
    arms = [window(run, role=BASELINE, **own)]
    if compute_only:
        arms.append(window(compute_only, role=COMPUTE_ONLY, **common))
        arms[-1].config = replace(arms[-1].config, loader=SYNTHETIC)
    if background:
        arms.append(window(background, role=LOADER_IN_BACKGROUND, **common))
    if trials:
        arms.append(window(run, role=BASELINE_REPEAT, **own))
    for scenario, figures in (trials or {}).items():
        if isinstance(figures, str):
            failed = window(run[:1], role=trial_role(scenario), **own)
            failed.rounds, failed.status, failed.fault = [], "failed", Fault(message=figures, arm_index=len(arms))
            arms.append(failed)
        else:
            arms.append(window(figures, role=trial_role(scenario), **own))
    job = records.job(*arms)
    job.kind = "diagnose"
    job.diagnosis = Diagnosis(
        loader="DataLoader",
        node_states=[
            NodeState(
                host="node-01",
                affinity_cores=int(cores),
                cpu_quota_cores=None,
                slurm_cores=None,
                shm_free_bytes=shm_free_bytes,
                usable_memory_bytes=64 * 2**30,
                other_busy_cores=0.1,
            )
        ],
        loader_benchmarks=[loader] if loader else [],
        all_cores_loader_benchmarks=[all_cores] if all_cores else [],
        predictions=[*predictions],
    )
    judge_all(job)
    return job


def disturbed() -> Job:
    """One window of computing in which something else had the cores."""
    return script_diagnosis(rates(1230.0), PAUSED, wait=0.45, loader=benchmark(1300.0), background=rates(2350.0))


def contradicted() -> Job:
    """The script trained faster than it computed on batches that were ready, and a sample costs its loader next to nothing."""
    loader = benchmark(9000.0, cpu_ms=1e-5)
    return script_diagnosis(rates(1230.0), rates(974.0), background=rates(600.0, 1), loader=loader)


def unexplained(trials: Mapping[Scenario, Sequence[float] | str] | None = None, **changes: Any) -> Job:
    """By what its parts take, a step would be much shorter than it is: no gain of other workers can be predicted."""
    missing = MissingMeasurement(code="unexplained-step", simulated_ratio=0.53)
    common: dict[str, Any] = {
        "wait": 0.45,
        "workers": 2,
        "loader": benchmark(1250.0),
        "predictions": [Prediction(scenario=scenario, missing_measurement=missing) for scenario in trials or {}],
    }
    return script_diagnosis(rates(1230.0), rates(2300.0), trials=trials, **{**common, **changes})


def tried_unpredicted() -> Job:
    return unexplained({Scenario(workers=8): rates(2100.0, 9)[3:]})


def failed_trial() -> Job:
    """Eight workers did not fit, and nothing else was tried."""
    return unexplained({Scenario(workers=8): "prefetched batches need 0.1 GiB of shared memory, 0.1 GiB are free"})


def resident(samples_per_s: float | None = 60_000.0, **changes: Any) -> Job:
    """A script that waits 80% of the time for a loader without workers, whose data are read at ``samples_per_s`` on the device."""
    stats = LoaderStats(samples=STEPS * BATCH, cpu_s={"sample": 0.8}, wall_s={"sample": 0.8}, num_waits=STEPS, waited_ms=820.0)
    common: dict[str, Any] = {"wait": 0.8, "workers": 0, "loader": benchmark(1500.0, cpu_ms=0.65), "stats": stats}
    job = script_diagnosis(rates(1200.0), rates(6000.0), **{**common, **changes})
    assert job.diagnosis is not None
    if samples_per_s:
        job.diagnosis.resident_loader_benchmarks = [benchmark(samples_per_s, workers=0, cpu_ms=0.01)]
    judge_all(job)
    return job


def decoded(samples_per_s: float | None = 9000.0, **changes: Any) -> Job:
    """A script that waits 80% of the time for four workers, whose images its GPU decodes at ``samples_per_s``."""
    stats = LoaderStats(samples=STEPS * BATCH, cpu_s={"sample": 7.87}, wall_s={"sample": 7.87}, num_waits=STEPS, waited_ms=1600.0)
    common: dict[str, Any] = {"wait": 0.8, "workers": 4, "loader": benchmark(610.0, workers=4, cpu_ms=6.5), "stats": stats}
    job = script_diagnosis(rates(600.0), rates(3000.0), **{**common, **changes})
    assert job.diagnosis is not None
    if samples_per_s:
        job.diagnosis.gpu_decoding_benchmarks = [benchmark(samples_per_s, workers=0, cpu_ms=0.01)]
        job.diagnosis.pixel_difference = PixelDifference(images=32, mean=0.51, max=12.0)
    judge_all(job)
    return job


def decoded_and_tried() -> Job:
    """The trial gained about what was predicted."""
    prediction = Prediction(scenario=Scenario(decode_on_gpu=True), gain=4.3, low=3.1, high=4.8)
    return decoded(trials={prediction.scenario: rates(2700.0, 9)[3:]}, predictions=[prediction])


def drawn(sampler_ms: float | None = 35.0, workers: int = 1, wait_ms: float = 40.0) -> Job:
    """A script that waits for ``wait_ms`` per batch, in which its own process draws indices for ``sampler_ms``."""
    stats = LoaderStats(
        samples=STEPS * BATCH,
        cpu_s={"sample": 0.05},
        wall_s={"sample": 0.05},
        batch_ms=[2.5] * STEPS,
        sampler_s=None if sampler_ms is None else STEPS * sampler_ms / 1000,
        num_waits=STEPS,
        waited_ms=STEPS * wait_ms,
        handoff_ms=wait_ms if workers else 0.2,
    )
    loader = benchmark(1400.0, cpu_ms=0.04)
    return script_diagnosis(rates(1200.0), rates(5500.0), wait=wait_ms * 1200 / BATCH / 1000, workers=workers, stats=stats, loader=loader)


def augmented(parts_s: Mapping[str, float] | None = None) -> Job:
    """A script that waits 65% of the time for two workers, whose transforms take ``parts_s`` for 100 samples of 10 ms."""
    parts_s = {"RandAugment": 0.5, "ToTensor": 0.15, "Normalize": 0.05} if parts_s is None else parts_s
    times_s = {"sample": 0.96, "collate": 0.04}
    stats = LoaderStats(
        samples=100, cpu_s=times_s, wall_s=times_s, parts_s=dict(parts_s), runqueue_wait_s=0.0, num_waits=STEPS, waited_ms=800.0
    )
    return script_diagnosis(rates(180.0), rates(600.0), wait=0.65, stats=stats, loader=benchmark(190.0, cpu_ms=10.0))


SCRIPT_DIAGNOSES: Mapping[str, Callable[[], Job]] = {
    "script-disturbed": disturbed,
    "script-contradicted": contradicted,
    "script-unexplained": unexplained,
    "script-tried-unpredicted": tried_unpredicted,
    "script-failed-trial": failed_trial,
    "script-one-by-one": resident,
    "script-slow-sampler": drawn,
    "script-costly-transform": augmented,
    "script-decoded-by-the-gpu": decoded_and_tried,
}
"""Diagnoses with a golden page."""
