"""What a journal learns beside rounds, by the fields that it goes into: a misspelt one is found before anything runs.

A value of None is not known yet, and changes nothing.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from ddpbench.record.diagnosis import AlternativeLoader, H2DBandwidth, LoaderBenchmark, NodeState, Storage
from ddpbench.record.prediction import Prediction
from ddpbench.record.record import DatasetInfo, KernelActivity, ObservedPrecision, PeakThroughput, Warmup
from ddpbench.record.scaling import Overlap

DiagnosisField = Literal[
    "node_states",
    "loader_benchmarks",
    "single_rank_loader_benchmark",
    "stage_cpu_s",
    "storage",
    "h2d_bandwidth",
    "alternative_loaders",
]
"""The fields of a Diagnosis that an experiment fills in."""


class ArmUpdate(TypedDict, total=False):
    """Of a Record."""

    data: DatasetInfo | None
    observed_precision: ObservedPrecision | None
    warmup: Warmup | None
    peak_throughput: PeakThroughput | None
    loader_benchmarks: list[LoaderBenchmark]
    kernel_activity: KernelActivity


class DiagnosisUpdate(TypedDict, total=False):
    """Of a Diagnosis."""

    node_states: list[NodeState]
    loader_benchmarks: list[LoaderBenchmark]
    single_rank_loader_benchmark: LoaderBenchmark | None
    stage_cpu_s: dict[str, float] | None
    storage: Storage | None
    h2d_bandwidth: H2DBandwidth | None
    alternative_loaders: list[AlternativeLoader]
    predictions: list[Prediction]
    skip_reasons: dict[str, str]


class ScalingUpdate(TypedDict, total=False):
    """Of a Scaling."""

    bucket_bytes: list[int]
    allreduce_busbw: dict[int, float]
    busy_wait_cores: float | None
    overlap: Overlap | None
    skip_reasons: dict[str, str]
