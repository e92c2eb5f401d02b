"""How runs stand that did not end well, or not yet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from ddpbench.analysis.text import format_rounds
from ddpbench.record.record import Job, Record
from ddpbench.record.text import pluralize
from ddpbench.report.layout import BAD, LABEL, Page, styled, wrap_text
from ddpbench.report.pages.header import some_arms_text

JOB_ROUNDS_SUFFIX = re.compile(r", [\d,]+ of [\d,]+ rounds$")
"""How many rounds the whole job had, of all its arms: a page tells how many those had that it shows."""


def status_lines(arms: Mapping[str, Record], page: Page) -> Iterator[Text]:
    """A status, what happened and after how many rounds, and a hint; nothing for what ended well.

    ``arms`` holds a record by the name of its arm. What several share is said once, and what is invalid among them their table tells.
    """
    alike: dict[tuple[str, str, str], list[str]] = {}
    for name, record in arms.items():
        if record.status != "ok" and (record.status != "invalid" or len(arms) == 1):
            alike.setdefault((record.status, status_text(record), _hint(record)), []).append(name)
    for (word, words, hint), names in alike.items():
        yield from _status_and_hint_lines(some_arms_text(names, len(arms)), word, words, hint, page)


def resume_hint_lines(job: Job, page: Page) -> Iterator[Text]:
    """That the rounds which a journal lacks can still be had; nothing while it runs, or of what would not come out otherwise."""
    if any(record.status == "running" for record in job.records):
        return
    lacking = sum(record.config.rounds - len(record.rounds) for record in job.records if not _is_finished(record))
    if lacking:
        text = f"not whole: the same command goes on with the {pluralize(lacking, 'round')} that it lacks"
        yield from styled(wrap_text("", text, page), LABEL, len("not whole"))


def _is_finished(record: Record) -> bool:
    return record.status == "invalid" or (record.fault is not None and record.fault.arm_index is not None)


def diagnosis_status_lines(record: Record, job: Job, page: Page) -> Iterator[Text]:
    """The same of the job whose page shows ``record`` alone: the rounds are those of all its arms.

    Where all of that record's are there, one that lacks some tells how the job ended.
    """
    told = record if record.status != "ok" else next((each for each in job.records if each.fault and each.fault.arm_index is None), record)
    if told.status != "ok":
        yield from _status_and_hint_lines("", told.status, status_text(told, job.records), _hint(told), page)


def status_text(record: Record, job_records: Sequence[Record] = ()) -> str:
    """``failed: rank 2 was killed, 2 of 5 rounds``; ``interrupted by SIGINT, 3 of 5 rounds``; ``invalid: loss not finite, step 41``.

    The rounds are those of ``record``, or of all that it is ``job_records``.
    """
    word = record.status
    if word == "invalid":
        return f"{word}: {'; '.join(check.sentence for check in record.checks if check.severity == 'blocks')}"
    message = JOB_ROUNDS_SUFFIX.sub("", record.fault.message) if record.fault else ""
    happened = message if message.startswith(word) else f"{word}: {message}" if message else word
    return f"{happened}, {format_rounds(job_records or [record])}"


def _status_and_hint_lines(arm_names: str, status: str, text: str, hint: str, page: Page) -> Iterator[Text]:
    said = f"{arm_names} {text}".lstrip()
    yield from styled(wrap_text("", said, page), LABEL if status == "running" else BAD, len(said) - len(text) + len(status))
    if hint:
        yield from styled(wrap_text("  hint  ", hint, page), LABEL, len("  hint"))


def _hint(record: Record) -> str:
    return record.fault.hint if record.fault else ""
