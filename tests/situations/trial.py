"""The verdict of ddpbench on a situation: the real command in separate processes, and its record."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
from sample_datasets import image_tree

from ddpbench.analysis.controls import baseline_of
from ddpbench.record.io import load
from ddpbench.record.record import Record
from ddpbench.report.messages.verdict import explain_verdict
from situations.situation import Situation

TESTS = Path(__file__).parents[1]

LIMITS_S = {"run": 30, "diagnose": 75}
"""Given to ``--time-limit``."""

RANKS = 2
"""One rank on a single-GPU machine if a GPU is needed."""

GRACE_S = 100
"""Seconds to start and end on a shared machine."""

IMAGES = 96
"""Images per class, for four classes."""

Score = Literal["right", "probably right", "inconclusive", "probably wrong", "WRONG", "no verdict"]


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of one command."""

    command: str
    score: Score
    kind: str = ""
    cause: str = ""
    says: str = ""
    why: str = ""
    repeatability: float | None = None
    cause_repeatability: float | None = None
    runner_up: str = ""
    images_per_s: float | None = None
    round_cv: float | None = None
    checks: list[str] = []
    problem: str = ""  # why there is no verdict

    @property
    def verdict(self) -> str:
        return self.cause or self.kind or "no verdict"


class Limited(Protocol):
    """Something with a known bottleneck ``kind`` and its accepted root ``causes``, which may be empty."""

    @property
    def kind(self) -> str: ...

    @property
    def causes(self) -> tuple[str, ...]: ...


class Trial(msgspec.Struct, kw_only=True):
    """One situation tried; ``skipped`` says why it was not."""

    name: str
    done: str
    right: str
    said: dict[str, Said] = {}  # by command: "run", "diagnose"
    cores: int = 0
    load_before: float | None = None  # load average of the preceding minute
    skipped: str = ""


def score(expected: Limited, kind: str, cause: str, plain: bool = True) -> Score:
    """A limit or cause that is named wrongly is WRONG if named plainly. A cause that is not named is inconclusive, like a limit."""
    if kind == "inconclusive" or (kind == expected.kind and cause == "" and any(expected.causes)):
        return "inconclusive"
    if kind == expected.kind and (cause in expected.causes or not expected.causes):
        return "right" if plain else "probably right"
    return "WRONG" if plain else "probably wrong"


def why_not(situation: Situation) -> str:
    """Why the situation cannot run here; empty if it can."""
    return "" if ranks_of(situation) else "needs a GPU"


def ranks_of(situation: Situation) -> int:
    """Number of ranks to run on; 0 if impossible."""
    if not situation.cuda:
        return RANKS
    import torch

    return min(RANKS, torch.cuda.device_count())


def try_out(situation: Situation, folder: Path, commands: Sequence[str] = tuple(LIMITS_S)) -> Trial:
    """Run ``commands`` on the situation; files go to the new ``folder``."""
    trial = Trial(name=situation.name, done=situation.done, right=situation.right, skipped=why_not(situation))
    if trial.skipped:
        return trial
    trial.cores, trial.load_before = len(os.sched_getaffinity(0)), round(os.getloadavg()[0], 2)
    tree = ["--data-dir", str(image_tree(folder / "tree", images=IMAGES))] if situation.tree else []
    for name in commands:
        with situation.place() as before:
            trial.said[name] = _said(situation, name, [*situation.words, *tree], before, folder / name)
    return trial


def _said(situation: Situation, name: str, words: Sequence[str], before: Sequence[str], folder: Path) -> Said:
    ranks = ["--gpus", str(ranks_of(situation)), "--device", "cuda" if situation.cuda else "cpu"]
    shown = ["ddpbench", name, *situation.words, *ranks]
    length = ["--steps", str(situation.steps)] if name == "run" else ["--no-verify"]
    bounds = ["--time-limit", str(LIMITS_S[name]), *length, "-o", str(folder)]
    program = [*before, sys.executable, "-m", "ddpbench", name, *words, *ranks, *bounds]
    ended = finished(program, situation.variables, LIMITS_S[name] + GRACE_S)
    return said_of(situation, " ".join(shown), _record(folder), ended)


def said_of(expected: Limited, command: str, record: Record | None, ended: str) -> Said:
    """The verdict in the record of ``command``; ``ended`` are its last output lines if there is no record."""
    if record is None or record.verdict is None:
        return Said(command=command, score="no verdict", problem=ended)
    found, figure = record.verdict, record.throughput
    explanation = explain_verdict(found, record)
    return Said(
        command=command,
        score=score(expected, found.kind, found.cause or "", not (found.is_probable or found.is_cause_probable)),
        kind=found.kind,
        cause=found.cause or "",
        says=explanation.claim,
        why=explanation.reason,
        repeatability=found.repeatability,
        cause_repeatability=found.cause_repeatability,
        runner_up=found.runner_up or "",
        images_per_s=figure.samples_per_s if figure else None,
        round_cv=figure.round_cv if figure else None,
        checks=[check.code for check in record.checks],
    )


def finished(argv: Sequence[str], variables: Mapping[str, str], limit_s: float) -> str:
    """Run a program, end its process group at the time limit, and return its last stderr lines."""
    path = os.pathsep.join(filter(None, [str(TESTS), str(TESTS / "support"), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **variables}
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as program:
        try:
            _, errors = program.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, signal.SIGTERM)
            _, errors = program.communicate()
    return "\n".join(errors.strip().splitlines()[-3:])


def _record(folder: Path) -> Record | None:
    """The record of the run itself."""
    paths: list[Any] = sorted(folder.glob("*.json"))
    job = load(paths[-1]) if paths else None
    return (baseline_of(job) or job.records[0]) if job else None
