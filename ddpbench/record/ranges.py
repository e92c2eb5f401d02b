"""Ranges of numbers in a record, checked by msgspec on load. They are wide enough for every real run."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=2**60)]
"""A number of items or bytes."""

AtLeastOne = Annotated[int, Meta(ge=1, le=2**60)]
"""A number of items or bytes that is not 0."""

Seconds = Annotated[float, Meta(ge=-1, le=1e9)]
"""Up to 31 years. Slightly negative values come from the difference between two clocks."""

Elapsed = Annotated[float, Meta(ge=1e-9, le=1e9)]
"""Seconds that serve as a divisor."""

Milliseconds = Annotated[float, Meta(ge=-1, le=1e12)]

Difference = Annotated[float, Meta(ge=-1e12, le=1e12)]
"""Difference between two readings of a clock or counter. It may be negative: a worker that ended is no longer counted."""

Amount = Annotated[float, Meta(ge=0, le=1e24)]
"""A rate or an amount, in any unit."""

NonZero = Annotated[float, Meta(ge=1e-12, le=1e24)]
"""A positive amount, safe for logarithm and inverse."""

Fraction = Annotated[float, Meta(ge=-1e-6, le=1 + 1e-6)]
"""A fraction from 0 to 1, with a margin for rounding."""

RelativeChange = Annotated[float, Meta(ge=-1e12, le=1e12)]
"""A relative change: 0.2 is 20% more, -0.1 is 10% less."""

Parts = Annotated[int, Meta(ge=1, le=1_000_000)]
"""Number of parts or points of a sweep. Small, since code loops over all of them."""
