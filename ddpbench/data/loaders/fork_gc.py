"""Forked workers leave alone the garbage that they inherit: to collect it would hang where it had threads, as a DALI pipeline has."""

from __future__ import annotations

import gc
import os
import threading
from functools import cache

_gc_state = threading.local()
"""Whether the collector was on when this thread forked."""


@cache
def freeze_gc_in_children() -> None:
    """From now on, in every child of this process. To collect it here, before every start, would take a quarter of a second.

    The collector rests while a child begins: it could run in what threading does there before it is the turn of ``_freeze``.
    """
    os.register_at_fork(before=_disable_gc, after_in_parent=_restore_gc, after_in_child=_freeze_gc)


def _disable_gc() -> None:
    _gc_state.on = gc.isenabled()
    gc.disable()


def _restore_gc() -> None:
    if _gc_state.on:
        gc.enable()


def _freeze_gc() -> None:
    gc.freeze()
    gc.enable()
