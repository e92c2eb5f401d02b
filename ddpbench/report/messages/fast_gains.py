"""What each setting that ``--fast`` chooses gains, as measured with a workload on a GPU."""

from __future__ import annotations

from importlib.resources import files

import msgspec

from ddpbench.record.config import ResolvedConfig
from ddpbench.record.registry import PRECISIONS

SIMILAR_WORKLOADS = {"disc-mlp-": "disc-mlp-10", "": "resnet50"}
"""Whose gains are shown for workloads that were not measured, by how their names begin."""

HALF_DTYPES = ("float16", "bfloat16")


class MeasuredGains(msgspec.Struct, frozen=True):
    """Step without a setting over the step with it, by field: center, and the ends of a 95% interval.

    The other settings are those of ``--fast`` when it was measured, or of a trial version.

    Source: ``results/kernels/fast_gains.py``.
    """

    workload: str
    precision: str
    batch_size: int
    gpu: str
    gains: dict[str, tuple[float, float, float]]

    @property
    def source(self) -> str:
        """What they were measured with, and what they depend on."""
        return f"(gains measured with {self.workload} {self.precision} -b {self.batch_size} on {self.gpu}: they depend on batch and host)"

    def of(self, name: str) -> float | None:
        """The gain of the setting ``name``; None if it is unknown, or no gain."""
        center, low, _ = self.gains.get(name, (1.0, 1.0, 1.0))
        return center if low > 1 else None


def measured_gains() -> dict[str, MeasuredGains]:
    stored = msgspec.json.decode(files(__package__).joinpath("fast_gains.json").read_bytes(), type=list[MeasuredGains])
    return {each.workload: each for each in stored}


GAINS = measured_gains()
"""All measured gains, by workload."""


def gains_for(config: ResolvedConfig) -> MeasuredGains | None:
    """The gains of this workload, or else of a similar one; None if they were measured with other kernels than ``config`` runs.

    float16 and bfloat16 count as similar, float32 does not.
    """
    similar = next(other for beginning, other in SIMILAR_WORKLOADS.items() if config.workload.startswith(beginning))
    measured = GAINS.get(config.workload, GAINS[similar])
    has_same_kernels = ("fused_kernels" in measured.gains, "compile" in measured.gains) == (config.fused_kernels, config.compile != "off")
    return measured if has_same_kernels and PRECISIONS[config.precision].compute_dtype in HALF_DTYPES else None
