"""What the diagnoses of the trainings said, beside the truths: a line of counts, and a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from scripts.tries import TIME_LIMIT_S
from situations.page import verdict_cell

from ddpbench.record.remedy import MAX_INTERVAL_RATIO
from trainings.kept import AS_IS, Diagnosed, Proof, Truth
from trainings.listing import TRAININGS, Training
from trainings.proofs import change_of

SHARE_RIGHT = 0.8
"""The target: how many diagnoses are right. None may be plainly wrong, and none may end without a verdict."""

ABOUT = f"""## What the diagnoses said

Each training was diagnosed once per version of ddpbench, with `--time-limit {TIME_LIMIT_S}`, on two cores as in the plain runs; the
table has the last diagnosis of each. *right* and *WRONG* are named plainly, in at least 99% of the resamples; *probably* in 70% to 99%.
*predicted* and *measured* are intervals of 90% and 95%; a predicted one that spans more than a factor of {MAX_INTERVAL_RATIO} is a miss.
*Plain runs* are those of the advised change, without ddpbench, that alternate with runs as it is: the median gain, the lowest and the
highest. *step* is an optimizer step on the page, starts of epochs included, over that of the plain runs as it is, which also contain what
is outside of steps."""

COLUMNS = (
    *("training", "right answer", "what the diagnosis said", "advised"),
    *("predicted", "measured in the script", "gained in plain runs", "step"),
)

Interval = tuple[float, float, float]


def diagnosed_parts(truths: Mapping[str, Truth]) -> list[str]:
    """The lines of this part of the page."""
    rows = [
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
        *(_row(training, truths.get(training.name) or Truth(name=training.name)) for training in TRAININGS),
    ]
    return [ABOUT, "", counts(truths), "", *rows]


def counts(truths: Mapping[str, Truth]) -> str:
    """How many diagnoses are right, wrong or without a verdict, and how many predicted gains came true, against the targets."""
    known = [(training, truths[training.name]) for training in TRAININGS if training.name in truths]
    last = [(training, truth, truth.diagnosed[-1]) for training, truth in known if truth.diagnosed]
    scores = Counter(found.said.score for _, _, found in last)
    share = f"{scores['right'] / len(last):.0%}" if last else "-"
    tried = [holds(gain.predicted, gain.measured) for _, _, found in last for gain in found.gains if gain.measured]
    proved = [
        holds(found.advised.predicted, proof.gain)
        for training, truth, found in last
        if found.advised and (proof := proof_of(training, truth)) and proof.gain
    ]
    return "; ".join(
        [
            f"{len(last)} of {len(TRAININGS)} trainings diagnosed: {scores['right']} right ({share}; target: at least {SHARE_RIGHT:.0%})",
            f"{scores['probably right']} probably right",
            f"{scores['inconclusive']} inconclusive",
            f"{scores['probably wrong']} probably wrong",
            f"{scores['WRONG']} plainly wrong (target: 0)",
            f"{scores['no verdict']} without a page or a verdict (target: 0)",
            f"predicted gains: {_holding(tried)} as measured in the script, {_holding(proved)} as in plain runs.",
        ]
    )


def holds(predicted: Interval | None, measured: Interval) -> bool | None:
    """Whether a prediction came true, which one that is too wide never does. None without one, or if ``measured`` is too wide to tell."""
    if predicted is None:
        return None
    if _is_wide(predicted):
        return False
    return None if _is_wide(measured) else predicted[1] <= measured[0] <= predicted[2]


def _is_wide(interval: Interval) -> bool:
    return interval[2] > MAX_INTERVAL_RATIO * interval[1]


def _holding(found: Sequence[bool | None]) -> str:
    known = [each for each in found if each is not None]
    return f"{known.count(True)} of {len(known)}"


def proof_of(training: Training, truth: Truth) -> Proof | None:
    """The plain runs of what the last diagnosis advises."""
    change = change_of(training, truth.diagnosed[-1].step)
    return truth.proofs.get(change.title) if change else None


def _row(training: Training, truth: Truth) -> str:
    return f"| {' | '.join((f'`{training.name}`', training.right, *_cells(training, truth)))} |"


def _cells(training: Training, truth: Truth) -> Iterator[str]:
    if not truth.diagnosed:
        yield from "-" * 6
        return
    *earlier, found = truth.diagnosed
    said = [_said(found), *([f"earlier: {', '.join(each.said.score for each in earlier)}"] if earlier else [])]
    advised, as_is, proof = found.advised, truth.ms(AS_IS), proof_of(training, truth)
    yield _clean("; ".join(said))
    advice = _clean(found.next or found.use)
    yield f"`{advice}`" if found.step else advice or "-"
    yield _interval(advised.predicted if advised else None)
    yield (advised.failure if advised else "") or _interval(advised.measured if advised else None)
    yield "failed" if proof and proof.failure else _interval(proof.gain if proof else None)
    elsewhere = "" if found.machine == truth.machine else ", on another machine"
    yield f"{found.ms_per_step / as_is:.2f}x{elsewhere}" if found.ms_per_step and as_is else "-"


def _said(found: Diagnosed) -> str:
    said = found.said
    return f"right: {': '.join(filter(None, (said.kind, said.cause)))}" if said.score == "right" else verdict_cell(said)


def _clean(text: str) -> str:
    """``text`` in one cell."""
    return " ".join(text.split()).replace("|", "\\|")


def _interval(values: Interval | None) -> str:
    return "-" if values is None else f"{values[0]:.2f}x ({values[1]:.2f} to {values[2]:.2f})"
