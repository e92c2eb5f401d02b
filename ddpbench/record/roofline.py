"""The work of a training step per layer, and the limits of the device that bound its time."""

from __future__ import annotations

import msgspec

from ddpbench.record.ranges import Amount, Milliseconds, NonZero


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Counted work of one step on one rank, and its time. FLOPs are 2 per multiply-add; ``num_bytes`` are read and written by kernels."""

    flops: Amount
    num_bytes: Amount
    kernels: Amount  # that were launched; on a CPU operators
    ms: Milliseconds  # in kernels; on a CPU in operators


class LayerWork(msgspec.Struct, frozen=True, kw_only=True):
    """Work of one layer: a module with operators of its own, or a part of the step outside of the model."""

    name: str  # path of the module; empty for the whole model; "(optimizer)" and so on for a part of the step
    kind: str  # class of the module; empty for a part of the step
    forward: Work
    backward: Work


class DeviceLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Measured limits of one device."""

    matmul_tflops: NonZero  # in the dtype that the step computes in
    copy_gb_per_s: NonZero  # 10^9 bytes per second, read and written
    launch_us: NonZero  # from one small operator to the next


class FusedWork(msgspec.Struct, frozen=True, kw_only=True):
    """What the fused kernels would replace in a step, the bytes that they would read and write instead, and FLOPs of convolutions."""

    replaced_ms: Milliseconds
    num_bytes: Amount
    flops: Amount = 0.0  # of convolutions that would run over blocks of pixels, products with zeros included


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """A step of rank 0, layer by layer in the order of the forward pass."""

    layers: list[LayerWork]
    limits: DeviceLimits
    fused: FusedWork | None = None  # set if the kernels can run, and a diagnosis asks for them
