"""Python's garbage collector, and what it need not look at."""

from __future__ import annotations

import gc


def spare_the_collector_all_modules() -> None:
    """Modules never become garbage, and every collection would look through all of them."""
    gc.collect()
    gc.freeze()
