"""Rules for the training and its evidence: each returns one remedy, with the command that measures it beside the original run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil

from ddpbench.analysis.command import TOP_COMMAND, CommandBuilder
from ddpbench.analysis.cpu_demand import cpu_demand, oversubscribed_node
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.analysis.run_length import MIN_ROUNDS, is_too_short_for_verdict, required_length
from ddpbench.analysis.straggler import Straggler, unequal_batches
from ddpbench.analysis.summary import compute_dtype
from ddpbench.analysis.whatif.query import gain_predictor
from ddpbench.record.cuda_graph import can_capture
from ddpbench.record.loaders import DEFAULT_LOADER, SYNTHETIC, loader_spec
from ddpbench.record.prediction import FAST, MIN_WORTHWHILE_GAIN, Scenario
from ddpbench.record.record import Record
from ddpbench.record.remedy import FewerRanks, LargerBatch, Remedy

DIAGNOSIS_S, VERIFY_S, SCREENING_S = 120.0, 55.0, 125.0
"""Approximate seconds of a diagnosis without a time limit, of the trials of remedies that follow it, and of a script's other settings."""

MAX_MEMORY_FILL = 0.9
"""The fraction of a device's memory that a doubled batch may be expected to fill."""

TrainingRule = Callable[[CommandBuilder, AnalysisInput], Remedy | None]
"""Returns a remedy, or None if there is nothing to try."""


def fewer_launches(builder: CommandBuilder, inputs: AnalysisInput) -> Remedy | None:
    """Against a host that is too slow to issue kernels: CUDA graphs, by ``--fast`` or else by inductor, then more work per kernel."""
    config = builder.record.config
    if fast := fast_settings(builder, inputs):
        return fast
    if is_fast_untried(builder, inputs) and can_capture(config):
        scenario = FAST if inputs.controls.diagnosis else None
        return Remedy(code="fast", command=builder.command(fast=(False, True)), scenario=scenario)
    if config.compile == "off" and not builder.has_flag("compile") and not config.cuda_graph:
        command = builder.command(compile=("off", "reduce-overhead"))
        return Remedy(code="cuda-graphs", command=command, scenario=Scenario(compile="reduce-overhead"))
    command, batch_size = larger_batch_command(builder, inputs), 2 * config.batch_size
    has_kernel_activity = inputs.controls.compute_only is not None and inputs.controls.compute_only.kernel_activity is not None
    scenario = Scenario(batch_size=batch_size) if has_kernel_activity else None
    return LargerBatch(batch_size=batch_size, command=command, scenario=scenario) if command else None


def even_batches(builder: CommandBuilder, inputs: AnalysisInput) -> Remedy:
    """Against ranks with unequal batches: a sampler that gives all of them about as much. It changes the order of samples."""
    return Remedy(code="even-batches")


def less_sync(builder: CommandBuilder, inputs: AnalysisInput) -> Remedy | None:
    """Against slow gradient sync: half the bytes, then fewer all-reduces per image."""
    config = builder.record.config
    has_comm_hook = config.comm_hook != "none" or builder.has_flag("comm_hook")
    if builder.record.environment.backend == "nccl" and config.engine == "ddp" and not has_comm_hook:
        return Remedy(code="less-sync", command=builder.command(comm_hook=("none", "fp16")))
    command = larger_batch_command(builder, inputs)
    return Remedy(code="less-sync", command=command) if command else None


def faster_compute(builder: CommandBuilder, inputs: AnalysisInput) -> Remedy | None:
    """For a device that is busy computing: tensor cores, fused or compiled kernels, a larger batch; else a diagnosis of a loader."""
    record, config, cuda = builder.record, builder.record.config, builder.record.environment.device_type == "cuda"
    if record.script is not None:
        return None  # settings of a script are screened
    dtype = compute_dtype(record.observed_precision) if record.observed_precision else ""
    emulates_half = not cuda and record.environment.emulates_bfloat16
    if dtype in ("float32", "tf32") and not emulates_half and (cuda or not builder.has_flag("precision")):  # other CPUs may be slower, too
        half = "amp-fp16" if cuda else "amp-bf16"
        return Remedy(code="faster-compute", command=builder.command(precision=(config.precision, half)))
    if dtype in ("float16", "bfloat16") and emulates_half:
        return Remedy(code="faster-compute", command=builder.command(precision=(config.precision, "fp32")))
    if fast := fast_settings(builder, inputs):
        return fast
    if cuda and config.channels_last and is_fast_untried(builder, inputs):
        return Remedy(code="faster-compute", command=builder.command(fast=(False, True)))
    if cuda and config.compile == "off" and not (builder.has_flag("compile") or config.runs_fused_kernels(cuda)):
        return Remedy(code="faster-compute", command=builder.command(compile=("off", "default")))
    if cuda and (command := larger_batch_command(builder, inputs)):
        return Remedy(code="faster-compute", command=command)
    return measure_loader(builder)


def fast_settings(builder: CommandBuilder, inputs: AnalysisInput) -> Remedy | None:
    """Fused kernels and CUDA graphs, if a diagnosis has counted what they replace, and predicts a gain."""
    if not has_fused_work(inputs):
        return None
    gain = gain_predictor(inputs, builder)(FAST)
    command = builder.command(fast=(False, True))
    return Remedy(code="fast", command=command, scenario=FAST, gain=gain) if gain and gain >= MIN_WORTHWHILE_GAIN else None


