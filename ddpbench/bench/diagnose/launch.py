"""Launches a diagnosis in child ranks, then optionally the full run under the best configuration."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from ddpbench.analysis.command import config_fields
from ddpbench.bench.diagnose.control_runs import with_loader
from ddpbench.bench.launch import run_single_launch
from ddpbench.distributed.exit_status import exit_with_error
from ddpbench.machine.streams import print_note
from ddpbench.record.config import Config
from ddpbench.record.errors import BenchError, ExitCode
from ddpbench.record.flags import flag_fields, to_argv
from ddpbench.record.io import load
from ddpbench.record.prediction import Scenario
from ddpbench.record.request import DiagnoseOptions, OutputOptions, Request


def launch_diagnosis(request: Request, options: DiagnoseOptions) -> int:
    """Diagnose the request's training, then run the best configuration if ``options.apply``; returns the exit code."""
    try:
        config = with_loader(request.arms[0])
    except BenchError as error:
        exit_with_error(error)
    status = run_single_launch(request)
    return run_best_setting(request, config, status.record_path) if options.apply and status.exit_code == ExitCode.OK else status.exit_code


def run_best_setting(request: Request, config: Config, record_path: str) -> int:
    """Run the best configuration of the diagnosis at ``record_path``, or the present one if none is better; returns the exit code.

    ``config`` is the present one, with its loader. ``--json`` belongs to the diagnosis: if that writes to stdout, the report of this
    run goes to stderr.
    """
    diagnosis = load(Path(record_path)).diagnosis
    scenario = (diagnosis and diagnosis.advice and diagnosis.advice.scenario) or Scenario()
    arm = msgspec.structs.replace(config, **{"time_limit": None, **config_fields(scenario)})
    output = msgspec.structs.replace(request.output, json=None, summary=None, force=False, quiet=False)
    command = ["ddpbench", *arm.to_argv(), *to_argv(output, flag_fields(OutputOptions))]
    print_note(f"full run: {scenario.flag_text or 'the present configuration, since no trial was measurably faster'}")
    full_request = msgspec.structs.replace(request, arms=[arm], output=output, command=command)
    return run_single_launch(full_request, sys.stderr if request.output.json == "-" else None).exit_code
