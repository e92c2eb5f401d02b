"""The commands that the kept records offer, read by what would carry them out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_command import parsed

from ddpbench.analysis.command import CommandBuilder
from ddpbench.analysis.fastest import command_after_comparison, find_best_arm
from ddpbench.analysis.judge import judge_all
from ddpbench.analysis.remedies.training import recommend
from ddpbench.analysis.whatif.query import diagnosed_input
from ddpbench.record.io import load
from ddpbench.record.record import Record

ROOT = Path(__file__).parent.parent
RESULTS = [path for path in sorted((ROOT / "results").rglob("*.json")) if b'"records":' in path.read_bytes()]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_that_a_kept_record_offers_is_understood(path: Path) -> None:
    """What its page shows, and what judging it anew would give."""
    job = load(path)
    lines = [record.verdict.next for record in job.records if record.verdict and len(job.records) == 1]
    judge_all(job)
    lines += [record.verdict.next for record in job.records if record.verdict]
    if job.scaling and job.scaling.verdict:
        lines.append(job.scaling.verdict.next)
    if job.diagnosis:
        case, run = diagnosed_input(job)
        lines += [cure.command for cure in recommend(run, case, case.record.verdict)] if case.record.verdict else []
    if found := find_best_arm(job.records):
        lines.append(command_after_comparison(found, job))
    for line in filter(re.compile(r"\bddpbench |\.sbatch ").search, lines):
        name, again = parsed(line)
        assert name in ("run", "diagnose")
        assert {arm.workload for arm in again.arms} <= {record.config.workload for record in job.records}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_kept_record_is_run_again_as_it_was_asked_for(path: Path) -> None:
    for record in load(path).records:
        assert [arm.to_argv() for arm in parsed(CommandBuilder(record).command())[1].arms] == [of_a_run(record)]


def of_a_run(record: Record) -> list[str]:
    """The flags without what a batch on the device does not take; on processors these are named."""
    config = record.requested or record.config
    words = config.to_argv()
    if config.loader == "synthetic" and config.data_dir:
        place = words.index("--data-dir")
        del words[place : place + 2]
    return words
