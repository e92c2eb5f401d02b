"""Faster loaders in place of a script's own: ``resident`` keeps data on the device, ``decode_on_gpu`` decodes images there."""

from typing import TYPE_CHECKING, Any

from ddpbench.loaders.resident import resident

if TYPE_CHECKING:
    from ddpbench.loaders.gpu_decoding import decode_on_gpu

__all__ = ["decode_on_gpu", "resident"]


def __getattr__(name: str) -> Any:
    if name == "decode_on_gpu":  # it needs torchvision, which takes a second to import
        from ddpbench.loaders.gpu_decoding import decode_on_gpu

        return decode_on_gpu
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
