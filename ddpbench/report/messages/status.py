"""How a run ended, in words."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.record.record import Record
from ddpbench.report.messages.checks import check_text
from ddpbench.report.messages.phrases import format_rounds


def status_text(record: Record, job_records: Sequence[Record] = ()) -> str:
    """``failed: rank 2 killed, 2 of 5 rounds``; ``interrupted by SIGINT, 3 of 5 rounds``; ``invalid: non-finite loss at step 41``.

    The rounds are those of ``job_records`` or, if it is empty, of ``record``.
    """
    return "".join(status_parts(record, job_records))


def status_parts(record: Record, job_records: Sequence[Record] = ()) -> tuple[str, str]:
    """``status_text`` in two parts: what names the status, and what follows."""
    word = record.status
    if word == "invalid":
        return word, f": {'; '.join(check_text(check, record) for check in record.checks if check.severity == 'error')}"
    message, rounds = record.fault.message if record.fault else "", f", {format_rounds(job_records or [record])}"
    if not message:
        return word, rounds
    if message.startswith(word):  # "interrupted by SIGINT"
        return word, f"{message.removeprefix(word)}{rounds}"
    return (message, rounds) if word == "hung" else (word, f": {message}{rounds}")  # "rank 1 (node-01) hung at step 0"


def failure_reason(record: Record) -> str:
    """Why an arm has no figure, as a sentence."""
    if record.fault is not None:
        return record.fault.message
    return next((check_text(check, record) for check in record.checks if check.severity == "error"), "no round finished")
