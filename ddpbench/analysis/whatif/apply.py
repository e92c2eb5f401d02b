"""Apply a scenario to a pipeline state, setting by setting, with the assumptions that each makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import log2
from statistics import fmean

import msgspec

from ddpbench.analysis.controls import step_time_ratio
from ddpbench.analysis.pipeline.costs import sampler_batch_s
from ddpbench.analysis.whatif.assumptions import MissingMeasurementError
from ddpbench.analysis.whatif.batches import round_robin_times, scale_times
from ddpbench.analysis.whatif.context import WhatIfContext
from ddpbench.analysis.whatif.loader_changes import with_handoff, with_hw_decoder_load, with_loader, with_pin_memory
from ddpbench.analysis.whatif.state import PipelineState
from ddpbench.analysis.whatif.step_changes import with_batch_size, with_compile, with_fast, with_fused_kernels, with_precision
from ddpbench.record.diagnosis import LoaderBenchmark
from ddpbench.record.errors import UsageError
from ddpbench.record.loaders import DECODED_AHEAD, DEFAULT_LOADER, loader_spec
from ddpbench.record.prediction import Assumption, MissingMeasurement, Scenario

TAKEN_BY_DECODING = 0.25
"""Fraction of the time of decoding alone by which a step gets longer that shares the GPU with it: none to a half."""

BATCHES_TO_DECODE = 3
"""For so many batch times, the first batch of an epoch is on its way: read, decoded, and completed."""

MIN_READ_WAIT_FRACTION = 0.1
"""From this fraction of read wait on, more workers may slow each other's reads down, if the storage is saturated."""


def apply_scenario(before: PipelineState, scenario: Scenario, context: WhatIfContext) -> PipelineState:
    """Return the state with all of ``scenario`` applied.

    Raises MissingMeasurementError if a measurement is missing, UsageError if the scenario is impossible.
    """
    if scenario.has_no_workers and (scenario.workers or scenario.prefetch):
        raise UsageError("data that the device keeps or decodes are loaded without workers", "drop --workers and --prefetch")
    if scenario.resident and scenario.decode_on_gpu:
        raise UsageError("--resident keeps decoded data", "drop --decode-on-gpu")
    after = before
    for name, apply in SETTERS.items():
        value = getattr(scenario, name)
        if value is not None and value != _present_value(name, after, context):
            after = apply(after, value, context)
    return after


def already_set(before: PipelineState, scenario: Scenario, context: WhatIfContext) -> Scenario:
    """Return the part of ``scenario`` that is set already."""
    requested = {name: value for name in SETTERS if (value := getattr(scenario, name)) is not None}
    return Scenario(**{name: value for name, value in requested.items() if value == _present_value(name, before, context)})


def _present_value(name: str, state: PipelineState, context: WhatIfContext) -> object:
    config = context.inputs.record.config
    values = {
        "loader": state.loader,
        "hw_decoder_load": config.hw_decoder_load,
        "precision": state.precision,
        "compile": state.compile,
        "fast": state.fast,
        "fused_kernels": state.fused,
        "batch_size": state.batch_size,
        "data_in_memory": False,
        "resident": False,
        "decode_on_gpu": False,
        "ready_indices": False,
        "pin_memory": config.pin_memory if context.on_gpu else None,
        "workers": state.workers,
        "prefetch": state.prefetch,
        "in_order": state.in_order,
        "persistent_workers": context.keeps_workers,
        "gpus": state.ranks,
        "cores_per_gpu": state.cores and state.cores / state.ranks_per_node,
    }
    return values[name]


def with_data_in_memory(state: PipelineState, wanted: bool, context: WhatIfContext) -> PipelineState:
    if state.read_wait_fraction is None:
        raise MissingMeasurementError(
            MissingMeasurement(code="read-wait", loader=state.loader),
            context.builder.diagnose_command(loader=(DEFAULT_LOADER,)) if state.loader != DEFAULT_LOADER else "",
        )
    storage = context.inputs.controls.diagnosis.storage if context.inputs.controls.diagnosis else None
    return replace(
        state,
        batch_times_s=scale_times(state.batch_times_s, 1 - state.read_wait_fraction),
        read_wait_fraction=0.0,
        blocked_curve=None,
        files_per_s=storage.warm_files_per_s if storage and state.files_per_s else None,
    ).with_assumptions(Assumption(code="no-read-wait"))


