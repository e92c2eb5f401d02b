"""The status of runs that did not end well, or have not ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.text import Text

from ddpbench.record.record import Job, Record
from ddpbench.record.text import pluralize
from ddpbench.report.layout import BAD, LABEL, Page, styled, wrap_text
from ddpbench.report.messages.status import status_parts, status_text
from ddpbench.report.pages.header import some_arms_text
from ddpbench.report.pages.throughput import throughput_text


def status_lines(arms: Mapping[str, Record], page: Page) -> Iterator[Text]:
    """Status, message, rounds and hint of each arm that is not ok.

    ``arms`` maps arm names to records. Arms with equal lines share one. Invalid arms among several are left to their table.
    """
    alike: dict[tuple[str, tuple[str, str], str], list[str]] = {}
    for name, record in arms.items():
        if record.status != "ok" and (record.status != "invalid" or len(arms) == 1):
            alike.setdefault((record.status, status_parts(record), _hint(record)), []).append(name)
    for (status, parts, hint), names in alike.items():
        yield from _status_and_hint_lines(some_arms_text(names, len(arms)), status, parts, hint, page)


def resume_hint_lines(job: Job, page: Page) -> Iterator[Text]:
    """A hint that the same command resumes the missing rounds.

    Empty while the job runs, or if the missing arms would end the same way again.
    """
    if any(record.status == "running" for record in job.records):
        return
    missing = sum(record.config.rounds - len(record.rounds) for record in job.records if not _is_finished(record))
    if missing:
        text = f"incomplete: the same command resumes with the {pluralize(missing, 'missing round')}"
        yield from styled(wrap_text("", text, page), LABEL, len("incomplete"))


def _is_finished(record: Record) -> bool:
    return record.status == "invalid" or (record.fault is not None and record.fault.arm_index is not None)


def diagnosis_status_lines(record: Record, job: Job, page: Page) -> Iterator[Text]:
    """The status of a job whose page shows ``record`` only, with the rounds of all its arms.

    If ``record`` is ok, the first record with a fault of the whole job shows how the job ended.
    """
    shown = record if record.status != "ok" else next((each for each in job.records if each.fault and each.fault.arm_index is None), record)
    if shown.status != "ok":
        yield from _status_and_hint_lines("", shown.status, status_parts(shown, job.records), _hint(shown), page)


def quiet_items(record: Record) -> list[str]:
    """What ``--quiet`` prints of a record: its figure, and its status unless it is ok."""
    return [throughput_text(record), *([] if record.status == "ok" else [status_text(record)])]


def _status_and_hint_lines(arm_names: str, status: str, parts: tuple[str, str], hint: str, page: Page) -> Iterator[Text]:
    named = f"{arm_names} {parts[0]}".lstrip()
    yield from styled(wrap_text("", named + parts[1], page), LABEL if status == "running" else BAD, len(named))
    if hint:
        yield from styled(wrap_text("  hint  ", hint, page), LABEL, len("  hint"))


def _hint(record: Record) -> str:
    return record.fault.hint if record.fault else ""
