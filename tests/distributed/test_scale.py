"""Real scaling jobs: idle ranks, arms on all ranks, and rejected requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launches import PLAIN, SUPPORT_ENV, errors, only_job

from ddpbench.bench.resolve import resolve_config
from ddpbench.bench.scaling.command import check_can_scale, rank_ladder, scaling_arms
from ddpbench.machine.rank_env import RankEnv
from ddpbench.record.config import Config
from ddpbench.record.errors import UsageError
from ddpbench.record.roles import ALLREDUCE_ONLY, INDEPENDENT, NO_SYNC, SINGLE_NO_DDP, SINGLE_SHARD_BATCH, WITH_DATA, ddp_role

pytestmark = pytest.mark.timeout(150)

SCALE = ["scale", "--device", "cpu", "--steps", "3", "--warmup", "1"]
SMALL = Config(workload="resnet18", batch_size=8)


@pytest.mark.parametrize(
    ("ranks", "a_node", "rungs"),
    [
        (2, 2, [1, 2]),
        (8, 8, [1, 2, 4, 8]),
        (6, 6, [1, 2, 4, 6]),
        (8, 4, [1, 2, 4, 8]),
        (18, 6, [1, 2, 4, 6, 12, 18]),
        (4, 1, [1, 2, 4]),
        (5, 3, [1, 2, 4, 5]),
    ],
)
def test_world_sizes_double_within_a_node_and_then_by_node(ranks: int, a_node: int, rungs: list[int]) -> None:
    assert rank_ladder(ranks, a_node) == rungs


def test_arms_of_fast_training_all_run_without_a_graph() -> None:
    cells, _, _ = scaling_arms(Config(workload="resnet18", batch_size=8, data_dir="/data", fast=True), [1, 2])
    resolved = [resolve_config(cell.config, cuda=True, local_world_size=2) for cell in cells]
    assert {each.cuda_graph for each in resolved} == {False}
    assert {each.fused_kernels for each in resolved} == {True}
    assert {each.broadcast_buffers for each in resolved if each.engine != "none"} == {False}


def test_scaling_arms_are_world_sizes_and_controls() -> None:
    cells, ranks, skipped = scaling_arms(SMALL, [1, 2, 4])
    assert ranks == {
        ddp_role(1): 1,
        ddp_role(2): 2,
        ddp_role(4): 4,
        SINGLE_NO_DDP: 1,
        INDEPENDENT: 4,
        NO_SYNC: 4,
        ALLREDUCE_ONLY: 4,
    }
    assert {cell.config.batch_size for cell in cells} == {8}
    assert {cell.config.loader for cell in cells} == {"synthetic"}
    assert [cell.config.engine for cell in cells if cell.role in (SINGLE_NO_DDP, INDEPENDENT, NO_SYNC)] == [
        "none",
        "none",
        "no-sync",
    ]
    assert [each.what for each in skipped] == [WITH_DATA]


def test_data_dir_adds_an_arm_with_data() -> None:
    cells, ranks, skipped = scaling_arms(Config(workload="resnet18", batch_size=8, data_dir="/data"), [1, 2])
    assert [(cell.config.loader, cell.config.data_dir) for cell in cells if cell.role == WITH_DATA] == [("torch", "/data")]
    assert {cell.config.data_dir for cell in cells if cell.role != WITH_DATA} == {None}
    assert (ranks[WITH_DATA], skipped) == (2, [])


def test_strong_scaling_divides_the_batch_between_ranks() -> None:
    cells, ranks, _ = scaling_arms(SMALL, [1, 2, 4], strong_batch=8)
    batches = {cell.role: cell.config.batch_size for cell in cells}
    assert [batches[ddp_role(count)] for count in (1, 2, 4)] == [8, 4, 2]
    assert {batches[label] for label in (SINGLE_SHARD_BATCH, SINGLE_NO_DDP, INDEPENDENT, NO_SYNC, ALLREDUCE_ONLY)} == {2}
    assert ranks[SINGLE_SHARD_BATCH] == 1


@pytest.mark.parametrize(("batch", "rungs", "hint"), [(10, [1, 2, 4], "-b 8"), (3, [1, 2, 4], "-b 4"), (32, [1, 2, 3], "-b 30")])
def test_indivisible_strong_batch_is_rejected_with_a_hint(batch: int, rungs: list[int], hint: str) -> None:
    with pytest.raises(UsageError, match=f"a batch of {batch} among") as refused:
        scaling_arms(SMALL, rungs, strong_batch=batch)
    assert refused.value.hint == f"use {hint}"
    scaling_arms(SMALL, rungs, strong_batch=int(hint.split()[1]))


def test_single_rank_and_engine_none_are_rejected() -> None:
    with pytest.raises(UsageError, match="at least two ranks"):
        check_can_scale(SMALL, RankEnv())
    with pytest.raises(UsageError, match="--engine none"):
        check_can_scale(Config(workload="resnet18", engine="none"), RankEnv(world_size=2))


@pytest.mark.slow
def test_three_ranks_run_all_scaling_arms(launch: Callable[..., Any], results: Path) -> None:
    words = [*SCALE, "misbehaving:fine", "--gpus", "3", "--rounds", "2", "--time-limit", "100", "-o", str(results)]
    done = launch([*PLAIN, *words], env=SUPPORT_ENV, timeout=140)
    assert done.returncode == 0, done.stderr
    assert errors(done.stderr) == []
    job = only_job(results)
    records = {record.role: record for record in job.records}
    assert {label: record.world_size for label, record in records.items()} == {
        ddp_role(1): 1,
        ddp_role(2): 2,
        ddp_role(3): 3,
        SINGLE_NO_DDP: 1,
        INDEPENDENT: 3,
        NO_SYNC: 3,
        ALLREDUCE_ONLY: 3,
    }
    for record in job.records:
        assert (record.status, len(record.rounds)) == ("ok", 2), record.role
        assert all(len(timed.traces) == record.world_size for timed in record.rounds)
        assert all(timed.samples == 3 * 8 * record.world_size for timed in record.rounds)
    together = [trace.numerics.params_checksum_after for trace in records[ddp_role(3)].rounds[-1].traces]
    assert len(set(together)) == 1
    apart = [trace.numerics.params_checksum_after for trace in records[NO_SYNC].rounds[-1].traces]
    assert len(set(apart)) == 3, "gradients were not averaged"
    waited = [sum(trace.total_ms("sync") for trace in timed.traces) for timed in records[ALLREDUCE_ONLY].rounds]
    assert all(wait > 0 for wait in waited)
    found = job.scaling
    assert found is not None
    assert found.world_sizes == [1, 2, 3]
    assert sum(found.bucket_bytes) == 4 * records[ddp_role(3)].num_parameters
    assert found.allreduce_busbw
    assert found.busy_wait_cores is not None
    assert found.busy_wait_cores < 0.5, "an idle rank does not busy-wait"
    assert "ideal" in done.stdout


@pytest.mark.slow
def test_with_data_arm_uses_the_loader_and_rounds_are_balanced(launch: Callable[..., Any], results: Path) -> None:
    words = [*PLAIN, *SCALE, "mnist-cnn", "-b", "8", "--loader", "torch", "-j", "1", "--gpus", "2", "--rounds", "3", "--time-limit", "100"]
    done = launch([*words, "-o", str(results)], timeout=140)
    assert done.returncode == 0, done.stderr
    records = {record.role: record for record in only_job(results).records}
    rounds = {label: len(record.rounds) for label, record in records.items()}
    assert min(rounds.values()) > 0
    assert max(rounds.values()) - min(rounds.values()) <= 1, rounds
    assert all(trace.loader_stats for timed in records[WITH_DATA].rounds for trace in timed.traces)
    assert not any(trace.loader_stats for timed in records[ddp_role(2)].rounds for trace in timed.traces)
    assert "loss to data" not in done.stdout


@pytest.mark.slow
def test_hung_rank_is_reported_instead_of_an_idle_rank(launch: Callable[..., Any], results: Path) -> None:
    words = [*PLAIN, *SCALE, "misbehaving:hangs", "--gpus", "2", "--hang-timeout", "4", "-o", str(results)]
    done = launch(words, env={**SUPPORT_ENV, "FAULT_RANK": "0", "FAULT_STEP": "4"}, timeout=100)
    assert done.returncode == 124, done.stderr
    assert done.stderr.startswith("torchrun --standalone --nproc_per_node=2 -m ddpbench scale ")
    (error,) = errors(done.stderr)
    assert re.match(r"rank 0 \(.*\) hung at step", error), "in the 1-rank arm, while rank 1 is idle"
