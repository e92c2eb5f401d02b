"""What earlier runs of the same command on the same machine gave: how much launches differ here."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.record.config import measured
from ddpbench.record.record import Record


def repeated(record: Record, earlier: Sequence[Record]) -> list[float]:
    """The images/s of those of the ``earlier`` runs that are trusted and of the same Config, hosts, devices and software.

    ``record`` itself is passed over.
    """
    return [other.headline.images_per_s for other in earlier if other.headline and _repeats(other, record)]


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
    same_thing = measured(other.config) == measured(record.config) and other.label == record.label
    return same_thing and there.software == here.software and same_machine and not same_launch
