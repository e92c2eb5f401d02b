"""What every job does once, and no first step waits for."""

from __future__ import annotations

from time import perf_counter

import torch

from ddpbench.bench.job_spec import JobContext
from ddpbench.bench.journal import ArmUpdate, Journal, import_pages
from ddpbench.bench.time_budget import RoundTimer
from ddpbench.machine.device import Device
from ddpbench.machine.peaks import measure_matmul_tflops
from ddpbench.record.record import PeakThroughput, Record
from ddpbench.record.registry import PRECISIONS
from ddpbench.workloads.model_cost import workload_cost


class AfterFirstStep:
    """Counts the FLOPs of the models, measures the peaks of the GPUs, and imports what judges and shows records.

    All ranks call it after the first step of every arm that all of them train, before any CUDA graph is captured: the warm-up that
    follows restores clocks and caches. Only the first call does something, and its time counts for no round.
    """

    def __init__(self, context: JobContext, timer: RoundTimer) -> None:
        self._context, self._timer, self._is_done = context, timer, False

    def __call__(self) -> None:
        if self._is_done:
            return
        self._is_done = True
        begin_s, context = perf_counter(), self._context
        context.marker.enter("counting FLOPs")
        import_pages()
        if context.journal:
            record_model_costs(context.journal)
        if context.world.device.is_cuda:
            record_peaks(context)
        context.world.barrier()
        context.enter_phase("warming up", "warming up")
        self._timer.leave_out(perf_counter() - begin_s)


def record_model_costs(journal: Journal) -> None:
    """Record parameters and FLOPs of the models that lack them."""
    journal.update_arms(lambda record: {} if record.flops_per_sample else model_cost_of(record))


def model_cost_of(record: Record) -> ArmUpdate:
    cost = workload_cost(record.config.workload, record.config.image_size)
    return {"num_parameters": cost.parameters, "flops_per_sample": cost.flops_per_sample}


def record_peaks(context: JobContext) -> None:
    """Record the matrix-multiply TFLOPS of every dtype that an arm on a GPU computes in, minimum over ranks."""
    context.enter_phase("measuring peaks", "measuring peak TFLOP/s of the GPU")
    world = context.world
    dtypes = sorted({PRECISIONS[config.precision].compute_dtype for config in context.configs if config.device != "cpu"})
    tflops = {dtype: world.all_min(tflops_or_zero(world.device, dtype)) for dtype in dtypes}
    world.device.empty_cache()
    peaks = PeakThroughput(matmul_tflops={dtype: peak for dtype, peak in tflops.items() if peak})
    if context.journal:
        context.journal.update_arms(lambda record: {"peak_throughput": peaks} if runs_on_gpu(record) else {})


def runs_on_gpu(record: Record) -> bool:
    """Whether this job trains the arm of ``record``, and on a GPU: an earlier job can have been on another one."""
    return record.status == "running" and record.config.device != "cpu"


def tflops_or_zero(device: Device, dtype: str) -> float:
    """The peak of this rank; 0 if the memory that the training leaves is too small for the matrices."""
    try:
        return measure_matmul_tflops(device, dtype)
    except torch.OutOfMemoryError:
        return 0.0
