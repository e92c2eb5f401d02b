"""Synthetic diagnoses of a script in which cures of computing were screened, with a known gain of each."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from script_diagnoses import rates, script_diagnosis

from ddpbench.analysis.judge import judge_all
from ddpbench.record.prediction import Prediction, Scenario
from ddpbench.record.record import Job
from ddpbench.record.roles import COMPUTE_ONLY
from ddpbench.record.roofline import DeviceLimits, LayerWork, Roofline, Work
from ddpbench.record.screening import CureCode, LossComparison, Obstacle, ScreenedCure, Screening
from ddpbench.record.script_diff import ScriptDiff

NOISE = (1.0, 1.004, 0.997, 1.002, 0.999, 1.003)
STRONG_NOISE = (1.0, 1.2, 0.85, 1.1, 0.9, 1.05)


def cure(code: CureCode, gain: float = 1.0, on_top_of: Sequence[CureCode] = (), noise: Sequence[float] = NOISE) -> ScreenedCure:
    return ScreenedCure(
        code=code, on_top_of=list(on_top_of), without_s=[0.1] * 6, with_s=[0.1 / gain * each for each in noise], first_use_s=1.5
    )


def left_out(code: CureCode, obstacle: Obstacle) -> ScreenedCure:
    return ScreenedCure(code=code, obstacle=obstacle)


def screened_diagnosis(*cures: ScreenedCure, data_bound: bool = False) -> Job:
    """A judged diagnosis in which these cures were screened."""
    more = Scenario(workers=6)
    job = (
        script_diagnosis(
            rates(1000),
            rates(2900),
            wait=0.65,
            trials={more: rates(2000)},
            predictions=[Prediction(scenario=more, gain=2.1, low=1.9, high=2.3)],
        )
        if data_bound
        else script_diagnosis(rates(2500), rates(2520), wait=0.005)
    )
    assert job.diagnosis
    job.diagnosis.screening = Screening(cures=list(cures))
    judge_all(job)
    return job


FILE, PROOF = "results/runs/train-py-diagnose.diff", "ddpbench ab --diff results/runs/train-py-diagnose.diff train.py --epochs 90"

FORMAT_DIFF = """\
--- a/train.py
+++ b/train.py
@@ -20,6 +20,7 @@
     model = resnet50(num_classes=args.classes).to(device)
     criterion = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing, reduction="mean")
+    model.to(memory_format=torch.channels_last)
     optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)

     for epoch in range(args.epochs):
"""

FUSED_DIFF = """\
--- a/train.py
+++ b/train.py
@@ -21 +21,5 @@
-optimizer = torch.optim.AdamW(model.parameters(), args.lr)
+optimizer = torch.optim.AdamW(model.parameters(), args.lr, fused=True)
+def keep_fused(_, state):  # an older checkpoint says that it is not
+    for group in state["param_groups"]:
+        group["fused"] = True
+optimizer.register_load_state_dict_pre_hook(keep_fused)
"""


def with_diff(job: Job, diff: ScriptDiff) -> Job:
    assert job.diagnosis
    job.diagnosis.diff = diff
    return job


def computing() -> Job:
    """One cure gains much, one may not be tried with it, and one changes numbers and does not work."""
    job = screened_diagnosis(
        cure("null"),
        cure("channels-last", 1.94),
        left_out("fused-optimizer", "loss-scaler"),
        ScreenedCure(code="bf16-autocast", on_top_of=["channels-last"], failure="RuntimeError: expected scalar type Float"),
    )
    assert job.diagnosis
    compile_proof = PROOF.replace(".diff", ".compile.diff")
    job.diagnosis.compile_diff = ScriptDiff(text=FORMAT_DIFF, file=FILE.replace(".diff", ".compile.diff"), proof=compile_proof)
    return with_diff(with_losses(job, 4.999), ScriptDiff(text=FORMAT_DIFF, file=FILE, proof=PROOF))


def with_losses(job: Job, changed: float) -> Job:
    """``changed`` is the loss of all steps with what is kept, and about 5 that of those without."""
    assert job.diagnosis
    assert job.diagnosis.screening
    losses = LossComparison(cures=["channels-last"], first=7.0, plain=[[5.0] * 20, [5.001] * 20], changed=[changed] * 20)
    job.diagnosis.screening = replace(job.diagnosis.screening, loss_comparison=losses)
    judge_all(job)
    return job


def breaking() -> Job:
    """What gains changes the losses."""
    return with_losses(screened_diagnosis(cure("null"), cure("channels-last", 1.94)), 5.4)


def at_the_limit() -> Job:
    """Nothing gains on a GPU whose limits were measured."""
    job = screened_diagnosis(cure("null"), cure("channels-last", 1.01))
    passes = [Work(ms=2.0, flops=8e11, num_bytes=1e9, kernels=2), Work(ms=5.0, flops=16e11, num_bytes=2e9, kernels=4)]
    layers = [LayerWork(name=name, kind=kind, forward=passes[0], backward=passes[1]) for name, kind in (("conv", "Conv2d"), ("(loss)", ""))]
    limits = DeviceLimits(matmul_tflops=600.0, copy_gb_per_s=3900.0, launch_us=2.0)
    next(each for each in job.records if each.role == COMPUTE_ONLY).roofline = Roofline(layers=layers, limits=limits)
    return job


def without_diff() -> Job:
    """A library makes the optimizer."""
    return with_diff(screened_diagnosis(cure("null"), cure("channels-last", 1.94)), ScriptDiff(obstacle="no-source"))


def without_time() -> Job:
    """As with a short time limit."""
    return screened_diagnosis(
        *(ScreenedCure(code=each, obstacle="no-time", needed_s=34.0) for each in ("null", "channels-last", "bf16-autocast"))
    )


def waiting() -> Job:
    """Its loader comes first."""
    left = ScreenedCure(code="bf16-autocast", obstacle="no-time", needed_s=64.0)
    cures = cure("null"), cure("channels-last", 1.015), cure("fused-optimizer", 1.08), left
    diff = ScriptDiff(text=FUSED_DIFF, arguments="--workers 6", file=FILE, command="train.py --epochs 90 --workers 6", proof=PROOF)
    return with_diff(screened_diagnosis(*cures, data_bound=True), diff)


def half_edited() -> Job:
    """A library makes its loader."""
    job = screened_diagnosis(cure("null"), cure("channels-last", 1.94), data_bound=True)
    proof = PROOF.replace("--diff", "--compute-only --diff")
    return with_diff(job, ScriptDiff(text=FORMAT_DIFF, file=FILE, obstacle="no-source", missing="loader", proof=proof))
