"""Trust checks: what a check found about a record."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["blocks", "warns", "informs"]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One trust check that found something."""

    code: str = msgspec.field(name="name")
    severity: Severity = msgspec.field(name="effect")
    sentence: str
    numbers: dict[str, float] = {}
    hint: str = ""
