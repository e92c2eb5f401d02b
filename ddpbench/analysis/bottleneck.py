"""Which limit a run hit, and whether that can be told with confidence. One logic, whatever was measured around the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from ddpbench.analysis.case import Case
from ddpbench.analysis.command import Rerun
from ddpbench.analysis.cures import next_step
from ddpbench.analysis.evidence import pieces, steps, too_few_for_a_verdict
from ddpbench.analysis.experiments import NONE, Experiments
from ddpbench.analysis.limits import first_limit
from ddpbench.analysis.limits.training import looks_like
from ddpbench.analysis.stats import variation
from ddpbench.analysis.summary import Summary
from ddpbench.analysis.trust import MOST_VARIATION
from ddpbench.analysis.waits import exchange_ms
from ddpbench.record.loaders import spec_of
from ddpbench.record.record import Record
from ddpbench.record.verdict import Verdict
from ddpbench.record.words import count

EXPLAINS_NOISE = ("loader-steals-cpu", "loader-steals-gpu", "noisy-neighbour", "data-bound", "host-to-device-bound")
"""Limits that come from outside of the training, and vary by nature: the device stood waiting for data, or was not given to the job."""

FAR_ABOVE_NOISE = 10
"""What makes a step longer by so many times what the rounds vary is no chance."""


def verdict(record: Record, summary: Summary, typed: Sequence[str] = (), around: Experiments = NONE) -> Verdict | None:
    """The limit that ``record`` hit, why, and a command to try next, in the words of ``typed``. None without rounds.

    ``around`` holds what was measured beside the run. From too few rounds or steps, or where the rounds vary by more than the noise
    rule allows, the verdict is inconclusive, and ``why`` says what it looks like. Noise leaves a limit standing that explains it and
    that every round on its own shows: a wait for data or launches, or somebody else's work. Computing and what ranks cost each other
    are no explanation of why they vary; a slow rank and the exchange of gradients stand where they are far above it.
    """
    if summary.step_ms is None:
        return None
    case = Case(record, summary, around)
    found = first_limit(case)
    if doubt := _doubt(case, found):
        found = Verdict(kind="inconclusive", says=doubt, why=looks_like(found), rank=found.rank)
    return msgspec.structs.replace(found, next=next_step(Rerun(record, typed), case, found))


def _doubt(case: Case, found: Verdict) -> str:
    """Why ``found`` cannot be told with confidence; empty where it can."""
    record = case.record
    if too_few_for_a_verdict(record):
        return f"{count(len(record.rounds), 'round')} and {count(steps(record), 'step')} are too few for a confident verdict"
    cut = pieces(record)
    spread = variation([timed.images_per_s for timed in cut.rounds])
    each_piece = replace(case, record=cut).each_round()
    explained = all(_explains_noise(piece, found) and first_limit(piece).kind == found.kind for piece in each_piece)
    explained |= _longer_by(case, found) >= FAR_ABOVE_NOISE * spread
    what = "rounds" if cut is record else "parts of a round"
    return "" if spread <= MOST_VARIATION or explained else f"the {what} vary by {spread:.1%}, too much for a confident verdict"


def _longer_by(case: Case, found: Verdict) -> float:
    """What ranks cost each other, as a fraction of a step without it: nothing in other limits.

    Of gradient sync only what it takes when all ranks are ready: noise itself makes them wait for each other.
    """
    if found.kind == "straggler" and case.summary.slow:
        return case.summary.slow.excess
    if found.kind == "sync-bound":
        exchange = exchange_ms(case.record.rounds)
        return exchange / (case.step_ms - exchange)
    return 0.0


def _explains_noise(case: Case, found: Verdict) -> bool:
    """Launches come from a processor, and vary by nature, too; but a loader at work there may be what keeps them."""
    loads_beside = not spec_of(case.record.config.loader).resident and case.around.device is None
    return found.kind in EXPLAINS_NOISE or (found.kind == "launch-bound" and not loads_beside)
