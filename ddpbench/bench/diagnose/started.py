"""A diagnosis in ranks that are started for it, and after it the full run under the setting that won."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from ddpbench.analysis.controls import diagnosed
from ddpbench.analysis.whatif.outcome import best, fields_of, outcomes
from ddpbench.bench.diagnose.control_runs import with_a_loader
from ddpbench.bench.launch import start_one
from ddpbench.distributed.exit_status import refuse
from ddpbench.machine.stderr import print_note
from ddpbench.record.errors import BenchError, Exit
from ddpbench.record.flags import flags, to_argv
from ddpbench.record.prediction import Change
from ddpbench.record.record import load
from ddpbench.record.request import Output, Proving, Request


def diagnose(request: Request, proving: Proving) -> int:
    """Diagnoses the one training of the request, and runs it under the setting that won where that is asked for; returns the exit code."""
    try:
        with_a_loader(request.arms[0])
    except BenchError as error:
        refuse(error)
    ended = start_one(request)
    return run_the_winner(request, ended.record) if proving.apply and ended.exit_code == Exit.OK else ended.exit_code


def run_the_winner(request: Request, record: str) -> int:
    """Runs what gained most in the diagnosis that left ``record``; the setting as it is, where nothing did.

    The ``--json`` of the request is the diagnosis' own: where that has stdout, the report of this run goes to stderr.
    """
    job = load(Path(record))
    real, won = diagnosed(job), best(outcomes(job))
    assert real is not None, "a diagnosis that ended well"
    change = won.prediction.change if won else Change()
    arm = msgspec.structs.replace(request.arms[0], **{"loader": real.config.loader, "time_limit": None, **fields_of(change)})
    output = msgspec.structs.replace(request.output, json=None, force=False, quiet=False)
    command = ["ddpbench", *arm.to_argv(), *to_argv(output, flags(Output))]
    print_note(f"the full run: {change.words or 'the setting as it is, since nothing that was tried is measurably faster'}")
    full = msgspec.structs.replace(request, arms=[arm], output=output, command=command)
    return start_one(full, sys.stderr if request.output.json == "-" else None).exit_code
