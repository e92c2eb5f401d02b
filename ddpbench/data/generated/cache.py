"""Where sets lie that are made without a folder being named."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ddpbench.record.errors import UsageError


def cache_dir(variables: Mapping[str, str] = os.environ) -> Path:
    """XDG_CACHE_HOME/ddpbench, or ~/.cache/ddpbench. Raises UsageError where there is no home either."""
    named = variables.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):  # others are to be ignored, the XDG Base Directory Specification says
        return Path(named) / "ddpbench"
    try:
        return Path.home() / ".cache" / "ddpbench"
    except RuntimeError:
        raise UsageError("there is no home folder for the cache", "set XDG_CACHE_HOME, or name a folder") from None
