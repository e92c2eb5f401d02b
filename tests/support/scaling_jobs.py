"""Synthetic scaling jobs with known losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import records
from msgspec.structs import replace
from records import BUSY, RESNET50, STEADY

from ddpbench.analysis.judge import judge_all
from ddpbench.record.record import Job, Record
from ddpbench.record.roles import (
    ALLREDUCE_ONLY,
    INDEPENDENT,
    NO_SYNC,
    SINGLE_NO_DDP,
    SINGLE_SHARD_BATCH,
    WITH_DATA,
    Role,
    SkippedMeasurement,
    ddp_role,
)
from ddpbench.record.scaling import Scaling

MB = 10**6
OWN = {phase: span for phase, span in BUSY.items() if phase not in ("broadcast", "sync")}
"""Phases of a rank without collectives."""

BUCKETS = [8 * MB, 27 * MB, 27 * MB, 26 * MB, 14 * MB]


def arm(role: Role, ranks: Sequence[Mapping[str, float]], *, batch: int = 256, nodes: int = 1, **changes: Any) -> Record:
    config = replace(RESNET50, batch_size=batch, engine=changes.pop("engine", "ddp"))
    place = records.environment(len(ranks), nodes=nodes, launcher="torchrun", backend="nccl")
    return records.record(ranks, config=config, environment=place, role=role, **changes)


def job(
    *,
    ranks: int = 4,
    nodes: int = 1,
    contention: float = 0.0,
    all_reduce: float = 0.0,
    late: float = 0.0,
    ddp: float = 0.0,
    data: float | None = None,
    background: float = 0.0,
    broadcast: float = 0.0,
    strong: bool = False,
    smaller: float = 0.0,
    baseline_factors: Sequence[float] = STEADY,
    allreduce_only_ms: float = 10.0,
    max_busbw: float = 16e9,
) -> Job:
    """Weak scaling of ResNet-50 over ``ranks``; losses in ms per step.

    ``late`` slows the forward of the last rank, ``background`` slows the backward with a background loader, and ``broadcast`` is what
    DDP takes for buffers on any number of ranks.
    """

    def own(more: float = 0.0, sync: float = 0.0, count: int = ranks, **phases: float) -> dict[str, float]:
        scaled = {phase: span / count for phase, span in OWN.items()} if strong else OWN
        return {**scaled, "backward": scaled["backward"] + more + (smaller if strong else 0.0), "sync": sync, **phases}

    def together(count: int, more: float, sync: float = 0.0, late_ms: float = 0.0, **phases: float) -> list[dict[str, float]]:
        each = [own(more, sync, count, **phases) for _ in range(count)]
        each[-1] = {**each[-1], "forward": each[-1]["forward"] + late_ms}
        return each

    batch = 256 // ranks if strong else 256
    steps = [count for count in (1, 2, 4, 8) if count < ranks] + [ranks]
    first = {**OWN, "broadcast": broadcast}
    arms = [arm(ddp_role(1), [first], longer=baseline_factors)]
    arms += [
        arm(
            ddp_role(count),
            together(count, contention + ddp, all_reduce, late, broadcast=broadcast),
            batch=256 // count if strong else 256,
            nodes=nodes,
        )
        for count in steps[1:]
    ]
    arms += [arm(SINGLE_SHARD_BATCH, [own(broadcast=broadcast)], batch=batch)] if strong else []
    arms += [
        arm(SINGLE_NO_DDP, [own()], batch=batch, engine="none"),
        arm(INDEPENDENT, together(ranks, contention), batch=batch, engine="none", nodes=nodes),
        arm(NO_SYNC, together(ranks, contention), batch=batch, engine="no-sync", nodes=nodes),
        arm(ALLREDUCE_ONLY, [{"sync": allreduce_only_ms}] * ranks, batch=batch, nodes=nodes, unexplained_ms=0.0),
    ]
    if data is not None:
        loaded = together(ranks, contention + ddp + background, all_reduce, late, data=OWN["data"] + data, broadcast=broadcast)
        arms.append(arm(WITH_DATA, loaded, batch=batch, nodes=nodes))
    scaling = Scaling(
        world_sizes=steps,
        strong_scaling=strong,
        bucket_bytes=BUCKETS,
        allreduce_busbw={MB: max_busbw / 10, 25 * MB: max_busbw},
        busy_wait_cores=0.004,
    )
    if data is None:
        scaling.skipped = [SkippedMeasurement(WITH_DATA, "synthetic_data")]
    start = ["torchrun", f"--nproc_per_node={ranks // nodes}", "-m", "ddpbench", "scale", "resnet50", "--amp"]
    made = Job(
        started="2026-11-21T01:29:30Z", command=[*start, *(["--strong"] if strong else [])], kind="scale", records=arms, scaling=scaling
    )
    judge_all(made)
    return made


def whole() -> Job:
    """Scales well, like four H200s."""
    return job(contention=0.11, all_reduce=0.44, ddp=0.06)


def network() -> Job:
    """Two nodes with a slow network."""
    return job(nodes=2, all_reduce=180.0, contention=0.3, allreduce_only_ms=200.0, max_busbw=0.78e9)


def strong() -> Job:
    return job(strong=True, smaller=3.1, all_reduce=1.9)


def straggling() -> Job:
    return job(late=6.0, all_reduce=0.5)


def too_good() -> Job:
    """A slow and noisy 1-rank baseline."""
    return job(baseline_factors=(1.10, 1.02, 1.07, 1.13, 1.04))


def data_bound() -> Job:
    return job(data=30.0, all_reduce=0.4)


JOBS = [whole, network, strong, straggling, too_good, data_bound]
"""Builders of whole jobs, one per kind of loss."""
