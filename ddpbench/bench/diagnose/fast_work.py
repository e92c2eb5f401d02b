"""What ``--fast`` is predicted from: layers of the training, and the bytes that fused kernels would move."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.analysis.judge import judge_all
from ddpbench.analysis.summary import compute_dtype
from ddpbench.bench.arm import ROOFLINE, Arm
from ddpbench.bench.diagnose.context import DiagnosisContext
from ddpbench.bench.fast import can_predict_fast
from ddpbench.bench.journal import Journal
from ddpbench.bench.run import measure_device_limits
from ddpbench.bench.scheduler import load_exclusively
from ddpbench.machine.streams import print_note
from ddpbench.record.errors import ConfigFailed
from ddpbench.record.record import Record
from ddpbench.record.roles import BASELINE
from ddpbench.record.roofline import FusedWork, LayerWork, Roofline

DECISION_KEY = "bottleneck of fast work"


def bottleneck_to_predict(context: DiagnosisContext) -> str:
    """The bottleneck, if what ``--fast`` gains against it can be predicted, by fused kernels in CUDA graphs; else empty.

    Every rank calls this; rank 0 decides.
    """
    world, journal = context.job_context.world, context.job_context.journal
    if journal:
        world.store.set(DECISION_KEY, _bottleneck_to_predict(context, journal) if world.device.is_cuda else "")
    world.barrier()
    return world.store.try_get(DECISION_KEY) or ""


def _bottleneck_to_predict(context: DiagnosisContext, journal: Journal) -> str:
    judge_all(journal.job)
    baseline: Record = next(record for record in journal.job.records if record.role == BASELINE)
    if baseline.verdict is None or baseline.observed_precision is None:
        return ""
    kind, in_half = baseline.verdict.kind, compute_dtype(baseline.observed_precision) not in ("float32", "tf32")
    if kind == "launch-bound" or (kind == "compute-bound" and in_half):  # else Tensor Cores come first
        return kind if can_predict_fast(context.requested, context.config) else ""
    return ""


def measure_fast_work(context: DiagnosisContext, arms: Sequence[Arm], index: int) -> None:
    """Measure the layers of the compute-only training ``arms[index]``, and count what fused kernels would replace of them.

    Every rank calls this. What fails is left out with a note: the diagnosis is done without it.
    """
    job_context, arm = context.job_context, arms[index]
    journal = job_context.journal
    job_context.marker.enter(ROOFLINE)
    if arm.is_finished or arm.warmup is None:
        return
    limits = measure_device_limits(job_context)
    try:
        load_exclusively(arm, arms)
        layers = arm.measure_layers()
        fused = count_on_rank_zero(arm, layers) if journal else None
    except ConfigFailed as problem:
        note_failure(journal, problem)
    else:
        if journal and fused:
            journal.update_arm(index, roofline=Roofline(layers=layers, limits=limits[index], fused=fused))
    arm.park()


def count_on_rank_zero(arm: Arm, layers: list[LayerWork]) -> FusedWork | None:
    """What fused kernels would replace; None, with a note, if that cannot be counted. Waits for no other rank."""
    try:
        return arm.count_fused_work(layers) if layers else None
    except Exception as problem:  # a user-defined model may need values, which fake tensors do not have
        print_note(f"--fast is not predicted: {type(problem).__name__}: {problem}".partition("\n")[0])
        return None


def note_failure(journal: Journal | None, problem: ConfigFailed) -> None:
    """Print why ``--fast`` is not predicted, on rank 0."""
    if journal:
        print_note(f"--fast is not predicted: {problem.message}")
