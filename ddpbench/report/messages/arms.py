"""Names of the arms of a job, and the unit of their throughput."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.record.config import Config
from ddpbench.record.record import Job, Record
from ddpbench.report.format import MISSING
from ddpbench.report.messages.roles import role_name

SELF_EXPLANATORY_FIELDS = ("workload", "precision", "optimizer", "loader", "engine")
"""Fields whose values need no field name next to them."""


def arm_values(config: Config, swept: Sequence[str]) -> list[str]:
    """The value of each swept field as typed on the command line."""
    values = (getattr(config, field) for field in swept)
    return [("on" if value else "off") if isinstance(value, bool) else MISSING if value is None else str(value) for value in values]


def arm_name(config: Config, swept: Sequence[str]) -> str:
    """The values that distinguish an arm, ``amp-fp16 batch-size 128``; the workload if there are none."""
    values = zip(swept, arm_values(config, swept), strict=True)
    parts = (value if field in SELF_EXPLANATORY_FIELDS else f"{field.replace('_', '-')} {value}" for field, value in values)
    return " ".join(parts) or config.workload


def arm_label(record: Record, job: Job) -> str:
    """What sets an arm of ``job`` apart: the fields that the job compares, and its role; empty for the only arm."""
    return " ".join(filter(None, [arm_name(record.config, job.swept) if job.swept else "", role_name(record.role, job)]))


def throughput_unit(*records: Record) -> str:
    """``images/s``, ``points/s``, or ``samples/s`` if the records' sample units differ."""
    units = {record.sample_unit for record in records}
    return f"{units.pop() if len(units) == 1 else 'sample'}s/s"
