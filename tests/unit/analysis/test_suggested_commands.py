"""Commands suggested by stored verdicts, parsed by ddpbench; test_kept_verdicts checks that judging again gives the same verdicts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands import parsed
from records import next_command

from ddpbench.analysis.command import CommandBuilder
from ddpbench.analysis.fastest import find_best_arm, next_step_after_comparison
from ddpbench.analysis.remedies.recommend import recommend
from ddpbench.analysis.whatif.query import diagnosed_input
from ddpbench.record.io import load
from ddpbench.record.record import Record
from ddpbench.report.messages.verdict import next_step_text

ROOT = Path(__file__).parents[3]
RESULTS = [path for path in sorted((ROOT / "results").rglob("*.json")) if b'"records":' in path.read_bytes()]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_suggested_commands_of_stored_records_parse(path: Path) -> None:
    job = load(path)
    lines = [next_command(record.verdict) for record in job.records]
    if job.scaling:
        lines.append(next_command(job.scaling.verdict))
    if job.diagnosis:
        case, run = diagnosed_input(job)
        lines += [cure.command for cure in recommend(run, case, case.record.verdict)] if case.record.verdict else []
    if (found := find_best_arm(job.records)) and (step := next_step_after_comparison(found, job)):
        lines.append(next_step_text(step))
    for line in filter(re.compile(r"\bddpbench |\.sbatch ").search, lines):
        name, again = parsed(line)
        assert name in ("run", "diagnose")
        assert {arm.workload for arm in again.arms} <= {record.config.workload for record in job.records}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_command_of_stored_record_reproduces_its_config(path: Path) -> None:
    job = load(path)
    for record in job.records:
        if record.script is not None:  # it has no flags of ddpbench
            assert CommandBuilder(record).command() == ""
            continue
        assert [arm.to_argv() for arm in parsed(CommandBuilder(record).command())[1].arms] == [run_argv(record)]


def run_argv(record: Record) -> list[str]:
    """Flags of a record's config, without --data-dir for the synthetic loader."""
    config = record.requested or record.config
    words = config.to_argv()
    if config.loader == "synthetic" and config.data_dir:
        place = words.index("--data-dir")
        del words[place : place + 2]
    return words
