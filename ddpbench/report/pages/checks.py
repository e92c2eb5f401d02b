"""Whether to trust the figures: the results of the checks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from rich.text import Text

from ddpbench.analysis.checks.figure import CHECK_RULES, FIGURE_CHECKS
from ddpbench.record.checks import Check, Severity
from ddpbench.record.record import Record
from ddpbench.report.layout import BAD, CAUTION, LABEL, Page, styled, wrap_hint, wrap_items, wrap_text
from ddpbench.report.pages.header import some_arms_text

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")

SEVERITY_LABELS: dict[Severity, tuple[str, str]] = {"blocks": ("blocked", BAD), "warns": ("warning", CAUTION), "informs": ("note", LABEL)}


def not_measured_lines(left_out: Mapping[str, str], page: Page) -> Iterator[Text]:
    """One line per reason why something was not measured."""
    word = "not measured"
    whats: dict[str, list[str]] = {}
    for what, why in left_out.items():
        whats.setdefault(why, []).append(what)
    for why, alike in whats.items():
        yield from styled(wrap_text(f"{word}  ", f"{', '.join(alike)}: {why}", page), LABEL, len(word))


def check_lines(arms: Mapping[str, Record], page: Page, verbose: bool = False, hints: bool = True) -> Iterator[Text]:
    """One line per check that fired, with its hint; with ``verbose`` also the passed checks.

    ``arms`` maps arm names to records. Equal findings of several arms share a line and a hint. Pass ``hints=False`` if the command
    lacks the flags that hints name, or to keep the page short.
    """
    yield from _severity_lines(arms, page, [*SEVERITY_LABELS], hints)
    for health in dict.fromkeys(
        record.environment.health_unavailable_reason for record in arms.values() if record.environment.health_unavailable_reason
    ):
        yield from styled(wrap_text("note     health  ", f"unavailable: {health}", page), LABEL, len("note"))
    if verbose and all(record.status in ("ok", "invalid") for record in arms.values()):
        spoke = {check.code for record in arms.values() for check in record.checks}
        silent = [name for name in (rule.__name__.replace("_", "-") for rule in CHECK_RULES) if name not in spoke]
        yield from styled(wrap_items("passed   ", silent, page), LABEL, len("passed"))


def strict_failure_lines(arms: Mapping[str, Record], page: Page) -> Iterator[Text]:
    """One line per check that blocks or warns, the reasons for ``--strict`` to fail."""
    yield from _severity_lines(arms, page, ["blocks", "warns"], hints=False)


def _severity_lines(arms: Mapping[str, Record], page: Page, effects: Sequence[Severity], hints: bool) -> Iterator[Text]:
    said: dict[tuple[Severity, str, str], dict[str, str]] = {}
    for name, record in arms.items():
        for check in _merge_figure_checks(record.checks):
            if check.severity in effects:
                said.setdefault((check.severity, check.code, check.hint if hints else ""), {})[name] = check.sentence
    width = max((len(spoken) for _, spoken, _ in said), default=0)
    measured = sum(bool(record.rounds) for record in arms.values())
    for (effect, spoken, hint), sentences in said.items():
        word, style = SEVERITY_LABELS[effect]
        label = f"{word:7}  {spoken:{width}}  "
        for text in merge_sentences(sentences, measured):
            yield from styled(wrap_text(label, text, page), style, len(word))
            label = " " * len(label)
        if hint:
            yield from styled(wrap_hint(" " * len(label), f"hint: {hint}", page))


def _merge_figure_checks(checks: Sequence[Check]) -> list[Check]:
    """Merge noise, drift and short rounds into one line, with the hint of the first."""
    figure = [check for check in checks if check.code in FIGURE_CHECKS]
    if len(figure) < 2:
        return list(checks)
    names, sentences = ", ".join(check.code for check in figure), "; ".join(check.sentence for check in figure)
    first = msgspec.structs.replace(figure[0], code=names, sentence=sentences)
    return [first if check is figure[0] else check for check in checks if check is figure[0] or check not in figure]


def merge_sentences(sentences: Mapping[str, str], num_arms: int) -> list[str]:
    """The findings of some of ``num_arms`` arms, in as few sentences as possible.

    Sentences that differ in one number become one with its range: ``the rounds vary by 1.2% to 3.0%``.
    """
    whose: dict[str, list[str]] = {}
    for name, text in sentences.items():
        whose.setdefault(text, []).append(name)
    words = sorted((text.split() for text in whose), key=_numbers)
    places = [place for place, variants in enumerate(zip(*words, strict=False)) if len({*variants}) > 1]
    alike = len({len(each) for each in words}) == 1 and len(places) == 1 and all(NUMBER.match(each[places[0]]) for each in words)
    if not alike:
        return [f"{some_arms_text(names, num_arms)}: {text}".removeprefix(": ") for text, names in whose.items()]
    [place], least, most = places, words[0], words[-1]
    text = " ".join([*least[: place + 1], "to", *most[place:]])
    return [f"{some_arms_text([*sentences], num_arms)}: {text}".removeprefix(": ")]


def _numbers(words: Sequence[str]) -> list[float]:
    return [float(number[0].replace(",", "")) for word in words if (number := NUMBER.match(word))]
