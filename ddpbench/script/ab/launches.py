"""Launches a script as it is and with a diff in turn, and says whether the diff makes it faster."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import msgspec

from ddpbench.analysis.proof import judged
from ddpbench.analysis.summary import summarize
from ddpbench.bench.journal import Journal, new_job, print_and_write_json, reserve_timestamped_path
from ddpbench.bench.launch import SignalForwarder, prepare_launch, ranks_command, run_child
from ddpbench.machine.rank_env import from_env
from ddpbench.machine.variables import EnvVar
from ddpbench.record.errors import BenchError, ExitCode, UsageError
from ddpbench.record.flags import flag_fields, to_argv
from ddpbench.record.io import encode_json, load, slug
from ddpbench.record.proof import Proof, SideLaunch
from ddpbench.record.record import Record
from ddpbench.record.request import AbOptions, OutputOptions, Request, WatchOptions
from ddpbench.script.ab.diff import patch_sources, read_diff
from ddpbench.script.edits.diff_file import arguments_in, with_arguments
from ddpbench.script.patched_sources import Side
from ddpbench.script.protect.scratch import new_scratch_folder
from ddpbench.script.run_script import Program, check_program

LAST_LINES = 15
"""Lines that a launch has printed last, shown if it failed."""


def prove(program: Program, request: Request, options: AbOptions, diff: str) -> int:
    """Launch ``program`` as it is and with ``diff`` in turn, print what that shows, and return the exit code.

    Raises:
        UsageError: The script does not exist, or the diff does not apply to its sources.
        BenchError: A launch failed, or was too short for a figure.
    """
    if from_env().launched:
        raise UsageError("ab starts the ranks itself, and cannot be used under a launcher", "use --gpus N")
    check_program(program)
    forwarder, order = prepare_launch(request), [*_order(options.pairs)]
    proof = Proof(diff=diff, steps=options.steps, compute_only=options.compute_only, launches=[])
    journal: Journal | None = None
    with tempfile.TemporaryDirectory(prefix="ddpbench-ab-") as folder:
        patched = patch_sources(Path(diff), Path(folder) / "sources")
        arguments = arguments_in(read_diff(Path(diff)))
        changed = replace(program, arguments=tuple(with_arguments(program.arguments, arguments)))
        for number, is_changed in enumerate(order):
            side = Side(patched=patched if is_changed else {}, compute_only=options.compute_only)
            name = f"with {os.path.basename(diff)}" if is_changed else "as it is"
            if not request.output.quiet:
                print(f"ddpbench: launch {number + 1} of {len(order)}: {program.name} {name}", file=sys.stderr, flush=True)
            record = _launch(changed if is_changed else program, request, options, side, forwarder, Path(folder) / str(number), name)
            if record is None:
                return forwarder.report_interrupted()
            proof = judged(msgspec.structs.replace(proof, launches=[*proof.launches, _side_launch(record, is_changed)]))
            if journal is None:
                job = new_job(request, [record])
                job.kind = "ab"
                journal = Journal(job, reserve_timestamped_path(request, slug(f"{program.name} ab")))
            journal.job.proof = proof
            journal.save()
    assert journal is not None, "there are launches"
    print_and_write_json(journal.job, journal.path, request.output, stream=sys.stderr)
    return ExitCode.NOT_TRUSTWORTHY if proof.problems else ExitCode.OK


def _order(pairs: int) -> Iterator[bool]:
    """Without the change and with it: A B, B A."""
    for turn in range(pairs):
        yield from (False, True) if turn % 2 == 0 else (True, False)


def _launch(
    program: Program, request: Request, options: AbOptions, side: Side, forwarder: SignalForwarder, folder: Path, name: str
) -> Record | None:
    """One launch, whose files are in ``folder``; None if it was interrupted. Raises BenchError if it failed."""
    folder.mkdir()
    output = OutputOptions(output_dir=str(folder / "runs"), quiet=True)
    flags = [*to_argv(WatchOptions(steps=options.steps), flag_fields(WatchOptions)), *to_argv(output, flag_fields(OutputOptions))]
    command = ranks_command(request.output.gpus, ["watch", *flags, *program.argv])
    scratch = new_scratch_folder()
    os.environ[EnvVar.DDPBENCH_SCRATCH], os.environ[EnvVar.DDPBENCH_AB] = str(scratch), encode_json(side).decode()
    try:
        with (folder / "log").open("w", encoding="utf-8") as log:
            status = run_child(command, request, forwarder, log=log)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        del os.environ[EnvVar.DDPBENCH_SCRATCH], os.environ[EnvVar.DDPBENCH_AB]
    if forwarder.received:
        return None
    files = [*Path(output.output_dir).glob("*.json")]
    record = load(files[0]).records[0] if files else None
    if record is None or not record.rounds or status.exit_code or record.status not in ("ok", "invalid"):
        _print_last_lines(folder / "log")
        why = record.fault.message if record and record.fault else f"exit code {status.exit_code}"
        raise BenchError(f"the launch {name} has no figure: {why}", "if it was too short, a larger --steps")
    return record


def _print_last_lines(log: Path) -> None:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
    print("\n".join(lines), file=sys.stderr, flush=True)


def _side_launch(record: Record, is_changed: bool) -> SideLaunch:
    script = record.script
    assert script is not None, "a script was watched"
    return SideLaunch(
        is_changed=is_changed,
        samples_per_s=fmean(timed.samples_per_s for timed in record.rounds),
        samples_per_step=record.config.batch_size,
        batches=script.batches,
        updates=script.updates,
        has_finite_loss=all(trace.numerics.nonfinite_step is None for trace in record.traces),
        peak_bytes=summarize(record).peak_allocated_bytes,
        first_step_s=script.first_step_s,
    )
