"""``diagnose``, tried on the scripts of this folder: the verdict beside the known limit, and each prediction beside what was measured."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from core_slots import pinned
from situations.trial import Said, finished, said_of

from ddpbench.analysis.controls import baseline_of
from ddpbench.analysis.remedies.outcomes import outcomes
from ddpbench.record.io import load
from ddpbench.record.record import Job
from ddpbench.record.remedy import Remedy
from scripts.limits import LAUNCHERS, SCRIPTS, Script

TIME_LIMIT_S = 75
"""Given to ``--time-limit``."""

GRACE_S = 75
"""Seconds to start and end on a shared machine."""

TRIES, TRIES_ON_A_GPU = 3, 1


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was tried inside a script: the interval of the predicted gain, and that of the measured one."""

    change: str
    predicted: tuple[float, float, float] | None  # centre, low, high
    measured: tuple[float, float, float] | None
    is_inside: bool | None  # None if the measured interval is too wide to compare
    failure: str = ""


class Try(msgspec.Struct, frozen=True, kw_only=True):
    """One diagnosis of a script."""

    said: Said
    gains: list[Gain] = []
    elapsed_s: float
    load_before: float  # load average of the preceding minute


class Tried(msgspec.Struct, kw_only=True):
    """All diagnoses of one script, in the order in which they ended."""

    title: str
    right: str
    tries: list[Try] = []


def tries_of(script: Script) -> int:
    """How often a script is tried."""
    return TRIES_ON_A_GPU if script.is_cuda else TRIES


def scripts_of(has_gpu: bool) -> list[Script]:
    """The scripts to try on a machine. Those for CPUs have other limits on a GPU."""
    return [script for script in SCRIPTS if script.is_diagnosed and script.is_cuda == has_gpu]


def try_script(script: Script, folder: Path, cores: Sequence[int]) -> Try:
    """Diagnose ``script`` once, on ``cores``; its records go to the new ``folder``."""
    words = ["diagnose", "--time-limit", str(TIME_LIMIT_S)]
    program = pinned([*LAUNCHERS[script.launcher], "-m", "ddpbench", *words, "-o", str(folder), str(script.path), *script.arguments], cores)
    load_before, start_s = round(os.getloadavg()[0], 2), time.monotonic()
    ended = finished(program, {"ACCELERATE_USE_CPU": "true"} if script.launcher == "accelerate" else {}, TIME_LIMIT_S + GRACE_S)
    elapsed_s = round(time.monotonic() - start_s, 1)
    paths = sorted(folder.glob("*.json"))
    job = load(paths[-1]) if paths else None
    shown = " ".join([_launcher(script), *words, f"tests/scripts/{script.path.name}", *script.arguments])
    said = said_of(script, shown, (baseline_of(job) or job.records[0]) if job else None, ended)
    return Try(said=said, gains=gains_of(job), elapsed_s=elapsed_s, load_before=load_before)


def gains_of(job: Job | None) -> list[Gain]:
    """The changes that ``job`` has tried."""
    return [gain_of(each) for each in outcomes(job) if each.measured or each.failure] if job else []


def gain_of(remedy: Remedy) -> Gain:
    found, measured = remedy.prediction, remedy.measured
    assert found is not None, "tried settings are recorded as predictions"
    is_predicted = found.gain is not None and found.low is not None and found.high is not None
    return Gain(
        change=found.scenario.flag_text,
        predicted=(found.gain, found.low, found.high) if is_predicted else None,
        measured=(measured.center, measured.low, measured.high) if measured else None,
        is_inside=remedy.is_inside,
        failure="failed" if remedy.failure else "",
    )


def _launcher(script: Script) -> str:
    started = {
        "plain": "ddpbench",
        "torchrun": "torchrun --standalone --nproc_per_node=2 -m ddpbench",
        "accelerate": "accelerate launch --multi_gpu --num_processes=2 -m ddpbench",
    }
    return started[script.launcher]
