"""Diagnose a training with ``ddpbench diagnose``, and keep what its page says."""

from __future__ import annotations

import functools
import gzip
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.tries import gain_of
from situations.trial import Limited, Said, said_of

from ddpbench import __version__
from ddpbench.analysis.controls import baseline_of
from ddpbench.analysis.remedies.outcomes import best_remedy, outcomes
from ddpbench.analysis.remedies.script import dataloader_change, is_script_change
from ddpbench.analysis.summary import summarize
from ddpbench.record.errors import BenchError
from ddpbench.record.io import load
from ddpbench.record.record import Job, Record
from ddpbench.record.remedy import Remedy
from ddpbench.record.verdict import NextStep, Verdict
from ddpbench.report.layout import Page
from ddpbench.report.messages.verdict import next_step_text
from ddpbench.report.pages.remedies import advice_lines
from ddpbench.script.protect.scratch import PREFIX as SCRATCH
from trainings.kept import Diagnosed
from trainings.listing import Training
from trainings.pinned import Ended, run_pinned, script_words, started

ROOT = Path(__file__).resolve().parents[2]

GRACE_S = 150
"""Seconds to start and to end, beside the time limit of a diagnosis."""

MAX_PROBLEMS = 6

WIDE = Page(10_000, unicode=True)


@dataclass(frozen=True)
class Limit:
    """One of the answers that are right."""

    kind: str
    causes: tuple[str, ...] = ()


def limits_of(training: Training) -> list[Limited]:
    """The answers that are right of a training, the most expected one first."""
    return [Limit(training.kind, training.causes), *map(Limit, training.also)]


@functools.cache
def sources() -> str:
    """The ddpbench of this checkout: its version, and a digest of its files."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "ddpbench").rglob("*")):
        if path.suffix in (".py", ".json"):
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return f"{__version__} {digest.hexdigest()[:12]}"


@functools.cache
def commit() -> str:
    """The last commit that changed ddpbench, "" outside of a repository, or if it has been changed since."""
    git = ["git", "-C", str(ROOT)]
    try:
        changed = subprocess.run([*git, "status", "--porcelain", "ddpbench"], capture_output=True, text=True, check=True).stdout
        last = subprocess.run([*git, "log", "-1", "--format=%h", "--", "ddpbench"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return "" if changed else last.strip()


def diagnose(training: Training, repositories: Path, folder: Path, cores: list[int], time_limit_s: int, records: Path) -> Diagnosed:
    """Diagnose a training once; the compressed record and the output go to ``records``."""
    output, load_before = folder / "diagnosis", round(os.getloadavg()[0], 2)
    shutil.rmtree(output, ignore_errors=True)
    options = ["diagnose", "--time-limit", str(time_limit_s), "-o", str(output)]
    words = [*started(training), "-m", "ddpbench", *options, *script_words(training.words, folder)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    ended = run_pinned(training, words, repositories, folder, cores, time_limit_s + GRACE_S, {"PYTHONPATH": path})
    paths = sorted(output.glob("*.json"))
    records.mkdir(parents=True, exist_ok=True)
    (records / f"{training.name}.txt").write_text("\n".join(ended.lines) + "\n")
    if paths:
        (records / f"{training.name}.json.gz").write_bytes(gzip.compress(paths[-1].read_bytes()))
    job, problem = _load(paths[-1]) if paths else (None, "")
    return diagnosed(training, job, ended, time_limit_s=time_limit_s, load_before=load_before, problem=problem)


def _load(path: Path) -> tuple[Job | None, str]:
    try:
        return load(path), ""
    except BenchError as error:
        return None, str(error)


def diagnosed(training: Training, job: Job | None, ended: Ended, *, time_limit_s: float, problem: str = "", **fields: Any) -> Diagnosed:
    """What ``job`` says of ``training``; ``job`` is None if there is no record, because of ``problem``."""
    record = (baseline_of(job) or job.records[0]) if job else None
    said = _said(training, record, " ".join(filter(None, [problem, *ended.lines[-3:]])), time_limit_s)
    return Diagnosed(
        sources=sources(),
        commit=commit(),
        time_limit_s=time_limit_s,
        said=said,
        share=min((share for share in (said.repeatability, said.cause_repeatability) if share is not None), default=None),
        **(_advice(job, record, record.verdict) if job and record and record.verdict else {}),
        **(_step(record) if record else {}),
        elapsed_s=ended.elapsed_s,
        exit_code=ended.exit_code,
        status=record.status if record else "",
        problems=list(dict.fromkeys(_problems(job, ended)))[:MAX_PROBLEMS],
        **fields,
    )


def _said(training: Training, record: Record | None, ended: str, time_limit_s: float) -> Said:
    """Scored by the right answer of the same kind, if there is one."""
    limits, kind = limits_of(training), record.verdict.kind if record and record.verdict else ""
    limit = next((limit for limit in limits if limit.kind == kind), limits[0])
    torchrun = f"torchrun --standalone --nproc_per_node={training.ranks} -m " if training.ranks > 1 else ""
    return said_of(limit, f"{torchrun}ddpbench diagnose --time-limit {time_limit_s} {training.words}", record, ended)


def _sure(verdict: Verdict) -> str:
    if verdict.kind == "inconclusive":
        return "inconclusive"
    return "probably" if verdict.is_probable or verdict.is_cause_probable else "plainly"


def _advice(job: Job, record: Record, verdict: Verdict) -> dict[str, Any]:
    """The lines "use" and "next" of the page, and the change that they advise with its gain."""
    found, advice = outcomes(job), job.diagnosis.advice if job.diagnosis else None
    best = best_remedy(found)
    following = verdict.next if advice is None or advice.is_undecided else None
    step = advice.change if advice and advice.change else following
    advised = best or next((each for each in found if following and _change(each, record) == following), None)
    return {
        "sure": _sure(verdict),
        "use": _use(job, record),
        "next": next_step_text(following) if following else "",
        "step": step,
        "advised": gain_of(advised) if advised else None,
        "gains": [gain_of(each) for each in found if each.gain is not None or each.measured or each.failure],
    }


def _use(job: Job, record: Record) -> str:
    lines = [line.plain.strip() for line in advice_lines(record, job.diagnosis, WIDE)]
    return lines[0].removeprefix("use").strip() if lines else ""


def _change(remedy: Remedy, record: Record) -> NextStep | None:
    """What to write in the script for ``remedy``; None if no line of the script expresses it."""
    scenario = remedy.scenario
    return dataloader_change(scenario, record) if scenario is not None and is_script_change(scenario) else None


def _step(record: Record) -> dict[str, float]:
    """Milliseconds of an optimizer step, as on the page, and of the starts of epochs in it."""
    summary, updates = summarize(record), record.script.batches_per_update if record.script else 1
    if summary.step_ms is None:
        return {}
    return {"ms_per_step": round(summary.step_ms * updates, 3), "epoch_start_ms": round(summary.epoch_start_ms * updates, 3)}


def _problems(job: Job | None, ended: Ended) -> Iterator[str]:
    """What went wrong, one line each."""
    yield from (record.fault.message for record in (job.records if job else []) if record.fault and record.fault.arm_index is None)
    notes = (line for line in ended.lines if line.startswith(("ddpbench: error:", "ddpbench: warning:", "ddpbench: note:")))
    yield from (line for line in notes if SCRATCH not in line)  # a folder that every diagnosis names
    if job is None:
        yield from ended.lines[-MAX_PROBLEMS:]
