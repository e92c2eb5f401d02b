"""Reads and decodes image files, with PIL or directly from JPEG bytes to a tensor."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ddpbench.record.errors import BenchError

if TYPE_CHECKING:
    from PIL import Image


def read_image_bytes(file: str) -> bytes:
    """The bytes of ``file``. Raises BenchError if it is empty or unreadable."""
    try:
        with open(file, "rb", buffering=0) as opened:
            content = opened.read()
    except OSError as problem:
        raise _image_error(file, problem.strerror or str(problem)) from problem
    if not content:
        raise _image_error(file, "it is empty")
    return content


def open_image(content: bytes, file: str) -> Image.Image:
    """The image in ``content``, with only its header read.

    Raises BenchError if it is not an image.
    """
    from PIL import Image, UnidentifiedImageError  # optional: other datasets do not need it

    try:
        return Image.open(io.BytesIO(content))
    except Exception as problem:  # PIL's decoders raise nearly anything on damaged files
        raise _image_error(file, "not an image" if isinstance(problem, UnidentifiedImageError) else str(problem)) from problem


def to_rgb(image: Image.Image, file: str) -> Image.Image:
    """The fully decoded image, as RGB. Raises BenchError if it is damaged."""
    try:
        return image.convert("RGB")
    except Exception as problem:
        raise _image_error(file, str(problem)) from problem


def decode(content: bytes, file: str) -> Image.Image:
    """The image in ``content``, as RGB. Raises BenchError if it is damaged or not an image."""
    return to_rgb(open_image(content, file), file)


def _image_error(file: str, why: str) -> BenchError:
    return BenchError(
        f"cannot read the image '{file}': {why}", "repair or remove the file, or skip up to N unreadable files with --skip-bad N"
    )


Decoder = Callable[[bytes], Tensor]
"""From JPEG bytes to RGB, uint8 (3, H, W), channels last in memory. Raises RuntimeError if the JPEG is damaged."""

SEGMENT_MARKER, FRAME_MARKERS = 0xFF, {0xC0, 0xC1, 0xC2}
"""First byte of every segment, and second byte of a frame header: baseline, extended, progressive."""


@cache
def find_decoder() -> Decoder | None:
    """torchcodec's decoder, else torchvision's, whichever works first; None if only PIL works."""
    from PIL import Image

    sample = io.BytesIO()
    Image.new("RGB", (8, 8)).save(sample, "JPEG")
    for make_decoder in (_torchcodec_decoder, _torchvision_decoder):
        try:
            decoder = make_decoder()
            decoder(sample.getvalue())
        except Exception:  # not installed, too old, built without libjpeg, or FFmpeg is missing
            continue
        return decoder
    return None


def is_jpeg(content: bytes) -> bool:
    """Whether the content starts like a JPEG; the file name does not matter."""
    return content[:3] == b"\xff\xd8\xff"


def jpeg_size(content: bytes) -> tuple[int, int] | None:
    """Width and height of a JPEG from its frame header.

    None if it is not a JPEG. Reads the segment that begins the frame (ITU T.81, B.2.2). Opening the file with PIL takes ten times as
    long.
    """
    position = 2
    while is_jpeg(content) and position + 9 <= len(content) and content[position] == SEGMENT_MARKER:
        kind, length = content[position + 1], int.from_bytes(content[position + 2 : position + 4], "big")
        if kind in FRAME_MARKERS:
            height, width = (int.from_bytes(content[offset : offset + 2], "big") for offset in (position + 5, position + 7))
            return (width, height) if width and height else None
        position += 1 if kind == SEGMENT_MARKER else 2 + length  # the marker byte may be repeated as padding
    return None


def _torchcodec_decoder() -> Decoder:
    from torchcodec.decoders import decode_jpeg

    decode: Any = decode_jpeg
    return lambda content: decode(as_tensor(content), mode="RGB")


def _torchvision_decoder() -> Decoder:
    from torchvision.io import ImageReadMode  # importing it registers the operator

    decode: Any = torch.ops.image.decode_jpeg  # since 0.29 its wrapper warns at every image to use torchcodec
    return lambda content: decode(as_tensor(content), ImageReadMode.RGB.value, False)


def as_tensor(content: bytes) -> Tensor:
    """The bytes of a file, as decoders take them: uint8 (N,)."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)  # torch warns about read-only memory
