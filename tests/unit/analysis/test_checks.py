"""Every check speaks when it must, says its numbers, and is silent on a sound run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import records

from ddpbench.analysis.checks.figure import run_checks
from ddpbench.record.checks import Check
from ddpbench.record.config import Config
from ddpbench.record.loader_stats import LoaderStats
from ddpbench.record.record import DatasetInfo, Record
from ddpbench.record.trace import Health


def the_check(name: str, record: Record) -> Check:
    return next(check for check in run_checks(record) if check.code == name)


def names(record: Record) -> list[str]:
    return [check.code for check in run_checks(record)]


def with_rounds(record: Record, **of_round: dict[str, Any]) -> Record:
    """``record`` with changed fields of rounds: ``r2=...`` is the third; its key "numerics" goes to rank 0's trace."""
    for key, changes in of_round.items():
        index = int(key[1:])
        timed = record.rounds[index]
        numerics = changes.pop("numerics", None)
        if numerics:
            first = timed.traces[0]
            timed.traces[0] = msgspec.structs.replace(first, numerics=msgspec.structs.replace(first.numerics, **numerics))
        record.rounds[index] = msgspec.structs.replace(timed, **changes)
    return record


@pytest.mark.parametrize("record", [records.record(), records.cpu_run(), records.record([records.BUSY])], ids=["gpus", "cpu", "one"])
def test_a_sound_run_gives_nothing_to_say(record: Record) -> None:
    assert run_checks(record) == []


def test_no_rounds_no_checks() -> None:
    assert run_checks(records.data_bound(longer=[])) == []


def test_a_loss_that_is_not_finite_blocks_and_tells_step_and_rank() -> None:
    found = the_check("not-finite", with_rounds(records.record(), r2={"numerics": {"nonfinite_step": 1, "last_loss": None}}))
    assert (found.severity, found.sentence) == ("blocks", "loss not finite, step 41, rank 0")


@pytest.mark.parametrize(
    ("skipped", "effect"),
    [({"r1": [4]}, "informs"), ({"r1": [4, 5]}, "blocks"), ({"r0": [19], "r1": [0]}, "blocks"), ({"r0": [3], "r4": [8]}, "blocks")],
    ids=["one", "two in a row", "in a row over rounds", "two percent"],
)
def test_skipped_updates(skipped: dict[str, list[int]], effect: str) -> None:
    record = with_rounds(records.record(), **{key: {"numerics": {"skipped_steps": steps}} for key, steps in skipped.items()})
    assert the_check("skipped-steps", record).severity == effect


def test_few_skips_far_apart_inform() -> None:
    record = with_rounds(records.record(steps=200), r0={"numerics": {"skipped_steps": [3, 90]}}, r3={"numerics": {"skipped_steps": [120]}})
    found = the_check("skipped-steps", record)
    assert (found.severity, found.numbers) == ("informs", {"skipped": 3, "steps": 1000})


def test_frozen_parameters_block() -> None:
    found = the_check("frozen", with_rounds(records.record(), r1={"numerics": {"params_checksum_after": 1}}))
    assert (found.severity, found.numbers) == ("blocks", {"round": 2, "rank": 0})


def test_ranks_that_end_with_different_parameters_block() -> None:
    found = the_check("diverged", with_rounds(records.record(), r3={"params_in_sync": False}))
    assert (found.severity, found.sentence) == ("blocks", "ranks ended round 4 with different parameters")


def test_noise_is_that_of_rounds() -> None:
    found = the_check("noisy", records.record(longer=[1.0, 1.02, 0.98, 1.01, 0.99]))
    assert found.severity == "warns"
    assert found.numbers["variation"] == pytest.approx(0.0158, abs=1e-4)


@pytest.mark.parametrize(("longer", "word"), [([1.0, 1.0, 1.01, 1.03, 1.03], "slower"), ([1.03, 1.03, 1.01, 1.0, 1.0], "faster")])
def test_drift(longer: list[float], word: str) -> None:
    found = the_check("drift", records.record(longer=longer))
    assert (found.severity, word in found.sentence) == ("warns", True)


@pytest.mark.parametrize(("longer", "steps"), [([1.0] * 4, 20), ([1.0] * 5, 5)], ids=["rounds", "steps"])
def test_too_little_evidence(longer: list[float], steps: int) -> None:
    assert names(records.record(longer=longer, steps=steps)) == ["few-rounds"]


