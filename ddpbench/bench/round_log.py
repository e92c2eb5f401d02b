"""What is told of a turn: in the journal, and to who listens."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.bench.arm import Arm
from ddpbench.bench.journal import Journal
from ddpbench.record.errors import ArmOver
from ddpbench.record.record import Ceilings, Round
from ddpbench.record.request import Request
from ddpbench.record.resolved import Settled
from ddpbench.report.format import about
from ddpbench.report.pages.arms import arm_name
from ddpbench.report.pages.header import rate


def labels_of(request: Request) -> Sequence[str]:
    """A label an arm, empty where arms have none."""
    return request.labels or [""] * len(request.arms)


def named(request: Request, configs: Sequence[Settled], index: int, text: str) -> str:
    """``text`` after the name of the arm that it is of, where there are several."""
    if len(configs) == 1:
        return text
    label = labels_of(request)[index]
    return f"{arm_name(configs[index], request.swept)}{f' ({label})' if label else ''}: {text}"


def note(journal: Journal, index: int, arm: Arm, measured: Round | ArmOver, ceilings: Ceilings | None) -> str:
    """Takes down what a turn gave, a round or the reason why there is none; returns it in words."""
    if isinstance(measured, ArmOver):
        journal.drop(index, measured)
        return measured.message
    journal.add(index, measured, data=arm.data, attestation=arm.attestation, preparation=arm.preparation, ceilings=ceilings)
    return f"{about(measured.images_per_s, 4)} {rate(journal.job.records[index])}"
