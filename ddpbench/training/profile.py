"""A short torch.profiler window after the last round: how long the GPU really ran kernels, and a trace to keep."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from ddpbench.training.session import Session

STEPS = 5

SILENT = "99"
"""Above every level of kineto's log."""

COMMUNICATION = re.compile("nccl", re.IGNORECASE)

NO_KERNEL = re.compile("nccl|memcpy HtoD", re.IGNORECASE)
"""What runs on the GPU beside the training: communication, which spins while it waits, and copies that overlap it."""


def kernel_ms(session: Session, keep: Path | None) -> float | None:
    """Milliseconds a step in which at least one kernel of this rank ran, or ``None`` on a CPU.

    ``keep`` is where the trace is written, in the format that Perfetto and chrome://tracing read.
    """
    cuda = torch.cuda.is_initialized()
    activities = {ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU}
    if not cuda:
        os.environ.setdefault("KINETO_LOG_LEVEL", SILENT)  # it calls it an error that it finds no GPU
    if keep is not None:
        activities.add(ProfilerActivity.CPU)
    with profile(activities=activities, acc_events=True) as window:
        session.steps_untimed(STEPS)
    if keep is not None:
        window.export_chrome_trace(str(keep))
    if not cuda:
        return None
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in window.events() or []
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation and not NO_KERNEL.search(event.name)
    )
    return _covered(spans) / 1e3 / STEPS


def communication_kernels_ms(session: Session) -> tuple[float, float]:
    """Milliseconds a step in which a communication kernel of this rank ran, and of those the ones in which no other kernel did.

    Only on CUDA. The first includes what such a kernel spins while it waits for other ranks.
    """
    with profile(activities={ProfilerActivity.CUDA}, acc_events=True) as window:
        session.steps_untimed(STEPS)
    events = [event for event in window.events() or [] if event.device_type == DeviceType.CUDA and not event.is_user_annotation]
    spans = [(event.time_range.start, event.time_range.end, COMMUNICATION.search(event.name) is not None) for event in events]
    sending = _covered(sorted((start, end) for start, end, sends in spans if sends))
    computing = _covered(sorted((start, end) for start, end, sends in spans if not sends))
    either = _covered(sorted((start, end) for start, end, _ in spans))
    return sending / 1e3 / STEPS, (either - computing) / 1e3 / STEPS


def _covered(spans: list[tuple[float, float]]) -> float:
    """The length of the union of sorted ``spans``."""
    covered, reach = 0.0, float("-inf")
    for start, end in spans:
        covered += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return covered
