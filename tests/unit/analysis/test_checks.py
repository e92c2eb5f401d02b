"""Every check speaks when it must, says its numbers, and is silent on a sound run."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import pytest
import records

from ddpbench.analysis.checks.rules import run_checks
from ddpbench.record.checks import (
    AllocRetry,
    Check,
    Drift,
    FilesSkipped,
    FrozenParameters,
    ImplausibleMfu,
    MeasurementTooShort,
    Noisy,
    NoisyNeighbour,
    NonfiniteLoss,
    NotValidated,
    OversubscribedCpu,
    ParamsOutOfSync,
    PrecisionMismatch,
    Relocated,
    Remeasured,
    RereadFiles,
    SharedGpu,
    SkippedSteps,
    Throttled,
)
from ddpbench.record.config import Config
from ddpbench.record.loader_stats import LoaderStats
from ddpbench.record.prediction import Scenario
from ddpbench.record.record import DatasetInfo, Record, Relocation
from ddpbench.record.roles import REPLAY, RUN, Role, ddp_role, trial_role
from ddpbench.record.trace import Health

Found = TypeVar("Found", bound=Check)


def the_check(kind: type[Found], record: Record) -> Found:
    return next(check for check in run_checks(record) if isinstance(check, kind))


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
    found = the_check(NonfiniteLoss, with_rounds(records.record(), r2={"numerics": {"nonfinite_step": 1, "last_loss": None}}))
    assert (found.severity, found.step, found.rank) == ("error", 41, 0)


@pytest.mark.parametrize(
    ("skipped", "severity"),
    [({"r1": [4]}, "info"), ({"r1": [4, 5]}, "error"), ({"r0": [19], "r1": [0]}, "error"), ({"r0": [3], "r4": [8]}, "error")],
    ids=["one", "two in a row", "in a row over rounds", "two percent"],
)
def test_skipped_updates(skipped: dict[str, list[int]], severity: str) -> None:
    record = with_rounds(records.record(), **{key: {"numerics": {"skipped_steps": steps}} for key, steps in skipped.items()})
    assert the_check(SkippedSteps, record).severity == severity


def test_few_skips_far_apart_inform() -> None:
    record = with_rounds(records.record(steps=200), r0={"numerics": {"skipped_steps": [3, 90]}}, r3={"numerics": {"skipped_steps": [120]}})
    assert the_check(SkippedSteps, record) == SkippedSteps(severity="info", skipped=3, steps=1000, in_a_row=False)


def test_frozen_parameters_block() -> None:
    found = the_check(FrozenParameters, with_rounds(records.record(), r1={"numerics": {"params_checksum_after": 1}}))
    assert found == FrozenParameters(severity="error", round_index=1, rank=0)


def test_ranks_that_end_with_different_parameters_block() -> None:
    found = the_check(ParamsOutOfSync, with_rounds(records.record(), r3={"params_in_sync": False}))
    assert found == ParamsOutOfSync(severity="error", round_index=3)


def test_noise_is_that_of_rounds() -> None:
    found = the_check(Noisy, records.record(longer=[1.0, 1.02, 0.98, 1.01, 0.99]))
    assert found.severity == "warning"
    assert found.round_cv == pytest.approx(0.0158, abs=1e-4)


@pytest.mark.parametrize(("rounds", "role", "suggested"), [(5, RUN, 10), (8, RUN, None), (5, REPLAY, None)])
def test_more_rounds_are_suggested_once_and_only_to_the_user_who_decides_them(rounds: int, role: Role, suggested: int | None) -> None:
    config = msgspec.structs.replace(records.RESNET50, rounds=rounds)
    uneven = records.record(longer=[1.0, 1.02, 0.98, 1.01, 0.99], config=config, role=role)
    assert the_check(Noisy, uneven).suggested_rounds == suggested


@pytest.mark.parametrize(("longer", "change"), [([1.0, 1.0, 1.01, 1.03, 1.03], -0.029), ([1.03, 1.03, 1.01, 1.0, 1.0], 0.03)])
def test_drift(longer: list[float], change: float) -> None:
    found = the_check(Drift, records.record(longer=longer))
    assert (found.severity, found.change) == ("warning", pytest.approx(change, abs=1e-3))


def test_a_run_that_moved_to_other_gpus_is_told_from_which_rounds() -> None:
    place = records.environment(4).placements
    moves = [Relocation(first_round=number, placements=place) for number in (2, 4)]
    assert the_check(Relocated, records.record(relocations=moves)) == Relocated(severity="warning", round_indices=[2, 4])


@pytest.mark.parametrize(("longer", "steps"), [([1.0] * 4, 20), ([1.0] * 5, 5)], ids=["rounds", "steps"])
def test_too_little_evidence(longer: list[float], steps: int) -> None:
    assert names(records.record(longer=longer, steps=steps)) == ["too-short"]


@pytest.mark.parametrize(
    ("rounds", "steps", "done", "status", "suggested"),
    [
        (5, None, 3, "interrupted", ("run-to-end", None, None)),
        (5, None, 3, "running", ("run-to-end", None, None)),
        (5, None, 3, "failed", (None, None, None)),
        (2, None, 2, "ok", (None, 5, None)),
        (2, 2, 2, "ok", (None, 5, 6)),
        (5, 2, 5, "ok", (None, None, 6)),
        (10, 2, 10, "ok", (None, None, 3)),
        (5, None, 5, "ok", (None, None, 6)),
    ],
)
def test_what_is_suggested_for_too_little_evidence_fits_what_was_asked_for(
    rounds: int, steps: int | None, done: int, status: str, suggested: tuple[str | None, int | None, int | None]
) -> None:
    config = msgspec.structs.replace(records.RESNET50, rounds=rounds, steps=steps)
    took = steps or (3 if done == 5 else 20)
    found = the_check(MeasurementTooShort, records.record(longer=[1.0] * done, steps=took, config=config, status=status))
    assert (found.rounds, found.steps) == (done, done * took)
    assert (found.remedy, found.suggested_rounds, found.suggested_steps) == suggested


@pytest.mark.parametrize(("limit_s", "remedy"), [(9.0, "longer-time-limit"), (None, None)])
def test_a_longer_time_limit_is_for_a_run_that_has_one(limit_s: float | None, remedy: str | None) -> None:
    config = msgspec.structs.replace(records.RESNET50, time_limit=limit_s)
    assert the_check(MeasurementTooShort, records.record(longer=[1.0] * 3, config=config)).remedy == remedy


@pytest.mark.parametrize(
    ("role", "rounds", "steps", "limited_by", "severity"),
    [
        (RUN, 5, 5, "one-minute", "info"),
        (RUN, 4, 20, None, "warning"),
        (REPLAY, 3, 20, "time-limit", "info"),
        (trial_role(Scenario(workers=4)), 3, 20, "time-limit", "info"),
        (ddp_role(4), 3, 20, "time-limit", "info"),
    ],
)
def test_as_many_as_the_time_allowed_are_a_note(role: Role, rounds: int, steps: int, limited_by: str | None, severity: str) -> None:
    found = the_check(MeasurementTooShort, records.record(longer=[1.0] * rounds, steps=steps, role=role))
    assert (found.limited_by, found.severity) == (limited_by, severity)


def test_rounds_of_epochs_become_more_and_not_longer() -> None:
    config = msgspec.structs.replace(records.RESNET50, epochs=1)
    found = the_check(MeasurementTooShort, records.record(steps=3, config=config))
    assert (found.suggested_rounds, found.suggested_steps) == (10, None)


def test_a_blocked_figure_is_not_asked_what_it_rests_on() -> None:
    dead = {0: {"numerics": records.numerics(nonfinite_step=1, last_loss=None)}}
    assert names(records.record(longer=[1.0, 1.2], traces=dead)) == ["nonfinite-loss"]


def test_a_file_that_was_left_out_counts_once_on_however_many_ranks() -> None:
    told = {
        rank: {"loader_stats": LoaderStats(samples=8, skipped_files=files)}
        for rank, files in enumerate((["a", "b"], ["b"], ["b", "c"], []))
    }
    assert the_check(FilesSkipped, records.record(traces=told)) == FilesSkipped(severity="info", files=3)


def test_throttling_warns_and_a_power_cap_informs() -> None:
    hot = records.record(traces={2: {"health": Health(throttle_reasons=["sw-power-cap", "hw-thermal"])}})
    assert [(check.code, check.severity) for check in run_checks(hot)] == [("throttled", "warning"), ("power-cap", "info")]
    found = the_check(Throttled, hot)
    assert (found.ranks, found.reasons) == ([2], ["hw-thermal"])


def test_a_round_measured_twice_is_told() -> None:
    twice = records.record(traces={1: {"retry_reason": "throttle"}})
    assert run_checks(twice) == [Remeasured(severity="info", round_indices=[0, 1, 2, 3, 4], reasons=["throttle"])]


def test_other_processes_on_the_gpu_warn() -> None:
    found = the_check(
        SharedGpu, records.record(traces={1: {"health": Health(other_processes=2)}, 3: {"health": Health(other_processes=1)}})
    )
    assert found == SharedGpu(severity="warning", ranks=[1, 3], other_processes=2)


def test_allocator_retries_warn() -> None:
    memory = msgspec.structs.replace(records.GPU_MEMORY, allocator_retries=2)
    assert the_check(AllocRetry, records.record(traces={0: {"memory": memory}})) == AllocRetry(severity="warning", retries=10)


def test_more_workers_than_cores_warn() -> None:
    demand = {"ranks": 4, "workers": 16, "threads_per_rank": 1, "usable_cores": 60.0, "suggested_workers": 14}
    assert the_check(OversubscribedCpu, records.data_bound()) == OversubscribedCpu(severity="warning", host="node-01", **demand)


def test_no_fewer_workers_are_offered_than_one() -> None:
    two = records.environment(2, device="Xeon CPU", usable_cores=2.0)
    config = msgspec.structs.replace(records.cpu_run().config, loader="torch", workers=1)
    found = the_check(OversubscribedCpu, records.cpu_run(environment=two, config=config))
    assert (found.workers, found.usable_cores, found.suggested_workers) == (1, 2.0, None)


def test_the_cores_of_each_node_count_alone() -> None:
    assert run_checks(records.data_bound(environment=records.environment(4, nodes=2, usable_cores=34.0))) == []
    tight = records.data_bound(environment=records.environment(4, nodes=2, usable_cores=33.5))
    found = the_check(OversubscribedCpu, tight)
    assert (found.host, found.ranks, found.usable_cores) == ("node-01", 2, 33.5)


def test_cpu_ranks_need_the_threads_they_compute_with() -> None:
    variables = {"OMP_NUM_THREADS": "2"}
    record = records.cpu_run(environment=records.environment(2, device="Xeon CPU", usable_cores=2.0, variables=variables))
    found = the_check(OversubscribedCpu, record)
    assert (found.ranks, found.workers, found.threads_per_rank, found.usable_cores) == (2, 0, 2, 2.0)


def test_a_rank_that_got_half_a_core_while_it_computed_warns() -> None:
    found = the_check(NoisyNeighbour, records.cpu_run(traces={0: {"cpu_s": 2.1}, 1: {"cpu_s": 4.0}}))
    assert (found.severity, found.cores_by_rank) == ("warning", {0: pytest.approx(0.516, abs=1e-3)})


@pytest.mark.parametrize(("cpu_s", "said"), [(9.0, []), (6.2, ["noisy-neighbour"])], ids=["half of them", "fewer"])
def test_of_several_threads_half_are_asked_for(cpu_s: float, said: list[str]) -> None:
    place = records.environment(2, device="Xeon CPU", usable_cores=8.0, variables={"OMP_NUM_THREADS": "4"})
    assert names(records.cpu_run(environment=place, traces={rank: {"cpu_s": cpu_s} for rank in range(2)})) == said


def test_without_cpu_time_or_on_gpus_nobody_is_suspected() -> None:
    assert names(records.cpu_run(traces={0: {"cpu_s": None}})) == []
    assert names(records.record(traces={rank: {"cpu_s": 0.1} for rank in range(4)})) == []


def test_files_read_again_inform() -> None:
    assert the_check(RereadFiles, records.record(data=DatasetInfo(loader="torch", description="", reread=True))).severity == "info"


@pytest.mark.parametrize("flags", [{"validate": True}, {"epochs": 2}], ids=["--validate", "--epochs"])
def test_who_asks_for_accuracy_is_told_why_there_is_none(flags: dict[str, Any]) -> None:
    run = records.record()
    run.requested = Config(workload="resnet50", **flags)
    assert the_check(NotValidated, run).severity == "info"
    validated = records.record(traces={0: {"numerics": records.numerics(accuracy=0.5)}})
    validated.requested = run.requested
    assert names(validated) == []
    unasked = records.record()
    unasked.requested = Config(workload="resnet50")
    assert names(unasked) == []


def test_more_than_the_ceiling_is_implausible() -> None:
    assert the_check(ImplausibleMfu, records.record(flops_per_sample=24.5e10)).mfu > 1


def test_blocks_come_first_then_warnings() -> None:
    record = records.data_bound(traces={0: {"retry_reason": "throttle", "numerics": records.numerics(skipped_steps=[1, 2])}})
    assert [check.severity for check in run_checks(record)] == ["error", "warning", "info"]


@pytest.mark.parametrize(("precision", "float16"), [("amp-fp16", True), ("o2", True), ("fp32", False), ("amp-bf16", False)])
def test_float16_may_be_at_fault_only_where_it_computes(precision: str, float16: bool) -> None:
    config = msgspec.structs.replace(records.RESNET50, precision=precision)
    dead = {0: {"numerics": records.numerics(nonfinite_step=1, last_loss=None)}}
    assert the_check(NonfiniteLoss, records.record(config=config, traces=dead)).computes_in_float16 == float16


def test_a_precision_that_did_not_run_blocks_the_figure() -> None:
    run = records.record()
    run.observed_precision = records.attested("fp32")
    assert the_check(PrecisionMismatch, run) == PrecisionMismatch(
        severity="error", layer_dtypes=["float32"], loss_scaler=False, tf32_matmul=False, tf32_cudnn=False
    )
