"""A command that a verdict offers: what was typed, with other values, to be copied as it stands."""

from __future__ import annotations

import shlex

import pytest
import records
from msgspec.structs import replace

from ddpbench.analysis.command import Rerun, launcher, threads
from ddpbench.analysis.cures import rounds_to_ask_for
from ddpbench.analysis.judge import judge
from ddpbench.record.config import Config
from ddpbench.record.record import Record

TORCHRUN = "torchrun --standalone --nproc_per_node=4 -m ddpbench"


def asked(record: Record, **changes: object) -> Record:
    """``record`` of a run of which little was asked."""
    record.asked = replace(Config(workload="resnet50", precision="amp-fp16"), **changes)
    return record


def again(typed: str, record: Record | None = None, **values: tuple[object, ...]) -> str:
    return Rerun(record or asked(records.record()), shlex.split(typed)).command(**values)


def test_without_its_words_a_run_is_started_by_its_config() -> None:
    record = records.data_bound()
    assert shlex.split(Rerun(record).command()) == [*TORCHRUN.split(), *record.config.to_argv()]


@pytest.mark.parametrize(
    ("name", "nodes", "words"),
    [
        ("python", 1, "ddpbench"),
        ("torchrun", 1, TORCHRUN),
        ("torchrun", 2, "torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=node-01:29500 --nproc_per_node=2 -m ddpbench"),
        ("slurm", 1, "sbatch launch/slurm_single_node.sbatch"),
        ("slurm", 2, "sbatch --nodes=2 launch/slurm_multi_node.sbatch"),
    ],
)
def test_a_command_starts_as_the_run_was_started(name: str, nodes: int, words: str) -> None:
    assert " ".join(launcher(records.environment(4, nodes=nodes, launcher=name))) == words


@pytest.mark.parametrize(
    "words",
    [
        "torchrun --standalone --nproc_per_node=4",
        "torchrun --nproc_per_node=4 --master_port=29511",
        "torchrun --nproc_per_node=4 --master-addr localhost",
        "torchrun --nnodes=1 --nproc_per_node=4",
        "torchrun --rdzv-endpoint=localhost:0 --nproc_per_node=4",
        "accelerate launch --num_processes=4",
    ],
)
def test_where_ranks_meet_is_kept(words: str) -> None:
    assert again(f"{words} -m ddpbench resnet50 --amp") == f"{words} -m ddpbench resnet50 --amp"


def test_torchrun_on_one_node_gets_a_port_of_its_own() -> None:
    assert again("torchrun --nproc_per_node=4 -m ddpbench resnet50 --amp") == f"{TORCHRUN} resnet50 --amp"


def test_words_stay_as_they_were_typed_and_what_changes_comes_last() -> None:
    typed = f"{TORCHRUN} run resnet50 --amp -b256 --data_dir '/my data' -j 15 --weight-decay=0.0 --no-channels-last -o out -v"
    assert again(typed, workers=(15, 31)) == typed.replace(" -j 15", "") + " --workers 15,31"
    assert again(typed, batch_size=(64,)) == typed.replace(" -b256", "") + " --batch-size 64"
    assert again(typed, weight_decay=()) == typed.replace(" --weight-decay=0.0", "")
    assert again(typed, precision=("amp-fp16", "fp32")) == typed.replace(" --amp", "") + " --precision amp-fp16,fp32"


def test_flags_that_are_for_one_run_alone_are_left_out() -> None:
    typed = f"{TORCHRUN} resnet50 --amp --json here.json --force -q"
    assert again(typed) == f"{TORCHRUN} resnet50 --amp"


@pytest.mark.parametrize("typed", ["ddpbench resnet50 --amp --gpus 4", "python -m ddpbench run resnet50 --amp --gpus=4 --launches 3"])
def test_ranks_that_were_counted_are_counted_again(typed: str) -> None:
    assert again(typed) == typed
    assert again(typed, rounds=(9,)) == f"{typed} --rounds 9"


def test_in_a_job_of_slurms_the_script_counts_the_gpus() -> None:
    place = records.environment(4, launcher="slurm")
    submitted = "sbatch launch/slurm_single_node.sbatch resnet50 --amp"
    assert again("ddpbench resnet50 --amp --gpus 4", asked(records.record(environment=place))) == submitted


@pytest.mark.parametrize(("short", "kept"), [("-qb 4", "-b 4"), ("-qj4", "-j4"), ("-vqj 4", "-v -j 4"), ("-b4", "-b4")])
def test_short_flags_that_were_typed_in_one_word_stand_alone(short: str, kept: str) -> None:
    assert again(f"{TORCHRUN} resnet50 {short} --amp") == f"{TORCHRUN} resnet50 {kept} --amp"


@pytest.mark.parametrize(
    ("typed", "fewer"),
    [
        (f"{TORCHRUN} resnet50 --amp", "torchrun --standalone --nproc_per_node=2 -m ddpbench resnet50 --amp"),
        ("ddpbench resnet50 --gpus 4 --amp", "ddpbench resnet50 --gpus 2 --amp"),
        ("", "torchrun --standalone --nproc_per_node=2 -m ddpbench resnet50 --precision amp-fp16"),
    ],
)
def test_the_same_on_fewer_ranks(typed: str, fewer: str) -> None:
    assert Rerun(asked(records.record()), shlex.split(typed)).with_ranks(2).command() == fewer