def with_resident(state: PipelineState, wanted: bool, context: WhatIfContext) -> PipelineState:
    """The trainer asks the device for a batch, as in the benchmark; nothing is copied, and no worker starts."""
    diagnosis = context.inputs.controls.diagnosis
    benchmarks = diagnosis.resident_loader_benchmarks if diagnosis else []
    if not benchmarks:
        raise UsageError("the data of this training cannot stay on the device, or that was not measured", "drop --resident")
    return replace(_without_workers(state, benchmarks), workers=0)


def with_decode_on_gpu(state: PipelineState, wanted: bool, context: WhatIfContext) -> PipelineState:
    """A thread makes batches ahead, as fast as in the benchmark; meanwhile, decoding and training share the GPU."""
    diagnosis = context.inputs.controls.diagnosis
    benchmarks = diagnosis.gpu_decoding_benchmarks if diagnosis else []
    if not benchmarks:
        raise UsageError("the GPU cannot decode the data of this training, or that was not measured", "drop --decode-on-gpu")
    after = replace(_without_workers(state, benchmarks), workers=1, prefetch=DECODED_AHEAD)
    batch_s = fmean(span for each in after.batch_times_s for rank in each for span in rank)
    step_s = fmean(span for each in state.step_times_s for span in each)
    taken_s = TAKEN_BY_DECODING * batch_s
    after = replace(after, interference_s=taken_s, epoch_start_s=_decoding_start_s(batch_s, benchmarks, context))
    return after.with_assumptions(Assumption(code="gpu-shared", log_error=taken_s / max(step_s, batch_s)))


def _decoding_start_s(batch_s: float, benchmarks: Sequence[LoaderBenchmark], context: WhatIfContext) -> float:
    """Per step, until the first batch of an epoch is complete; with the start of DALI, if the script makes its loader for each epoch."""
    record = context.inputs.record
    if record.script is None or not record.script.epoch_batches:
        return 0.0
    start_s = max(each.first_batch_s for each in benchmarks) if record.rebuilds_loader else BATCHES_TO_DECODE * batch_s
    return start_s / record.script.epoch_batches


def _without_workers(state: PipelineState, benchmarks: Sequence[LoaderBenchmark]) -> PipelineState:
    """A loader of ddpbench's own makes batches as in ``benchmarks``, without the script's workers and what they cost."""
    times = round_robin_times(benchmarks, 1)
    return replace(
        state,
        batch_times_s=times.times_s,
        read_wait_fraction=times.read_wait_fraction,
        interference_s=0.0,
        handoff_s=0.0,
        background_handoff=False,
        cores=None,
        sample_cpu_curve=None,
        trainer_cpu_curve=None,
        blocked_curve=None,
        files_per_s=None,
        epoch_start_s=0.0,
        cpu_loss=0.0,
    )


def with_ready_indices(state: PipelineState, wanted: bool, context: WhatIfContext) -> PipelineState:
    """The trainer finds the indices of every batch drawn."""
    sampler_s = sampler_batch_s(context.inputs.record)
    if not sampler_s:
        raise UsageError("how long the sampler of this training takes was not measured", "drop --ready-indices")
    trainer_cpu = state.trainer_cpu_curve
    return replace(
        state,
        handoff_s=max(0.0, state.handoff_s - sampler_s),
        trainer_cpu_curve=trainer_cpu.shifted(-min(sampler_s, *(cpu_s for _, cpu_s in trainer_cpu.points))) if trainer_cpu else None,
    )


def with_workers(state: PipelineState, number: int, context: WhatIfContext) -> PipelineState:
    if loader_spec(state.loader).device_resident:
        raise UsageError(f"the loader {state.loader} has no workers", "drop --workers")
    if loader_spec(state.loader).uses_threads:
        if not number:
            raise UsageError(f"the loader {state.loader} needs at least one thread", "set --workers to 1 or more")
        after = replace(state, workers=number)
        fewer = (max(1, state.workers) / state.num_producers) / (number / after.num_producers)  # in a thread group
        return replace(after, batch_times_s=scale_times(state.batch_times_s, fewer)).with_assumptions(
            Assumption(code="threads-scale", log_error=0.05)
        )
    if not number:
        assumption = Assumption(code="trainer-loads-as-fast")
        trainer_cpu = state.trainer_cpu_curve.shifted(-state.handoff_cpu_s) if state.trainer_cpu_curve else None
        without = replace(state, workers=0, background_handoff=False, trainer_cpu_curve=trainer_cpu, handoff_cpu_s=0.0, epoch_start_s=0.0)
        return without.with_assumptions(assumption)
    if context.can_keep_workers:  # as the advised call has it
        state = with_persistent_workers(state, True, context)
    if not state.workers:
        return replace(with_handoff(state, context), workers=number)
    after = replace(state, workers=number)
    may_share = number > state.workers and (state.read_wait_fraction or 0.0) >= MIN_READ_WAIT_FRACTION
    if not may_share or after.has_benchmarked_waits:
        return after
    return after.with_assumptions(Assumption(code="storage-scales", log_error=0.1 * log2(number / state.workers)))


