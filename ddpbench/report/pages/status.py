"""How runs stand that did not end well, or not yet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from ddpbench.analysis.text import rounds_of
from ddpbench.record.record import Job, Record
from ddpbench.record.text import count
from ddpbench.report.layout import Page, sentence
from ddpbench.report.pages.header import those
from ddpbench.report.styled import BAD, LABEL, inked

JOBS_ROUNDS = re.compile(r", [\d,]+ of [\d,]+ rounds$")
"""How many rounds the whole job had, of all its arms: a page tells how many those had that it shows."""


def endings(arms: Mapping[str, Record], page: Page) -> Iterator[Text]:
    """A status, what happened and after how many rounds, and a hint; nothing for what ended well.

    ``arms`` holds a record by the name of its arm. What several share is said once, and what is invalid among them their table tells.
    """
    alike: dict[tuple[str, str, str], list[str]] = {}
    for name, record in arms.items():
        if record.status != "ok" and (record.status != "invalid" or len(arms) == 1):
            alike.setdefault((record.status, ending_words(record), _hint(record)), []).append(name)
    for (word, words, hint), names in alike.items():
        yield from _lines(those(names, len(arms)), word, words, hint, page)


def continued(job: Job, page: Page) -> Iterator[Text]:
    """That the rounds which a journal lacks can still be had; nothing while it runs, or of what would not come out otherwise."""
    if any(record.status == "running" for record in job.records):
        return
    lacking = sum(record.config.rounds - len(record.rounds) for record in job.records if not _is_over(record))
    if lacking:
        text = f"not whole: the same command goes on with the {count(lacking, 'round')} that it lacks"
        yield from inked(sentence("", text, page), LABEL, len("not whole"))


def _is_over(record: Record) -> bool:
    return record.status == "invalid" or (record.fault is not None and record.fault.arm is not None)


def ending_of(record: Record, job: Job, page: Page) -> Iterator[Text]:
    """The same of the job whose page shows ``record`` alone: the rounds are those of all its arms.

    Where all of that record's are there, one that lacks some tells how the job ended.
    """
    told = record if record.status != "ok" else next((each for each in job.records if each.fault and each.fault.arm is None), record)
    if told.status != "ok":
        yield from _lines("", told.status, ending_words(told, job.records), _hint(told), page)


def ending_words(record: Record, among: Sequence[Record] = ()) -> str:
    """``failed: rank 2 was killed, 2 of 5 rounds``; ``interrupted by SIGINT, 3 of 5 rounds``; ``invalid: loss not finite, step 41``.

    The rounds are those of ``record``, or of all that it is ``among``.
    """
    word = record.status
    if word == "invalid":
        return f"{word}: {'; '.join(check.sentence for check in record.checks if check.effect == 'blocks')}"
    message = JOBS_ROUNDS.sub("", record.fault.message) if record.fault else ""
    happened = message if message.startswith(word) else f"{word}: {message}" if message else word
    return f"{happened}, {rounds_of(among or [record])}"


def _lines(whose: str, word: str, words: str, hint: str, page: Page) -> Iterator[Text]:
    said = f"{whose} {words}".lstrip()
    yield from inked(sentence("", said, page), LABEL if word == "running" else BAD, len(said) - len(words) + len(word))
    if hint:
        yield from inked(sentence("  hint  ", hint, page), LABEL, len("  hint"))


def _hint(record: Record) -> str:
    return record.fault.hint if record.fault else ""
