"""What earlier runs of the same command on the same machine gave: how much launches differ here."""

from __future__ import annotations

from pathlib import Path

from ddpbench.record.errors import UsageError
from ddpbench.record.record import Record, load

NEWEST = 30
"""Files looked at: their names begin with the time, and the whole of them is read."""


def earlier_figures(folder: Path, record: Record) -> list[float]:
    """The images/s of trusted records in the newest job files of ``folder``, of the same Config, hosts, devices and software.

    Oldest first. Files that cannot be read are passed over, and so is ``record`` itself.
    """
    figures: list[float] = []
    for path in sorted(folder.glob("*.json"))[-NEWEST:]:
        try:
            records = load(path).records
        except UsageError:
            continue
        figures += [other.headline.images_per_s for other in records if other.headline and _repeats(other, record)]
    return figures


def _repeats(other: Record, record: Record) -> bool:
    """Another trusted launch of the same thing. Two records with the same processes are of one launch, and a merged one is of none."""
    if (
        other.status != "ok"
        or any(check.effect != "informs" for check in other.checks)
        or (other.headline and other.headline.launch_figures)
    ):
        return False
    here, there = record.environment, other.environment
    same_machine = [(place.host, place.device) for place in there.places] == [(place.host, place.device) for place in here.places]
    same_launch = [(place.host, place.pid) for place in there.places] == [(place.host, place.pid) for place in here.places]
    return other.config == record.config and there.software == here.software and same_machine and not same_launch
