"""The uint8 loader gives the same crops and pixels as PIL for every file format."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from ddpbench.data import image_decoding as jpeg
from ddpbench.data.batch_timing import Stopwatch
from ddpbench.data.crop import CropBox, center_crop, random_resized_crop
from ddpbench.data.loaders import uint8
from ddpbench.data.loaders.torch import PilTransform
from ddpbench.data.loaders.uint8 import Uint8Transform
from ddpbench.data.normalize import NORMALIZATION
from ddpbench.record.errors import BenchError


def photograph(width: int, height: int, mode: str = "RGB", form: str = "JPEG", **how: object) -> bytes:
    """A smooth image that survives decoding at half size and sub-pixel shifts."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
    written = io.BytesIO()
    coarse.resize((width, height), Image.Resampling.BICUBIC).convert(mode).save(written, form, **{"quality": 95, **how})
    return written.getvalue()


def decode_with_pil(content: bytes, side: int) -> torch.Tensor:
    """(S, S, 3) pixel levels of the loader ``torch``."""
    known = NORMALIZATION["imagenet"]
    sample = PilTransform(side, augment=False)(content, "file", Stopwatch()).permute(1, 2, 0)
    return (sample * torch.tensor(known.std) + torch.tensor(known.mean)) * 255


def decode_uint8(content: bytes, side: int) -> torch.Tensor:
    return Uint8Transform(side, augment=False)(content, "file", Stopwatch())


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (60, 80), (900, 640), (33, 1200), (2000, 1500)])
def test_uint8_pixels_match_pil(size: tuple[int, int]) -> None:
    content = photograph(*size)
    seen, expected = decode_uint8(content, 64), decode_with_pil(content, 64)
    assert (seen.dtype, seen.shape) == (torch.uint8, (64, 64, 3))
    difference = (seen - expected).abs()
    assert difference.mean() < 5, "crops start at whole pixels of the decoded image, not the resized one"
    assert abs(float(seen.float().mean() - expected.mean())) < 0.5


@pytest.mark.parametrize(
    ("mode", "form"),
    [("L", "JPEG"), ("CMYK", "JPEG"), ("RGB", "PNG"), ("RGBA", "PNG"), ("P", "PNG"), ("LA", "PNG"), ("1", "BMP"), ("L", "PPM")],
)
def test_uint8_pixels_match_pil_for_every_mode_and_format(mode: str, form: str) -> None:
    content = photograph(300, 240, mode, form)
    assert (decode_uint8(content, 64) - decode_with_pil(content, 64)).abs().mean() < (2.5 if mode not in ("P", "1") else 10)


@pytest.mark.parametrize("how", [{"progressive": True}, {"subsampling": 0}, {"exif": b"Exif\0\0" + bytes(3000)}, {"quality": 30}])
def test_jpeg_size_is_read_from_every_kind_of_jpeg(how: dict[str, object]) -> None:
    content = photograph(301, 203, **how)
    assert jpeg.jpeg_size(content) == (301, 203)
    assert (decode_uint8(content, 64) - decode_with_pil(content, 64)).abs().mean() < 2.5


def test_non_jpeg_has_no_jpeg_size() -> None:
    whole = photograph(300, 200)
    assert jpeg.jpeg_size(photograph(30, 20, form="PNG")) is None
    assert [jpeg.jpeg_size(content) for content in (b"", whole[:2], whole[:40], b"\xff\xd8\xff" + bytes(100))] == [None] * 4
    assert jpeg.jpeg_size(whole[:2] + b"\xff\xff" + whole[2:]) == (300, 200), "markers may be padded"


def test_pil_decodes_if_no_jpeg_decoder_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    content = photograph(400, 300)
    decoded = decode_uint8(content, 224)
    assert jpeg.find_decoder() is not None, "torchvision provides one"
    monkeypatch.setattr(uint8, "find_decoder", lambda: None)
    assert (decode_uint8(content, 224).int() - decoded.int()).abs().max() <= 1


@pytest.mark.filterwarnings("error")
def test_torchvision_decoder_emits_no_deprecation_warning() -> None:
    assert jpeg._torchvision_decoder()(photograph(30, 20)).shape == (3, 20, 30)


@pytest.mark.parametrize("side", [224, 64])
def test_damaged_file_is_named(side: int) -> None:
    whole = photograph(600, 400)
    for damaged in (whole[: len(whole) // 2], whole[:200], b"\xff\xd8\xff" + bytes(500), b"no image at all"):
        with pytest.raises(BenchError, match=r"cannot read the image 'some/file\.jpg'"):
            Uint8Transform(side, augment=True)(damaged, "some/file.jpg", Stopwatch())


def test_large_image_is_decoded_at_reduced_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    monkeypatch.setattr(uint8, "to_rgb", lambda image, file: sizes.append(image.size) or image.convert("RGB"))
    for width, height in ((4000, 3600), (1800, 1200), (900, 800)):
        decode_uint8(photograph(width, height), 224)
    assert sizes == [(1000, 900), (900, 600)], "a quarter, a half; the last takes the fast path at full size"


@pytest.mark.parametrize("size", [(500, 375), (40, 300), (300, 40)])
def test_random_crops_match_torchvision(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    crop, like = v2.RandomResizedCrop(224), [torch.empty(3, size[1], size[0])]
    theirs = [crop.make_params(like) for _ in range(3000)]
    ours = [random_resized_crop(*size) for _ in range(3000)]
    expected = torch.tensor([[drawn[name] for name in ("top", "left", "height", "width")] for drawn in theirs]).double()
    drawn = torch.tensor(ours).double()
    scale = torch.tensor([size[1], size[0], size[1], size[0]])
    torch.testing.assert_close(drawn.mean(0) / scale, expected.mean(0) / scale, atol=0.02, rtol=0)
    torch.testing.assert_close(drawn.std(0) / scale, expected.std(0) / scale, atol=0.02, rtol=0)
    top, left, height, width = drawn.T
    assert bool(((top + height <= size[1]) & (left + width <= size[0]) & (top >= 0) & (left >= 0) & (height > 0) & (width > 0)).all())


def test_center_crop_matches_resize_and_crop() -> None:
    assert center_crop(256, 256, 224) == CropBox(16, 16, 224, 224)
    assert center_crop(512, 256, 224) == CropBox(16, 144, 224, 224)
    assert center_crop(1, 3, 224) == CropBox(1, 0, 1, 1)
    assert center_crop(375, 500, 64) == CropBox(82, 21, 330, 329)


def test_file_with_wrong_suffix_is_read_by_content(tmp_path: Path) -> None:
    from open_loaders import config, opened, take

    for label, form in enumerate(("PNG", "JPEG")):
        (tmp_path / f"class{label}").mkdir()
        (tmp_path / f"class{label}" / "image.jpg").write_bytes(photograph(80, 60, form=form))
    with opened(config("torch-uint8", tmp_path, workers=0, augment=False)) as live:
        images, labels = take(live, 1)
    assert sorted(labels.tolist()) == [0, 1]
    assert (images[0] - images[1]).abs().mean() < 0.1
