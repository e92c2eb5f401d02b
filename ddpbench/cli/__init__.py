"""Floor 4: the words of a command to the Request it stands for, and the table of commands. Torch is imported by ``run`` alone."""

from __future__ import annotations

from ddpbench.cli.commands import main

__all__ = ["main"]
