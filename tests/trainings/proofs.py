"""Prove the change that a diagnosis advises: plain runs of the training as it is and with the change, which alternate."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from ddpbench.record.verdict import ChangeDataLoader, NextStep
from trainings.kept import AS_IS, Proof, Timing
from trainings.listing import Change, Training

WORKERS_FLAG = re.compile(r"(--(?:dataloader_)?(?:num[-_])?workers) \d+")
"""The title of a change that sets the workers of the training loader by an argument of the script."""


def change_of(training: Training, step: NextStep | None) -> Change | None:
    """The advised change as the script can take it; None if it advises none, or one that needs an edit of the dataset, too.

    Workers by the script's own argument, if the list knows it, and everything else by an argument that every DataLoader gets.
    """
    if not isinstance(step, ChangeDataLoader) or step.shared_handles or step.divide_samples or not training.has_loader:
        return None
    first = ("shared_handles", "divide_samples")
    values = {name: value for name, value in msgspec.structs.asdict(step).items() if value is not None and name not in first}
    flag = next((found[1] for change in training.changes if change.words and (found := WORKERS_FLAG.fullmatch(change.title))), "")
    words, titles = "", []
    if flag and "num_workers" in values:
        titles.append(f"{flag} {values.pop('num_workers')}")
        words = re.sub(rf" {flag} \d+", "", training.words) + f" {titles[0]}"
    loader = tuple(f"{name}={value}" for name, value in values.items())
    return Change(title=", ".join((*titles, *loader)), words=words, loader=loader) if words or loader else None


def missing(proof: Proof, pairs: int) -> Iterator[str]:
    """Which runs ``proof`` lacks, in the order in which to make them: ``AS_IS``, or "changed"."""
    while len(proof.changed) < pairs and not proof.failure:
        yield AS_IS if len(proof.as_is) == len(proof.changed) else "changed"


def add(proof: Proof, kind: str, found: Timing | str) -> None:
    """Add a run, or the last lines of one that failed."""
    if isinstance(found, str):
        proof.failure = f"{kind}: {found}"
    else:
        (proof.as_is if kind == AS_IS else proof.changed).append(found)