@pytest.mark.parametrize(
    ("rounds", "steps", "done", "status", "hint"),
    [
        (5, None, 3, "interrupted", "let it run to its end"),
        (5, None, 3, "running", "let it run to its end"),
        (5, None, 3, "failed", ""),
        (2, None, 2, "ok", "`--rounds 5` or more"),
        (2, 2, 2, "ok", "`--rounds 5 --steps 6` or more"),
        (5, 2, 5, "ok", "`--steps 6` or more"),
        (10, 2, 10, "ok", "`--steps 3` or more"),
        (5, None, 5, "ok", "`--steps 6` or more"),
    ],
)
def test_a_hint_for_too_little_evidence_fits_what_was_asked_for(rounds: int, steps: int | None, done: int, status: str, hint: str) -> None:
    config = msgspec.structs.replace(records.RESNET50, rounds=rounds, steps=steps)
    took = steps or (3 if done == 5 else 20)
    assert the_check("few-rounds", records.record(longer=[1.0] * done, steps=took, config=config, status=status)).hint == hint


@pytest.mark.parametrize(("limit_s", "hint"), [(9.0, "a longer --time-limit"), (None, "")])
def test_a_longer_time_limit_is_for_a_run_that_has_one(limit_s: float | None, hint: str) -> None:
    config = msgspec.structs.replace(records.RESNET50, time_limit=limit_s)
    assert the_check("few-rounds", records.record(longer=[1.0] * 3, config=config)).hint == hint


def test_rounds_of_epochs_become_more_and_not_longer() -> None:
    config = msgspec.structs.replace(records.RESNET50, epochs=1)
    assert the_check("few-rounds", records.record(steps=3, config=config)).hint == "`--rounds 10` or more"


def test_a_blocked_figure_is_not_asked_what_it_rests_on() -> None:
    dead = {0: {"numerics": records.numerics(nonfinite_step=1, last_loss=None)}}
    assert names(records.record(longer=[1.0, 1.2], traces=dead)) == ["not-finite"]


def test_a_file_that_was_left_out_counts_once_on_however_many_ranks() -> None:
    told = {
        rank: {"loader_stats": LoaderStats(images=8, skipped_files=files)} for rank, files in enumerate((["a", "b"], ["b"], ["b", "c"], []))
    }
    found = the_check("left-out", records.record(traces=told))
    assert (found.severity, found.numbers) == ("informs", {"files": 3})
    assert found.sentence == "3 files could not be read, and were left out, as --skip-bad allows"
    one = the_check("left-out", records.record(traces={1: told[1]}))
    assert one.sentence.startswith("1 file could not be read, and was left out")


def test_throttling_warns_and_a_power_cap_informs() -> None:
    hot = records.record(traces={2: {"health": Health(throttle_reasons=["sw-power-cap", "hw-thermal"])}})
    assert [(check.code, check.severity) for check in run_checks(hot)] == [("throttled", "warns"), ("power-cap", "informs")]
    assert the_check("throttled", hot).sentence == "rank 2 (node-01): hw-thermal"


def test_a_round_measured_twice_is_told() -> None:
    assert names(records.record(traces={1: {"retry_reason": "throttle"}})) == ["rerun"]


def test_other_processes_on_the_gpu_warn() -> None:
    found = the_check("shared-gpu", records.record(traces={1: {"health": Health(other_processes=2)}}))
    assert (found.severity, found.sentence) == ("warns", "rank 1 (node-01): 2 other processes on the GPU")


def test_allocator_retries_warn() -> None:
    memory = msgspec.structs.replace(records.GPU_MEMORY, allocator_retries=2)
    assert the_check("alloc-retry", records.record(traces={0: {"memory": memory}})).numbers == {"retries": 10}


def test_more_workers_than_cores_warn() -> None:
    found = the_check("cpu-starved", records.data_bound())
    assert (found.severity, found.sentence, found.hint) == ("warns", "4 ranks x 16 workers + 4 > 60 usable cores", "`-j 14`, or more cores")


def test_no_fewer_workers_are_offered_than_one() -> None:
    two = records.environment(2, device="Xeon CPU", usable_cores=2.0)
    config = msgspec.structs.replace(records.cpu_run().config, loader="torch", workers=1)
    found = the_check("cpu-starved", records.cpu_run(environment=two, config=config))
    assert (found.sentence, found.hint) == ("2 ranks x 1 worker + 2 > 2 usable cores", "fewer ranks or threads, or more cores")


