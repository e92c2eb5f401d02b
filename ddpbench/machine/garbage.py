"""When Python collects garbage: rarely while modules are imported, as usual while anything trains."""

from __future__ import annotations

import gc

USUAL_THRESHOLD = gc.get_threshold()
IMPORT_THRESHOLD = 100_000
"""Objects that are allocated and not freed between two collections. Python's default slows down imports, whose objects stay."""


def collect_rarely() -> None:
    """Collect garbage rarely, until ``collect_as_usual``."""
    gc.set_threshold(IMPORT_THRESHOLD)


def collect_as_usual() -> None:
    gc.set_threshold(*USUAL_THRESHOLD)


def gc_freeze() -> None:
    """Exclude all living objects from later collections, which are as usual: modules never become garbage."""
    gc.freeze()
    collect_as_usual()
