"""Message and hint of every check."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import records
from msgspec.structs import replace

from ddpbench.analysis.checks.rules import CHECK_RULES
from ddpbench.record.checks import (
    AllocRetry,
    AnyCheck,
    Check,
    Drift,
    FilesSkipped,
    FrozenParameters,
    Imbalance,
    ImplausibleEfficiency,
    ImplausibleMfu,
    MeasurementTooShort,
    NoInfiniband,
    Noisy,
    NoisyBaseline,
    NoisyNeighbour,
    NonfiniteLoss,
    NotValidated,
    OversubscribedCpu,
    ParamsOutOfSync,
    PowerCapped,
    PrecisionMismatch,
    Relocated,
    Remeasured,
    RepeatedSamples,
    RereadFiles,
    SharedGpu,
    SharedHandles,
    ShortBaseline,
    SkippedSteps,
    Throttled,
    UnequalNodes,
    UnusedLossScale,
    code_of,
)
from ddpbench.record.record import Fault, Record
from ddpbench.record.script import SharedHandle
from ddpbench.report.messages.checks import check_hint, check_text
from ddpbench.report.messages.status import failure_reason, status_text

DEMAND: dict[str, Any] = {"host": "node-01", "ranks": 4, "workers": 16, "threads_per_rank": 1, "usable_cores": 60.0}

MESSAGES: list[tuple[AnyCheck, str, str]] = [
    (
        PrecisionMismatch(layer_dtypes=["float32"], loss_scaler=False, tf32_matmul=False, tf32_cudnn=True),
        "requested amp-fp16, but layers compute in float32, the loss scaler is missing, TF32 is off for matmul, on for cuDNN",
        "the workload or NVIDIA_TF32_OVERRIDE overrides the precision",
    ),
    (
        PrecisionMismatch(
            batch_norm_dtypes=["float16"],
            parameter_dtypes=["float16", "bfloat16"],
            gradient_dtypes=["float16"],
            master_weights=False,
            loss_scales=[512.0],
            requested_loss_scale=256.0,
        ),
        "requested amp-fp16, but BatchNorm is float16, parameters are float16, parameters are bfloat16, gradients are float16, "
        "master weights are missing, the loss scale is 512, not 256",
        "the workload or NVIDIA_TF32_OVERRIDE overrides the precision",
    ),
    (
        PrecisionMismatch(master_weights=True, loss_scaler=True),
        "requested amp-fp16, but master weights are present, the loss scaler is active",
        "the workload or NVIDIA_TF32_OVERRIDE overrides the precision",
    ),
    (UnusedLossScale(loss_scale=256.0), "--static-loss-scale 256 is ignored: amp-fp16 does not scale the loss", ""),
    (
        NonfiniteLoss(step=41, rank=0, computes_in_float16=True),
        "non-finite loss at step 41 on rank 0",
        "a lower --lr, or `--precision amp-bf16`",
    ),
    (NonfiniteLoss(step=0, rank=3, computes_in_float16=False), "non-finite loss at step 0 on rank 3", "a lower --lr"),
    (SkippedSteps(severity="info", skipped=1, steps=9045, in_a_row=False), "the loss scaler skipped 1 of 9,045 updates", ""),
    (
        SkippedSteps(severity="error", skipped=1200, steps=9045, in_a_row=True),
        "the loss scaler skipped 1,200 of 9,045 updates, two in a row",
        "more --warmup lets the loss scale settle; `--precision amp-bf16` needs no loss scale",
    ),
    (
        FrozenParameters(round_index=1, rank=0),
        "no parameter changed in round 2 on rank 0",
        "every update was skipped, or the optimizer holds other parameters",
    ),
    (ParamsOutOfSync(round_index=3), "parameters differ between ranks after round 4", "gradients are not averaged over all ranks"),
    (Noisy(round_cv=0.0158, suggested_rounds=10), "rounds vary by 1.6%", "`--rounds 10` narrows the interval"),
    (Noisy(round_cv=0.0158), "rounds vary by 1.6%", ""),
    (
        Drift(change=-0.029),
        "the last two rounds are 2.9% slower than the first two",
        "a longer --warmup if the first rounds are slower; otherwise check for heat and other load",
    ),
    (
        Drift(change=0.03),
        "the last two rounds are 3.0% faster than the first two",
        "a longer --warmup if the first rounds are slower; otherwise check for heat and other load",
    ),
    (
        Relocated(round_indices=[2, 4]),
        "resumed on other GPUs or hosts from round 3 and again from round 5",
        "arms remain comparable within a round; for one machine's throughput, measure from scratch",
    ),
    (
        MeasurementTooShort(severity="warning", rounds=1, steps=1, suggested_rounds=5, suggested_steps=6),
        "1 round, 1 step; the minimum is 5 rounds and 30 steps",
        "`--rounds 5 --steps 6` or more",
    ),
    (
        MeasurementTooShort(severity="warning", rounds=3, steps=1500, remedy="run-to-end"),
        "3 rounds, 1,500 steps; the minimum is 5 rounds and 30 steps",
        "let it run to completion",
    ),
    (
        MeasurementTooShort(severity="info", rounds=3, steps=60, limited_by="time-limit", remedy="longer-time-limit"),
        "3 rounds, 60 steps (time limit)",
        "a longer --time-limit",
    ),
    (
        MeasurementTooShort(severity="warning", rounds=3, steps=3, remedy="longer-time-limit", suggested_steps=6),
        "3 rounds, 3 steps; the minimum is 5 rounds and 30 steps",
        "a longer --time-limit, `--steps 6` or more",
    ),
    (
        MeasurementTooShort(severity="info", rounds=3, steps=60, limited_by="script"),
        "3 rounds, 60 steps (all that the script trained; more epochs help)",
        "",
    ),
    (
        MeasurementTooShort(severity="info", rounds=3, steps=60, limited_by="steps"),
        "3 rounds, 60 steps (--steps)",
        "",
    ),
    (
        MeasurementTooShort(severity="info", rounds=5, steps=5, limited_by="one-minute", suggested_steps=6),
        "5 rounds, 5 steps (in one minute)",
        "`--steps 6` or more",
    ),
    (
        Throttled(ranks=[2], reasons=["hw-slowdown", "hw-thermal"]),
        "rank 2 (node-01): hw-slowdown, hw-thermal",
        "overheating or too little power: `nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`",
    ),
    (PowerCapped(ranks=[0, 1, 2]), "3 ranks: the power limit lowers clocks", ""),
    (Remeasured(round_indices=[1, 3], reasons=["throttle"]), "rounds 2, 4 measured again: GPU clocks throttled", ""),
    (SharedGpu(ranks=[1], other_processes=2), "rank 1 (node-01): 2 other processes on the GPU", "`nvidia-smi` lists them"),
    (SharedGpu(ranks=[1, 3], other_processes=1), "2 ranks: 1 other process on the GPU", "`nvidia-smi` lists them"),
    (AllocRetry(retries=10), "the caching allocator ran out of memory and retried 10 times", "a smaller --batch-size"),
    (
        ImplausibleMfu(mfu=1.204),
        "MFU is 120% of the peak measured on this device",
        "the peak was measured on a busy device, or part of the model did not run",
    ),
    (
        ImplausibleEfficiency(efficiency=1.0512, baseline_doubts=[NoisyBaseline(round_cv=0.031), ShortBaseline(rounds=3)]),
        "efficiency 105.1% exceeds 102%: unreliable 1-rank baseline; its rounds vary by 3.1%; it has 3 rounds, the minimum is 5",
        "repeat on an otherwise idle machine, with more --rounds",
    ),
    (
        OversubscribedCpu(**DEMAND, suggested_workers=14),
        "4 ranks x 16 workers + 4 > 60 usable cores",
        "`-j 14`, or more cores",
    ),
    (
        OversubscribedCpu(**DEMAND, severity="info"),
        "4 ranks x 16 workers + 4 > 60 usable cores; they share cores only if all of them compute, which was not measured",
        "",
    ),
    (
        OversubscribedCpu(**{**DEMAND, "ranks": 1, "workers": 1, "usable_cores": 1.0}),
        "1 rank x 1 worker + 1 > 1 usable core",
        "fewer ranks or threads, or more cores",
    ),
    (
        OversubscribedCpu(**{**DEMAND, "ranks": 2, "workers": 0, "threads_per_rank": 2, "usable_cores": 2.5}),
        "2 ranks x 2 threads > 2.5 usable cores",
        "fewer ranks or threads, or more cores",
    ),
    (
        NoisyNeighbour(cores_by_rank={0: 0.516}),
        "rank 0 (node-01) got 0.52 of 1 core while computing",
        "`top -b -n 1 -o %CPU | head -15` shows the other processes",
    ),
    (
        NoisyNeighbour(cores_by_rank={0: 0.516, 1: 0.62}),
        "2 ranks got 0.52 to 0.62 of 1 core each while computing",
        "`top -b -n 1 -o %CPU | head -15` shows the other processes",
    ),
    (
        NoInfiniband(disabled_by=[]),
        "NCCL uses sockets between nodes, not InfiniBand (mlx5_0, mlx5_1)",
        "check for libibverbs, and /dev/infiniband in the container; `NCCL_DEBUG=INFO` shows the reason",
    ),
    (
        NoInfiniband(disabled_by=["NCCL_IB_DISABLE", "NCCL_NET"]),
        "NCCL uses sockets between nodes, not InfiniBand (mlx5_0, mlx5_1)",
        "`unset NCCL_IB_DISABLE NCCL_NET`: it disables InfiniBand",
    ),
    (
        UnequalNodes(
            ranks=Imbalance(least=1, least_host="n1", most=3, most_host="n2"),
            usable_cores=Imbalance(least=33.5, least_host="n2", most=60.0, most_host="n1"),
        ),
        "1 rank on n1, 3 on n2; 33.5 usable cores on n2, 60 on n1",
        "the slowest node sets the pace",
    ),
    (
        RereadFiles(),
        "rounds read the same files again, from the page cache",
        "use a larger dataset to measure storage",
    ),
    (
        FilesSkipped(files=3),
        "3 unreadable files skipped, as --skip-bad allows",
        "the record lists them; repair or remove them",
    ),
    (
        FilesSkipped(files=1),
        "1 unreadable file skipped, as --skip-bad allows",
        "the record lists them; repair or remove them",
    ),
    (
        SharedHandles(
            workers=3, handles=[SharedHandle(name="Records.file", kind="file"), SharedHandle(name="Records.zip", kind="archive")]
        ),
        "3 workers share the file Records.file and the archive Records.zip, "
        "open before they were forked: samples may be mixed up until each opens its own",
        "open Records.file and Records.zip in each worker, with its first sample or in worker_init_fn",
    ),
    (
        RepeatedSamples(workers=3),
        "3 workers yield the same samples: the stream is not divided among them",
        "torch.utils.data.get_worker_info() in its __iter__ returns the number of the worker, and of all workers",
    ),
    (
        NotValidated(),
        "no accuracy: the dataset has no validation split",
        "use a --data-dir with a validation split, or --loader torch without --data-dir",
    ),
]


def a_record(**changes: Any) -> Record:
    return records.record(environment=records.environment(4, infiniband_devices=["mlx5_0", "mlx5_1"]), **changes)


@pytest.mark.parametrize(("check", "sentence", "hint"), MESSAGES, ids=lambda value: value.code if isinstance(value, Check) else "")
def test_check_has_message_and_hint(check: AnyCheck, sentence: str, hint: str) -> None:
    assert (check_text(check, a_record()), check_hint(check, a_record())) == (sentence, hint)


def test_every_check_has_a_message() -> None:
    assert {type(check) for check, _, _ in MESSAGES} == {*get_args(AnyCheck)}


def test_every_record_check_has_a_rule() -> None:
    assert {*CHECK_RULES} == {*get_args(AnyCheck)} - {ImplausibleEfficiency}, "ImplausibleEfficiency belongs to scaling points"
    assert len({code_of(kind) for kind in get_args(AnyCheck)}) == len(get_args(AnyCheck))


def test_skipped_steps_suggest_lower_static_loss_scale() -> None:
    static = a_record(config=replace(records.RESNET50, static_loss_scale=65536.0))
    skips = SkippedSteps(severity="error", skipped=2, steps=100, in_a_row=True)
    assert check_hint(skips, static) == "a lower --static-loss-scale; `--precision amp-bf16` needs no loss scale"


def test_check_names_the_node_if_there_are_several() -> None:
    two = records.record(environment=records.environment(4, nodes=2))
    assert check_text(OversubscribedCpu(**DEMAND), two) == "4 ranks x 16 workers + 4 > 60 usable cores on node-01"
    assert check_text(Throttled(ranks=[2], reasons=["hw-thermal"]), two) == "rank 2 (node-02): hw-thermal"


def test_noisy_neighbour_counts_cores_of_threads() -> None:
    four = records.cpu_run(environment=records.environment(2, device="Xeon CPU", variables={"OMP_NUM_THREADS": "4"}))
    assert check_text(NoisyNeighbour(cores_by_rank={1: 1.2}), four) == "rank 1 (node-01) got 1.20 of 4 cores while computing"


@pytest.mark.parametrize(
    ("launches", "prefix"), [([], ""), ([1], "launch 1 of 3: "), ([2, 3], "launches 2, 3 of 3: ")], ids=["all", "one", "two"]
)
def test_check_names_the_affected_launches(launches: list[int], prefix: str) -> None:
    merged = a_record(config=replace(records.RESNET50, launches=3))
    assert check_text(Noisy(round_cv=0.02, launches=launches), merged) == f"{prefix}rounds vary by 2.0%"


def test_failure_reason_explains_a_missing_figure() -> None:
    dead = NonfiniteLoss(step=1, rank=0, computes_in_float16=True)
    invalid = a_record(status="invalid", checks=[Noisy(round_cv=0.02), dead, ParamsOutOfSync(round_index=0)])
    assert failure_reason(invalid) == "non-finite loss at step 1 on rank 0"
    assert status_text(invalid) == "invalid: non-finite loss at step 1 on rank 0; parameters differ between ranks after round 1"
    assert failure_reason(a_record(status="failed", fault=Fault(message="CUDA out of memory on rank 1"))) == "CUDA out of memory on rank 1"
    assert failure_reason(a_record(status="interrupted", longer=())) == "no round finished"
