"""Every check fires when it must, carries its numbers, and is silent on a valid run."""

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


def find_check(kind: type[Found], record: Record) -> Found:
    return next(check for check in run_checks(record) if isinstance(check, kind))


def check_codes(record: Record) -> list[str]:
    return [check.code for check in run_checks(record)]


def with_rounds(record: Record, **of_round: dict[str, Any]) -> Record:
    """``record`` with changed fields of rounds: ``r2=...`` is the third; the key "numerics" changes rank 0's trace."""
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
def test_valid_run_has_no_checks(record: Record) -> None:
    assert run_checks(record) == []


def test_no_rounds_give_no_checks() -> None:
    assert run_checks(records.data_bound(longer=[])) == []


def test_nonfinite_loss_is_an_error_with_step_and_rank() -> None:
    found = find_check(NonfiniteLoss, with_rounds(records.record(), r2={"numerics": {"nonfinite_step": 1, "last_loss": None}}))
    assert (found.severity, found.step, found.rank) == ("error", 41, 0)


@pytest.mark.parametrize(
    ("skipped", "severity"),
    [({"r1": [4]}, "info"), ({"r1": [4, 5]}, "error"), ({"r0": [19], "r1": [0]}, "error"), ({"r0": [3], "r4": [8]}, "error")],
    ids=["one", "two in a row", "in a row over rounds", "two percent"],
)
def test_skipped_steps_in_a_row_or_too_many_are_an_error(skipped: dict[str, list[int]], severity: str) -> None:
    record = with_rounds(records.record(), **{key: {"numerics": {"skipped_steps": steps}} for key, steps in skipped.items()})
    assert find_check(SkippedSteps, record).severity == severity


def test_few_separate_skipped_steps_are_info() -> None:
    record = with_rounds(records.record(steps=200), r0={"numerics": {"skipped_steps": [3, 90]}}, r3={"numerics": {"skipped_steps": [120]}})
    assert find_check(SkippedSteps, record) == SkippedSteps(severity="info", skipped=3, steps=1000, in_a_row=False)


def test_frozen_parameters_are_an_error() -> None:
    found = find_check(FrozenParameters, with_rounds(records.record(), r1={"numerics": {"params_checksum_after": 1}}))
    assert found == FrozenParameters(severity="error", round_index=1, rank=0)


def test_params_out_of_sync_are_an_error() -> None:
    found = find_check(ParamsOutOfSync, with_rounds(records.record(), r3={"params_in_sync": False}))
    assert found == ParamsOutOfSync(severity="error", round_index=3)


def test_noise_is_the_variation_between_rounds() -> None:
    found = find_check(Noisy, records.record(longer=[1.0, 1.02, 0.98, 1.01, 0.99]))
    assert found.severity == "warning"
    assert found.round_cv == pytest.approx(0.0158, abs=1e-4)


@pytest.mark.parametrize(("rounds", "role", "suggested"), [(2, RUN, 5), (5, RUN, 10), (8, RUN, None), (5, REPLAY, None)])
def test_noisy_run_suggests_more_rounds_once_and_only_for_user_runs(rounds: int, role: Role, suggested: int | None) -> None:
    config = msgspec.structs.replace(records.RESNET50, rounds=rounds)
    uneven = records.record(longer=[1.0, 1.02, 0.98, 1.01, 0.99], config=config, role=role)
    assert find_check(Noisy, uneven).suggested_rounds == suggested


@pytest.mark.parametrize(("longer", "change"), [([1.0, 1.0, 1.01, 1.03, 1.03], -0.029), ([1.03, 1.03, 1.01, 1.0, 1.0], 0.03)])
def test_drift_between_rounds_is_a_warning(longer: list[float], change: float) -> None:
    found = find_check(Drift, records.record(longer=longer))
    assert (found.severity, found.change) == ("warning", pytest.approx(change, abs=1e-3))


def test_relocation_to_other_gpus_reports_rounds() -> None:
    place = records.environment(4).placements
    moves = [Relocation(first_round=number, placements=place) for number in (2, 4)]
    assert find_check(Relocated, records.record(relocations=moves)) == Relocated(severity="warning", round_indices=[2, 4])


