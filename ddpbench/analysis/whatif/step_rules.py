"""What-if rules for the compute-only step: precision, compile mode and batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log2
from statistics import fmean

from ddpbench.analysis.controls import step_s
from ddpbench.analysis.whatif.assumptions import MissingMeasurementError
from ddpbench.analysis.whatif.batches import scale_times
from ddpbench.analysis.whatif.context import WhatIfContext
from ddpbench.analysis.whatif.state import PipelineState
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.prediction import Assumption, MissingMeasurement
from ddpbench.record.record import KernelActivity


def with_precision(state: PipelineState, name: str, context: WhatIfContext) -> PipelineState:
    steps = _measured_steps(context, name, state.batch_size, state.compile)
    if steps is None:
        how = context.builder.command(loader=(SYNTHETIC,), precision=(state.precision, name))
        raise MissingMeasurementError(MissingMeasurement(code="step-in-precision", precision=name), how)
    return replace(state, precision=name, step_times_s=steps).with_assumptions(Assumption(code="same-copies", log_error=0.02))


def with_compile(state: PipelineState, mode: str, context: WhatIfContext) -> PipelineState:
    """Change the compile mode.

    Unless measured, only the launch gaps that CUDA graphs close are predicted, never fusion.
    """
    if (steps := _measured_steps(context, state.precision, state.batch_size, mode)) is not None:
        return replace(state, compile=mode, step_times_s=steps)
    gap = _kernel_activity(state, context)
    if mode != "reduce-overhead" or state.compile != "off" or gap is None:
        how = context.builder.command(loader=(SYNTHETIC,), compile=(state.compile, mode))
        raise MissingMeasurementError(MissingMeasurement(code="step-compiled", compile_mode=mode), how)
    kernels = gap.kernel_ms / gap.step_ms
    return replace(state, compile=mode, step_times_s=[[kernels * span for span in each] for each in state.step_times_s]).with_assumptions(
        Assumption(code="cuda-graphs", log_error=0.1)
    )


def with_batch_size(state: PipelineState, batch_size: int, context: WhatIfContext) -> PipelineState:
    times = batch_size / state.batch_size
    steps = _measured_steps(context, state.precision, batch_size, state.compile)
    if steps is not None:
        assumed = Assumption(code="same-image-load")
    else:
        steps = [[_scaled_step(span, times, state, context) for span in each] for each in state.step_times_s]
        assumed = Assumption(code="same-image-time", log_error=0.04 * abs(log2(times)))
    trainer_cpu = state.trainer_cpu_curve
    if trainer_cpu is not None:  # with a GPU the trainer issues the same kernels but hands off more images; on CPU it computes the step
        longer = fmean(span for each in steps for span in each) / fmean(span for each in state.step_times_s for span in each)
        trainer_cpu = trainer_cpu.shifted((times - 1) * state.handoff_cpu_s) if context.on_gpu else trainer_cpu.scaled(longer)
    return replace(
        state,
        batch_size=batch_size,
        step_times_s=steps,
        interference_s=times * state.interference_s,
        batch_times_s=scale_times(state.batch_times_s, times),
        handoff_s=times * state.handoff_s,
        trainer_cpu_curve=trainer_cpu,
        handoff_cpu_s=times * state.handoff_cpu_s,
    ).with_assumptions(assumed)


def _measured_steps(context: WhatIfContext, precision: str, batch: int, compile_mode: str) -> Sequence[Sequence[float]] | None:
    """Measured step times with these settings, or None.

    Also None if the diagnosis has no compute-only run to compare them with.
    """
    return context.external.step_times_s.get((precision, batch, compile_mode)) if context.inputs.controls.compute_only else None


def _kernel_activity(state: PipelineState, context: WhatIfContext) -> KernelActivity | None:
    """Measured kernel activity of the compute-only step.

    None if ``state`` has another precision or compile mode.
    """
    device, config = context.inputs.controls.compute_only, context.inputs.record.config
    as_it_was = (state.precision, state.compile) == (config.precision, config.compile)
    return device.kernel_activity if device and as_it_was else None


def _scaled_step(span: float, times: float, state: PipelineState, context: WhatIfContext) -> float:
    """Seconds of a step with ``times`` as many images.

    Gradient sync stays; so do launch gaps, until longer kernels fill them.
    """
    around = context.inputs.controls
    device, no_sync = step_s(around.compute_only), step_s(around.independent)
    sync = min(max(0.0, 1 - no_sync / device), 0.9) * span if device and no_sync else 0.0
    gap = _kernel_activity(state, context)
    if gap is not None and times > 1:
        return max(span, sync + times * (span - sync) * gap.kernel_ms / gap.step_ms)
    return sync + times * (span - sync)
