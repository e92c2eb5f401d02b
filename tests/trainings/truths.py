"""Time a training by hand: as it is, with each change, and on repeated batches, in alternating plain runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from trainings.kept import AS_IS, REPEATED, Timing
from trainings.listing import FOLDER, Change, Training
from trainings.pinned import run_pinned, script_words, started

BATCHES = 8
"""Batches that are repeated from memory."""


def planned(training: Training, pairs: int) -> Iterator[tuple[str, Change | None]]:
    """The runs of a training: as it is and with each change alternate."""
    for number in range(pairs):
        yield AS_IS, None
        yield from ((change.title, change) for change in training.changes)
        if number == 0 and training.has_loader:
            yield REPEATED, None


def command(training: Training, title: str, change: Change | None, folder: Path, seconds: float) -> list[str]:
    """The words that time one run with ``time_steps.py``."""
    options = ["--after", str(training.after), "--seconds", str(seconds), "--every", str(training.every)]
    options += ["--until", str(training.until)] if training.until else []
    options += [word for argument in (change.loader if change else ()) for word in ("--loader", argument)]
    options += ["--repeat-batches", str(BATCHES), *(["--endless"] if training.endless else [])] if title == REPEATED else []
    words = script_words(change.words if change and change.words else training.words, folder)
    return [*started(training), str(FOLDER / "time_steps.py"), *options, *words]


def run(training: Training, words: list[str], repositories: Path, folder: Path, cores: list[int], limit_s: float) -> Timing | str:
    """The window of one run, or its last lines if it failed."""
    ended = run_pinned(training, words, repositories, folder, cores, limit_s)
    timed = [line for line in ended.lines if line.startswith('{"steps"')]
    problem = f"no end after {limit_s:.0f} s\n" if ended.exit_code is None else ""
    return Timing(**json.loads(timed[-1])) if timed else problem + "\n".join(ended.lines[-6:])[-900:]
