"""How runs stand that did not end well, or not yet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from rich.text import Text

from ddpbench.record.record import Record
from ddpbench.report.header import those
from ddpbench.report.ink import BAD, LABEL, inked
from ddpbench.report.layout import Page, sentence

JOBS_ROUNDS = re.compile(r", \d+ of \d+ rounds$")
"""How many rounds the whole job had, of all its arms: a page tells how many this arm had."""


def endings(arms: Mapping[str, Record], page: Page) -> Iterator[Text]:
    """A status, what happened and after how many rounds, and a hint; nothing for what ended well.

    ``arms`` holds a record by the name of its arm. What several share is said once, and what is invalid among them their table tells.
    """
    alike: dict[tuple[str, str, str], list[str]] = {}
    for name, record in arms.items():
        if record.status != "ok" and (record.status != "invalid" or len(arms) == 1):
            hint = record.fault.hint if record.fault else ""
            alike.setdefault((record.status, ending_words(record), hint), []).append(name)
    for (word, words, hint), names in alike.items():
        whose = those(names, len(arms))
        said = f"{whose} {words}".lstrip()
        style = LABEL if word == "running" else BAD
        yield from inked(sentence("", said, page), style, len(said) - len(words) + len(word))
        if hint:
            yield from inked(sentence("  hint  ", hint, page), LABEL, len("  hint"))


def ending_words(record: Record) -> str:
    """``failed: rank 2 was killed, 2 of 5 rounds``; ``interrupted by SIGINT, 3 of 5 rounds``; ``invalid: loss not finite, step 41``."""
    word = record.status
    if word == "invalid":
        return f"{word}: {'; '.join(check.sentence for check in record.checks if check.effect == 'blocks')}"
    message = JOBS_ROUNDS.sub("", record.fault.message) if record.fault else ""
    happened = message if message.startswith(word) else f"{word}: {message}" if message else word
    return f"{happened}, {len(record.rounds):,} of {record.config.rounds:,} rounds"
