"""How fast the GPU decodes the JPEG files of a script's dataset: what it would cost to move that work there."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor
from torch.nn import functional as F

from ddpbench.data.image_decoding import as_tensor, is_jpeg
from ddpbench.record.diagnosis import DeviceDecoding

MAX_FILES = 128
"""Files that are decoded at a time, and again and again."""


def benchmark_device_decoding(
    files: Sequence[str], size: tuple[int, int] | None, device: torch.device, budget_s: float
) -> DeviceDecoding | None:
    """Decode a sample of ``files`` on ``device`` with torchvision (nvJPEG) for ``budget_s``, and resize each image to ``size``.

    ``size`` is the height and width of the images of a batch. None if it is unknown, the script does not use torchvision, the files are no
    JPEGs, or this GPU or torchvision cannot decode them.
    """
    if size is None or "torchvision" not in sys.modules:
        return None
    try:
        encoded = list(_read_jpegs(random.Random(0).sample(files, min(MAX_FILES, len(files)))))
        with catch_warnings():  # torchvision 0.29 recommends TorchCodec
            simplefilter("ignore")
            return _benchmark(encoded, size, device, budget_s)
    except Exception:  # no JPEGs, CMYK, too little memory, a torchvision that is too old or built without nvJPEG
        return None


def _benchmark(encoded: Sequence[Tensor], size: tuple[int, int], device: torch.device, budget_s: float) -> DeviceDecoding:
    decode_and_resize(encoded[:1], size, device)  # starts the decoder
    torch.cuda.synchronize(device)
    begin_s, decoded, elapsed_s = perf_counter(), 0, 0.0
    while elapsed_s < budget_s:
        decode_and_resize(encoded, size, device)
        torch.cuda.synchronize(device)
        decoded, elapsed_s = decoded + len(encoded), perf_counter() - begin_s
    return DeviceDecoding(images=decoded, elapsed_s=elapsed_s)


def _read_jpegs(files: Sequence[str]) -> Iterator[Tensor]:
    """The bytes of each file. Raises ValueError if one is no JPEG."""
    for file in files:
        content = Path(file).read_bytes()
        if not is_jpeg(content):
            raise ValueError(f"no JPEG: {file}")
        yield as_tensor(content)


def decode_and_resize(encoded: Sequence[Tensor], size: tuple[int, int], device: torch.device) -> Tensor:
    """The images on ``device``, float32 (N, 3, H, W)."""
    from torchvision.io import ImageReadMode, decode_jpeg

    images = decode_jpeg(list(encoded), mode=ImageReadMode.RGB, device=device)
    return torch.cat([F.interpolate(image[None].float(), size, mode="bilinear", antialias=True) for image in images])
