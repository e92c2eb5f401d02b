"""Journal entry and progress text for each round of an arm."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.bench.arm import Arm
from ddpbench.bench.journal import Journal
from ddpbench.record.config import ResolvedConfig
from ddpbench.record.errors import ConfigFailed
from ddpbench.record.record import Round
from ddpbench.record.request import Request
from ddpbench.record.roles import ALLREDUCE_ONLY
from ddpbench.report.format import format_rounded
from ddpbench.report.messages.arms import arm_name, throughput_unit
from ddpbench.report.messages.roles import role_name


def with_arm_name(request: Request, configs: Sequence[ResolvedConfig], index: int, text: str) -> str:
    """``text``, prefixed with the name of its arm if there are several."""
    if len(configs) == 1:
        return text
    label = role_name(request.arm_roles[index])
    return f"{arm_name(configs[index], request.swept)}{f' ({label})' if label else ''}: {text}"


def log_round(journal: Journal, index: int, arm: Arm, measured: Round | ConfigFailed) -> str:
    """Record a round, or the reason why it failed, in the journal; returns the progress text."""
    if isinstance(measured, ConfigFailed):
        journal.fail_arm(index, measured)
        return measured.message
    journal.add_round(index, measured, data=arm.data, observed_precision=arm.observed_precision, warmup=arm.warmup)
    record = journal.job.records[index]
    if record.role == ALLREDUCE_ONLY:
        return f"{format_rounded(1000 * measured.wall_s / measured.traces[0].steps)} ms per step"
    return f"{format_rounded(measured.samples_per_s, 4)} {throughput_unit(record)}"
