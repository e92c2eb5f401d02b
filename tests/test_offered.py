"""The commands that the kept records offer, read by what would carry them out."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ddpbench.analysis.command import units
from ddpbench.analysis.fastest import command_after, fastest
from ddpbench.analysis.judge import judge
from ddpbench.cli.measuring import diagnose, run
from ddpbench.cli.program import program
from ddpbench.cli.words import request
from ddpbench.record.record import load

ROOT = Path(__file__).parent.parent
RESULTS = [path for path in sorted((ROOT / "results").rglob("*.json")) if b'"records":' in path.read_bytes()]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_that_a_kept_record_offers_is_understood(path: Path) -> None:
    """What its page shows, and what judging it anew would give."""
    job = load(path)
    offered = [record.verdict.next for record in job.records if record.verdict and len(job.records) == 1]
    for record in job.records:
        judge(record, typed=job.as_a_run)
    offered += [record.verdict.next for record in job.records if record.verdict]
    found = fastest(job.records)
    offered += [command_after(found, job.records, job.swept, job.command)] if found and job.kind == "run" else []
    runs = [line.split("&& ")[-1] for line in offered if re.search(r"\bddpbench |\.sbatch ", line)]
    assert runs
    for line in runs:
        words = shlex.split(line)
        words = words[next(place for place, word in enumerate(words) if word == "ddpbench" or word.endswith(".sbatch")) + 1 :]
        assert "".join(word for _, unit in units(words) for word in unit) == "".join(words)
        command = diagnose if words[0] == "diagnose" else run
        words = words[words[0] in ("run", "diagnose") :]
        context = command.make_context(command.name, words, parent=program.make_context("ddpbench", [str(command.name)]))
        assert request(given=context.params, words=words, workload=context.params.pop("workload")).arms