@pytest.mark.parametrize(("longer", "steps"), [([1.0] * 4, 20), ([1.0] * 5, 5)], ids=["rounds", "steps"])
def test_too_few_rounds_or_steps_are_too_short(longer: list[float], steps: int) -> None:
    assert check_codes(records.record(longer=longer, steps=steps)) == ["too-short"]


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
def test_too_short_suggestion_depends_on_requested_rounds_and_steps(
    rounds: int, steps: int | None, done: int, status: str, suggested: tuple[str | None, int | None, int | None]
) -> None:
    config = msgspec.structs.replace(records.RESNET50, rounds=rounds, steps=steps)
    took = steps or (3 if done == 5 else 20)
    found = find_check(MeasurementTooShort, records.record(longer=[1.0] * done, steps=took, config=config, status=status))
    assert (found.rounds, found.steps) == (done, done * took)
    assert (found.remedy, found.suggested_rounds, found.suggested_steps) == suggested


@pytest.mark.parametrize(("limit_s", "remedy"), [(9.0, "longer-time-limit"), (None, None)])
def test_longer_time_limit_is_suggested_only_if_there_was_one(limit_s: float | None, remedy: str | None) -> None:
    config = msgspec.structs.replace(records.RESNET50, time_limit=limit_s)
    assert find_check(MeasurementTooShort, records.record(longer=[1.0] * 3, config=config)).remedy == remedy


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
def test_run_shortened_by_time_budget_is_info(role: Role, rounds: int, steps: int, limited_by: str | None, severity: str) -> None:
    found = find_check(MeasurementTooShort, records.record(longer=[1.0] * rounds, steps=steps, role=role))
    assert (found.limited_by, found.severity) == (limited_by, severity)


def test_too_short_epoch_run_suggests_more_rounds_not_steps() -> None:
    config = msgspec.structs.replace(records.RESNET50, epochs=1)
    found = find_check(MeasurementTooShort, records.record(steps=3, config=config))
    assert (found.suggested_rounds, found.suggested_steps) == (10, None)


def test_invalid_run_has_no_noise_checks() -> None:
    dead = {0: {"numerics": records.numerics(nonfinite_step=1, last_loss=None)}}
    assert check_codes(records.record(longer=[1.0, 1.2], traces=dead)) == ["nonfinite-loss"]


def test_skipped_file_is_counted_once_across_ranks() -> None:
    traces = {
        rank: {"loader_stats": LoaderStats(samples=8, skipped_files=files)}
        for rank, files in enumerate((["a", "b"], ["b"], ["b", "c"], []))
    }
    assert find_check(FilesSkipped, records.record(traces=traces)) == FilesSkipped(severity="info", files=3)


def test_throttling_is_a_warning_and_power_cap_is_info() -> None:
    hot = records.record(traces={2: {"health": Health(throttle_reasons=["sw-power-cap", "hw-thermal"])}})
    assert [(check.code, check.severity) for check in run_checks(hot)] == [("throttled", "warning"), ("power-cap", "info")]
    found = find_check(Throttled, hot)
    assert (found.ranks, found.reasons) == ([2], ["hw-thermal"])


def test_remeasured_rounds_are_info() -> None:
    twice = records.record(traces={1: {"retry_reason": "throttle"}})
    assert run_checks(twice) == [Remeasured(severity="info", round_indices=[0, 1, 2, 3, 4], reasons=["throttle"])]


def test_other_processes_on_the_gpu_are_a_warning() -> None:
    found = find_check(
        SharedGpu, records.record(traces={1: {"health": Health(other_processes=2)}, 3: {"health": Health(other_processes=1)}})
    )
    assert found == SharedGpu(severity="warning", ranks=[1, 3], other_processes=2)


def test_allocator_retries_are_a_warning() -> None:
    memory = msgspec.structs.replace(records.GPU_MEMORY, allocator_retries=2)
    assert find_check(AllocRetry, records.record(traces={0: {"memory": memory}})) == AllocRetry(severity="warning", retries=10)


def test_more_workers_than_cores_are_a_warning() -> None:
    demand = {"ranks": 4, "workers": 16, "threads_per_rank": 1, "usable_cores": 60.0, "suggested_workers": 14}
    assert find_check(OversubscribedCpu, records.data_bound()) == OversubscribedCpu(severity="warning", host="node-01", **demand)


def test_fewer_than_one_worker_is_not_suggested() -> None:
    two = records.environment(2, device="Xeon CPU", usable_cores=2.0)
    config = msgspec.structs.replace(records.cpu_run().config, loader="torch", workers=1)
    found = find_check(OversubscribedCpu, records.cpu_run(environment=two, config=config))
    assert (found.workers, found.usable_cores, found.suggested_workers) == (1, 2.0, None)


