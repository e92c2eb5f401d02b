"""Bottleneck, its evidence, and a next command that parses."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, get_args

import msgspec
import pytest
import records
from commands import parsed
from records import next_command

from ddpbench.analysis.bottleneck.verdict import BOTTLENECKS, find_bottleneck, with_cause_repeatability
from ddpbench.analysis.checks.rules import run_checks
from ddpbench.analysis.command import CommandBuilder
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.judge import find_verdict
from ddpbench.analysis.ranks import own_ms
from ddpbench.analysis.remedies.recommend import recommend
from ddpbench.analysis.summary import summarize
from ddpbench.record.bottleneck import (
    Bottleneck,
    CollectiveWaits,
    CopyWait,
    DataWait,
    HiddenSync,
    IdleGpu,
    OversubscribedRanks,
    PhaseShares,
    ShortHostLead,
    SlowRank,
    StarvedRanks,
    TooShort,
    Undecided,
    UnexplainedTime,
)
from ddpbench.record.checks import MeasurementTooShort
from ddpbench.record.config import Config
from ddpbench.record.record import DatasetInfo, KernelActivity, Record
from ddpbench.record.verdict import ReduceRanks, Verdict
from ddpbench.report.messages.verdict import explain_verdict

WORK = {"forward": 20.0, "backward": 40.0, "optimizer": 2.0}


def judged(record: Record) -> Verdict:
    """Verdict on a run with the default batch size; checks that the suggested command parses."""
    record.requested = msgspec.convert(msgspec.structs.asdict(record.config) | {"batch_size": None}, Config)
    found, _ = find_verdict(record)
    assert found is not None
    assert found.kind in get_args(Bottleneck)
    if "ddpbench" in next_command(found):
        assert {arm.workload for arm in parsed(next_command(found))[1].arms} == {record.config.workload}
    return found


def with_config(record: Record, **changes: Any) -> Record:
    record.config = msgspec.structs.replace(record.config, **changes)
    return record


def test_bottlenecks_are_tested_in_the_order_of_the_verdicts() -> None:
    order = [
        limit.__name__.replace("_", "-") for limit in BOTTLENECKS if limit.__name__ not in ("too_few_cores", "unexplained", "hidden_sync")
    ]
    assert order == [kind for kind in get_args(Bottleneck) if kind in order]


def test_data_bound_reports_wait_fraction_and_rates() -> None:
    found = judged(records.data_bound())
    assert found.kind == "data-bound"
    assert isinstance(found.evidence, DataWait)
    assert found.evidence.wait_fraction == pytest.approx(0.78, abs=0.005)
    assert found.evidence.loader_samples_per_s == pytest.approx(1130, abs=5)
    assert found.evidence.device_samples_per_s == pytest.approx(5845, abs=5)  # gradient sync included
    assert next_command(found).startswith("ddpbench diagnose resnet50 --precision amp-fp16 ")
    assert next_command(found).endswith(" --data-dir /data/imagenet --workers 16 --device cuda --broadcast-buffers --gpus 4")
    assert (found.cause, found.cause_evidence) == (None, None)


def test_waiting_for_another_ranks_data_is_data_bound() -> None:
    """No rank waits long itself, but in every step another rank is late."""
    record = records.record([{**WORK, "data": 5.0}, {**WORK, "data": 12.0}, {**WORK, "data": 12.1}, {**WORK, "data": 5.0}])
    assert judged(record).kind == "data-bound"


def test_straggler_takes_precedence_over_data_bound() -> None:
    record = records.record([WORK, WORK, {**WORK, "data": 30.0}, WORK])
    found = judged(record)
    assert (found.kind, found.rank) == ("straggler", 2)
    assert isinstance(found.evidence, SlowRank)
    assert (found.evidence.rank, found.evidence.slow_in, found.cause) == (2, "data", "one-rank")
    assert found.evidence.excess_fraction == pytest.approx(0.48, abs=0.005)
    assert (found.evidence.own_ms, found.evidence.others_own_ms) == (pytest.approx(92.4), pytest.approx(62.4))
    assert found.evidence.cost_samples_per_s == pytest.approx(5330, abs=5)


@pytest.mark.parametrize(("sync", "kind"), [(3.0, "straggler"), (25.0, "sync-bound")])
def test_rank_that_is_slow_by_less_than_communication_takes_is_not_the_bottleneck(sync: float, kind: str) -> None:
    """It costs 9 ms per step, and waits in collectives itself."""
    slow = {**WORK, "forward": WORK["forward"] + 9.0, "sync": sync}
    waiting = {**WORK, "sync": sync + 9.0}
    assert judged(records.record([waiting, waiting, slow, waiting])).kind == kind


@pytest.mark.parametrize(("imbalance", "largest", "is_named"), [(1.7, 2, True), (1.7, None, False), (1.02, 2, False), (None, None, False)])
def test_straggler_with_larger_batches_is_said_to_have_them(imbalance: float | None, largest: int | None, is_named: bool) -> None:
    record = records.record([WORK, WORK, {**WORK, "forward": 60.0}, WORK])
    record.rounds = [msgspec.structs.replace(timed, batch_imbalance=imbalance, largest_batch_rank=largest) for timed in record.rounds]
    found = judged(record)
    assert isinstance(found.evidence, SlowRank)
    assert found.evidence.largest_over_mean == (pytest.approx(imbalance) if is_named else None)
    inputs = AnalysisInput(record, summarize(record))
    remedies = recommend(CommandBuilder(record, "run"), inputs, found)
    assert [each.code for each in remedies] == ["even-batches" if is_named else "inspect-straggler"]


def test_straggler_hidden_by_pauses_of_others_is_not_the_bottleneck() -> None:
    """Rank 1 is 2.6% slower in every step; rank 0 pauses every 20th step for nearly the sum of that."""
    record = records.record([WORK] * 2)
    for place, timed in enumerate(record.rounds):
        steps = timed.traces[0].steps
        own = [[62.0 + (31.0 if step % 20 == 7 else 0.0) for step in range(steps)], [62.0 * 1.026] * steps]
        lasted = [max(both) + 8.0 for both in zip(*own, strict=True)]
        for trace, spent in zip(timed.traces, own, strict=True):
            trace.phases_ms["forward"][:] = [ms - 42.0 for ms in spent]
            trace.phases_ms["sync"][:] = [step - ms for step, ms in zip(lasted, spent, strict=True)]
        wall_s = sum(lasted) / 1000
        traces = [msgspec.structs.replace(trace, wall_s=wall_s) for trace in timed.traces]
        record.rounds[place] = msgspec.structs.replace(timed, traces=traces, wall_s=wall_s)
    slow = summarize(record).straggler
    assert slow is not None
    assert (slow.rank, round(slow.excess_fraction, 3), slow.is_costly) == (1, 0.026, False)
    assert judged(record).kind != "straggler"


def test_slow_rank_among_starved_ranks_is_not_the_bottleneck() -> None:
    found = judged(records.record([{**WORK, "data": 60.0}] * 3 + [{**WORK, "data": 90.0}]))
    assert (found.kind, found.rank) == ("data-bound", None)


@pytest.mark.parametrize(
    ("phase", "starts"), [("backward", "nvidia-smi -q -i GPU-00000001 "), ("host_to_device", "nvidia-smi topo"), ("data", "top")]
)
def test_straggler_on_synthetic_data_suggests_system_tool(phase: str, starts: str) -> None:
    slow = {**WORK, phase: WORK.get(phase, 0.0) + 30.0}
    assert next_command(judged(records.record([WORK, slow]))).startswith(starts)
    away = judged(records.record([WORK, slow], environment=records.environment(2, nodes=2)))
    assert next_command(away).startswith(f"ssh node-02 {starts}")


def test_straggler_in_data_suggests_run_with_synthetic_loader() -> None:
    record = with_config(records.record([WORK, {**WORK, "data": 30.0}]), loader="torch", data_dir="/my data")
    assert next_command(judged(record)).endswith("--no-validate --gpus 2 --loader torch,synthetic")


def test_host_to_device_bound_reports_copy_time() -> None:
    record = with_config(records.record([{**WORK, "host_to_device": 20.0}] * 4), loader="torch", data_dir="/data")
    found = judged(record)
    assert found.kind == "host-to-device-bound"
    assert found.evidence == CopyWait(copy_ms=pytest.approx(20.0), step_ms=pytest.approx(82.4))
    assert next_command(found).endswith("--loader torch,synthetic")


def test_copy_phase_on_cpu_is_not_host_to_device_bound() -> None:
    found = judged(records.cpu_run(ranks=[WORK, {**WORK, "host_to_device": 30.0}]))
    assert found.kind == "straggler"
    assert isinstance(found.evidence, SlowRank)
    assert (found.evidence.rank, found.evidence.slow_in) == (1, "host-to-device")
    found = judged(with_config(records.cpu_run(ranks=[{**WORK, "host_to_device": 20.0}] * 2), loader="torch-uint8", data_dir="/data"))
    assert (found.kind, found.cause) == ("data-bound", "handoff")


def test_idle_gpu_between_kernels_is_launch_bound() -> None:
    record = records.record([WORK] * 4, kernel_activity=KernelActivity(step_ms=62.4, kernel_ms=40.0))
    found = judged(record)
    assert found.kind == "launch-bound"
    assert found.evidence == IdleGpu(kernel_ms=40.0, available_ms=pytest.approx(62.4))
    assert next_command(found).endswith("--no-fast --fast")


@pytest.mark.parametrize(
    "given", [{"engine": "accelerate"}, {"compile": "default"}, {"fused_kernels": True}, {"schedule": "linear"}, {"set_to_none": False}]
)
def test_launch_bound_run_that_chose_its_settings_is_not_offered_fast(given: dict[str, Any]) -> None:
    gap = KernelActivity(step_ms=62.4, kernel_ms=40.0)
    found = judged(with_config(records.record([WORK] * 4, kernel_activity=gap), **given))
    assert found.kind == "launch-bound"
    assert "--fast" not in next_command(found)


def test_short_host_lead_is_launch_bound_if_kernels_were_not_profiled() -> None:
    behind = {rank: {"host_lead_ms": [0.4] * 20} for rank in range(4)}
    found = judged(records.record([WORK] * 4, traces=behind))
    assert found.kind == "launch-bound"
    assert found.evidence == ShortHostLead(host_lead_ms=pytest.approx(0.4), step_ms=pytest.approx(62.4))
    assert (
        judged(records.record([WORK] * 4, traces=behind, kernel_activity=KernelActivity(step_ms=62.4, kernel_ms=60.0))).kind
        == "compute-bound"
    )


def test_waiting_communication_kernels_are_not_launch_bound() -> None:
    """Communication kernels are not counted, so waiting for them must not be either."""
    record = records.record([{**WORK, "sync": 30.0}] * 4, kernel_activity=KernelActivity(step_ms=92.4, kernel_ms=61.0))
    assert judged(record).kind == "sync-bound"


def test_launch_bound_compiled_run_suggests_larger_batch_if_memory_allows() -> None:
    gap = KernelActivity(step_ms=62.4, kernel_ms=40.0)
    record = with_config(records.record([WORK] * 4, kernel_activity=gap), compile="reduce-overhead")
    assert next_command(judged(record)).endswith("--batch-size 256,512")
    full = msgspec.structs.replace(records.GPU_MEMORY, allocated_bytes=100 * records.GIB)
    record = with_config(records.record([WORK] * 4, kernel_activity=gap, traces={0: {"memory": full}}), compile="reduce-overhead")
    assert judged(record).next is None


def test_sync_bound_reports_collective_waits() -> None:
    found = judged(records.record([{**WORK, "sync": 30.0}] * 4))
    assert found.kind == "sync-bound"
    assert found.evidence == CollectiveWaits(wait_ms=pytest.approx(30.0), step_ms=pytest.approx(92.4))
    assert next_command(found).endswith("--comm-hook none,fp16")


@pytest.mark.parametrize(
    ("ranks", "sync_ms", "longer", "is_hidden"),
    [
        (4, 1.0, [1.0] * 5, False),
        (4, 8.0, [1.0] * 5, False),
        (1, 8.0, [1.0] * 5, False),
        (4, 1.0, [1.0] * 2, True),
    ],
    ids=["hardly a wait in any last step", "waits below the limit", "one rank", "two rounds"],
)
def test_graphs_of_several_ranks_may_hide_waits(ranks: int, sync_ms: float, longer: list[float], is_hidden: bool) -> None:
    record = records.record([{**WORK, "backward": 60.0, "sync": sync_ms}] * ranks, longer=longer)
    record.config = msgspec.structs.replace(record.config, cuda_graph=True)
    found = judged(record)
    assert isinstance(found.evidence, HiddenSync | TooShort) == is_hidden
    assert found.kind == ("inconclusive" if is_hidden else "compute-bound")


def test_graphs_whose_last_steps_are_the_shortest_may_hide_waits() -> None:
    record = records.record([{**WORK, "backward": 60.0, "sync": 1.0}] * 4)
    record.config = msgspec.structs.replace(record.config, cuda_graph=True)
    for trace in record.traces:
        trace.phases_ms["backward"][:] = [66.0] * (trace.steps - 1) + [55.0]
    found = judged(record)
    assert isinstance(found.evidence, HiddenSync)
    assert next_command(found).startswith("ddpbench diagnose ")


def test_compute_bound_reports_phase_shares() -> None:
    found = judged(records.record())
    assert found.kind == "compute-bound"
    assert isinstance(found.evidence, PhaseShares)
    spent_ms = found.evidence.forward_ms + found.evidence.backward_ms + found.evidence.optimizer_ms
    assert spent_ms / found.evidence.step_ms == pytest.approx(0.96, abs=0.005)
    assert next_command(found).endswith("--no-fast --fast")


@pytest.mark.parametrize(
    ("given", "command_end"),
    [
        ({}, "--no-fast --fast"),
        ({"channels_last": False}, "--compile off,default"),
        ({"cuda_graph": True}, "--compile off,default"),
        ({"fast": True, "fused_kernels": True, "cuda_graph": True}, "--batch-size 256,512"),
        ({"compile": "default"}, "--batch-size 256,512"),
    ],
)
def test_compute_bound_convolutional_network_is_offered_fast_settings(given: dict[str, Any], command_end: str) -> None:
    found = judged(with_config(records.record([WORK]), **given))
    assert found.kind == "compute-bound"
    assert next_command(found).endswith(command_end)


def test_single_gpu_is_described_in_the_singular() -> None:
    record = records.record([{**WORK, "data": 60.0}])
    found = judged(record)
    assert explain_verdict(found, record).claim.startswith("the GPU waits for data ")
    assert next_command(found).startswith("ddpbench diagnose resnet50 ")


def test_cpu_ranks_are_never_launch_bound_nor_called_gpus() -> None:
    slow = {**WORK, "forward": 60.0}
    environment = records.environment(2, device="Xeon CPU", usable_cores=2.0)
    for phases in ([WORK, WORK], [WORK, slow], [{**WORK, "data": 40.0}] * 2, [{**WORK, "sync": 40.0}] * 2):
        record = records.cpu_run(ranks=phases, environment=environment, kernel_activity=KernelActivity(step_ms=62.4, kernel_ms=1.0))
        found = judged(record)
        assert found.kind != "launch-bound"
        assert "GPU" not in " ".join([*explain_verdict(found, record), next_command(found)])
        assert "nvidia" not in next_command(found)


def test_default_float32_run_suggests_autocast() -> None:
    by_default = with_config(records.cpu_run(), precision="torch-default")
    assert next_command(judged(by_default)).endswith("--precision torch-default,amp-bf16")
    assert judged(records.cpu_run()).next is None, "fp32 was chosen"


def test_cpu_that_emulates_bfloat16_is_to_train_in_float32() -> None:
    emulating = records.environment(2, device="Xeon CPU", emulates_bfloat16=True)
    by_default = with_config(records.cpu_run(environment=emulating), precision="torch-default")
    assert judged(by_default).next is None
    run = records.cpu_run(environment=emulating, observed_precision=records.matching_precision("amp-bf16"))
    assert next_command(judged(with_config(run, precision="amp-bf16"))).endswith("--precision amp-bf16,fp32")


@pytest.mark.parametrize(("dataset", "diagnoses"), [("imagenet", True), ("gemm", False)])
def test_synthetic_run_with_nothing_to_gain_suggests_to_diagnose_a_loader(dataset: str, diagnoses: bool) -> None:
    record = records.cpu_run(data=DatasetInfo(loader="synthetic", dataset=dataset, num_batches=1))
    found = judged(record)
    assert found.kind == "compute-bound"
    assert (found.next is not None) == diagnoses
    assert not diagnoses or next_command(found).startswith("ddpbench diagnose ")


NOISY_ROUNDS = [1.0, 1.05, 0.95, 1.02, 0.98]


def test_noise_does_not_hide_compute_bound_shown_by_every_round() -> None:
    found = judged(records.record([WORK] * 4, longer=NOISY_ROUNDS))
    assert (found.kind, found.repeatability) == ("compute-bound", 1.0)


@pytest.mark.parametrize(("phase", "kind"), [("data", "data-bound"), ("host_to_device", "host-to-device-bound"), ("sync", "sync-bound")])
def test_noise_does_not_hide_wait_shown_by_every_round(phase: str, kind: str) -> None:
    found = judged(with_config(records.record([{**WORK, phase: 15.0}] * 4, longer=NOISY_ROUNDS), loader="torch", data_dir="/data"))
    assert (found.kind, found.repeatability) == (kind, 1.0)


def rounds_with_data_wait(*waits_ms: float) -> Record:
    """One round per data wait."""
    made = [records.record([{**WORK, "data": wait}] * 4) for wait in waits_ms]
    made[0].rounds = [other.rounds[place] for place, other in enumerate(made)]
    return made[0]


def test_bottleneck_of_most_resamples_is_probable_with_runner_up() -> None:
    found = judged(rounds_with_data_wait(0.0, 14.0, 12.0, 11.0, 13.0))
    assert (found.kind, found.runner_up, found.is_probable) == ("data-bound", "compute-bound", True)
    assert 0.7 <= (found.repeatability or 0) < 0.99


def test_competing_bottlenecks_are_inconclusive_and_suggest_diagnose() -> None:
    found = judged(rounds_with_data_wait(0.0, 14.0, 0.0, 14.0, 7.0))
    assert (found.kind, found.runner_up) == ("inconclusive", "compute-bound")
    assert isinstance(found.evidence, Undecided)
    assert {found.evidence.first, found.evidence.second} == {"data-bound", "compute-bound"}
    assert found.evidence.first_fraction >= found.evidence.second_fraction > 0
    assert not found.evidence.has_controls
    assert " diagnose " in next_command(found)


def test_cause_that_no_resample_names_is_dropped() -> None:
    found = judged(rounds_with_data_wait(0.0, 14.0, 12.0, 11.0, 13.0))
    with_cause = msgspec.structs.replace(found, cause="handoff")
    assert with_cause_repeatability(with_cause, [msgspec.structs.replace(found, cause=None)] * 100).cause is None
    assert with_cause_repeatability(with_cause, [with_cause] * 100).cause_repeatability == 1.0


@pytest.mark.parametrize(
    ("excesses", "kind"), [((0.26, 0.27, 0.16, 0.06, 0.08), "straggler"), ((0.3, 0.01, 0.25, 0.02, -0.1), "compute-bound")]
)
def test_rank_that_is_slower_in_every_round_is_a_straggler_although_rounds_vary(excesses: Sequence[float], kind: str) -> None:
    made = [
        records.record(
            [{phase: length * span for phase, span in WORK.items()}, {phase: length * (1 + excess) * span for phase, span in WORK.items()}]
        )
        for length, excess in zip((0.7, 1.3, 1.5, 1.6, 0.9), excesses, strict=True)
    ]
    made[0].rounds = [other.rounds[place] for place, other in enumerate(made)]
    assert judged(made[0]).kind == kind


def test_rank_whose_measured_waits_exceed_its_steps_is_compared_with_none() -> None:
    """As in steps of a millisecond, which begin and end between two readings of other clocks."""
    waits = {**WORK, "broadcast": 10.0}
    record = records.record([WORK, waits], traces={1: {"wall_s": 0.1}})
    assert all(own_ms(timed.traces[1]) < 0 for timed in record.rounds)
    assert judged(record).kind != "straggler"


def test_resampling_is_deterministic() -> None:
    shares = {judged(rounds_with_data_wait(0.0, 14.0, 12.0, 11.0, 13.0)).repeatability for _ in range(2)}
    assert len(shares) == 1


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (9, 1), (2, 14), (4, 2)])
def test_suggested_rounds_and_steps_suffice_for_a_verdict(shape: tuple[int, int]) -> None:
    rounds, steps = shape
    record = with_config(records.record([WORK] * 4, longer=[1.0] * rounds, steps=steps), rounds=rounds)
    words = shlex.split(next_of_too_short(record))
    given = {name: int(words[words.index(f"--{name}") + 1]) for name in ("rounds", "steps") if f"--{name}" in words}
    assert given.get("rounds", 5) >= 5
    assert given.get("rounds", 5) * given.get("steps", steps) >= 30


def next_of_too_short(record: Record) -> str:
    """Next command of a too-short run; checks that the too-short check suggests the same."""
    [short] = [check for check in run_checks(record) if isinstance(check, MeasurementTooShort)]
    found = judged(record)
    suggested = {"--rounds": short.suggested_rounds, "--steps": short.suggested_steps}
    assert all(f"{flag} {number}" in next_command(found) for flag, number in suggested.items() if number)
    return next_command(found)


@pytest.mark.parametrize(("rounds", "steps"), [(2, 20), (1, 20), (2, 2), (4, 2), (1, 1)])
def test_too_few_rounds_or_steps_are_inconclusive_with_likely_kind(rounds: int, steps: int) -> None:
    found = judged(records.record([{**WORK, "data": 600.0}] * 4, longer=[1.0] * rounds, steps=steps))
    assert found.kind == "inconclusive"
    assert isinstance(found.evidence, TooShort)
    assert (found.evidence.rounds, found.evidence.steps, found.evidence.likely_kind) == (rounds, rounds * steps, "data-bound")
    assert isinstance(found.evidence.likely, DataWait)
    assert found.evidence.likely.wait_fraction == pytest.approx(0.91, abs=0.005)


def with_cpu_time(cpu_s: float, **changes: Any) -> Record:
    """Two CPU ranks with rounds of about 4 s and ``cpu_s`` of CPU time each."""
    return records.cpu_run(**{"traces": {rank: {"cpu_s": cpu_s} for rank in range(2)}, **changes})


def test_cpu_ranks_with_half_a_core_have_a_noisy_neighbour() -> None:
    found = judged(with_cpu_time(2.1))
    assert found.kind == "noisy-neighbour"
    assert isinstance(found.evidence, StarvedRanks)
    assert found.evidence.cores_by_rank == {0: pytest.approx(0.52, abs=0.005), 1: pytest.approx(0.52, abs=0.005)}
    assert (found.evidence.job_cores, found.evidence.usable_cores, found.rank) == (2, 2.0, None)
    assert next_command(found) == "top -b -n 1 -o %CPU | head -15"


def test_noisy_neighbour_is_reported_despite_noise() -> None:
    assert judged(with_cpu_time(2.1, longer=NOISY_ROUNDS)).kind == "noisy-neighbour"


def test_satisfied_waiting_or_oversubscribed_ranks_have_no_noisy_neighbour() -> None:
    assert judged(with_cpu_time(4.0)).kind == "compute-bound"
    assert judged(records.cpu_run()).kind == "compute-bound"
    waiting = {**WORK, "data": 40.0}
    assert judged(with_cpu_time(0.5, ranks=[waiting, waiting])).kind == "data-bound"
    crowded = records.environment(2, device="Xeon CPU", usable_cores=2.0, variables={"OMP_NUM_THREADS": "2"})
    assert judged(with_cpu_time(2.1, environment=crowded)).kind == "inconclusive"


SYNC_BOUND = {**WORK, "sync": 40.0}


def cpu_ranks(cores: float, ranks: int, threads: int, phases: dict[str, float] = SYNC_BOUND, **changes: Any) -> Record:
    """CPU ranks with ``threads`` threads each."""
    variables = {"OMP_NUM_THREADS": str(threads)}
    place = records.environment(ranks, device="Xeon CPU", usable_cores=cores, variables=variables)
    return records.cpu_run(ranks=[phases] * ranks, environment=place, **changes)


@pytest.mark.parametrize(
    ("cores", "ranks", "threads", "next_has"),
    [(2, 4, 1, "--gpus 2"), (2, 4, 2, "--gpus 2"), (4, 2, 4, "--threads 4,2"), (2, 1, 8, "--threads 8,2")],
)
def test_oversubscription_takes_precedence_over_its_symptoms(cores: float, ranks: int, threads: int, next_has: str) -> None:
    found = judged(cpu_ranks(cores, ranks, threads))
    assert found.kind == "inconclusive"
    assert isinstance(found.evidence, OversubscribedRanks)
    assert (found.evidence.ranks, found.evidence.threads_per_rank, found.evidence.workers) == (ranks, threads, 0)
    assert found.evidence.usable_cores == cores
    assert found.evidence.likely_kind == "sync-bound"
    command = next_command(found)
    assert next_has in command
    assert "OMP_NUM_THREADS" not in command or "--threads" not in command
    assert "," not in command.partition(" --threads ")[0]


def test_sync_bound_is_kept_if_cores_suffice() -> None:
    assert judged(cpu_ranks(4, 4, 1)).kind == "sync-bound"


def test_oversubscribed_nodes_suggest_ranks_that_fit() -> None:
    place = records.environment(8, nodes=2, device="Xeon CPU", usable_cores=2.0, variables={"OMP_NUM_THREADS": "1"})
    assert judged(records.cpu_run(ranks=[SYNC_BOUND] * 8, environment=place)).next == ReduceRanks(2)


@pytest.mark.parametrize(("cpu_s", "kind"), [(4.1, "inconclusive"), (2.0, "sync-bound"), (None, "sync-bound")])
def test_workers_oversubscribe_only_if_all_cores_are_busy(cpu_s: float | None, kind: str) -> None:
    """Rounds of 2 s on 4 cores: 8 s of CPU time."""
    config = msgspec.structs.replace(records.cpu_run().config, loader="torch", data_dir="/data", workers=3)
    found = judged(cpu_ranks(4, 2, 1, config=config, traces={rank: {"cpu_s": cpu_s} for rank in range(2)}))
    assert found.kind == kind
    assert next_command(found).endswith("--workers 3,1") == (kind == "inconclusive")


def test_noisy_oversubscribed_ranks_report_oversubscription() -> None:
    found = judged(cpu_ranks(2, 4, 1, longer=NOISY_ROUNDS))
    assert (found.kind, type(found.evidence)) == ("inconclusive", OversubscribedRanks)
    assert "--gpus 2" in next_command(found)


def test_unexplained_step_time_is_inconclusive() -> None:
    found = judged(records.record([WORK] * 4, unexplained_ms=20.0))
    assert found.kind == "inconclusive"
    assert found.evidence == UnexplainedTime(unexplained_ms=pytest.approx(20.0, rel=0.02), step_ms=pytest.approx(82.4, rel=0.01))


def test_no_rounds_give_no_verdict() -> None:
    record = records.record(longer=[])
    assert find_bottleneck(record, summarize(record)) is None
