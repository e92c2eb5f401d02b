"""The legs of a round, joined: what is added up, what is the most of them, and what is counted from the beginning."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from records import numerics, trace

from ddpbench.experiments.joining import joined
from ddpbench.record.loading import CoreUse, Loading
from ddpbench.record.trace import PHASES, Health, Memory, Numerics, Trace


def leg(steps: int, wall_s: float, **changes: Any) -> Trace:
    made = trace(0, 1000 * wall_s / steps, {"data": 2.0 * steps, "forward": 1.0}, steps=steps, batch=4)
    return replace(made, **{"cpu_s": 2 * wall_s, "thread_cpu_s": wall_s, **changes})


def told(kind: type[Any]) -> Any:
    """A ``kind`` whose every field tells something."""
    given = {
        "throttle_reasons": ["sw-thermal"],
        "skipped_steps": [1],
        "left_out": ["a file"],
        "batch_ms": [1.0],
        "cpu_s": {"decode": 1.0},
        "wall_s": {"decode": 2.0},
    }
    words = {} if kind is CoreUse else given
    return kind(**{name: words.get(name, 3) for name in kind.__struct_fields__})


def test_nothing_that_is_told_of_a_leg_is_left_out() -> None:
    parts = {"memory": Memory, "numerics": Numerics, "health": Health, "loading": Loading, "cores": CoreUse}
    only = leg(2, 1.0, **{name: told(kind) for name, kind in parts.items()})
    assert joined([only]) == only


def test_steps_stand_one_after_another_and_times_add_up() -> None:
    first, second = leg(2, 1.0), leg(3, 5.0)
    whole = joined([first, second])
    assert (whole.steps, whole.images, whole.wall_s, whole.cpu_s, whole.thread_cpu_s) == (5, 20, 6.0, 12.0, 6.0)
    assert whole.phases_ms == {phase: first.phases_ms[phase] + second.phases_ms[phase] for phase in PHASES}
    assert whole.host_data_ms == [4.0, 4.0, 6.0, 6.0, 6.0]
    assert whole.lead_ms == first.lead_ms + second.lead_ms
    assert whole.issuing_ms == first.issuing_ms + second.issuing_ms != []
    assert joined([first, replace(second, cpu_s=None)]).cpu_s is None, "a part is not the whole"
    assert joined([first]) == first


def test_of_memory_the_most_is_kept_and_its_retries_are_counted() -> None:
    first = Memory(allocated_bytes=7, workers_rss_bytes=None, allocator_retries=1)
    second = Memory(allocated_bytes=5, workers_rss_bytes=3, allocator_retries=2)
    assert joined([leg(2, 1.0, memory=first), leg(2, 1.0, memory=second)]).memory == Memory(
        allocated_bytes=7, workers_rss_bytes=3, allocator_retries=3
    )


def test_losses_and_steps_are_those_of_the_whole_round() -> None:
    first = numerics(3.0, 2.0, mean_loss=2.5, skipped_steps=[1], loss_scale=8.0, parameters_before=1, parameters_after=2)
    second = numerics(1.9, 1.0, mean_loss=1.5, skipped_steps=[0, 2], loss_scale=4.0, parameters_before=2, parameters_after=3)
    whole = joined([leg(2, 1.0, numerics=first), leg(6, 1.0, numerics=second)]).numerics
    assert (whole.first_loss, whole.last_loss, whole.mean_loss) == (3.0, 1.0, 1.75)
    assert (whole.skipped_steps, whole.nonfinite_step, whole.loss_scale) == ([1, 2, 4], None, 4.0)
    assert (whole.parameters_before, whole.parameters_after) == (1, 3)


def test_the_first_dead_step_is_counted_from_the_beginning() -> None:
    dead = [numerics(None, None, mean_loss=None, nonfinite_step=step) for step in (1, 0)]
    whole = joined([leg(4, 1.0, numerics=numerics(mean_loss=1.0)), *(leg(4, 1.0, numerics=each) for each in dead)]).numerics
    assert (whole.nonfinite_step, whole.last_loss, whole.mean_loss) == (5, None, None)


def test_health_counts_as_long_as_it_was_looked_at() -> None:
    first = Health(sm_mhz=1000.0, sm_mhz_min=900.0, watts=100.0, celsius=50.0, energy_j=10.0, throttle_reasons=["sw-thermal"], samples=1)
    second = Health(sm_mhz=1400.0, sm_mhz_min=950.0, watts=500.0, celsius=60.0, energy_j=30.0, other_processes=1, samples=3)
    brief = Health(energy_j=1.0)
    assert joined([leg(2, 1.0, health=each) for each in (first, second, brief)]).health == Health(
        sm_mhz=1300.0,
        sm_mhz_min=900.0,
        watts=400.0,
        celsius=60.0,
        energy_j=41.0,
        throttle_reasons=["sw-thermal"],
        other_processes=1,
        samples=4,
    )
    assert joined([leg(2, 1.0, health=None)] * 2).health is None


def test_loading_adds_up_and_its_waits_count_by_their_length() -> None:
    first = Loading(
        images=4, cpu_s={"decode": 1.0}, wall_s={"decode": 2.0}, batch_ms=[1.0], hand_over_ms=1.0, head_of_line=0.25, left_out=["a"]
    )
    second = Loading(images=8, cpu_s={"decode": 1.0, "collate": 3.0}, batch_ms=[2.0, 3.0], hand_over_ms=5.0, head_of_line=0.75)
    none = Loading(images=4)
    waited = ([30.0], [10.0], [0.0])
    legs = [leg(1, 1.0, loading=each, host_data_ms=ms) for each, ms in zip((first, second, none), waited, strict=True)]
    whole = joined(legs).loading
    assert whole is not None
    assert (whole.images, whole.left_out, whole.batch_ms) == (16, ["a"], [1.0, 2.0, 3.0])
    assert (whole.cpu_s, whole.wall_s) == ({"decode": 2.0, "collate": 3.0}, {"decode": 2.0})
    assert (whole.hand_over_ms, whole.head_of_line) == (2.0, 0.375)


def test_cores_add_up() -> None:
    first = CoreUse(cores=4, busy_s=1.0, wall_s=1.0, pressure=0.5)
    second = CoreUse(cores=4, busy_s=6.0, wall_s=3.0, pressure=0.0)
    assert joined([leg(2, 1.0, cores=first), leg(2, 3.0, cores=second)]).cores == CoreUse(cores=4, busy_s=7.0, wall_s=4.0, pressure=0.125)
