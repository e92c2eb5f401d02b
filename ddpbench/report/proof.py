"""What was predicted of the cures and what came of it; then the one command to use from now on, and what it is worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ddpbench.analysis.pipeline.experiments import diagnosed
from ddpbench.analysis.whatif.outcome import Outcome, best, can_be_tried, command_for, outcomes
from ddpbench.analysis.words import device_word
from ddpbench.record.diagnosis import AGAIN
from ddpbench.record.record import Job, Record
from ddpbench.report.figures import about, fixed, interval
from ddpbench.report.header import rate
from ddpbench.report.ink import GOOD, LABEL, inked
from ddpbench.report.layout import Page, columns, command, sentence
from ddpbench.report.whatif import gain_text


def proof(job: Job, page: Page) -> Iterator[Text]:
    """Nothing where nothing was predicted."""
    found = [each for each in outcomes(job) if each.prediction.gain is not None]
    if not found:
        return
    heading = ["cure", "predicted (90%)", "measured (95%)", "held"]
    rows = [[each.prediction.change.words, _predicted(each), *_measured(each)] for each in found]
    lines = columns([heading, *rows], "<<<<", page)
    if max(map(len, lines)) > page.width:
        yield from inked(["cure: predicted (90%); measured (95%)"], LABEL)
        for cells in rows:
            yield from inked(sentence("  ", f"{cells[0]}: {'; '.join(filter(None, cells[1:]))}", page))
    else:
        yield from inked(lines[:1], LABEL)
        yield from inked(lines[1:])


def use(job: Job, page: Page) -> Iterator[Text]:
    """Nothing where nothing was predicted, or what was could be tried, and was not."""
    found, real = outcomes(job), diagnosed(job)
    if not found or real is None:
        return
    winner = best(found)
    if winner is None or winner.measured is None:
        tried = any(each.failed or each.measured for each in found)
        if tried or not any(each.prediction.gain is not None and can_be_tried(each.prediction.change) for each in found):
            why = "nothing that was tried is measurably faster" if tried else "no gain is predicted of anything that can be tried here"
            yield from inked(sentence("use    ", f"the setting as it is: {why}", page), LABEL, 3)
        return
    yield from inked(command("use    ", command_for(job, winner.prediction.change), page), GOOD)
    yield from inked(sentence("worth  ", _worth(winner.measured.center, job, real), page), LABEL, 5)


def _predicted(outcome: Outcome) -> str:
    found = outcome.prediction
    if found.gain is None or found.low is None or found.high is None:
        return ""
    return gain_text(found.gain, found.low, found.high)


def _measured(outcome: Outcome) -> Sequence[str]:
    """What came of it, and how well the prediction held."""
    if outcome.failed:
        return [f"failed: {outcome.failed}"]
    if outcome.measured is None:
        return ["not tried" if can_be_tried(outcome.prediction.change) else "cannot be tried here", "unproved"]
    ratio, predicted = outcome.measured, outcome.prediction.gain or 1.0
    if not ratio.has_interval:
        return [f"{about(ratio.center, 2)}x, too few rounds to tell", "unproved"]
    held = f"{'inside' if outcome.inside else 'outside'}, {_off_by(predicted / ratio.center - 1)}"
    center, low, high = interval(ratio.center, ratio.low, ratio.high, width_digits=1)
    if not outcome.told:
        return [f"{center}x ({low} to {high})", f"{held}, no gain measured"]
    return [f"{center}x ({low} to {high})", held + ("" if outcome.gained else ", a loss")]


def _off_by(error: float) -> str:
    """``9% too high``."""
    share = f"{100 * abs(error):.0f}%"
    return "0% off" if share == "0%" else f"{share} too {'high' if error > 0 else 'low'}"


def _worth(gain: float, job: Job, real: Record) -> str:
    again = next(record for record in job.records if record.label == AGAIN)
    now = sum(timed.images for timed in again.rounds) / sum(timed.wall_s for timed in again.rounds)
    hours = 24 * real.world_size
    device = "GPU-hours" if device_word(real.environment) == "GPU" else "hours of a rank"
    saved = f"{fixed((1 - 1 / gain) * hours, 1)} of {hours:,} {device} a day are saved for the same work"
    return f"{about((gain - 1) * now)} {rate(real)} more; {saved}"
