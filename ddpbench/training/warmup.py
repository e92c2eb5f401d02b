"""Warm-up: untimed steps until caches, clocks and the allocator are stable."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from ddpbench.record.config import ResolvedConfig
from ddpbench.record.record import ObservedPrecision, Warmup
from ddpbench.record.text import format_3sig, pluralize
from ddpbench.training.compile_cache import Lookups, lookups
from ddpbench.training.loop import mark_last_gradient
from ddpbench.training.precision import StepObservation, observe_step
from ddpbench.training.session import Session

WINDOW_TOLERANCE = 0.03
"""Two warm-up windows agree if their step times differ by less than this fraction."""

MIN_WARMUP_WINDOWS, MAX_WARMUP_WINDOWS = 2, 10
"""Minimum and maximum number of warm-up windows."""

WARMUP_LIMIT_S = {"cuda": 30.0, "cpu": 12.0}

FIRST_STEP_TIMEOUT_FACTOR, COMPILE_TIMEOUT_FACTOR = 2.5, 10.0
"""Multiples of the hang timeout until the first step has ended, and for a dry run.

Drivers load, cuDNN benchmarks and compilers compile during it.
"""


def first_step_timeout_s(config: ResolvedConfig) -> float:
    """Maximum seconds for the first step."""
    return config.hang_timeout * (FIRST_STEP_TIMEOUT_FACTOR if config.compile == "off" else COMPILE_TIMEOUT_FACTOR)


def warm_up(
    session: Session,
    build_s: float = 0.0,
    limit_s: float | None = None,
    min_windows: int = MIN_WARMUP_WINDOWS,
    looked_up: Lookups | None = None,
    after_first_step: Callable[[], None] | None = None,
    report: Callable[[str], None] | None = None,
) -> tuple[Warmup, ObservedPrecision, float]:
    """Train untimed until two windows agree.

    Returns the warm-up's costs, the observed precision, and seconds per step. ``build_s`` is the time that building the session took, and
    ``looked_up`` what had been looked up in caches before. ``after_first_step`` is called once; its time is none of the warm-up's.
    ``report`` receives how far it is, before every window.
    After ``limit_s`` seconds no window begins beyond the first ``min_windows``. If every round trains from scratch, a single window of
    one step is enough: the round itself includes the time until everything is stable. All ranks agree on each decision, so that none of
    them waits for the others in a collective.
    """
    start_s = perf_counter()
    looked_up = looked_up or lookups()
    first_batch_s, seen, step_s, steps, left_out_s = _first_steps(session, after_first_step)
    start_s += left_out_s
    first_step_s = perf_counter() - start_s
    config, world = session.config, session.world
    window, max_windows = (1, 1) if config.fresh else (config.warmup, MAX_WARMUP_WINDOWS)
    min_windows = min(max_windows, min_windows)
    limit_s = limit_s or WARMUP_LIMIT_S[world.device.torch_device.type]
    converged = False
    for number in range(max_windows):
        if number >= min_windows and (converged or world.all_max(perf_counter() - start_s) > limit_s):
            break
        if report:
            report(f"warming up, {pluralize(steps, 'step')} so far, {format_3sig(1000 * step_s)} ms per step")
        previous_s, step_s = step_s, _window_s(session, window) / window
        steps, converged = steps + window, number > 0 and abs(step_s / previous_s - 1) < WINDOW_TOLERANCE
    compiled = lookups().since(looked_up)
    warmup = Warmup(
        build_s=build_s,
        first_batch_s=first_batch_s,
        first_step_s=first_step_s,
        warmup_steps=steps,
        warmup_converged=converged,
        compile_cache=compiled.state,
        kernel_compile_s=compiled.compile_s,
    )
    return warmup, session.observe_precision(seen), step_s


def warm_up_again(session: Session, limit_s: float | None = None, after_first_step: Callable[[], None] | None = None) -> None:
    """Warm up after another arm's turn, for a fixed number of steps.

    Restores caches, clocks and the allocator. ``limit_s`` and ``after_first_step`` as for ``warm_up``.
    """
    start_s = perf_counter()
    *_, left_out_s = _first_steps(session, after_first_step)
    start_s += left_out_s
    config, world = session.config, session.world
    if not config.fresh and not (limit_s and world.all_max(perf_counter() - start_s) > limit_s):
        _window_s(session, config.warmup)


def _first_steps(session: Session, after_first_step: Callable[[], None] | None) -> tuple[float, StepObservation, float, int, float]:
    """Train one observed step, install the mark of the end of backward, and train another step, or as many as the engine needs.

    Returns the seconds that the first step waited for its batch, the observation, the seconds of a later step, the number of steps, and
    the seconds of ``after_first_step``.
    """
    with observe_step(session.model, session.compiled) as seen:
        session.train(1)
    assert seen.last_gradient is not None, "the first step computed no gradients"
    mark_last_gradient(seen.last_gradient, session.timer)
    first_batch_s = session.timer.host_data_ms()[0] / 1e3
    if not session.compiled:
        session.measure_workspaces()
    begin_s = perf_counter()
    if after_first_step:
        after_first_step()
    left_out_s = perf_counter() - begin_s
    more = session.engine.warmup_steps
    if more:
        session.train(more)
    step_s = session.train(1)  # a compiled model compiles here, or in the steps before a capture
    session.marker.timeout_s = session.config.hang_timeout
    return first_batch_s, seen, step_s, 2 + more, left_out_s


def _window_s(session: Session, steps: int) -> float:
    """Seconds for ``steps`` steps, of the slowest rank."""
    session.world.barrier()
    return session.world.all_max(session.train(steps))
