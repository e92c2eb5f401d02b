"""What each setting that ``--fast`` chooses gains, as measured with a workload on a GPU."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec

from ddpbench.record.config import ResolvedConfig

SIMILAR_WORKLOAD = "resnet50"
"""Whose gains are shown for workloads that were not measured."""


class MeasuredGains(msgspec.Struct, frozen=True):
    """Step without a setting over the step with all of them, by field: center, and the ends of a 95% interval.

    Source: ``results/kernels/fast_gains.py``.
    """

    workload: str
    batch_size: int
    gpu: str
    gains: dict[str, tuple[float, float, float]]


@cache
def measured_gains() -> dict[str, MeasuredGains]:
    """All measured gains, by workload."""
    stored = msgspec.json.decode(files(__package__).joinpath("fast_gains.json").read_bytes(), type=list[MeasuredGains])
    return {each.workload: each for each in stored}


def gains_for(config: ResolvedConfig) -> MeasuredGains | None:
    """The gains of this workload, or else of a similar one; None if they were measured with other kernels than ``config`` runs."""
    measured = measured_gains().get(config.workload) or measured_gains()[SIMILAR_WORKLOAD]
    has_same_kernels = ("fused_kernels" in measured.gains, "compile" in measured.gains) == (config.fused_kernels, config.compile != "off")
    return measured if has_same_kernels else None
