"""Ranges of the numbers in a record, which msgspec checks when one is loaded. They are wide: no real run leaves them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=2**60)]
"""Things or bytes."""

AtLeastOne = Annotated[int, Meta(ge=1, le=2**60)]
"""At least one of them."""

Seconds = Annotated[float, Meta(ge=-1, le=1e9)]
"""Up to 31 years, and not below 0 but for what two clocks differ by."""

Elapsed = Annotated[float, Meta(ge=1e-9, le=1e9)]
"""Seconds that something was divided by, or will be."""

Milliseconds = Annotated[float, Meta(ge=-1, le=1e12)]

Difference = Annotated[float, Meta(ge=-1e12, le=1e12)]
"""Between two readings of a clock or a counter, of which the later one may be lower: a worker that ended is not counted any more."""

Amount = Annotated[float, Meta(ge=0, le=1e24)]
"""A rate, or an amount of anything, in a unit of its own."""

NonZero = Annotated[float, Meta(ge=1e-12, le=1e24)]
"""An amount that is not 0, whose logarithm or inverse is taken."""

Fraction = Annotated[float, Meta(ge=-1e-6, le=1 + 1e-6)]
"""Of 1, but for rounding."""

Parts = Annotated[int, Meta(ge=1, le=1_000_000)]
"""Of a sweep: every one is counted up."""
