"""Why a loader stays as it is."""

from __future__ import annotations


class NotSupportedError(Exception):
    """A loader cannot be replaced. The message names what is in the way."""
