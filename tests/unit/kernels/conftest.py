from __future__ import annotations

from collections.abc import Iterator

import pytest

from ddpbench.machine.backends import set_tf32


@pytest.fixture(autouse=True)
def _convolutions_in_float32() -> Iterator[None]:
    """Rounded to TF32, convolutions of inputs that differ by one rounding differ by a thousandth."""
    set_tf32(False)
    yield
    set_tf32(None)
