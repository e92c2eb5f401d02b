"""Real runs: torchrun with two gloo ranks, one process, arms, engines, a late rank."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launches import PLAIN, SMALL, SUPPORT, SUPPORT_ENV, TORCHRUN, only_job, only_record

from ddpbench.analysis.summary import summarize
from ddpbench.bench.scheduler import abba_schedule
from ddpbench.machine.host import usable_cores
from ddpbench.record.environment import Transport
from ddpbench.record.io import load
from ddpbench.record.record import Record
from ddpbench.record.trace import PHASES

pytestmark = pytest.mark.timeout(110)

RESNET = ["resnet18", "--device", "cpu", "--image-size", "32", "-b", "2", "--steps", "2", "--rounds", "2", "--warmup", "1"]


def losses(record: Record) -> list[float]:
    return [trace.numerics.last_loss for timed in record.rounds for trace in timed.traces]


def test_two_ranks_write_one_complete_record(launch: Callable[..., Any], results: Path) -> None:
    done = launch([*TORCHRUN, *RESNET, "--precision", "fp32", "-o", str(results)])
    assert done.returncode == 0, done.stderr
    record = only_record(results)
    assert (record.status, record.world_size, record.environment.backend) == ("ok", 2, "gloo")
    assert len({place.pid for place in record.environment.placements}) == 2
    assert record.environment.transport == [Transport(via="TCP", inter_node=False)]
    assert "ddp, buffer broadcast on" in done.stdout
    for timed in record.rounds:
        assert [trace.rank for trace in timed.traces] == [0, 1]
        assert timed.samples == 2 * 2 * 2
        assert timed.params_in_sync, "both ranks must end with the same parameters"
        assert timed.wall_s == max(trace.wall_s for trace in timed.traces)
        for trace in timed.traces:
            assert list(trace.phases_ms) == list(PHASES)
            explained_ms = sum(sum(durations) for durations in trace.phases_ms.values())
            assert 0.8 * trace.wall_s * 1e3 <= explained_ms <= trace.wall_s * 1e3
    assert all(math.isfinite(loss) for loss in losses(record))
    assert record.observed_precision is not None
    assert record.observed_precision.first_layer_dtype == "float32"
    assert record.throughput is not None
    assert re.search(r"^throughput +[\d.,]+ images/s ", done.stdout, re.MULTILINE)
    assert done.stdout.rstrip().endswith(".json")


@pytest.fixture(scope="module")
def one_process(launch_once: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Record]:
    """Result of a strict single-process run with JSON on stdout, and its record."""
    results = tmp_path_factory.mktemp("runs")
    return launch_once([*PLAIN, *RESNET, "--strict", "--json", "-", "-o", str(results)]), only_record(results)


def test_single_process_needs_no_process_group(one_process: tuple[Any, Record]) -> None:
    done, record = one_process
    assert (record.environment.backend, record.environment.launcher, record.world_size) == ("none", "python", 1)
    assert record.config.loader == "synthetic"
    assert "--data-dir" in done.stderr, "the report states how to measure a real loader"


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "within"), [("fp32", 1e-5), ("amp-bf16", 2e-2)])
def test_engines_train_identically(launch: Callable[..., Any], precision: str, within: float) -> None:
    done = launch([*TORCHRUN[:-2], str(SUPPORT / "engine_losses.py"), precision])
    assert done.returncode == 0, done.stderr
    losses = json.loads(done.stdout)
    assert losses["ddp"][-1] < losses["ddp"][0], "the loss decreases"
    assert losses["accelerate"] == pytest.approx(losses["ddp"], rel=within)


@pytest.mark.slow
def test_engines_are_arms_and_profile_writes_one_trace_per_arm_and_rank(launch: Callable[..., Any], results: Path) -> None:
    done = launch([*TORCHRUN, *RESNET, "--engine", "ddp,accelerate", "--precision", "amp-bf16", "--profile", "-o", str(results)])
    assert done.returncode == 0, done.stderr
    traces = sorted(results.glob("*.trace.json"))
    assert [path.name.rpartition("-")[2] for path in traces] == ["rank0.trace.json", "rank1.trace.json"] * 2
    assert all(json.loads(path.read_text())["traceEvents"] for path in traces)
    (path,) = set(results.glob("*.json")) - set(traces)
    records = load(path).records
    assert [record.config.engine for record in records] == ["ddp", "accelerate"]
    assert all(timed.params_in_sync for record in records for timed in record.rounds)


@pytest.mark.slow
def test_arms_are_interleaved_abba_and_compared_in_one_table(launch: Callable[..., Any], results: Path) -> None:
    arms = ["--precision", "fp32,amp-bf16", "-b", "2,4", "--rounds", "2"]
    done = launch([*PLAIN, "misbehaving:fine", *SMALL, *arms, "-o", str(results)], env=SUPPORT_ENV)
    assert done.returncode == 0, done.stderr
    job = only_job(results)
    asked = [(record.config.precision, record.config.batch_size) for record in job.records]
    assert asked == [("fp32", 2), ("fp32", 4), ("amp-bf16", 2), ("amp-bf16", 4)]
    assert all(len(record.rounds) == 2 and record.status == "ok" for record in job.records)
    turns = re.findall(r"^ddpbench: round \d of 8: (.+): [\d.,]+ images/s", done.stderr, re.MULTILINE)
    assert len(set(turns[:4])) == 4
    assert turns[4:] == turns[3::-1], "the second round runs in reverse order"
    assert done.stdout.count("speed-up") == 1
    assert set(job.swept) == {"precision", "batch_size"}


def test_abba_schedule() -> None:
    assert list(abba_schedule([4, 4])) == [(0, 0), (1, 0), (1, 1), (0, 1), (0, 2), (1, 2), (1, 3), (0, 3)]
    assert list(abba_schedule([2, 1, 3])) == [(0, 0), (1, 0), (2, 0), (2, 1), (0, 1), (2, 2)], "each arm has its requested number of rounds"


@pytest.mark.slow
def test_parked_arm_continues_its_training(launch: Callable[..., Any], results: Path, tmp_path: Path) -> None:
    """An arm parked between rounds continues its training and runs as many samples as a single arm."""
    alone, among = tmp_path / "alone", tmp_path / "among"
    fixed = [*RESNET, "--rounds", "3"]
    assert launch([*PLAIN, *fixed, "--precision", "fp32", "-o", str(alone)]).returncode == 0
    assert launch([*PLAIN, *fixed, "--precision", "fp32,amp-bf16", "-o", str(among)]).returncode == 0
    first_alone, first_among = only_record(alone).rounds[0], only_job(among).records[0].rounds[0]
    last = only_job(among).records[0].rounds[-1].traces[0].numerics
    assert last.last_loss < first_among.traces[0].numerics.first_loss, "training continues across rounds"
    assert first_alone.samples == first_among.samples


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "broadcast"), [(0, "--broadcast-buffers"), (1, "--no-broadcast-buffers")])
def test_late_rank_is_identified_by_its_own_time(launch: Callable[..., Any], results: Path, rank: int, broadcast: str) -> None:
    late = {**SUPPORT_ENV, "FAULT_RANK": str(rank), "FAULT_DELAY_S": "0.08"}
    done = launch([*TORCHRUN, "misbehaving:late", *SMALL, "--steps", "8", "--rounds", "3", broadcast, "-o", str(results)], env=late)
    assert done.returncode == 0, done.stderr
    summary = summarize(only_record(results))
    assert summary.straggler is not None
    assert summary.straggler.rank == rank
    own = {row.rank: row.own_ms for row in summary.ranks}
    assert own[rank] - own[1 - rank] == pytest.approx(80, abs=40)
    assert f"rank {rank}" in done.stdout


def test_json_on_stdout_is_pure_json_and_strict_run_with_warnings_exits_3(one_process: tuple[Any, Record]) -> None:
    done, record = one_process
    assert done.returncode == 3, "two rounds of two steps cannot be trusted"
    assert json.loads(done.stdout)["records"][0]["status"] == "ok"
    assert record.status == "ok"
    assert "images/s" in done.stderr


@pytest.mark.slow
def test_launches_are_merged_into_one_figure(launch: Callable[..., Any], results: Path, tmp_path: Path) -> None:
    merged = tmp_path / "merged.json"
    done = launch([*PLAIN, *RESNET, "--launches", "2", "--json", str(merged), "-o", str(results)])
    assert done.returncode == 0, done.stderr
    assert len(list(results.glob("*.json"))) == 3, "one record per launch and the merged one"
    assert json.loads(merged.read_text())["records"][0]["throughput"]["num_launches"] == 2


@pytest.mark.slow
def test_time_limit_ends_the_run_with_finished_rounds(launch: Callable[..., Any], results: Path) -> None:
    done = launch([*PLAIN, "misbehaving:fine", *SMALL, "--rounds", "100000", "--time-limit", "0.5", "-o", str(results)], env=SUPPORT_ENV)
    assert done.returncode == 0, done.stderr
    assert 1 <= len(only_record(results).rounds) < 100_000


@pytest.mark.slow
def test_compiled_model_trains(launch: Callable[..., Any], results: Path) -> None:
    done = launch(
        [*TORCHRUN, "misbehaving:fine", *SMALL, "--rounds", "2", "--compile", "default", "-o", str(results)],
        env=SUPPORT_ENV,
    )
    assert done.returncode == 0, done.stderr
    first, last = only_record(results).rounds
    assert last.params_in_sync
    assert last.traces[0].numerics.params_checksum_after != first.traces[0].numerics.params_checksum_before


@pytest.mark.slow
@pytest.mark.parametrize(("given", "threads"), [("", str(int(usable_cores()))), ("1", "1")])
def test_ranks_that_gpus_starts_on_cpu_share_the_cores(launch: Callable[..., Any], results: Path, given: str, threads: str) -> None:
    words = ["disc-mlp-10", "--gpus", "1", "--device", "cpu", "--steps", "10", "--rounds", "1", "--warmup", "1", "-o", str(results)]
    done = launch([*PLAIN, *words], env={"OMP_NUM_THREADS": given})
    assert done.returncode == 0, done.stderr
    assert only_record(results).environment.variables["OMP_NUM_THREADS"] == threads
