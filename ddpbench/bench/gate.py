"""``--fail-if-data-wait``: fails a run that waits for data too long, for use in CI."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import BenchError, DataWaitExceeded, UsageError
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Job, Record
from ddpbench.report.messages.arms import arm_name

NO_LOADER_HINT = "waits for data are seen only in a DataLoader that the thread that trains iterates"


def check_gate_applies(arms: Sequence[ResolvedConfig]) -> None:
    """Raises UsageError if the gate could never fail an arm, because none of them waits for data."""
    if arms[0].fail_if_data_wait is not None and all(arm.loader == SYNTHETIC for arm in arms):
        raise UsageError(
            "--fail-if-data-wait has no effect on synthetic data: they are already on the device, so no rank waits for them",
            "use --loader torch or --data-dir DIR",
        )


def gate_error(records: Sequence[Record], job: Job) -> BenchError | None:
    """The error for the arm with the longest data wait, if that exceeds ``--fail-if-data-wait``.

    Otherwise the error for an arm that may wait for data but was not measured: unmeasured does not pass. None if the gate passes.
    """
    limit = records[0].config.fail_if_data_wait
    if limit is None:
        return None
    from ddpbench.analysis.summary import summarize
    from ddpbench.report.messages.phrases import device_clause

    waits = {
        index: share
        for index, record in enumerate(records)
        if _shows_data_wait(record) and (share := summarize(record).data_wait_fraction) is not None
    }
    longest = max(waits, key=lambda index: waits[index], default=None)
    if longest is not None and 100 * waits[longest] > limit:
        record = records[longest]
        return DataWaitExceeded(
            f"{_arm_prefix(record, job)}{device_clause(record, 'wait')} for data {100 * waits[longest]:.3g}% of the time, "
            f"but --fail-if-data-wait allows {limit:g}%",
            "the report explains why" if job.kind == "diagnose" else "run 'ddpbench diagnose' with the same flags to find out why",
        )
    unmeasured = [record for index, record in enumerate(records) if index not in waits and record.config.loader != SYNTHETIC]
    if not unmeasured:
        return None
    hint = "" if unmeasured[0].fault else "use a longer --time-limit" if _shows_data_wait(unmeasured[0]) else NO_LOADER_HINT
    return BenchError(f"{_arm_prefix(unmeasured[0], job)}not measured, so --fail-if-data-wait cannot check its data wait", hint)


def _shows_data_wait(record: Record) -> bool:
    """Whether waits for data are known: those of a script without a DataLoader in the thread that trains count as its own time."""
    return record.script is None or record.script.step != "update"


def _arm_prefix(record: Record, job: Job) -> str:
    return f"{arm_name(record.config, job.swept)}: " if job.swept else ""
