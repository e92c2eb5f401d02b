"""Python's garbage collector, and what it need not look at."""

from __future__ import annotations

import gc


def gc_freeze() -> None:
    """Modules never become garbage, and every collection would look through all of them."""
    gc.collect()
    gc.freeze()
