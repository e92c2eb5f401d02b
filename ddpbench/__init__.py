"""ddpbench: how fast your GPUs train, whether to believe it, and what holds them back."""

__version__ = "0.1.0"
