"""A short torch.profiler window after the last round: GPU kernel time, and a trace to keep."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from ddpbench.machine.variables import EnvVar
from ddpbench.record.scaling import CommKernel
from ddpbench.training.session import Session

PROFILED_STEPS = 5

KINETO_LOG_OFF = "99"
"""Above all of kineto's log levels."""

PRIVATE_TRACE_FIELD = re.compile(r'("(?:host_name|traceName)": )"(?:[^"\\]|\\.)*"')

NCCL_KERNEL = re.compile("nccl", re.IGNORECASE)
ALL_REDUCE_KERNEL = re.compile("nccl.*AllReduce", re.IGNORECASE)
"""Excludes DDP's broadcast of buffers, which cannot overlap with anything."""

NON_COMPUTE = re.compile("nccl|memcpy HtoD", re.IGNORECASE)
"""GPU activity other than training: communication, which spins while it waits, and copies that overlap training."""


def profile_kernel_ms(session: Session, trace_file: Path | None, redact_trace: bool = False) -> float | None:
    """Milliseconds per step in which at least one kernel of this rank ran.

    None on a CPU. The trace is written to ``trace_file``, in the format of Perfetto and chrome://tracing; if ``redact_trace``, without the
    name of the host and the path of the file.
    """
    cuda = torch.cuda.is_initialized()
    activities = {ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU}
    if not cuda:
        silence_kineto()
    if trace_file is not None:
        activities.add(ProfilerActivity.CPU)
    with profile(activities=activities, acc_events=True) as window:
        session.train(PROFILED_STEPS)
    if trace_file is not None:
        window.export_chrome_trace(str(trace_file))
        if redact_trace:
            trace_file.write_text(PRIVATE_TRACE_FIELD.sub(r'\1""', trace_file.read_text()))
    return kernel_ms(window) / PROFILED_STEPS if cuda else None


def silence_kineto() -> None:
    """Keep kineto from logging an error that it found no GPU, unless the user has set its log level."""
    os.environ.setdefault(EnvVar.KINETO_LOG_LEVEL, KINETO_LOG_OFF)


def kernel_ms(window: profile) -> float:
    """Milliseconds in ``window``, which has ended, in which at least one kernel of training ran."""
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in window.events() or []
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation and not NON_COMPUTE.search(event.name)
    )
    return _union_length(spans) / 1e3


def profile_all_reduces(session: Session) -> list[CommKernel]:
    """All all-reduces of PROFILED_STEPS steps on this rank, in order. Only on CUDA."""
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
    """Length of the part of ``span`` that none of the sorted ``others`` covers."""
    start, end = span
    return (
        end
        - start
        - _union_length(
            [(max(start, start_other), min(end, end_other)) for start_other, end_other in others if start_other < end and end_other > start]
        )
    )


def _union_length(spans: list[tuple[float, float]]) -> float:
    """Length of the union of sorted ``spans``."""
    covered, reach = 0.0, float("-inf")
    for start, end in spans:
        covered += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return covered
