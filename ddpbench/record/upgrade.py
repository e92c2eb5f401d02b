"""Upgrades of older job files to today's schema, one function per version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SCHEMA = 2
"""Schema version that this release writes."""

UPGRADES: dict[int, Callable[[dict[str, Any]], None]] = {}
"""By the schema that it reads: changes a decoded job file in place to the next schema."""

OLDEST_SCHEMA = min(UPGRADES, default=SCHEMA)
"""Oldest schema that can still be read. Schema 1 held sentences in place of codes."""


def upgrade(job: dict[str, Any]) -> None:
    """Upgrade a decoded job file in place to ``SCHEMA``."""
    for schema in range(job["schema"], SCHEMA):
        UPGRADES[schema](job)
        job["schema"] = schema + 1
