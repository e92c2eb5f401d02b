"""Fused kernels for training convolutional networks: ``fuse`` gives them to a model. Needs Triton, which comes with torch for CUDA."""

from ddpbench.kernels.fusion import fuse

__all__ = ["fuse"]
