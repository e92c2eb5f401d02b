"""Names of arms by their role, and why a measurement was skipped."""

from __future__ import annotations

from ddpbench.record.record import Job
from ddpbench.record.roles import Role, RoleKind
from ddpbench.record.skipped import Measurement, SkippedMeasurement, SkipReason
from ddpbench.record.text import pluralize

ROLE_NAMES: dict[RoleKind, str] = {
    "earlier_model_alive": "earlier model alive",
    "baseline": "as asked",
    "compute_only": "device alone",
    "independent": "no gradient sync",
    "replay": "replay",
    "loader_in_background": "beside the loader",
    "baseline_repeat": "as asked, again",
    "single_no_ddp": "one rank without DDP",
    "single_shard_batch": "one rank, its share of the batch",
    "no_sync": "no all-reduce",
    "allreduce_only": "all-reduce alone",
    "with_data": "with data",
}

INDEPENDENT_IN_SCALING = "every rank for itself"

MEASUREMENT_NAMES: dict[Measurement, str] = {
    "node_states": "surroundings",
    "loader_benchmarks": "loader alone",
    "single_rank_loader_benchmark": "loader on one rank",
    "stage_cpu_s": "stages",
    "alternative_loaders": "other loaders",
    "storage": "storage",
    "h2d_bandwidth": "copies",
    "trials": "cures",
}

SKIP_REASONS: dict[SkipReason, str] = {
    "no_time_left": "no time was left for it",
    "trainer_loads": "nothing of the loader works beside the training",
    "batches_made_on_device": "the batches of {loader} are made on the device",
    "cpu_ranks": "ranks on processors copy no batches",
    "dataset_in_memory": "the data set lies in memory",
    "no_image_folder": "the loader {loader} reads no folder of images",
    "no_other_loader": "there is no other loader here to set beside {loader}",
    "synthetic_data": "synthetic data; add --data-dir DIR",
    "failed": "{error}",
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
            return f"tried: {role.scenario.flag_text if role.scenario else ''}"
        case "independent" if job is not None and job.scaling is not None:
            return INDEPENDENT_IN_SCALING
        case kind:
            return ROLE_NAMES[kind]


def skipped_name(skipped: SkippedMeasurement, job: Job) -> str:
    """The name of the skipped measurement; of a scaling job's arm with data what it would have shown."""
    if not isinstance(skipped.what, Role):
        return MEASUREMENT_NAMES[skipped.what]
    return "loss to data" if skipped.what.kind == "with_data" else role_name(skipped.what, job)


def skip_reason(skipped: SkippedMeasurement) -> str:
    return SKIP_REASONS[skipped.reason].format(loader=skipped.loader, error=skipped.error)
