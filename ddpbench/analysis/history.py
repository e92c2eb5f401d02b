"""What earlier runs of the same command on the same machine gave: how much launches differ here."""

from __future__ import annotations

from collections.abc import Sequence

from ddpbench.record.config import measurement_config
from ddpbench.record.record import Record


def previous_figures(record: Record, previous: Sequence[Record]) -> list[float]:
    """The images/s of those of the ``previous`` runs that are trusted and of the same Config, hosts, devices and software.

    ``record`` itself is passed over.
    """
    return [other.throughput.images_per_s for other in previous if other.throughput and _is_repeat(other, record)]


def _is_repeat(other: Record, record: Record) -> bool:
    """Another trusted launch of the same thing. Two records with the same processes are of one launch, and a merged one is of none."""
    if (
        other.status != "ok"
        or any(check.severity != "informs" for check in other.checks)
        or (other.throughput and other.throughput.launch_images_per_s)
    ):
        return False
    here, there = record.environment, other.environment
    same_machine = [(place.host, place.device_name) for place in there.placements] == [
        (place.host, place.device_name) for place in here.placements
    ]
    same_launch = [(place.host, place.pid) for place in there.placements] == [(place.host, place.pid) for place in here.placements]
    same_thing = measurement_config(other.config) == measurement_config(record.config) and other.label == record.label
    return same_thing and there.software == here.software and same_machine and not same_launch
