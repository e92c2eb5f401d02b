"""How runs ended that did not end well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.text import Text

from ddpbench.record.record import Record
from ddpbench.report.ink import BAD, LABEL, inked
from ddpbench.report.layout import Page, sentence


def endings(arms: Mapping[str, Record], page: Page) -> Iterator[Text]:
    """A status, what happened and after how many rounds, and a hint; nothing for what ended well.

    ``arms`` holds a record by the name of its arm. What several share is said once, and what is invalid among them their table tells.
    """
    alike: dict[tuple[str, str, str], list[str]] = {}
    for name, record in arms.items():
        if record.status != "ok" and (record.status != "invalid" or len(arms) == 1):
            hint = record.fault.hint if record.fault else ""
            alike.setdefault((word_of(record.status), ending_words(record), hint), []).append(name)
    for (word, words, hint), names in alike.items():
        whose = "" if len(names) == len(arms) else f"{', '.join(names)} "
        yield from inked(sentence("", whose + words, page), BAD, len(whose) + len(word))
        if hint:
            yield from inked(sentence("  hint  ", hint, page), LABEL, len("  hint"))


def ending_words(record: Record) -> str:
    """``failed: rank 2 was killed, 2 of 5 rounds``; ``interrupted, 3 of 5 rounds``; ``invalid: loss not finite, step 41, rank 0``."""
    word = word_of(record.status)
    if record.status == "invalid":
        return f"{word}: {'; '.join(check.sentence for check in record.checks if check.effect == 'blocks')}"
    reached = f"{len(record.rounds)} of {record.config.rounds} rounds"
    message = record.fault.message if record.fault else ""
    if message and record.status not in ("interrupted", "running"):
        return f"{word}: {message}, {reached}"
    return f"{word}, {reached}" + (f" ({message})" if message else "")


def word_of(status: str) -> str:
    """The status as it is shown. A record left at "running" belongs to a launcher that died: a live one rewrites it."""
    return "cut off" if status == "running" else status
