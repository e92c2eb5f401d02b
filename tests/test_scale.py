"""A ladder for real: ranks that wait their turn, arms on the whole world, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_faults import PLAIN, TESTS, errors, only_job

from ddpbench.bench.scaling.ladder import ladder, refuse_no_ladder, trainings
from ddpbench.machine.rank_env import Seat
from ddpbench.record.config import Config
from ddpbench.record.errors import UsageError
from ddpbench.record.scaling import ALONE, APART, COMMUNICATION, SHARE, UNSYNCED, WITH_DATA, rung

pytestmark = pytest.mark.timeout(150)

HERE = {"PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))}
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
def test_a_ladder_doubles_within_a_node_and_then_in_nodes(ranks: int, a_node: int, rungs: list[int]) -> None:
    assert ladder(ranks, a_node) == rungs


def test_the_arms_are_the_rungs_and_the_whole_world_under_conditions() -> None:
    cells, ranks, left_out = trainings(SMALL, [1, 2, 4])
    assert ranks == {rung(1): 1, rung(2): 2, rung(4): 4, ALONE: 1, APART: 4, UNSYNCED: 4, COMMUNICATION: 4}
    assert {cell.config.batch_size for cell in cells} == {8}
    assert {cell.config.loader for cell in cells} == {"synthetic"}
    assert [cell.config.engine for cell in cells if cell.label in (ALONE, APART, UNSYNCED)] == ["none", "none", "no-sync"]
    assert set(left_out) == {WITH_DATA}


def test_with_data_there_is_an_arm_that_reads_them() -> None:
    cells, ranks, left_out = trainings(Config(workload="resnet18", batch_size=8, data_dir="/data"), [1, 2])
    assert [(cell.config.loader, cell.config.data_dir) for cell in cells if cell.label == WITH_DATA] == [("torch", "/data")]
    assert {cell.config.data_dir for cell in cells if cell.label != WITH_DATA} == {None}
    assert (ranks[WITH_DATA], left_out) == (2, {})


def test_a_kept_batch_is_shared() -> None:
    cells, ranks, _ = trainings(SMALL, [1, 2, 4], strong_batch=8)
    batches = {cell.label: cell.config.batch_size for cell in cells}
    assert [batches[rung(count)] for count in (1, 2, 4)] == [8, 4, 2]
    assert {batches[label] for label in (SHARE, ALONE, APART, UNSYNCED, COMMUNICATION)} == {2}
    assert ranks[SHARE] == 1


@pytest.mark.parametrize(("batch", "rungs", "hint"), [(10, [1, 2, 4], "-b 8"), (3, [1, 2, 4], "-b 4"), (32, [1, 2, 3], "-b 30")])
def test_a_rung_that_does_not_divide_the_batch_is_refused(batch: int, rungs: list[int], hint: str) -> None:
    with pytest.raises(UsageError, match=f"a batch of {batch} among") as refused:
        trainings(SMALL, rungs, strong_batch=batch)
    assert refused.value.hint == hint
    trainings(SMALL, rungs, strong_batch=int(hint.split()[1]))


def test_one_rank_and_other_engines_are_refused() -> None:
    with pytest.raises(UsageError, match="nothing to scale to"):
        refuse_no_ladder(SMALL, Seat())
    with pytest.raises(UsageError, match="--engine none"):
        refuse_no_ladder(Config(workload="resnet18", engine="none"), Seat(world_size=2))


@pytest.mark.slow
def test_three_ranks_climb_their_ladder(launch: Callable[..., Any], results: Path) -> None:
    words = [*SCALE, "misbehaving:fine", "--gpus", "3", "--rounds", "2", "--time-limit", "100", "-o", str(results)]
    done = launch([*PLAIN, *words], env=HERE, timeout=140)
    assert done.returncode == 0, done.stderr
    assert errors(done.stderr) == []
    job = only_job(results)
    records = {record.label: record for record in job.records}
    assert {label: record.world_size for label, record in records.items()} == {
        rung(1): 1,
        rung(2): 2,
        rung(3): 3,
        ALONE: 1,
        APART: 3,
        UNSYNCED: 3,
        COMMUNICATION: 3,
    }
    for record in job.records:
        assert (record.status, len(record.rounds)) == ("ok", 2), record.label
        assert all(len(timed.traces) == record.world_size for timed in record.rounds)
        assert all(timed.images == 3 * 8 * record.world_size for timed in record.rounds)
    together = [trace.numerics.parameters_after for trace in records[rung(3)].rounds[-1].traces]
    assert len(set(together)) == 1
    apart = [trace.numerics.parameters_after for trace in records[UNSYNCED].rounds[-1].traces]
    assert len(set(apart)) == 3, "nothing was averaged"
    waited = [sum(trace.total_ms("sync") for trace in timed.traces) for timed in records[COMMUNICATION].rounds]
    assert all(wait > 0 for wait in waited)
    found = job.scaling
    assert found is not None
    assert found.ladder == [1, 2, 3]
    assert sum(found.bucket_bytes) == 4 * records[rung(3)].parameters
    assert found.bus
    assert found.waiting_cores is not None
    assert found.waiting_cores < 0.5, "a rank that waits does not spin"
    assert "ideal" in done.stdout


@pytest.mark.slow
def test_with_a_loader_an_arm_reads_from_it_and_rounds_come_evenly(launch: Callable[..., Any], results: Path) -> None:
    words = [*PLAIN, *SCALE, "mnist-cnn", "-b", "8", "--loader", "torch", "-j", "1", "--gpus", "2", "--rounds", "3", "--time-limit", "100"]
    done = launch([*words, "-o", str(results)], timeout=140)
    assert done.returncode == 0, done.stderr
    records = {record.label: record for record in only_job(results).records}
    rounds = {label: len(record.rounds) for label, record in records.items()}
    assert min(rounds.values()) > 0
    assert max(rounds.values()) - min(rounds.values()) <= 1, rounds
    assert all(trace.loading for timed in records[WITH_DATA].rounds for trace in timed.traces)
    assert not any(trace.loading for timed in records[rung(2)].rounds for trace in timed.traces)
    assert "loss to data" not in done.stdout


@pytest.mark.slow
def test_a_kept_batch_is_measured_and_an_uneven_one_refused(launch: Callable[..., Any], results: Path) -> None:
    words = [*PLAIN, *SCALE, "misbehaving:fine", "--gpus", "2", "--strong", "-o", str(results)]
    refused = launch([*words, "-b", "7"], env=HERE)
    assert refused.returncode == 2
    assert len(errors(refused.stderr)) == 1
    assert "a batch of 7 among the ranks, and 2 do not divide it" in refused.stderr
    done = launch([*words, "-b", "8", "--rounds", "1"], env=HERE)
    assert done.returncode == 0, done.stderr
    job = only_job(results)
    assert {record.label: record.global_batch for record in job.records if record.label in (rung(1), rung(2), SHARE)} == {
        rung(1): 8,
        rung(2): 8,
        SHARE: 4,
    }
    assert "strong scaling" in done.stdout


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_and_not_the_one_that_waits_for_its_turn(launch: Callable[..., Any], results: Path) -> None:
    words = [*PLAIN, *SCALE, "misbehaving:hangs", "--gpus", "2", "--hang-timeout", "4", "-o", str(results)]
    done = launch(words, env={**HERE, "FAULT_RANK": "0", "FAULT_STEP": "4"}, timeout=100)
    assert done.returncode == 124, done.stderr
    (error,) = errors(done.stderr)
    assert error.startswith("hung on rank 0"), "in the rung of one rank, while rank 1 waits"


@pytest.mark.slow
def test_a_rank_that_dies_alone_on_its_rung_is_named(launch: Callable[..., Any], results: Path) -> None:
    words = [*PLAIN, *SCALE, "misbehaving:killed", "--gpus", "2", "-o", str(results)]
    done = launch(words, env={**HERE, "FAULT_RANK": "0", "FAULT_STEP": "4"}, timeout=100)
    assert done.returncode == 1, done.stderr
    (error,) = errors(done.stderr)
    assert "rank 0" in error
