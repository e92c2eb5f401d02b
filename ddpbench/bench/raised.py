"""What an exception says, and where it was raised: also one that a worker of a DataLoader handed over with its traceback as its text."""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import ddpbench

WORKER_EXCEPTION = re.compile(r"Caught \w+ in DataLoader worker process \d+\.\nOriginal Traceback")
"""How torch.utils.data begins the text of an exception from a worker."""

FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)

LIBRARY_PATHS = (str(Path(ddpbench.__file__).parent), "site-packages", "dist-packages")
"""Where code lies that is not the user's."""


class ExceptionSummary(NamedTuple):
    """In one line each."""

    reason: str
    location: str


def describe_exception(problem: BaseException) -> ExceptionSummary:
    """The reason that ``problem`` gives, and the innermost frame; in a worker, the innermost of the user's own code, where any is."""
    text = str(problem).strip()
    if WORKER_EXCEPTION.match(text):
        places: list[tuple[str, str]] = FRAME.findall(text)
        file, line = next((place for place in reversed(places) if not any(other in place[0] for other in LIBRARY_PATHS)), places[-1])
        return ExceptionSummary(_reason(text.splitlines()), f"raised in {file}:{line}, in a worker of the DataLoader")
    frames = traceback.extract_tb(problem.__traceback__)
    where = f"raised in {frames[-1].filename}:{frames[-1].lineno}" if frames else "no traceback"
    return ExceptionSummary(text.partition("\n")[0] or "no message", where)


def _reason(traceback_lines: Sequence[str]) -> str:
    """The first line of what it says: behind its innermost frame, whose source stands further in."""
    innermost = max(place for place, line in enumerate(traceback_lines) if FRAME.match(line))
    named = next((line for line in traceback_lines[innermost + 1 :] if not line.startswith("    ")), "")
    return named.partition(": ")[2] or "no message"
