"""Summary: phases that sum to the step, own time, peer data wait, straggler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import records

from ddpbench.analysis.summary import Summary, compute_dtype, summarize
from ddpbench.record.record import ObservedPrecision, PeakThroughput, Round
from ddpbench.record.trace import PHASES, Health, Memory, Trace

WORK = {"forward": 20.0, "backward": 40.0, "optimizer": 2.0}


def with_late_rank(more: Mapping[str, float], rank: int = 2, ranks: int = 4, **changes: Any) -> Summary:
    """Summary of ranks that do WORK, with one that takes ``more``."""
    phases = [
        {**WORK, **({phase: WORK.get(phase, 0.0) + ms for phase, ms in more.items()} if each == rank else {})} for each in range(ranks)
    ]
    return summarize(records.record(phases, **changes))


def test_phases_and_unexplained_time_sum_to_the_step() -> None:
    summary = summarize(records.data_bound())
    assert summary.step_ms == pytest.approx(226.4)
    assert list(summary.phases_ms) == [*PHASES, "unexplained"]
    assert sum(summary.phases_ms.values()) == pytest.approx(226.4)
    assert summary.phases_ms["unexplained"] == pytest.approx(2.5)
    assert summary.phases_ms["data"] == pytest.approx(145.1)


def test_data_wait_includes_waiting_for_another_ranks_data() -> None:
    summary = summarize(records.data_bound())
    assert summary.collective_wait_ms == pytest.approx(33.0)
    assert summary.peer_data_wait_ms == pytest.approx(31.8)
    assert summary.data_wait_fraction == pytest.approx((145.1 + 31.8) / 226.4)


def test_ranks_are_sorted_by_own_time() -> None:
    rows = summarize(records.data_bound()).ranks
    assert [row.rank for row in rows] == [2, 0, 1, 3]
    assert [round(row.own_ms, 1) for row in rows] == [225.2, 188.1, 181.3, 179.0]
    assert [round(row.collective_wait_ms, 1) for row in rows] == [1.2, 38.3, 45.1, 47.4]
    assert {round(row.step_ms, 1) for row in rows} == {226.4}
    assert [row.celsius for row in rows] == [41, 42, 41, 40]


def test_straggler_is_reported_with_its_cost() -> None:
    slow = summarize(records.data_bound()).straggler
    assert slow is not None
    assert (slow.rank, slow.host, slow.device_index, slow.slow_in) == (2, "node-01", 2, "data")
    assert slow.excess_fraction == pytest.approx(225.2 / 181.3 - 1)
    assert slow.lost_ms_per_step == pytest.approx(225.2 - 188.1)
    assert slow.cost_samples_per_s == pytest.approx(1024 / 0.1893 - 1024 / 0.2264)


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"data": 9.0}, "data"),
        ({"host_to_device": 9.0}, "host-to-device"),
        ({"forward": 4.0, "backward": 5.0}, "compute"),
        ({"optimizer": 9.0}, "compute"),
    ],
)
def test_straggler_kind_is_its_slow_phase(more: Mapping[str, float], kind: str) -> None:
    slow = with_late_rank(more).straggler
    assert slow is not None
    assert (slow.rank, slow.slow_in) == (2, kind)


@pytest.mark.parametrize(
    "health",
    [
        Health(sm_mhz=1700.0),
        Health(sm_mhz=1980.0, throttle_reasons=["sw-thermal"]),
        Health(sm_mhz=1980.0, throttle_reasons=["hw-slowdown"]),
    ],
    ids=["slower", "hot", "pulled-down"],
)
def test_straggler_with_throttled_clock_has_kind_clock(health: Health) -> None:
    slow = with_late_rank({"backward": 9.0}, traces={2: {"health": health}}).straggler
    assert slow is not None
    assert slow.slow_in == "clock"


def test_power_cap_alone_is_not_kind_clock() -> None:
    slow = with_late_rank({"backward": 9.0}, traces={2: {"health": Health(sm_mhz=1975.0, throttle_reasons=["sw-power-cap"])}}).straggler
    assert slow is not None
    assert slow.slow_in == "compute"


def test_straggler_in_unexplained_time_has_kind_host() -> None:
    record = records.record([{**WORK, "data": 8.0}, WORK])
    for timed in record.rounds:
        timed.traces[0].phases_ms["data"][:] = [0.0] * 20
    slow = summarize(record).straggler
    assert slow is not None
    assert (slow.rank, slow.slow_in) == (0, "host")


@pytest.mark.parametrize("broadcast", [True, False])
@pytest.mark.parametrize("rank", [0, 1])
def test_late_rank_of_two_is_the_straggler_with_and_without_broadcast(rank: int, broadcast: bool) -> None:
    phases = [{**WORK}, {**WORK}]
    phases[rank]["data"] = 50.0
    if broadcast and rank == 0:
        phases[1]["broadcast"] = 50.0  # in DDP's forward rank 1 waits for rank 0's buffers
    slow = summarize(records.record(phases)).straggler
    assert slow is not None
    assert (slow.rank, slow.slow_in) == (rank, "data")
    assert slow.excess_fraction == pytest.approx(50 / 62.4)


def test_gpu_straggler_threshold_is_two_and_a_half_percent() -> None:
    assert with_late_rank({"backward": 1.5}).straggler is None
    assert with_late_rank({"backward": 1.6}).straggler is not None


def test_cpu_straggler_threshold_is_five_percent() -> None:
    ranks = [{**WORK}, {**WORK, "backward": WORK["backward"] + 3.0}]
    cores = records.environment(2, device="Intel CPU")
    assert summarize(records.record(ranks, environment=cores)).straggler is None
    ranks[1]["backward"] += 0.2
    assert summarize(records.record(ranks, environment=cores)).straggler is not None


@pytest.mark.parametrize(
    ("excesses", "slow"),
    [
        ((2.0, 6.0, 3.0, 6.0, 3.0), True),
        ((0.1, 14.0, 0.2, 0.1, 12.0), False),
        ((62.0, 600.0, 200.0, 500.0, 70.0), True),  # twice to eleven times the others' time
    ],
)
def test_inconsistently_slowest_rank_is_not_a_straggler(excesses: Sequence[float], slow: bool) -> None:
    longest_ms = max(20.0, *excesses)
    record = records.record([{**WORK, "data": longest_ms}, WORK])
    for timed, more_ms in zip(record.rounds, excesses, strict=True):
        timed.traces[0].phases_ms["data"][:] = [more_ms] * 20
        timed.traces[0].phases_ms["sync"][:] = [longest_ms - more_ms] * 20
        timed.traces[1].phases_ms["sync"][:] = [longest_ms] * 20
    assert (summarize(record).straggler is not None) == slow


def test_consistent_straggler_is_found_despite_pauses_of_others() -> None:
    record = records.record([{**WORK, "forward": 28.0}, WORK])
    for timed in record.rounds[:2]:
        timed.traces[1].phases_ms["forward"][3] += 300.0
        timed.traces[1].phases_ms["sync"][:] = [sync - 15.0 for sync in timed.traces[1].phases_ms["sync"]]
    slow = summarize(record).straggler
    assert slow is not None
    assert (slow.rank, slow.slow_in) == (0, "compute")


@pytest.mark.parametrize(("cpu_ms", "kind"), [(60.0, "compute"), (10.0, "host")])
def test_straggler_off_its_core_has_kind_host(cpu_ms: float, kind: str) -> None:
    cores = records.environment(2, device="Intel CPU")
    trace_fields = {"memory": records.CPU_MEMORY, "host_lead_ms": []}
    traces = {0: {"thread_cpu_s": 0.4, **trace_fields}, 1: {"thread_cpu_s": 0.4 + cpu_ms * 20 / 1000, **trace_fields}}
    slow = summarize(records.record([WORK, {**WORK, "backward": 90.0}], environment=cores, traces=traces)).straggler
    assert slow is not None
    assert (slow.rank, slow.slow_in) == (1, kind)


@pytest.mark.parametrize(
    ("issuing_ms", "kind"), [([], "compute"), ([2.0] * 20, "compute"), ([60.0] * 8 + [1.0] * 12, "compute"), ([7.0] * 20, "host")]
)
def test_gpu_straggler_with_late_kernel_launches_has_kind_host(issuing_ms: list[float], kind: str) -> None:
    healthy = {rank: {"host_issue_ms": [1.0] * 20, "thread_cpu_s": 0.1} for rank in (0, 1, 3)}
    slow = with_late_rank({"backward": 9.0}, traces={**healthy, 2: {"host_issue_ms": issuing_ms, "thread_cpu_s": 0.1}}).straggler
    assert slow is not None
    assert slow.slow_in == kind


def test_straggler_within_the_spread_of_others_is_not_reported() -> None:
    uneven = [{**WORK, "data": data} for data in (0.0, 10.0, 11.0, 14.0)]
    assert summarize(records.record(uneven)).straggler is None


def test_alternating_slow_rank_is_not_a_straggler() -> None:
    record = records.record([{**WORK, "data": 20.0}, WORK])
    record.rounds[1].traces[:] = [_with(trace, rank=1 - trace.rank) for trace in reversed(record.rounds[1].traces)]
    assert summarize(record).straggler is None


def test_single_round_or_rank_has_no_straggler() -> None:
    assert with_late_rank({"data": 50.0}, longer=[1.0]).straggler is None
    assert with_late_rank({"data": 50.0}, rank=0, ranks=1).straggler is None


def test_two_slow_ranks_are_not_a_straggler() -> None:
    assert summarize(records.record([WORK, {**WORK, "data": 30.0}, {**WORK, "data": 31.0}, WORK])).straggler is None


def test_peer_data_wait_is_attributed_per_step() -> None:
    """Two ranks alternate in being late: no straggler, and all of the wait is for data."""
    turns = [[30.0, 0.0] * 5, [0.0, 30.0] * 5]
    traces = []
    for rank, data in enumerate(turns):
        phases_ms = {phase: [0.0] * 10 for phase in PHASES} | {"data": data, "forward": [20.0] * 10, "sync": [31.0 - own for own in data]}
        traces.append(_with(records.trace(rank, 51.0, {}, steps=10), phases_ms=phases_ms))
    record = records.record([WORK, WORK], rounds=[Round(index=0, traces=traces, samples=5120, wall_s=0.51)])
    summary = summarize(record)
    assert summary.collective_wait_ms == pytest.approx(16.0)
    assert summary.peer_data_wait_ms == pytest.approx(15.0)
    assert summary.data_wait_fraction == pytest.approx(30 / 51)


def test_wait_for_slow_compute_is_not_peer_data_wait() -> None:
    assert with_late_rank({"backward": 30.0}).peer_data_wait_ms == pytest.approx(0)
    both = with_late_rank({"backward": 30.0, "data": 10.0})
    assert both.peer_data_wait_ms == pytest.approx(10 * 3 / 4)


def test_single_rank_has_no_sync_wait() -> None:
    summary = summarize(records.record([WORK]))
    assert (summary.collective_wait_ms, summary.peer_data_wait_ms, summary.straggler) == (pytest.approx(0), 0, None)
    assert summary.step_ms == pytest.approx(62.4)


def test_no_rounds_give_no_figures() -> None:
    summary = summarize(records.record(longer=[], status="failed"))
    assert (summary.rounds, summary.steps, summary.phases_ms, list(summary.ranks)) == (0, 0, {}, [])
    unknown = {name for name in vars(summary) if getattr(summary, name) is None}
    assert unknown == set(vars(summary)) - {"rounds", "steps", "phases_ms", "ranks"}


def test_gpu_only_figures_are_missing_on_cpu() -> None:
    summary = summarize(records.cpu_run())
    missing = (summary.host_lead_ms, summary.peak_allocated_bytes, summary.device_total_bytes, summary.joules_per_sample, summary.mfu)
    assert missing == (None,) * 5
    assert summary.rss_bytes == records.CPU_MEMORY.host_rss_bytes + records.CPU_MEMORY.workers_rss_bytes


def test_energy_per_sample_and_mfu() -> None:
    summary = summarize(records.data_bound())
    assert summary.joules_per_sample == pytest.approx((244 + 243 + 241 + 240) * 0.2264 / 1024)
    assert summary.mfu == pytest.approx(24.5e9 * 1024 / 0.2264 / 4 / 761e12)


def test_energy_is_missing_if_one_gpu_does_not_report_it() -> None:
    assert summarize(records.data_bound(traces={3: {"health": Health(sm_mhz=1980.0)}})).joules_per_sample is None


def test_two_ranks_on_one_gpu_share_its_energy() -> None:
    record = records.record([WORK, WORK])
    apart = summarize(record).joules_per_sample
    first, second = record.environment.placements
    place = type(second)(**{name: getattr(second, name) for name in second.__struct_fields__} | {"device_id": first.device_id})
    record.environment.placements[1] = place
    assert apart is not None
    assert summarize(record).joules_per_sample == pytest.approx(apart / 2)


@pytest.mark.parametrize(
    ("layer", "matmul", "cudnn", "dtype"),
    [
        ("float16", True, True, "float16"),
        ("float32", False, False, "float32"),
        ("float32", True, True, "tf32"),
        ("float32", False, True, "tf32"),
    ],
)
def test_compute_dtype_is_the_observed_dtype(layer: str, matmul: bool, cudnn: bool, dtype: str) -> None:
    attested = ObservedPrecision(
        parameter_dtypes=["float32"],
        gradient_dtypes=["float32"],
        batch_norm_dtypes=["float32"],
        first_layer_dtype=layer,
        last_layer_dtype=layer,
        tf32_matmul=matmul,
        tf32_cudnn=cudnn,
    )
    assert compute_dtype(attested) == dtype


def test_mfu_is_missing_without_peak_of_the_dtype() -> None:
    assert summarize(records.record(peak_throughput=PeakThroughput(matmul_tflops={"float32": 51.0}))).mfu is None
    assert summarize(records.record(flops_per_sample=None)).mfu is None


def test_peak_memory_is_the_maximum_over_ranks_and_rounds() -> None:
    hungry = Memory(allocated_bytes=30 * records.GIB, device_total_bytes=80 * records.GIB)
    summary = summarize(records.record(traces={3: {"memory": hungry}}))
    assert (summary.peak_allocated_bytes, summary.device_total_bytes) == (30 * records.GIB, 80 * records.GIB)


def test_losses_are_of_the_first_and_last_step() -> None:
    summary = summarize(records.data_bound())
    assert (summary.first_loss, summary.last_loss) == (pytest.approx(7.03), pytest.approx(6.41))
    dead = summarize(records.record(traces={1: {"numerics": records.numerics(7.0, None)}}))
    assert (dead.first_loss is not None, dead.last_loss) == (True, None)


def _with(trace: Trace, **changes: Any) -> Trace:
    return Trace(**{name: getattr(trace, name) for name in trace.__struct_fields__} | changes)


def test_dropped_steps_count_through_totals() -> None:
    """Every tenth of 20 steps is kept, and the two kept steps are fast ones."""
    record = records.record([WORK, WORK])
    for timed in record.rounds:
        for trace in timed.traces:
            totals_ms = {phase: trace.total_ms(phase) for phase in PHASES}
            kept = {phase: [0.5 * span for span in spans[::10]] for phase, spans in trace.phases_ms.items()}
            timed.traces[trace.rank] = _with(trace, phases_ms=kept, totals_ms=totals_ms)
    summary = summarize(record)
    assert summary.phases_ms["forward"] == pytest.approx(20.0, rel=0.01)
    assert {round(row.own_ms, 1) for row in summary.ranks} == {62.4}
