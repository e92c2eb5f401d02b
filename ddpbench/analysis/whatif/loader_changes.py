"""What-if changes of the loader, the load of the hardware decoder, and pinned memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from ddpbench.analysis.ranks import drop_none
from ddpbench.analysis.whatif.assumptions import MissingMeasurementError
from ddpbench.analysis.whatif.batches import handoff_cpu_s, round_robin_times, sample_cpu_s, worker_times
from ddpbench.analysis.whatif.context import WhatIfContext
from ddpbench.analysis.whatif.measured import copy_s, interference_s, pageable_copy_s, shortfall_wait_s
from ddpbench.analysis.whatif.state import LoadCurve, PipelineState
from ddpbench.record.diagnosis import AlternativeLoader, LoaderBenchmark
from ddpbench.record.errors import UsageError
from ddpbench.record.loader_stats import LoaderStats
from ddpbench.record.loaders import SYNTHETIC, LoaderSpec, loader_spec
from ddpbench.record.prediction import Assumption, MissingMeasurement


def with_loader(state: PipelineState, name: str, context: WhatIfContext) -> PipelineState:
    """Change the loader, based on its loader benchmark.

    A loader that needs the GPU must also have been measured in the background of training.
    """
    if name == SYNTHETIC:
        raise UsageError("synthetic is not a loader to switch to", "the diagnosis page shows the compute-only throughput")
    _require_usable_loader(loader_spec(name), context)
    command = context.builder.diagnose_command(loader=(name,))
    return _with_candidate(state, name, None, command, context)


def _require_usable_loader(spec: LoaderSpec, context: WhatIfContext) -> None:
    """Raise UsageError if no measurement would help.

    That is so if ``spec`` cannot read this dataset, or needs a GPU and the ranks have none.
    """
    record = context.inputs.record
    if spec.needs_gpu and not context.on_gpu:
        raise UsageError(f"{spec.name} decodes on a GPU, but the record has CPU ranks", "use --loader dali-cpu")
    if record.data is None or loader_spec(record.config.loader).user_defined:
        return
    if record.data.is_image_folder and "imagenet" not in spec.datasets:
        raise UsageError(
            f"{spec.name} keeps the whole dataset on the device, but this record reads an image folder",
            "use --loader dali-gpu or torch-uint8",
        )
    if not record.data.is_image_folder and spec.datasets == ("imagenet",):
        raise UsageError(f"{spec.name} reads image folders, but this record reads none", "use --loader tensor")


def with_hw_decoder_load(state: PipelineState, share: float, context: WhatIfContext) -> PipelineState:
    if not loader_spec(state.loader).needs_gpu:
        raise UsageError(f"the loader {state.loader} does not decode on a GPU", "--hw-decoder-load needs --loader dali-gpu")
    command = context.builder.diagnose_command(loader=(state.loader,), hw_decoder_load=(share,))
    return _with_candidate(state, state.loader, share, command, context)


def with_handoff(state: PipelineState, context: WhatIfContext) -> PipelineState:
    """Add what it costs the trainer to receive batches from workers, as measured with more workers; nothing if it was not.

    Each batch costs the trainer the CPU time of receiving it. The wait in that benchmark is longer: its workers are ahead, and batches
    lie in a queue.
    """
    diagnosis = context.inputs.controls.diagnosis
    benchmarks = diagnosis.all_cores_loader_benchmarks if diagnosis else []
    if not benchmarks:
        return state
    config = context.inputs.record.config
    wire = _wire_bytes_ratio(config.loader, state.loader) if state.loader != config.loader else 1.0
    cpu_s = wire * state.batch_size * handoff_cpu_s(benchmarks)
    received_s = fmean(each.main_process_cpu_s / each.samples for each in benchmarks)
    return replace(
        state,
        handoff_s=wire * state.batch_size * received_s,
        handoff_cpu_s=cpu_s,
        trainer_cpu_curve=state.trainer_cpu_curve.shifted(cpu_s) if state.trainer_cpu_curve else None,
    )


def with_pin_memory(state: PipelineState, wanted: bool, context: WhatIfContext) -> PipelineState:
    if not context.on_gpu:
        raise UsageError("--pin-memory has no effect on CPU ranks", "drop --pin-memory")
    if wanted and context.inputs.record.script is not None and not state.workers:
        raise UsageError("without workers, the trainer process would pin each batch itself and wait for it", "add --workers 1")
    if wanted:
        config = context.inputs.record.config
        saved_s = pageable_copy_s(context.inputs) * state.batch_size / config.batch_size * _wire_bytes_ratio(config.loader, state.loader)
        return replace(state, background_handoff=True, interference_s=state.interference_s - saved_s)
    diagnosis = context.inputs.controls.diagnosis
    bandwidth = diagnosis.h2d_bandwidth if diagnosis else None
    if bandwidth is None:
        raise MissingMeasurementError(MissingMeasurement(code="h2d-bandwidth"), context.builder.diagnose_command())
    pageable_s = state.batch_size * bandwidth.bytes_per_sample / bandwidth.pageable_bytes_per_s
    return replace(state, background_handoff=False, interference_s=state.interference_s + pageable_s).with_assumptions(
        Assumption(code="no-overlapped-copy", log_error=0.03)
    )


def _with_candidate(state: PipelineState, name: str, hw_decoder_load: float | None, command: str, context: WhatIfContext) -> PipelineState:
    candidate = context.external.candidates.get((name, hw_decoder_load))
    if candidate is None or not candidate.loader_benchmarks:
        missing = MissingMeasurement(code="loader-benchmark", loader=name, hw_decoder_load=hw_decoder_load)
        raise MissingMeasurementError(missing, command)
    loader, config = loader_spec(name), context.inputs.record.config
    if loader.needs_gpu and not candidate.background_step_ms:
        missing = MissingMeasurement(code="loader-in-background", loader=name, hw_decoder_load=hw_decoder_load)
        raise MissingMeasurementError(missing, command)
    stats = [each.loader_stats for each in candidate.loader_benchmarks if each.loader_stats is not None]
    batches = None if loader.uses_threads or len(stats) < len(candidate.loader_benchmarks) else worker_times([stats], state.batch_size)
    times = batches or round_robin_times(candidate.loader_benchmarks, loader.num_producers(candidate.workers))
    sample_cpu, trainer_cpu = _cpu_curves(state, candidate, context)
    return replace(
        state,
        loader=name,
        workers=0 if loader.device_resident else candidate.workers if loader.uses_threads else config.workers or candidate.workers,
        batch_times_s=times.times_s,
        read_wait_fraction=times.read_wait_fraction,
        measured_load=state.ranks_per_node * candidate.workers / state.cores if state.cores else state.measured_load,
        interference_s=_interference_s(state, candidate, context),
        handoff_s=_handoff_s(stats),
        sample_cpu_curve=sample_cpu,
        trainer_cpu_curve=trainer_cpu,
        blocked_curve=None,
        files_per_s=None if loader.device_resident else state.files_per_s,
    ).with_assumptions(
        Assumption(code="background-loader", loader=name, hw_decoder_load=hw_decoder_load, log_error=0.05), *times.assumptions
    )


def _handoff_s(stats: Sequence[LoaderStats]) -> float:
    spans = drop_none(each.handoff_ms for each in stats)
    return fmean(spans) / 1000 if spans else 0.0


def _interference_s(state: PipelineState, candidate: AlternativeLoader, context: WhatIfContext) -> float:
    """Seconds that ``candidate`` adds to a compute-only step.

    Measured in the background if the candidate works on the device, else derived from the present loader.
    """
    if context.inputs.controls.compute_only is None:
        raise MissingMeasurementError(MissingMeasurement(code="compute-only-step"), context.builder.diagnose_command())
    now_on_device, on_device = loader_spec(state.loader).on_device, loader_spec(candidate.loader).on_device
    if on_device and candidate.background_step_ms:
        added_s = max(0.0, fmean(candidate.background_step_ms) / 1000 - fmean(span for each in state.step_times_s for span in each))
        return added_s + shortfall_wait_s(
            1.0 if candidate.delivery_ratio is None else candidate.delivery_ratio, state.batch_size, candidate.loader_benchmarks
        )
    added_s = interference_s(context.inputs) if not (on_device or now_on_device) else 0.0
    return _wire_bytes_ratio(state.loader, candidate.loader) * (copy_s(context.inputs) + pageable_copy_s(context.inputs)) + added_s


def _wire_bytes_ratio(loader: str, other: str) -> float:
    """Bytes per batch copied to the device by ``other`` over those by ``loader``.

    0 if either loads on the device.
    """
    old, new = loader_spec(loader), loader_spec(other)
    return 0.0 if old.on_device or new.on_device else new.bytes_per_value / old.bytes_per_value


def _cpu_curves(state: PipelineState, candidate: AlternativeLoader, context: WhatIfContext) -> tuple[LoadCurve | None, LoadCurve | None]:
    """CPU curves of ``candidate``, or None.

    They are those of ``state``, adjusted by how the loader benchmarks differ.
    """
    workers, present = _present_benchmarks(state, context)
    if state.sample_cpu_curve is None or state.trainer_cpu_curve is None or not present:
        return None, None
    ratio = sample_cpu_s(candidate.loader_benchmarks) / sample_cpu_s(present)
    extra = state.batch_size * (
        _handoff_cpu_s(candidate.loader, candidate.workers, candidate.loader_benchmarks) - _handoff_cpu_s(state.loader, workers, present)
    )
    return state.sample_cpu_curve.scaled(ratio), state.trainer_cpu_curve.shifted(
        max(extra, -min(value for _, value in state.trainer_cpu_curve.points))
    )


def _present_benchmarks(state: PipelineState, context: WhatIfContext) -> tuple[int, Sequence[LoaderBenchmark]]:
    """Worker count and loader benchmarks of the loader of ``state``.

    No benchmarks if it was not measured.
    """
    record, diagnosis = context.inputs.record, context.inputs.controls.diagnosis
    if state.loader == record.config.loader:
        return record.workers, diagnosis.loader_benchmarks if diagnosis else []
    candidate = context.external.candidates.get((state.loader, None))
    return (candidate.workers, candidate.loader_benchmarks) if candidate else (0, [])


def _handoff_cpu_s(name: str, workers: int, benchmarks: Sequence[LoaderBenchmark]) -> float:
    """CPU seconds of the handoff per image.

    0 if the trainer loads its own batches, since its CPU time is then loading.
    """
    return handoff_cpu_s(benchmarks) if loader_spec(name).num_producers(workers) or loader_spec(name).device_resident else 0.0
