"""Suggested commands: the run of a record with other values, ready to copy."""

from __future__ import annotations

from typing import Any

import pytest
import records
from commands import parsed
from msgspec.structs import replace

from ddpbench.analysis.command import CommandBuilder, default_threads, launcher_argv, omp_threads_prefix
from ddpbench.analysis.judge import judge
from ddpbench.analysis.remedies.training_rules import longer_run_fields
from ddpbench.record.config import Config
from ddpbench.record.record import Record

REQUESTED = Config(workload="resnet50", precision="amp-fp16")


def with_requested(record: Record | None = None, **changes: object) -> Record:
    """``record`` of a run with few requested flags."""
    record = record or records.record()
    record.requested = replace(REQUESTED, **changes)
    return record


def test_minimal_command_has_workload_precision_and_gpus() -> None:
    assert CommandBuilder(with_requested()).command() == "ddpbench resnet50 --precision amp-fp16 --gpus 4"
    assert CommandBuilder(with_requested()).diagnose_command() == "ddpbench diagnose resnet50 --precision amp-fp16 --gpus 4"


@pytest.mark.parametrize(
    ("name", "nodes", "words"),
    [
        ("python", 1, "ddpbench"),
        ("torchrun", 1, "ddpbench"),
        ("accelerate", 1, "ddpbench"),
        ("torchrun", 2, "torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=node-01:29500 --nproc_per_node=2 -m ddpbench"),
        ("slurm", 1, "sbatch launch/slurm_single_node.sbatch"),
        ("slurm", 2, "sbatch --nodes=2 launch/slurm_multi_node.sbatch"),
    ],
)
def test_command_starts_with_the_launcher_of_the_run(name: str, nodes: int, words: str) -> None:
    place = records.environment(4, nodes=nodes, launcher=name)
    assert " ".join(launcher_argv(place)) == words
    counted = " --gpus 4" if name in ("torchrun", "accelerate") and nodes == 1 else ""
    assert CommandBuilder(with_requested(records.record(environment=place))).command() == f"{words} resnet50 --precision amp-fp16{counted}"


EVERY_FLAG: dict[str, Any] = {
    "batch_size": 64,
    "lr": 1e-05,
    "weight_decay": 0.0,
    "channels_last": False,
    "log_loss": True,
    "loader": "torch",
    "data_dir": "/my data/it's",
    "workers": 15,
    "pin_memory": False,
    "hw_decoder_load": 0.65,
    "bucket_cap_mb": 25.0,
    "share_gpu": True,
    "steps": 20,
    "rounds": 9,
    "launches": 3,
    "time_limit": 90.0,
    "fail_if_data_wait": 5.0,
}


@pytest.mark.parametrize("config", [REQUESTED, replace(REQUESTED, **EVERY_FLAG)])
def test_command_parses_back_to_the_same_config(config: Config) -> None:
    record = records.record()
    record.requested = config
    name, again = parsed(CommandBuilder(record).command())
    assert (name, again.arms, again.output.gpus) == ("run", [config], 4)
    name, again = parsed(CommandBuilder(record).diagnose_command())
    assert (name, again.arms, again.output.gpus) == (
        "diagnose",
        [replace(config, steps=None, rounds=5, launches=1, time_limit=None, fail_if_data_wait=None)],
        4,
    )


def test_record_without_requested_config_uses_resolved_config() -> None:
    record = records.data_bound()
    (arm,) = parsed(CommandBuilder(record).command())[1].arms
    assert arm.to_argv() == record.config.to_argv()


def test_overrides_come_last_and_create_arms() -> None:
    run = CommandBuilder(with_requested(workers=15, weight_decay=0.1, channels_last=False))
    start = "ddpbench resnet50 --precision amp-fp16"
    assert run.command(workers=(15, 31)) == f"{start} --weight-decay 0.1 --no-channels-last --gpus 4 --workers 15,31"
    assert run.command(weight_decay=()) == f"{start} --no-channels-last --workers 15 --gpus 4", "without values the flag is omitted"
    (_, both), (_, swept) = map(parsed, (run.command(channels_last=(False, True)), run.command(precision=("fp32", "o2"))))
    assert [arm.channels_last for arm in both.arms] == [False, True]
    assert [arm.precision for arm in swept.arms] == ["fp32", "o2"]


def test_synthetic_loader_omits_data_flags() -> None:
    run = CommandBuilder(with_requested(loader="torch", data_dir="/data", download=True))
    (resident,) = parsed(run.command(loader=("synthetic",)))[1].arms
    assert (resident.loader, resident.data_dir, resident.download) == ("synthetic", None, False)
    assert {arm.data_dir for arm in parsed(run.command(loader=("torch", "synthetic")))[1].arms} == {"/data"}
    arm = CommandBuilder(with_requested(loader="synthetic", data_dir="/data"))  # from a sweep with a loader that reads
    assert parsed(arm.command())[1].arms == [replace(REQUESTED, loader="synthetic")]


def test_cpu_ranks_are_requested_with_device_cpu() -> None:
    run = CommandBuilder(with_requested(records.cpu_run()))
    assert run.command() == "ddpbench resnet50 --precision amp-fp16 --device cpu --gpus 2"
    lone = records.cpu_run(environment=records.environment(1, device="Xeon CPU"))
    assert CommandBuilder(with_requested(lone)).command() == "ddpbench resnet50 --precision amp-fp16"


def test_command_for_fewer_ranks() -> None:
    assert CommandBuilder(with_requested(), ranks=2).command() == "ddpbench resnet50 --precision amp-fp16 --gpus 2"