def is_fast_untried(builder: CommandBuilder, inputs: AnalysisInput) -> bool:
    """Whether nothing is known of the gain of ``--fast``, and the user has left its settings open."""
    record = builder.record
    is_open = not any(builder.has_flag(name) for name in ("fast", "compile", "fused_kernels", "cuda_graph"))
    return record.script is None and record.config.engine != "accelerate" and is_open and not has_fused_work(inputs)


def has_fused_work(inputs: AnalysisInput) -> bool:
    """Whether a diagnosis has counted what fused kernels would replace."""
    compute_only = inputs.controls.compute_only
    return compute_only is not None and compute_only.roofline is not None and compute_only.roofline.fused is not None


def measure_loader(builder: CommandBuilder) -> Remedy | None:
    """After a run on synthetic batches: a diagnosis, which measures a loader, too. None if no loader reads the dataset."""
    data = builder.record.data
    readable = data is not None and data.dataset in loader_spec(DEFAULT_LOADER).datasets
    return diagnose(builder) if readable and builder.requested.loader in (None, SYNTHETIC) else None


def larger_batch_command(builder: CommandBuilder, inputs: AnalysisInput) -> str:
    """Twice the batch size, if it fits in device memory and the user did not set it; else empty."""
    batch, peak, total = builder.record.config.batch_size, inputs.summary.peak_allocated_bytes, inputs.summary.device_total_bytes
    if builder.has_flag("batch_size"):
        return ""
    if peak is not None and total is not None and 2 * peak > MAX_MEMORY_FILL * total:
        return ""
    return builder.command(batch_size=(batch, 2 * batch))


def inspect_straggler(builder: CommandBuilder, inputs: AnalysisInput) -> Remedy | None:
    """Against one slow rank: a command that shows whether its data, its GPU or its host is the reason, or batches of like sizes."""
    slow = inputs.summary.straggler
    if slow and slow.slow_in == "compute" and unequal_batches(inputs.record.rounds, slow.rank):
        return even_batches(builder, inputs)
    return Remedy(code="inspect-straggler", command=_straggler_command(builder, inputs, slow)) if slow else None


def _straggler_command(builder: CommandBuilder, inputs: AnalysisInput, slow: Straggler) -> str:
    record = builder.record
    if slow.slow_in == "data" and record.config.loader != SYNTHETIC and inputs.controls.compute_only is None:
        return builder.command(loader=(record.config.loader, SYNTHETIC))  # shows what the loader costs in total
    ssh_prefix = f"ssh {slow.host} " if record.environment.nodes > 1 else ""
    gpu = next(place.device_id for place in record.environment.placements if place.rank == slow.rank)
    if not gpu or slow.slow_in in ("host", "data"):
        return ssh_prefix + TOP_COMMAND
    if slow.slow_in == "host-to-device":
        return f"{ssh_prefix}nvidia-smi topo -m"
    return f"{ssh_prefix}nvidia-smi -q -i {gpu} -d CLOCK,PERFORMANCE,TEMPERATURE,POWER"


def list_processes(builder: CommandBuilder, inputs: AnalysisInput) -> Remedy | None:
    """Against other processes: lists them."""
    return Remedy(code="list-processes", command=TOP_COMMAND)


def more_evidence(builder: CommandBuilder, inputs: AnalysisInput) -> Remedy | None:
    """What would decide: enough rounds, then ranks that do not share cores, then a diagnosis with its control runs.

    A diagnosis is repeated with twice its usual time, once.
    """
    record, is_too_short = builder.record, is_too_short_for_verdict(builder.record)
    if inputs.controls.diagnosis is not None:
        usual_s = DIAGNOSIS_S + VERIFY_S
        has_more = (record.config.time_limit or 0.0) > usual_s
        return None if has_more else Remedy(code="more-evidence", command=builder.diagnose_command(time_limit=(ceil(2 * usual_s),)))
    if is_too_short:
        return Remedy(code="more-evidence", command=builder.command(**longer_run_fields(record)))
    return reduce_oversubscription(builder) if oversubscribed_node(record) else diagnose(builder)


def diagnose(builder: CommandBuilder) -> Remedy:
    """Against an unknown cause: a diagnosis with its control runs."""
    return Remedy(code="more-evidence", command=builder.diagnose_command())


def reduce_oversubscription(builder: CommandBuilder) -> Remedy | None:
    """Against too few cores: fewer workers, else fewer threads, else fewer ranks."""
    node, environment = cpu_demand(builder.record), builder.record.environment
    if node.max_workers >= 0:
        return Remedy(code="more-evidence", command=builder.command(workers=(node.workers, node.max_workers)))
    cores = max(1, int(node.usable_cores))
    ranks = min(node.ranks, cores)
    threads = cores // ranks
    if ranks == node.ranks:
        fewer_threads = builder.command(threads=(node.threads_per_rank, threads)) if threads < node.threads_per_rank else ""
        return Remedy(code="more-evidence", command=fewer_threads) if fewer_threads else None
    if environment.nodes > 1 or environment.launcher == "slurm":
        return FewerRanks(max_ranks_per_node=ranks)
    fields = {"threads": (threads,)} if threads < node.threads_per_rank else {}
    return Remedy(code="more-evidence", command=replace(builder, ranks=ranks).command(**fields))


def longer_run_fields(record: Record) -> Mapping[str, tuple[object, ...]]:
    """Fields and values that give another run the evidence that this one lacks: twice the rounds, once."""
    requested = record.requested or record.config
    required = {name: (number,) for name, number in required_length(record).items() if number != getattr(requested, name)}
    if len(record.rounds) < requested.rounds:
        return {**required, **({"time_limit": ()} if record.status == "ok" else {})}
    return required or ({"rounds": (2 * requested.rounds,)} if requested.rounds <= MIN_ROUNDS else {})
