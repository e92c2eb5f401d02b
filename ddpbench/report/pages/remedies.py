"""What may help: what is predicted of each cure and what came of it, its command; then the one to use from now on, and what it is worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ddpbench.analysis.command import Rerun
from ddpbench.analysis.controls import diagnosed
from ddpbench.analysis.inputs import Case
from ddpbench.analysis.ratio import Ratio
from ddpbench.analysis.remedies.training import next_step, offered
from ddpbench.analysis.stats import Interval
from ddpbench.analysis.text import device_word
from ddpbench.analysis.whatif.gain import CONFIDENCE
from ddpbench.analysis.whatif.outcome import Outcome, best, can_be_tried, command_for, outcomes
from ddpbench.analysis.whatif.query import predicted
from ddpbench.record.diagnosis import AGAIN
from ddpbench.record.prediction import Prediction
from ddpbench.record.record import Job, Record
from ddpbench.record.text import count
from ddpbench.report.format import about, ranged
from ddpbench.report.layout import Page, command, sentence
from ddpbench.report.pages.header import rate
from ddpbench.report.pages.whatif import gain_text
from ddpbench.report.styled import GOOD, LABEL, inked

NEXT = "the command behind 'next'"


def cures(case: Case, job: Job, page: Page, verbose: bool = False) -> Iterator[Text]:
    """What is predicted of each cure, what came of it, and its command; the greatest gain first. Nothing where 'next' says it all.

    ``verbose`` says what each is good for, which is said anyway of one that has no command. Then come the predictions on record that
    could be tried and that the verdict does not offer.
    """
    run, verdict = Rerun.of(case.record, job), case.record.verdict
    found = sorted(offered(run, case, verdict), key=lambda cure: -(cure.gain or 0.0)) if verdict else []
    on_record = {each.prediction.change.words: each for each in outcomes(job) if each.prediction.gain is not None}
    following = next_step(run, case, verdict) if verdict and verdict.next else ""
    if not on_record and all(cure.command == following and not cure.why for cure in found):
        return
    tried = any(each.measured for each in on_record.values())
    yield from inked([f"what may help, predicted ({CONFIDENCE:.0%}){' and measured (95%)' if tried else ''}"], LABEL)
    for cure in found:
        outcome = on_record.pop(cure.change.words, None) if cure.change else None
        foretold = _told(outcome) if outcome else _predicted(predicted(case, run, cure.change)) if cure.change else ""
        why = cure.why if verbose or not (foretold and cure.command) else ""
        is_next = bool(cure.command) and cure.command == following
        yield from _line(cure.name, [foretold, why, NEXT if is_next else ""], page)
        yield from inked(command("    ", cure.command, page) if cure.command and not is_next else [])
    for name, outcome in on_record.items():
        if not can_be_tried(outcome.prediction.change):
            continue
        yield from _line(name, [_told(outcome)], page)


def _line(name: str, said: Sequence[str], page: Page) -> list[Text]:
    return inked(sentence("  ", f"{name}: {'; '.join(filter(None, said))}", page), LABEL, 2 + len(name))


def use(job: Job, page: Page) -> Iterator[Text]:
    """What to run from now on; nothing without a prediction, or until one that can be is tried."""
    found, real = outcomes(job), diagnosed(job)
    if not found or real is None:
        return
    winner = best(found)
    if winner is None or winner.measured is None:
        tried = any(each.failed or (each.measured and each.measured.has_interval) for each in found)
        if tried or not any(each.prediction.gain is not None and can_be_tried(each.prediction.change) for each in found):
            why = "nothing that was tried is measurably faster" if tried else "no gain is predicted of anything that can be tried here"
            yield from inked(sentence("use    ", f"the setting as it is: {why}", page), LABEL, 3)
        return
    yield from inked(command("use    ", command_for(job, winner.prediction.change), page), GOOD)
    yield from inked(sentence("worth  ", _worth(winner.measured, job, real), page), LABEL, 5)


def _predicted(found: Prediction) -> str:
    if found.gain is None or found.low is None or found.high is None:
        return f"needs a measurement: {found.needs}"
    return f"predicted {gain_text(found.gain, found.low, found.high)}"


def _told(outcome: Outcome) -> str:
    """What was predicted, what came of it, and how well the prediction held."""
    foretold, ratio = _predicted(outcome.prediction), outcome.measured
    short = f", in rounds that are {count(outcome.lacking, 'batch', 'es')} short" if outcome.lacking else ""
    if outcome.failed:
        return f"{foretold}; failed: {outcome.failed}"
    if ratio is None:
        return f"{foretold}; {'not tried' if can_be_tried(outcome.prediction.change) else 'cannot be tried here'}"
    if not ratio.has_interval:
        return f"{foretold}; measured {about(ratio.center, 2)}x, too few rounds to tell"
    if outcome.is_wide:
        return f"{foretold}; measured {about(ratio.low, 2)}x to {about(ratio.high, 2)}x, too wide to compare{short}"
    held = f"{'inside' if outcome.inside else 'outside'}, {_off_by((outcome.prediction.gain or 1.0) / ratio.center - 1)}"
    came = "" if outcome.gained else ", a loss" if outcome.told else ", no gain measured"
    return f"{foretold}; measured {gain_text(ratio.center, ratio.low, ratio.high)}, {held}{came}{short}"


def _off_by(error: float) -> str:
    """``9% too high``."""
    share = f"{100 * abs(error):.0f}%"
    return "0% off" if share == "0%" else f"{share} too {'high' if error > 0 else 'low'}"


def _worth(gain: Ratio, job: Job, real: Record) -> str:
    """Images/s and hours, as far as the interval of the gain tells them."""
    again = next(record for record in job.records if record.label == AGAIN)
    now = sum(timed.images for timed in again.rounds) / sum(timed.wall_s for timed in again.rounds)
    hours = 24 * real.world_size
    device = "GPU-hours" if device_word(real.environment) == "GPU" else "hours of a rank"
    more = Interval(*((times - 1) * now for times in (gain.center, gain.low, gain.high)))
    saved = Interval(*((1 - 1 / times) * hours for times in (gain.center, gain.low, gain.high)))
    return f"{_rough(more)} {rate(real)} more; {_rough(saved)} of {hours:,} {device} a day are saved for the same work"


def _rough(found: Interval) -> str:
    return ranged(found.center, found.low, found.high, width_digits=1)
