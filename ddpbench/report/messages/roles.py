"""Names of arms by their role, and why a measurement was skipped, or nothing was tried."""

from __future__ import annotations

from ddpbench.analysis.disturbance import Disturbance
from ddpbench.record.record import Job
from ddpbench.record.roles import Measurement, Role, RoleKind, SkippedMeasurement, SkipReason
from ddpbench.record.script import OnlyWatchedReason
from ddpbench.record.text import format_3sig, pluralize
from ddpbench.report.messages.verdict import next_step_text

ROLE_NAMES: dict[RoleKind, str] = {
    "earlier_model_alive": "earlier model alive",
    "baseline": "baseline",
    "compute_only": "compute only",
    "independent": "no gradient sync",
    "replay": "replay",
    "loader_in_background": "loader in the background",
    "baseline_repeat": "baseline repeated",
    "single_no_ddp": "1 rank without DDP",
    "single_shard_batch": "1 rank, per-rank batch",
    "no_sync": "DDP.no_sync()",
    "allreduce_only": "all-reduce only",
    "with_data": "with data",
}

INDEPENDENT_IN_SCALING = "independent ranks"

MEASUREMENT_NAMES: dict[Measurement, str] = {
    "node_states": "node state",
    "loader_benchmarks": "loader benchmark",
    "single_rank_loader_benchmark": "loader benchmark on one rank",
    "all_cores_loader_benchmarks": "loader benchmark with more workers",
    "stage_cpu_s": "CPU time by stage",
    "alternative_loaders": "other loaders",
    "storage": "storage",
    "h2d_bandwidth": "host-to-device bandwidth",
    "trials": "remedies",
}

SKIP_REASONS: dict[SkipReason, str] = {
    "no_time_left": "no time left",
    "trainer_loads": "the loader runs in the trainer process, not in the background",
    "batches_made_on_device": "{loader} generates its batches on the device",
    "cpu_ranks": "CPU ranks copy no batches",
    "dataset_in_memory": "the dataset is in memory",
    "user_defined_loader": "{loader} is user-defined, and its files are unknown",
    "no_image_folder": "loader {loader} does not read image folders",
    "no_other_loader": "no other loader is available to compare with {loader}",
    "synthetic_data": "synthetic data; add --data-dir DIR",
    "failed": "{error}",
}

ONLY_WATCHED_REASONS: dict[OnlyWatchedReason, str] = {
    "no-loader": "nothing was tried: ddpbench can give other batches to the loop of a DataLoader only",
    "rank-0-loads": "nothing was tried: ddpbench can give no other batches to ranks whose batches rank 0 loads (DataLoaderDispatcher of "
    "Accelerate); with dispatch_batches=False it can",
}


def role_name(role: Role, job: Job | None = None) -> str:
    """The name of an arm of ``job``; empty for an ordinary arm."""
    match role.kind:
        case "run":
            return ""
        case "side":
            return role.side
        case "ddp":
            return pluralize(role.ranks or 1, "rank")
        case "trial":
            return f"trial: {_trial_text(role, job)}"
        case "independent" if job is not None and job.scaling is not None:
            return INDEPENDENT_IN_SCALING
        case kind:
            return ROLE_NAMES[kind]


def _trial_text(role: Role, job: Job | None) -> str:
    """What a trial of ``job`` changes: flags, or the change to a script whose remedies are judged."""
    remedies = job.diagnosis.remedies or [] if job and job.diagnosis else []
    changes = (each.change for each in remedies if each.change and each.scenario == role.scenario)
    flags = role.scenario.flag_text if role.scenario else ""
    return next(map(next_step_text, changes), flags)


def disturbance_text(found: Disturbance, job: Job) -> str:
    """``compute only: 1 of 8 windows was disturbed: 182 samples/s, the median of the others is 2,400; it is left out``."""
    arm, one = found.record, len(found.samples_per_s) == 1
    rates = ", ".join(format_3sig(each) for each in found.samples_per_s)
    some = f"{len(found.samples_per_s)} of {pluralize(found.num_rounds, 'round' if arm.script is None else 'window')}"
    return (
        f"{role_name(arm.role, job)}: {some} {'was' if one else 'were'} disturbed: {rates} {arm.sample_unit}s/s, "
        f"the median of the others is {format_3sig(found.median)}; {'it' if one else 'they'} {_use_of(found)}"
    )


def _use_of(found: Disturbance) -> str:
    one = len(found.samples_per_s) == 1
    if found.is_left_out:
        return f"{'is' if one else 'are'} left out"
    return "counts" if one else "count"


def skipped_name(skipped: SkippedMeasurement, job: Job) -> str:
    """The name of the skipped measurement; for a scaling job's arm with data, the loss that it measures."""
    if not isinstance(skipped.what, Role):
        return MEASUREMENT_NAMES[skipped.what]
    return "loss to data" if skipped.what.kind == "with_data" else role_name(skipped.what, job)


def skip_reason(skipped: SkippedMeasurement) -> str:
    return SKIP_REASONS[skipped.reason].format(loader=skipped.loader, error=skipped.error)
