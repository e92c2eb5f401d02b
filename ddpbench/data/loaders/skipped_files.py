"""Files that cannot be read: so many may be left out, each is told of once, and the next one ends the run."""

from __future__ import annotations

from collections.abc import Iterable

from ddpbench.machine.stderr import print_note
from ddpbench.record.errors import BenchError
from ddpbench.record.text import pluralize


class SkippedFiles:
    """Those of one loader, of which ``allowed`` may be left out."""

    def __init__(self, max_skipped: int) -> None:
        self._max_skipped = max_skipped
        self._seen: set[str] = set()

    def add(self, problems: Iterable[BenchError]) -> list[BenchError]:
        """The new ones among these, each told of. Raises the error of the first that is one too many."""
        new: list[BenchError] = []
        for problem in problems:
            if problem.message in self._seen:
                continue
            if len(self._seen) == self._max_skipped:
                raise self.too_many_error(problem)
            self._seen.add(problem.message)
            print_note(f"left out: {problem.message}")
            new.append(problem)
        return new

    def too_many_error(self, problem: BenchError) -> BenchError:
        """The error of a file that may not be left out, with how many were."""
        others = len(self._seen - {problem.message})
        after = f", after {pluralize(others, 'other')} left out" if others else ""
        spent = f"--skip-bad {self._max_skipped} leaves out no more: repair the file, take it away, or give a larger number"
        return BenchError(f"{problem.message}{after}", spent if self._max_skipped else problem.hint)
