"""Floor 7: the words of a command to what they stand for, and the table of commands. Only commands that measure import torch."""

from __future__ import annotations

from ddpbench.cli.start import main

__all__ = ["main"]
