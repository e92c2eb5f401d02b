"""A short torch.profiler window after the last round: how long the GPU really ran kernels, and a trace to keep."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from ddpbench.record.scaling import CommKernel
from ddpbench.training.session import Session

PROFILED_STEPS = 5

KINETO_LOG_OFF = "99"
"""Above every level of kineto's log."""

NCCL_KERNEL = re.compile("nccl", re.IGNORECASE)
ALL_REDUCE_KERNEL = re.compile("nccl.*AllReduce", re.IGNORECASE)
"""DDP's broadcast of buffers is no all-reduce: nothing could hide it."""

NON_COMPUTE = re.compile("nccl|memcpy HtoD", re.IGNORECASE)
"""What runs on the GPU beside the training: communication, which spins while it waits, and copies that overlap it."""


def profile_kernel_ms(session: Session, trace_file: Path | None) -> float | None:
    """Milliseconds a step in which at least one kernel of this rank ran, or ``None`` on a CPU.

    ``trace_file`` is where the trace is written, in the format that Perfetto and chrome://tracing read.
    """
    cuda = torch.cuda.is_initialized()
    activities = {ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU}
    if not cuda:
        os.environ.setdefault("KINETO_LOG_LEVEL", KINETO_LOG_OFF)  # it calls it an error that it finds no GPU
    if trace_file is not None:
        activities.add(ProfilerActivity.CPU)
    with profile(activities=activities, acc_events=True) as window:
        session.train(PROFILED_STEPS)
    if trace_file is not None:
        window.export_chrome_trace(str(trace_file))
    if not cuda:
        return None
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in window.events() or []
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation and not NON_COMPUTE.search(event.name)
    )
    return _union_length(spans) / 1e3 / PROFILED_STEPS


def profile_all_reduces(session: Session) -> list[CommKernel]:
    """Every all-reduce of ``STEPS`` steps on this rank, in order. Only on CUDA."""
    with profile(activities={ProfilerActivity.CUDA}, acc_events=True) as window:
        session.train(PROFILED_STEPS)
    events = [event for event in window.events() or [] if event.device_type == DeviceType.CUDA and not event.is_user_annotation]
    spans = sorted((event.time_range.start, event.time_range.end, event.name) for event in events)
    others = [(start, end) for start, end, name in spans if not NCCL_KERNEL.search(name)]
    return [
        CommKernel((end - start) / 1e3, exposed_length((start, end), others) / 1e3)
        for start, end, name in spans
        if ALL_REDUCE_KERNEL.search(name)
    ]


def exposed_length(span: tuple[float, float], others: list[tuple[float, float]]) -> float:
    """How much of ``span`` none of the sorted ``others`` covers."""
    start, end = span
    return end - start - _union_length([(max(start, begin), min(end, over)) for begin, over in others if begin < end and over > start])


def _union_length(spans: list[tuple[float, float]]) -> float:
    """The length of the union of sorted ``spans``."""
    covered, reach = 0.0, float("-inf")
    for start, end in spans:
        covered += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return covered
