"""What is kept of each training: the timed runs, its diagnoses, and the plain runs that prove an advised change."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

import msgspec
from scripts.tries import Gain
from situations.trial import Said

from ddpbench.record.verdict import NextStep

AS_IS, REPEATED = "as it is", "repeated batches"


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """The timed window of one run."""

    steps: int
    seconds: float
    ms_per_step: float
    cpu_ms_per_step: float | None = None  # of the trainer, without its workers; robust on a busy machine


class Diagnosed(msgspec.Struct, frozen=True, kw_only=True):
    """One diagnosis of a training. Its record is kept elsewhere."""

    sources: str  # of the ddpbench that diagnosed: its version, and a digest of its files
    commit: str = ""  # of these files, if they lay in a repository
    machine: str = ""
    time_limit_s: float
    said: Said
    sure: str = ""  # "plainly", "probably", "inconclusive"; empty without a verdict
    share: float | None = None  # of the resamples that name what is said; None if nothing was resampled
    use: str = ""  # the line "use" of the page
    next: str = ""  # the line "next"
    step: NextStep | None = None  # what either advises to change or to run; None if nothing
    advised: Gain | None = None  # of ``step``, if its gain was predicted or measured
    gains: list[Gain] = []  # of all changes whose gain was predicted or tried
    ms_per_step: float | None = None  # of an optimizer step on the page, starts of epochs included
    epoch_start_ms: float | None = None  # the part of it that is starts of epochs
    elapsed_s: float = 0.0
    exit_code: int | None = None  # None if it did not end by itself
    status: str = ""  # of the record
    problems: list[str] = []
    load_before: float | None = None  # load average of the preceding minute


class Proof(msgspec.Struct, kw_only=True):
    """Plain runs of a training as it is and with a change, which alternate: the first, third, ... are as it is."""

    machine: str = ""
    as_is: list[Timing] = []
    changed: list[Timing] = []
    failure: str = ""  # the last lines of a run that failed

    @property
    def gains(self) -> list[float]:
        """The gain of each pair of runs."""
        return [before.ms_per_step / after.ms_per_step for before, after in zip(self.as_is, self.changed, strict=False)]

    @property
    def gain(self) -> tuple[float, float, float] | None:
        """The median gain, the lowest and the highest; None without a pair."""
        return (statistics.median(self.gains), min(self.gains), max(self.gains)) if self.gains else None


class Truth(msgspec.Struct, kw_only=True):
    """All that was measured of one training: its runs, by what was changed, in the order in which they were made, and its diagnoses."""

    name: str
    machine: str = ""
    runs: dict[str, list[Timing]] = {}
    failures: dict[str, str] = {}  # the last lines of a run that failed
    diagnosed: list[Diagnosed] = []
    proofs: dict[str, Proof] = {}  # by the title of the change

    def ms(self, title: str) -> float | None:
        """Median of the runs with a change, None if there are none."""
        return statistics.median(run.ms_per_step for run in self.runs[title]) if self.runs.get(title) else None

    @property
    def best_change(self) -> str:
        """The change with the shortest step, "" if none was measured."""
        tried = [(ms, title) for title in self.runs if title not in (AS_IS, REPEATED) and (ms := self.ms(title)) is not None]
        return min(tried)[1] if tried else ""

    def add(self, other: Truth) -> None:
        """Add what ``other`` has beside this, except timed runs of another machine. Of two proofs of a change, the longer one is kept."""
        if other.machine == self.machine or not self.runs:
            for title, runs in other.runs.items():
                _append(self.runs.setdefault(title, []), runs)
            self.failures = {title: text for title, text in (self.failures | other.failures).items() if not self.runs.get(title)}
            self.machine = other.machine or self.machine
        _append(self.diagnosed, other.diagnosed)
        for title, proof in other.proofs.items():
            if title not in self.proofs or len(proof.gains) > len(self.proofs[title].gains):
                self.proofs[title] = proof


def _append(kept: list[Any], others: Iterable[Any]) -> None:
    kept.extend(other for other in others if other not in kept)
