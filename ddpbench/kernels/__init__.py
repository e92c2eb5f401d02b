"""Fused kernels for training convolutional networks: ``fuse`` gives them to a model."""

from ddpbench.kernels.fusion import fuse

__all__ = ["fuse"]