def test_an_arm_has_the_value_it_had_among_several() -> None:
    typed = f"{TORCHRUN} resnet50 --precision fp32,amp-fp16 --channels-last --no-channels-last --loader torch"
    arm = asked(records.record(), channels_last=False)
    assert again(typed, arm) == f"{TORCHRUN} resnet50 --loader torch --precision amp-fp16 --no-channels-last"


def test_an_arm_on_a_resident_batch_takes_no_files() -> None:
    arm = asked(records.record(), loader="synthetic", data_dir="/data")
    typed = f"{TORCHRUN} resnet50 --data-dir /data --loader torch,synthetic"
    assert again(typed, arm) == f"{TORCHRUN} resnet50 --loader synthetic"
    assert again(typed, arm, loader=("torch", "synthetic")) == typed
    of_an_experiment = Rerun(arm)  # whose folder is for those of its trainings that read
    assert of_an_experiment.command() == f"{TORCHRUN} resnet50 --precision amp-fp16 --loader synthetic"


@pytest.mark.parametrize("typed", ["", "mpirun -n 4 something", f"{TORCHRUN} resnet50 --unheard-of 3", f"{TORCHRUN} resnet50 -b"])
def test_words_that_are_not_understood_are_not_repeated(typed: str) -> None:
    assert again(typed) == f"{TORCHRUN} resnet50 --precision amp-fp16"


def test_ranks_that_other_words_started_are_started_by_torchrun() -> None:
    assert again("ddpbench resnet50 --amp") == f"{TORCHRUN} resnet50 --amp"


@pytest.mark.parametrize(
    ("ranks", "given", "prefix"),
    [
        (2, {"OMP_NUM_THREADS": "1"}, []),
        (2, {"OMP_NUM_THREADS": "8"}, ["OMP_NUM_THREADS=8"]),
        (2, {}, []),
        (1, {"OMP_NUM_THREADS": "1"}, ["OMP_NUM_THREADS=1"]),
        (1, {}, []),
    ],
)
def test_threads_are_told_where_they_would_be_others_by_themselves(ranks: int, given: dict[str, str], prefix: list[str]) -> None:
    assert threads(records.environment(ranks, device="Xeon CPU", variables=given)) == prefix
    assert threads(records.environment(ranks, variables=given)) == []


def test_the_threads_stand_before_the_launcher() -> None:
    place = records.environment(2, device="Xeon CPU", variables={"OMP_NUM_THREADS": "4"})
    run = asked(records.cpu_run(environment=place))
    typed = "torchrun --nproc_per_node=2 -m ddpbench resnet50 --amp"
    assert again(typed, run) == "OMP_NUM_THREADS=4 torchrun --standalone --nproc_per_node=2 -m ddpbench resnet50 --amp"


def more_rounds(run: Rerun) -> str:
    return run.command(**rounds_to_ask_for(run.record))


@pytest.mark.parametrize(
    ("rounds", "done", "status", "flags"),
    [
        (5, 5, "ok", "--rounds 10"),
        (2, 2, "ok", "--rounds 5"),
        (8, 3, "interrupted", "--rounds 8"),
        (3, 1, "failed", "--rounds 5"),
    ],
)
def test_more_rounds_are_those_requested_and_of_a_whole_run_twice_as_many_once(rounds: int, done: int, status: str, flags: str) -> None:
    run = asked(records.record(longer=[1.0] * done, status=status, config=replace(records.RESNET50, rounds=rounds)), rounds=rounds)
    assert more_rounds(Rerun(run)).endswith(flags)


def test_a_whole_run_of_many_rounds_is_given_no_more() -> None:
    run = asked(records.record(longer=[1.0] * 10, config=replace(records.RESNET50, rounds=10)), rounds=10)
    assert not rounds_to_ask_for(run)


@pytest.mark.parametrize(("steps", "flags"), [(2, "--rounds 5 --steps 6"), (50, "--steps 50 --rounds 5")])
def test_more_rounds_keep_steps_only_where_they_are_enough_for_a_figure(steps: int, flags: str) -> None:
    run = asked(records.record(longer=[1.0, 1.1], steps=steps, config=replace(records.RESNET50, rounds=2)), rounds=2, steps=steps)
    typed = f"{TORCHRUN} resnet50 --amp --steps {steps} --rounds 2".split()
    assert more_rounds(Rerun(run, typed)) == f"{TORCHRUN} resnet50 --amp {flags}"


def test_a_run_that_its_time_limit_ended_is_given_the_time() -> None:
    run = asked(records.record(longer=[1.0, 1.1]), time_limit=9.0)
    typed = f"{TORCHRUN} resnet50 --amp --time-limit 9".split()
    assert more_rounds(Rerun(run, typed)) == f"{TORCHRUN} resnet50 --amp"


def test_a_judged_record_offers_its_command_in_the_words_it_was_given() -> None:
    run = asked(records.record())
    judge(run, typed=shlex.split("torchrun --nproc_per_node=4 -m ddpbench resnet50 --amp"))
    assert run.verdict is not None
    assert run.verdict.next == f"{TORCHRUN} resnet50 --amp --compile off,default"


def test_the_time_that_a_diagnosis_had_is_no_limit_of_a_run() -> None:
    run = Rerun(asked(records.record(), time_limit=85.0), f"{TORCHRUN} diagnose resnet50 --amp --no-verify --time-limit 85".split())
    assert run.command(workers=(8, 14)) == f"{TORCHRUN} resnet50 --amp --workers 8,14"