def test_oversubscription_is_checked_per_node() -> None:
    assert run_checks(records.data_bound(environment=records.environment(4, nodes=2, usable_cores=34.0))) == []
    tight = records.data_bound(environment=records.environment(4, nodes=2, usable_cores=33.5))
    found = find_check(OversubscribedCpu, tight)
    assert (found.host, found.ranks, found.usable_cores) == ("node-01", 2, 33.5)


def test_cpu_ranks_need_cores_for_their_threads() -> None:
    variables = {"OMP_NUM_THREADS": "2"}
    record = records.cpu_run(environment=records.environment(2, device="Xeon CPU", usable_cores=2.0, variables=variables))
    found = find_check(OversubscribedCpu, record)
    assert (found.ranks, found.workers, found.threads_per_rank, found.usable_cores) == (2, 0, 2, 2.0)


def test_rank_with_half_a_core_is_a_noisy_neighbour_warning() -> None:
    found = find_check(NoisyNeighbour, records.cpu_run(traces={0: {"cpu_s": 2.1}, 1: {"cpu_s": 4.0}}))
    assert (found.severity, found.cores_by_rank) == ("warning", {0: pytest.approx(0.516, abs=1e-3)})


@pytest.mark.parametrize(("cpu_s", "said"), [(9.0, []), (6.2, ["noisy-neighbour"])], ids=["half of them", "fewer"])
def test_noisy_neighbour_threshold_is_half_of_the_threads(cpu_s: float, said: list[str]) -> None:
    place = records.environment(2, device="Xeon CPU", usable_cores=8.0, variables={"OMP_NUM_THREADS": "4"})
    assert check_codes(records.cpu_run(environment=place, traces={rank: {"cpu_s": cpu_s} for rank in range(2)})) == said


def test_noisy_neighbour_requires_cpu_time_on_cpu_ranks() -> None:
    assert check_codes(records.cpu_run(traces={0: {"cpu_s": None}})) == []
    assert check_codes(records.record(traces={rank: {"cpu_s": 0.1} for rank in range(4)})) == []


def test_reread_files_are_info() -> None:
    assert find_check(RereadFiles, records.record(data=DatasetInfo(loader="torch", reread=True))).severity == "info"


@pytest.mark.parametrize("flags", [{"validate": True}, {"epochs": 2}], ids=["--validate", "--epochs"])
def test_missing_accuracy_has_a_reason_if_validation_was_requested(flags: dict[str, Any]) -> None:
    run = records.record()
    run.requested = Config(workload="resnet50", **flags)
    assert find_check(NotValidated, run).severity == "info"
    validated = records.record(traces={0: {"numerics": records.numerics(accuracy=0.5)}})
    validated.requested = run.requested
    assert check_codes(validated) == []
    unasked = records.record()
    unasked.requested = Config(workload="resnet50")
    assert check_codes(unasked) == []


def test_mfu_above_one_is_implausible() -> None:
    assert find_check(ImplausibleMfu, records.record(flops_per_sample=24.5e10)).mfu > 1


def test_errors_come_before_warnings_and_info() -> None:
    record = records.data_bound(traces={0: {"retry_reason": "throttle", "numerics": records.numerics(skipped_steps=[1, 2])}})
    assert [check.severity for check in run_checks(record)] == ["error", "warning", "info"]


@pytest.mark.parametrize(("precision", "float16"), [("amp-fp16", True), ("o2", True), ("fp32", False), ("amp-bf16", False)])
def test_nonfinite_loss_blames_float16_only_if_used(precision: str, float16: bool) -> None:
    config = msgspec.structs.replace(records.RESNET50, precision=precision)
    dead = {0: {"numerics": records.numerics(nonfinite_step=1, last_loss=None)}}
    assert find_check(NonfiniteLoss, records.record(config=config, traces=dead)).computes_in_float16 == float16


def test_precision_mismatch_is_an_error() -> None:
    run = records.record()
    run.observed_precision = records.matching_precision("fp32")
    assert find_check(PrecisionMismatch, run) == PrecisionMismatch(
        severity="error", layer_dtypes=["float32"], loss_scaler=False, tf32_matmul=False, tf32_cudnn=False
    )
