"""Image files, read and decoded with PIL: the judge of what is an image. Every error names the file."""

from __future__ import annotations

import io

from PIL import Image, UnidentifiedImageError

from ddpbench.record.errors import BenchError


def read_image_bytes(file: str) -> bytes:
    """The bytes of ``file``. Raises BenchError where there are none."""
    try:
        with open(file, "rb", buffering=0) as opened:
            content = opened.read()
    except OSError as problem:
        raise _image_error(file, problem.strerror or str(problem)) from problem
    if not content:
        raise _image_error(file, "it is empty")
    return content


def open_image(content: bytes, file: str) -> Image.Image:
    """The image that ``content`` is of, of which only the beginning is read yet. Raises BenchError where it is none."""
    try:
        return Image.open(io.BytesIO(content))
    except Exception as problem:  # PIL's decoders raise nearly anything on damaged files
        raise _image_error(file, "not an image" if isinstance(problem, UnidentifiedImageError) else str(problem)) from problem


def to_rgb(image: Image.Image, file: str) -> Image.Image:
    """The image whole, as RGB. Raises BenchError where it is damaged."""
    try:
        return image.convert("RGB")
    except Exception as problem:
        raise _image_error(file, str(problem)) from problem


def decode(content: bytes, file: str) -> Image.Image:
    """The image that ``content`` is of, as RGB. Raises BenchError where it is damaged, or no image."""
    return to_rgb(open_image(content, file), file)


def _image_error(file: str, why: str) -> BenchError:
    return BenchError(f"cannot read the image '{file}': {why}", "repair the file, take it away, or leave out a few with --skip-bad N")