def with_prefetch(state: PipelineState, batches: int, context: WhatIfContext) -> PipelineState:
    if not state.workers:
        raise UsageError("--prefetch has no effect without workers", "add --workers")
    return replace(state, prefetch=batches)


def with_in_order(state: PipelineState, wanted: bool, context: WhatIfContext) -> PipelineState:
    if context.inputs.record.script is None:
        raise UsageError("--in-order is an argument of a script's DataLoader", "drop --in-order")
    return replace(state, in_order=wanted)


def with_persistent_workers(state: PipelineState, wanted: bool, context: WhatIfContext) -> PipelineState:
    """Of the start of an epoch, the wait for its first batch stays: workers that are kept load none ahead of it."""
    script = context.inputs.record.script
    if script is None:
        raise UsageError("--persistent-workers is an argument of a script's DataLoader", "drop --persistent-workers")
    if not (wanted and context.can_keep_workers and script.epoch_batches):
        raise UsageError("this loader cannot keep its workers, or the length of its epochs is unknown", "drop --persistent-workers")
    batch_s = fmean(span for each in state.sim_params().batch_times_s for span in each)
    after = replace(state, epoch_start_s=batch_s / script.epoch_batches)
    return after.with_assumptions(Assumption(code="kept-workers", log_error=0.08)) if state.epoch_start_s else after


def with_gpus(state: PipelineState, ranks: int, context: WhatIfContext) -> PipelineState:
    nodes = context.inputs.record.environment.nodes
    if ranks % nodes:
        raise UsageError(f"--gpus {ranks} cannot be divided evenly among the {nodes} nodes of the record", f"use a multiple of {nodes}")
    after = replace(state, ranks=ranks, ranks_per_node=ranks // nodes)
    if ranks == 1:
        return replace(after, step_times_s=[[_fraction_without_sync(context) * span for span in each] for each in state.step_times_s])
    if state.ranks == 1:
        return after.with_assumptions(Assumption(code="sync-hidden", ranks=ranks, log_error=0.1))
    return after.with_assumptions(
        Assumption(code="same-step", ranks=ranks, measured_ranks=state.ranks, log_error=0.03 * abs(log2(ranks / state.ranks)))
    )


def _fraction_without_sync(context: WhatIfContext) -> float:
    """Step time without gradient sync over that with it.

    Raises MissingMeasurementError if either was not measured.
    """
    slowdown = step_time_ratio(context.inputs.controls.compute_only, context.inputs.controls.independent)
    if slowdown is None:
        raise MissingMeasurementError(MissingMeasurement(code="step-without-sync"), context.builder.diagnose_command())
    return 1 / slowdown.center


def with_cores_per_gpu(state: PipelineState, cores: float, context: WhatIfContext) -> PipelineState:
    if state.cores is None:
        raise MissingMeasurementError(MissingMeasurement(code="cpu-usage"), context.builder.diagnose_command())
    same_cores = Assumption(code="same-cores")
    return replace(state, cores=cores * state.ranks_per_node, other_cores=0.0).with_assumptions(same_cores)


SETTERS: Mapping[str, Callable[..., PipelineState]] = {
    "loader": with_loader,
    "hw_decoder_load": with_hw_decoder_load,
    "precision": with_precision,
    "compile": with_compile,
    "fast": with_fast,
    "fused_kernels": with_fused_kernels,
    "batch_size": with_batch_size,
    "data_in_memory": with_data_in_memory,
    "resident": with_resident,
    "decode_on_gpu": with_decode_on_gpu,
    "ready_indices": with_ready_indices,
    "workers": with_workers,
    "persistent_workers": with_persistent_workers,
    "pin_memory": with_pin_memory,
    "prefetch": with_prefetch,
    "in_order": with_in_order,
    "gpus": with_gpus,
    "cores_per_gpu": with_cores_per_gpu,
}
"""Setters by field of Scenario, in the order of application: the loader before its workers, these before pinned memory, precision and
how its kernels run before batch size.
"""

assert SETTERS.keys() == {field.name for field in msgspec.structs.fields(Scenario)}
