"""Floor 7: the commands, and parsing of their arguments. Only commands that measure import torch."""

from __future__ import annotations

from ddpbench.cli.start import main

__all__ = ["main"]