@pytest.mark.parametrize(
    ("ranks", "changes", "prefix"),
    [
        (2, {"variables": {"OMP_NUM_THREADS": "1"}}, ["OMP_NUM_THREADS=1"]),
        (2, {"variables": {"OMP_NUM_THREADS": "3"}}, []),
        (2, {"variables": {"OMP_NUM_THREADS": "8"}}, ["OMP_NUM_THREADS=8"]),
        (2, {}, []),
        (1, {"variables": {"OMP_NUM_THREADS": "1"}}, ["OMP_NUM_THREADS=1"]),
        (1, {}, []),
        (1, {"launcher": "torchrun", "variables": {"OMP_NUM_THREADS": "1"}}, ["OMP_NUM_THREADS=1"]),
        (1, {"launcher": "torchrun"}, []),
        (2, {"nodes": 2}, []),
        (2, {"nodes": 2, "variables": {"OMP_NUM_THREADS": "1"}}, ["OMP_NUM_THREADS=1"]),
        (2, {"launcher": "slurm", "variables": {"OMP_NUM_THREADS": "8"}}, []),
    ],
)
def test_thread_variable_is_set_only_if_it_differs_from_the_default(ranks: int, changes: dict[str, Any], prefix: list[str]) -> None:
    assert omp_threads_prefix(records.environment(ranks, device="Xeon CPU", usable_cores=6.0, **changes), None) == prefix
    assert omp_threads_prefix(records.environment(ranks, **changes), None) == []


@pytest.mark.parametrize(("cores_per_rank", "threads"), [(None, 3), (2, 2), (8, 3)])
def test_threads_share_the_cores_of_a_rank(cores_per_rank: int | None, threads: int) -> None:
    assert default_threads(6.0, 2, cores_per_rank) == threads
    assert default_threads(1.5, 2, cores_per_rank) == 1


def test_thread_variable_is_omitted_if_threads_are_swept() -> None:
    place = records.environment(2, device="Xeon CPU", variables={"OMP_NUM_THREADS": "4"})
    run = CommandBuilder(with_requested(records.cpu_run(environment=place)))
    assert run.command().startswith("OMP_NUM_THREADS=4 ddpbench resnet50 ")
    assert run.command(threads=(4, 2)).startswith("ddpbench resnet50 ")


def more_rounds(run: CommandBuilder) -> str:
    return run.command(**longer_run_fields(run.record))


@pytest.mark.parametrize(
    ("rounds", "done", "status", "flags"),
    [
        (5, 5, "ok", "--rounds 10"),
        (2, 2, "ok", "--rounds 5"),
        (8, 3, "interrupted", "--rounds 8"),
        (3, 1, "failed", "--rounds 5"),
    ],
)
def test_more_rounds_are_requested_rounds_or_twice_a_finished_run(rounds: int, done: int, status: str, flags: str) -> None:
    run = with_requested(records.record(longer=[1.0] * done, status=status, config=replace(records.RESNET50, rounds=rounds)), rounds=rounds)
    assert f"{flags} " in f"{more_rounds(CommandBuilder(run))} "


def test_finished_run_of_many_rounds_gets_no_more() -> None:
    run = with_requested(records.record(longer=[1.0] * 10, config=replace(records.RESNET50, rounds=10)), rounds=10)
    assert not longer_run_fields(run)


@pytest.mark.parametrize(("steps", "flags"), [(2, "--gpus 4 --rounds 5 --steps 6"), (50, "--steps 50 --gpus 4 --rounds 5")])
def test_more_rounds_keep_steps_only_if_sufficient(steps: int, flags: str) -> None:
    run = with_requested(records.record(longer=[1.0, 1.1], steps=steps, config=replace(records.RESNET50, rounds=2)), rounds=2, steps=steps)
    assert more_rounds(CommandBuilder(run)) == f"ddpbench resnet50 --precision amp-fp16 {flags}"


def test_more_rounds_drop_the_time_limit() -> None:
    run = with_requested(records.record(longer=[1.0, 1.1]), time_limit=9.0)
    assert more_rounds(CommandBuilder(run)) == "ddpbench resnet50 --precision amp-fp16 --gpus 4"


def test_judged_record_carries_next_command() -> None:
    run = with_requested()
    judge(run)
    assert run.verdict is not None
    assert records.next_command(run.verdict) == "ddpbench resnet50 --precision amp-fp16 --gpus 4 --no-fast --fast"


@pytest.mark.parametrize("chosen", [{"compile": "default"}, {}])
def test_chosen_or_swept_options_are_not_suggested_again(chosen: dict[str, str]) -> None:
    run = with_requested(**chosen)
    judge(run, swept=[] if chosen else ["compile"])
    assert run.verdict is not None
    assert "--batch-size 256,512" in records.next_command(run.verdict)
    run = with_requested(**chosen, batch_size=256)
    judge(run, swept=["compile"])
    assert run.verdict is not None
    assert run.verdict.next is None


@pytest.mark.parametrize("kind", ["diagnose", "scale"])
def test_time_limit_of_diagnose_or_scale_is_not_passed_to_run(kind: str) -> None:
    run = CommandBuilder(with_requested(time_limit=85.0), kind)
    assert run.command(workers=(8, 14)) == "ddpbench resnet50 --precision amp-fp16 --gpus 4 --workers 8,14"


def test_warmup_of_diagnose_is_not_passed_to_run() -> None:
    assert "--warmup" not in CommandBuilder(with_requested(warmup=2), "diagnose").command()
    assert CommandBuilder(with_requested(warmup=2)).command().endswith("--warmup 2 --gpus 4")
