"""Forked workers leave alone the garbage that they inherit: to collect it would hang where it had threads, as a DALI pipeline has."""

from __future__ import annotations

import gc
import os
import threading
from functools import cache

_before = threading.local()
"""Whether the collector was on when this thread forked."""


@cache
def leave_garbage_to_the_parent() -> None:
    """From now on, in every child of this process. To collect it here, before every start, would take a quarter of a second.

    The collector rests while a child begins: it could run in what threading does there before it is the turn of ``_freeze``.
    """
    os.register_at_fork(before=_rest, after_in_parent=_go_on, after_in_child=_freeze)


def _rest() -> None:
    _before.on = gc.isenabled()
    gc.disable()


def _go_on() -> None:
    if _before.on:
        gc.enable()


def _freeze() -> None:
    gc.freeze()
    gc.enable()
