"""Sentences about a what-if answer: its gain, and what it requires."""

from __future__ import annotations

from collections.abc import Mapping

from ddpbench.analysis.whatif.gain import GainEstimate, PipelinePart
from ddpbench.record.prediction import Scenario
from ddpbench.report.format import format_percent
from ddpbench.report.messages.predictions import gain_text

PARTS: Mapping[PipelinePart, str] = {
    "device": "the device",
    "workers": "the workers",
    "cores": "the cores",
    "storage": "the storage",
    "handoff": "the handoff",
}


def measurement_hint(command: str) -> str:
    """How to measure what is missing; ``command`` is empty if no command does."""
    return f"'{command}' measures it; add its record after this one" if command else "no command measures it here"


def bottleneck_text(estimate: GainEstimate) -> str:
    """``the workers``, ``the workers and uneven batches``."""
    return PARTS[estimate.bottleneck] + (" and uneven batches" if estimate.has_uneven_batches else "")


def certain_gain_text(estimate: GainEstimate) -> str:
    """The gain, marked as not significant if its interval includes 1."""
    gain = gain_text(estimate.gain, estimate.low, estimate.high)
    return f"no significant gain: {gain}" if estimate.low <= 1 <= estimate.high else gain


def already_set_text(scenario: Scenario) -> str:
    return f"{scenario.flag_text} is already set and gains nothing"


def residual_text(residual: float) -> str:
    """How far the simulated step is from the measured one."""
    error = f"{format_percent(abs(residual - 1), 2)} {'longer' if residual > 1 else 'shorter'}"
    return f"the simulated step of this run is {error} than measured"
