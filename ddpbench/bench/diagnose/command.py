"""The ``diagnose`` command: finds what limits the data pipeline of one training."""

from __future__ import annotations

import os
from typing import NoReturn

from ddpbench.bench.arm_specs import build_request
from ddpbench.bench.diagnose.control_runs import control_runs, with_loader
from ddpbench.bench.diagnose.job_spec import DiagnoseJobSpec
from ddpbench.bench.journal import Journal, config_in_name, new_job, reserve_timestamped_path
from ddpbench.bench.runner import run_job
from ddpbench.distributed.exit_status import exit_with_error
from ddpbench.machine.rank_env import from_env
from ddpbench.machine.streams import print_note
from ddpbench.machine.variables import EnvVar
from ddpbench.record.config import Config
from ddpbench.record.diagnosis import Diagnosis
from ddpbench.record.errors import BenchError, UsageError
from ddpbench.record.io import slug
from ddpbench.record.loaders import DEFAULT_LOADER, SYNTHETIC
from ddpbench.record.record import Record
from ddpbench.record.request import DiagnoseOptions, Request

DEFAULT_DIAGNOSE_OPTIONS = DiagnoseOptions()


def run_diagnosis(request: Request, options: DiagnoseOptions = DEFAULT_DIAGNOSE_OPTIONS) -> NoReturn:
    """Diagnose the request's training on this rank, then exit the process with the exit code."""
    try:
        rank_env, config = from_env(), with_loader(request.arms[0])
        if options.apply:
            check_can_apply()
        arms, skipped = control_runs(config, rank_env.world_size)
    except BenchError as error:
        exit_with_error(error)
    if rank_env.is_rank0:
        note_default_loader(request.arms[0], config)

    def open_journal(job_request: Request, records: list[Record]) -> Journal:
        job = new_job(job_request, records)
        job.kind, job.diagnosis = "diagnose", Diagnosis(loader=config.loader or "", skipped=skipped)
        named = config_in_name(config, request.output)
        return Journal(job, reserve_timestamped_path(job_request, slug(f"diagnose {named.workload} {named.precision} {named.loader}")))

    run_job(
        build_request(arms, {}, request.output, request.command),
        DiagnoseJobSpec(open_journal, config, [arm.role for arm in arms], options.verify),
    )


def check_can_apply() -> None:
    """Raises UsageError if a foreign launcher started the ranks: they end with the command that they were started for."""
    if EnvVar.DDPBENCH_EXIT_STATUS not in os.environ:
        raise UsageError("--apply starts a second run, but an external launcher started these ranks", "use --gpus N instead of torchrun")


def note_default_loader(requested: Config, resolved: Config) -> None:
    """Print a note if the request has no loader to diagnose, naming the one diagnosed in its place."""
    if resolved.loader == DEFAULT_LOADER and requested.loader in (None, SYNTHETIC) and not requested.data_dir:
        print_note(
            f"synthetic data need no loader; diagnosing loader {resolved.loader}. Choose another with --loader NAME or --data-dir DIR"
        )
