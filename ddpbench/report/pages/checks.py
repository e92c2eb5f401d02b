"""Whether to trust the figures: the results of the checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from ddpbench.analysis.checks.rules import CHECK_RULES, FIGURE_CHECKS
from ddpbench.record.checks import AnyCheck, Severity, code_of
from ddpbench.record.record import Record
from ddpbench.report.layout import BAD, CAUTION, LABEL, Page, styled, wrap_hint, wrap_items, wrap_text
from ddpbench.report.messages.checks import check_hint, check_sentence
from ddpbench.report.messages.sentence import Sentence, join_sentences, sentence_text, with_ranges, without_quantities
from ddpbench.report.pages.header import some_arms_text

SEVERITY_LABELS: dict[Severity, tuple[str, str]] = {"error": ("error", BAD), "warning": ("warning", CAUTION), "info": ("note", LABEL)}


def not_measured_lines(reasons: Mapping[str, str], page: Page) -> Iterator[Text]:
    """One line per reason why something was not measured."""
    label = "not measured"
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        yield from styled(wrap_text(f"{label}  ", f"{', '.join(names)}: {reason}", page), LABEL, len(label))


def check_lines(arms: Mapping[str, Record], page: Page, hints: bool = True) -> Iterator[Text]:
    """One line per error and warning, with its hint, and the notes in one sentence; on a verbose page a line and a hint for each of them.

    ``arms`` maps arm names to records. Equal findings of several arms share a line and a hint. Pass ``hints=False`` if the command
    lacks the flags that hints name, or to keep the page short. A verbose page lists the checks that passed, too.
    """
    severities: list[Severity] = [*SEVERITY_LABELS] if page.verbose else ["error", "warning"]
    yield from _severity_lines(arms, page, severities, hints)
    unavailable = dict.fromkeys(
        record.environment.health_unavailable_reason for record in arms.values() if record.environment.health_unavailable_reason
    )
    if not page.verbose:
        doubted = any(isinstance(check, FIGURE_CHECKS) and check.severity != "info" for record in arms.values() for check in record.checks)
        notes: dict[str, dict[str, Sentence]] = {}
        for name, record in arms.items():
            for check in record.checks:
                if check.severity == "info" and not (doubted and isinstance(check, FIGURE_CHECKS)):  # which is printed with the others
                    notes.setdefault(check.code, {})[name] = check_sentence(check, record)
        measured = sum(bool(record.rounds) for record in arms.values())
        texts = [text for sentences in notes.values() for text in merge_sentences(sentences, measured)]
        if texts or unavailable:
            text = "; ".join([*texts, *(["no telemetry of the GPUs"] if unavailable else [])])
            yield from styled(wrap_text("note     ", text, page), LABEL, len("note"))
        return
    for reason in unavailable:
        yield from styled(wrap_text("note     telemetry  ", f"unavailable: {reason}", page), LABEL, len("note"))
    if all(record.status in ("ok", "invalid") for record in arms.values()):
        fired = {check.code for record in arms.values() for check in record.checks}
        passed = [code for code in map(code_of, CHECK_RULES) if code not in fired]
        yield from styled(wrap_items("passed   ", passed, page), LABEL, len("passed"))


def strict_failure_lines(arms: Mapping[str, Record], page: Page) -> Iterator[Text]:
    """One line per check of severity "error" or "warning", the reasons for ``--strict`` to fail."""
    yield from _severity_lines(arms, page, ["error", "warning"], hints=False)


def _severity_lines(arms: Mapping[str, Record], page: Page, severities: Sequence[Severity], hints: bool) -> Iterator[Text]:
    """The checks of one arm share a line if they doubt its figure; those of several arms are one line per check, with their ranges."""
    found: dict[tuple[Severity, str], dict[str, Sentence]] = {}
    hints_of: dict[tuple[Severity, str], set[str]] = {}
    for name, record in arms.items():
        for checks in _group_figure_checks(record.checks) if len(arms) == 1 else ([check] for check in record.checks):
            first, codes = checks[0], ", ".join(check.code for check in checks)
            if first.severity in severities:
                sentence = join_sentences([check_sentence(check, record) for check in checks])
                found.setdefault((first.severity, codes), {})[name] = sentence
                hints_of.setdefault((first.severity, codes), set()).add(check_hint(first, record) if hints else "")
    width = max((len(codes) for _, codes in found), default=0)
    measured = sum(bool(record.rounds) for record in arms.values())
    for (severity, codes), sentences in found.items():
        word, style = SEVERITY_LABELS[severity]
        label = f"{word:7}  {codes:{width}}  "
        for text in merge_sentences(sentences, measured):
            yield from styled(wrap_text(label, text, page), style, len(word))
            label = " " * len(label)
        if hint := max(hints_of[severity, codes], key=lambda each: (len(each), each)):  # of those that differ in a number, the largest
            yield from styled(wrap_hint(" " * len(label), f"hint: {hint}", page))


def _group_figure_checks(checks: Sequence[AnyCheck]) -> Iterator[Sequence[AnyCheck]]:
    """Each check on its own, but noise, drift and short rounds together: they share a line, with the hint of the first."""
    of_figure = [check for check in checks if isinstance(check, FIGURE_CHECKS)]
    for check in checks:
        if not isinstance(check, FIGURE_CHECKS):
            yield [check]
        elif check is of_figure[0]:
            yield of_figure


def merge_sentences(sentences: Mapping[str, Sentence], num_arms: int) -> list[str]:
    """The findings of some of ``num_arms`` arms, in as few sentences as possible.

    Sentences that differ in quantities only become one with their ranges: ``the rounds vary by 1.2% to 3.0%``.
    """
    alike: dict[Sentence, dict[str, Sentence]] = {}
    for name, sentence in sentences.items():
        alike.setdefault(without_quantities(sentence), {})[name] = sentence
    merged = [(with_ranges([*some.values()]), [*some]) for some in alike.values()]
    return [f"{some_arms_text(names, num_arms)}: {sentence_text(sentence)}".removeprefix(": ") for sentence, names in merged]