def test_the_cores_of_each_node_count_alone() -> None:
    assert run_checks(records.data_bound(environment=records.environment(4, nodes=2, usable_cores=34.0))) == []
    tight = records.data_bound(environment=records.environment(4, nodes=2, usable_cores=33.5))
    assert the_check("cpu-starved", tight).sentence == "2 ranks x 16 workers + 2 > 33.5 usable cores on node-01"


def test_one_core_is_one() -> None:
    tight = records.cpu_run(environment=records.environment(2, device="Xeon CPU", usable_cores=1.0))
    assert the_check("cpu-starved", tight).sentence.endswith(" > 1 usable core")


def test_cpu_ranks_need_the_threads_they_compute_with() -> None:
    variables = {"OMP_NUM_THREADS": "2"}
    record = records.cpu_run(environment=records.environment(2, device="Xeon CPU", usable_cores=2.0, variables=variables))
    assert the_check("cpu-starved", record).sentence == "2 ranks x 2 threads > 2 usable cores"


def test_a_rank_that_got_half_a_core_while_it_computed_warns() -> None:
    found = the_check("noisy-neighbour", records.cpu_run(traces={0: {"cpu_s": 2.1}, 1: {"cpu_s": 4.0}}))
    assert (found.severity, found.sentence) == ("warns", "rank 0 (node-01) got 0.52 of a core in computing")
    assert found.numbers == {"ranks": 1, "least_cores": pytest.approx(0.516, abs=1e-3)}


@pytest.mark.parametrize(("cpu_s", "said"), [(9.0, []), (6.2, ["noisy-neighbour"])], ids=["half of them", "fewer"])
def test_of_several_threads_half_are_asked_for(cpu_s: float, said: list[str]) -> None:
    place = records.environment(2, device="Xeon CPU", usable_cores=8.0, variables={"OMP_NUM_THREADS": "4"})
    assert names(records.cpu_run(environment=place, traces={rank: {"cpu_s": cpu_s} for rank in range(2)})) == said


def test_without_cpu_time_or_on_gpus_nobody_is_suspected() -> None:
    assert names(records.cpu_run(traces={0: {"cpu_s": None}})) == []
    assert names(records.record(traces={rank: {"cpu_s": 0.1} for rank in range(4)})) == []


def test_files_read_again_inform() -> None:
    assert the_check("recycled", records.record(data=DatasetInfo(loader="torch", description="", reread=True))).severity == "informs"


@pytest.mark.parametrize("flags", [{"validate": True}, {"epochs": 2}], ids=["--validate", "--epochs"])
def test_who_asks_for_accuracy_is_told_why_there_is_none(flags: dict[str, Any]) -> None:
    run = records.record()
    run.requested = Config(workload="resnet50", **flags)
    assert the_check("not-validated", run).severity == "informs"
    validated = records.record(traces={0: {"numerics": records.numerics(accuracy=0.5)}})
    validated.requested = run.requested
    assert names(validated) == []
    unasked = records.record()
    unasked.requested = Config(workload="resnet50")
    assert names(unasked) == []


def test_more_than_the_ceiling_is_implausible() -> None:
    assert the_check("implausible", records.record(flops_per_image=24.5e10)).numbers["mfu"] > 1


def test_blocks_come_first_then_warnings() -> None:
    record = records.data_bound(traces={0: {"retry_reason": "throttle", "numerics": records.numerics(skipped_steps=[1, 2])}})
    assert [check.severity for check in run_checks(record)] == ["blocks", "warns", "informs"]


@pytest.mark.parametrize(("precision", "hint"), [("amp-fp16", "a lower --lr, or `--precision amp-bf16`"), ("fp32", "a lower --lr")])
def test_another_precision_is_offered_only_where_the_loss_scale_may_be_at_fault(precision: str, hint: str) -> None:
    config = msgspec.structs.replace(records.RESNET50, precision=precision)
    dead = {0: {"numerics": records.numerics(nonfinite_step=1, last_loss=None)}}
    assert the_check("not-finite", records.record(config=config, traces=dead)).hint == hint


def test_a_precision_that_did_not_run_blocks_the_figure() -> None:
    run = records.record()
    run.observed_precision = records.attested("fp32")
    (check,) = [check for check in run_checks(run) if check.code == "not-as-asked"]
    assert check.severity == "blocks"
    assert check.sentence == (
        "asked for amp-fp16, but layers compute in float32, there is no loss scaler, TF32 is off for matmul, off for cuDNN"
    )
