"""What a run can be limited by: one small function a limit, from its own rounds and, where there are any, the experiments around it."""

from __future__ import annotations

from collections.abc import Callable

from ddpbench.analysis.bottleneck.loading import data_bound, host_to_device_bound, loader_steals_cpu, loader_steals_gpu, noisy_neighbour
from ddpbench.analysis.bottleneck.training import compute_bound, launch_bound, straggler, sync_bound, too_few_cores, unexplained
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.record.findings import Verdict

BottleneckRule = Callable[[AnalysisInput], Verdict | None]

BOTTLENECKS: tuple[BottleneckRule, ...] = (
    straggler,
    loader_steals_cpu,
    loader_steals_gpu,
    noisy_neighbour,
    data_bound,
    host_to_device_bound,
    too_few_cores,
    launch_bound,
    sync_bound,
    unexplained,
    compute_bound,
)
"""The first that holds is the verdict; the last always does."""


def first_bottleneck(inputs: AnalysisInput) -> Verdict:
    return next(held for limit in BOTTLENECKS if (held := limit(inputs)))
