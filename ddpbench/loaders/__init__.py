"""Faster loaders in place of a script's own: ``resident`` keeps data in memory on the device that trains."""

from ddpbench.loaders.resident import resident

__all__ = ["resident"]
