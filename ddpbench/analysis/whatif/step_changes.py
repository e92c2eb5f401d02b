"""What-if changes of the compute-only step: precision, compile mode, fused kernels and batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import fsum, log2
from statistics import fmean

from ddpbench.analysis.controls import step_s
from ddpbench.analysis.summary import idle_gpu, summarize
from ddpbench.analysis.whatif.assumptions import MissingMeasurementError
from ddpbench.analysis.whatif.batches import scale_times
from ddpbench.analysis.whatif.context import WhatIfContext
from ddpbench.analysis.whatif.state import PipelineState
from ddpbench.record.errors import UsageError
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.prediction import Assumption, MissingMeasurement, Scenario
from ddpbench.record.record import KernelActivity, Record
from ddpbench.record.roofline import Roofline

MAX_GAPS_FRACTION = 0.05
"""Fraction of a step up to which the gaps between kernels do not change with shorter kernels. A slow host would not fill larger ones."""


def with_precision(state: PipelineState, name: str, context: WhatIfContext) -> PipelineState:
    steps = _measured_steps(context, name, state.batch_size, state.compile)
    if steps is None:
        command = context.builder.command(loader=(SYNTHETIC,), precision=(state.precision, name))
        raise MissingMeasurementError(MissingMeasurement(code="step-in-precision", precision=name), command)
    return replace(state, precision=name, step_times_s=steps).with_assumptions(Assumption(code="same-copies", log_error=0.02))


def with_compile(state: PipelineState, mode: str, context: WhatIfContext) -> PipelineState:
    """Change the compile mode.

    Unless measured, only the launch gaps that CUDA graphs close are predicted, never fusion.
    """
    if (steps := _measured_steps(context, state.precision, state.batch_size, mode)) is not None:
        return replace(state, compile=mode, step_times_s=steps)
    activity = _kernel_activity(state, context)
    in_graph = context.inputs.record.config.cuda_graph
    if mode != "reduce-overhead" or state.compile != "off" or activity is None or in_graph:
        command = context.builder.command(loader=(SYNTHETIC,), compile=(state.compile, mode))
        raise MissingMeasurementError(MissingMeasurement(code="step-compiled", compile_mode=mode), command)
    kernel_fraction = activity.kernel_ms / activity.step_ms
    return replace(
        state, compile=mode, step_times_s=[[kernel_fraction * span for span in each] for each in state.step_times_s]
    ).with_assumptions(Assumption(code="cuda-graphs", log_error=0.1))


def with_fused_kernels(state: PipelineState, wanted: bool, context: WhatIfContext) -> PipelineState:
    """Change to fused kernels: the layers that they replace take the time in which a copy moves the counted bytes.

    A convolution that is replaced takes the time of matrix products with its FLOPs besides. Gradient sync of several ranks stays, but a
    shorter backward may hide less of it.
    """
    after = _with_counted_kernels(state, wanted, context, Scenario(fused_kernels=wanted), MissingMeasurement(code="step-fused"))
    return replace(after, fused=True)


def with_fast(state: PipelineState, wanted: bool, context: WhatIfContext) -> PipelineState:
    """Change to the settings of ``--fast``: fused kernels, and CUDA graphs, which close the gaps between all kernels."""
    after = _with_counted_kernels(state, wanted, context, Scenario(fast=wanted), MissingMeasurement(code="step-fast"))
    return replace(after, fast=True, fused=True).with_assumptions(Assumption(code="cuda-graphs"))


def _with_counted_kernels(
    state: PipelineState, wanted: bool, context: WhatIfContext, scenario: Scenario, missing: MissingMeasurement
) -> PipelineState:
    """Change to fused kernels, in CUDA graphs with ``--fast``."""
    if not context.on_gpu:
        raise UsageError(f"{scenario.flag_text} changes nothing on a CPU", f"drop {scenario.flag_text}")
    compute_only, config = context.inputs.controls.compute_only, context.inputs.record.config
    roofline = compute_only.roofline if compute_only else None
    measured_s = step_s(compute_only)
    same_settings = (state.precision, state.compile, state.batch_size) == (config.precision, config.compile, config.batch_size)
    if not (wanted and same_settings and roofline and roofline.fused and measured_s):
        raise MissingMeasurementError(missing, context.builder.diagnose_command())
    step_ms = 1e3 * measured_s
    gaps_ms = _gaps_ms(step_ms, roofline, compute_only if state.ranks > 1 else None)
    if scenario.fast:
        step_ms -= gaps_ms
    elif gaps_ms > MAX_GAPS_FRACTION * step_ms:
        raise MissingMeasurementError(missing, "")
    fused, limits = roofline.fused, roofline.limits
    fused_ms = fused.num_bytes / limits.copy_gb_per_s / 1e6 + fused.flops / limits.matmul_tflops / 1e9
    ratio = (step_ms - fused.replaced_ms + fused_ms) / (1e3 * measured_s)
    return replace(state, step_times_s=[[min(ratio, 1.0) * span for span in each] for each in state.step_times_s]).with_assumptions(
        Assumption(code="fused-kernels", log_error=0.08 if state.ranks == 1 else 0.15)
    )


def _gaps_ms(step_ms: float, roofline: Roofline, with_communication: Record | None) -> float:
    """Milliseconds of a step of ``step_ms`` in which the device waits for the next kernel.

    Of a step ``with_communication`` only those in which it does not wait for other ranks either; 0 if they are not known.
    """
    if with_communication is None:
        return max(0.0, step_ms - fsum(work.ms for layer in roofline.layers for work in (layer.forward, layer.backward)))
    if with_communication.kernel_activity is None:
        return 0.0
    idle = idle_gpu(with_communication.kernel_activity, summarize(with_communication))
    return max(0.0, idle.available_ms - idle.kernel_ms)


def with_batch_size(state: PipelineState, batch_size: int, context: WhatIfContext) -> PipelineState:
    factor = batch_size / state.batch_size
    steps = _measured_steps(context, state.precision, batch_size, state.compile) if _has_present_kernels(state, context) else None
    if steps is not None:
        assumption = Assumption(code="same-image-load")
    else:
        steps = [[_scaled_step(span, factor, state, context) for span in each] for each in state.step_times_s]
        assumption = Assumption(code="same-image-time", log_error=0.04 * abs(log2(factor)))
    trainer_cpu = state.trainer_cpu_curve
    if trainer_cpu is not None:  # with a GPU the trainer issues the same kernels but hands off more images; on CPU it computes the step
        step_ratio = fmean(span for each in steps for span in each) / fmean(span for each in state.step_times_s for span in each)
        trainer_cpu = trainer_cpu.shifted((factor - 1) * state.handoff_cpu_s) if context.on_gpu else trainer_cpu.scaled(step_ratio)
    return replace(
        state,
        batch_size=batch_size,
        step_times_s=steps,
        interference_s=factor * state.interference_s,
        batch_times_s=scale_times(state.batch_times_s, factor),
        handoff_s=factor * state.handoff_s,
        trainer_cpu_curve=trainer_cpu,
        handoff_cpu_s=factor * state.handoff_cpu_s,
    ).with_assumptions(assumption)


def _measured_steps(context: WhatIfContext, precision: str, batch: int, compile_mode: str) -> Sequence[Sequence[float]] | None:
    """Measured step times with these settings, or None.

    Also None if the diagnosis has no compute-only run to compare them with.
    """
    return context.external.step_times_s.get((precision, batch, compile_mode)) if context.inputs.controls.compute_only else None


def _kernel_activity(state: PipelineState, context: WhatIfContext) -> KernelActivity | None:
    """Measured kernel activity of the compute-only step.

    None if ``state`` has another precision or compile mode.
    """
    compute_only, config = context.inputs.controls.compute_only, context.inputs.record.config
    same_settings = (state.precision, state.compile) == (config.precision, config.compile) and _has_present_kernels(state, context)
    return compute_only.kernel_activity if compute_only and same_settings else None


def _has_present_kernels(state: PipelineState, context: WhatIfContext) -> bool:
    """Whether ``state`` neither adds ``--fast`` to the measured run nor fused kernels."""
    config = context.inputs.record.config
    return (state.fast, state.fused) == (config.fast, config.fused_kernels)


def _scaled_step(span: float, factor: float, state: PipelineState, context: WhatIfContext) -> float:
    """Seconds of a step with ``times`` as many images.

    Gradient sync stays; so do launch gaps, until longer kernels fill them.
    """
    controls = context.inputs.controls
    device_s, independent_s = step_s(controls.compute_only), step_s(controls.independent)
    sync_s = min(max(0.0, 1 - independent_s / device_s), 0.9) * span if device_s and independent_s else 0.0
    activity = _kernel_activity(state, context)
    if activity is not None and factor > 1:
        return max(span, sync_s + factor * (span - sync_s) * activity.kernel_ms / activity.step_ms)
    return sync_s + factor * (span - sync_s)
