"""The ``scale`` command: the arms of the ladder and its control runs."""

from __future__ import annotations

from math import lcm
from typing import NoReturn

import msgspec

from ddpbench.bench.arm_specs import ArmSpec, build_request
from ddpbench.bench.journal import Journal, config_in_name, new_job, reserve_timestamped_path
from ddpbench.bench.resolve import default_batch_size, default_loader
from ddpbench.bench.runner import run_job
from ddpbench.bench.scaling.job_spec import ScaleJobSpec
from ddpbench.distributed.exit_status import exit_with_error
from ddpbench.machine.rank_env import RankEnv, from_env
from ddpbench.record.config import Config
from ddpbench.record.errors import BenchError, UsageError
from ddpbench.record.io import slug
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Record
from ddpbench.record.registry import ENGINES_WITHOUT_SYNC
from ddpbench.record.request import Request
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
from ddpbench.workloads import registry as workloads


def rank_ladder(world_size: int, ranks_per_node: int) -> list[int]:
    """1, 2, 4 ... ranks of the first node, then 1, 2, 4 ... whole nodes, and finally all ranks.

    If ``world_size`` is not a multiple of ``ranks_per_node``, just 1, 2, 4 ... ranks, and all.
    """
    is_uniform = world_size % ranks_per_node == 0
    counts = (
        [*_powers_of_two(ranks_per_node), *(nodes * ranks_per_node for nodes in _powers_of_two(world_size // ranks_per_node))]
        if is_uniform
        else _powers_of_two(world_size)
    )
    return sorted({*counts, world_size})


def check_can_scale(config: Config, rank_env: RankEnv) -> None:
    """Raises UsageError if there is nothing to scale: a single rank, an engine other than DDP, or a graph that hides gradient sync."""
    if config.engine != "ddp":
        raise UsageError(f"scale analyses DDP and does not support --engine {config.engine}", "remove --engine")
    if config.cuda_graph:
        raise UsageError("scale times gradient sync in every step, which a CUDA graph does not show", "remove --cuda-graph")
    if rank_env.world_size == 1:
        raise UsageError("scale needs at least two ranks", "use --gpus N, or torchrun --nproc_per_node=N -m ddpbench scale WORKLOAD")


def scaling_arms(
    requested: Config, rank_counts: list[int], strong_batch: int | None = None
) -> tuple[list[ArmSpec], dict[Role, int], list[SkippedMeasurement]]:
    """The arms in the order of their first turns, the rank count of each by role, and the arms that are skipped.

    With ``strong_batch``, that batch is divided evenly among the ranks at each world size; raises UsageError if one does not divide it.
    """
    ranks = rank_counts[-1]
    if strong_batch:
        check_batch_divides(strong_batch, rank_counts)
    if requested.fast:
        requested = msgspec.structs.replace(requested, cuda_graph=False)  # which does not show gradient sync of every step
    synthetic = msgspec.structs.replace(requested, loader=SYNTHETIC, data_dir=None, download=False)

    def shared(config: Config, num_ranks: int) -> Config:
        return msgspec.structs.replace(config, batch_size=strong_batch // num_ranks) if strong_batch else config

    full_world = shared(synthetic, ranks)
    without_ddp, without_sync = (msgspec.structs.replace(full_world, engine=engine) for engine in ENGINES_WITHOUT_SYNC)
    arms = [(ArmSpec(shared(synthetic, count), ddp_role(count)), count) for count in rank_counts]
    arms += [(ArmSpec(full_world, SINGLE_SHARD_BATCH), 1)] if strong_batch else []
    arms += [
        (ArmSpec(without_ddp, SINGLE_NO_DDP), 1),
        (ArmSpec(without_ddp, INDEPENDENT), ranks),
        (ArmSpec(without_sync, NO_SYNC), ranks),
        (ArmSpec(full_world, ALLREDUCE_ONLY), ranks),
    ]
    skipped: list[SkippedMeasurement] = []
    loader = requested.loader or default_loader(requested, workloads.find_workload(requested.workload))
    if loader == SYNTHETIC:
        skipped.append(SkippedMeasurement(WITH_DATA, "synthetic_data"))
    else:
        arms.append((ArmSpec(msgspec.structs.replace(shared(requested, ranks), loader=loader), WITH_DATA), ranks))
    return [arm for arm, _ in arms], {arm.role: count for arm, count in arms}, skipped


def check_batch_divides(batch: int, rank_counts: list[int]) -> None:
    """Raises UsageError if ``batch`` cannot be divided evenly at every world size."""
    uneven = next((count for count in rank_counts if batch % count), None)
    if uneven:
        divisor = lcm(*rank_counts)
        raise UsageError(
            f"--strong divides a batch of {batch} among the ranks, but {batch} is not divisible by {uneven}",
            f"use -b {max(1, batch // divisor) * divisor}",
        )


def _powers_of_two(limit: int) -> list[int]:
    return [2**power for power in range(limit.bit_length())]


def run_scaling(request: Request, strong: bool) -> NoReturn:
    """Measure the request's training on 1, 2, 4 ... ranks of this launch, then exit the process with the exit code."""
    try:
        rank_env, config = from_env(), request.arms[0]
        check_can_scale(config, rank_env)
        world_sizes = rank_ladder(rank_env.world_size, rank_env.local_world_size)
        arms, ranks, skipped = scaling_arms(config, world_sizes, (config.batch_size or default_batch_size(config)) if strong else None)
    except BenchError as error:
        exit_with_error(error)

    def open_journal(job_request: Request, records: list[Record]) -> Journal:
        job = new_job(job_request, records)
        job.kind, job.scaling = "scale", Scaling(world_sizes=world_sizes, strong_scaling=strong, skipped=skipped)
        named = config_in_name(config, request.output)
        return Journal(
            job, reserve_timestamped_path(job_request, slug(f"scale {named.workload} {named.precision}{' strong' if strong else ''}"))
        )

    run_job(
        build_request(arms, {}, request.output, request.command),
        ScaleJobSpec(open_journal, config.time_limit, config.rounds, ranks),
    )
