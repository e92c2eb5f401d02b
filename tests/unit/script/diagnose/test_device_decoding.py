"""JPEG files of a dataset, decoded where the model trains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torchvision  # noqa: F401  as a script whose dataset has images
from PIL import Image

from ddpbench.data.image_decoding import as_tensor
from ddpbench.script.diagnose.device_decoding import benchmark_device_decoding, decode_and_resize

CUDA = torch.device("cuda", 0)


@pytest.fixture
def files(tmp_path: Path) -> Sequence[str]:
    """JPEGs of one colour each."""
    paths = [tmp_path / f"{number}.jpg" for number in range(6)]
    for number, path in enumerate(paths):
        Image.new("RGB", (60 + number, 40), (40 * number, 100, 200)).save(path, quality=95)
    return [str(path) for path in paths]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_images_have_the_size_of_the_batch(files: Sequence[str], device: str) -> None:
    encoded = [as_tensor(Path(file).read_bytes()) for file in files]
    images = decode_and_resize(encoded, (24, 32), torch.device(device))
    assert images.shape == (6, 3, 24, 32)
    assert images.device.type == device
    for number, image in enumerate(images):
        assert image.mean(dim=(1, 2)).cpu().tolist() == pytest.approx([40 * number, 100, 200], abs=3)


@pytest.mark.cuda
def test_rate_is_measured(files: Sequence[str]) -> None:
    found = benchmark_device_decoding(files, (24, 32), CUDA, 0.1)
    assert found is not None
    assert found.images % 6 == 0
    assert found.elapsed_s >= 0.1


def test_nothing_is_measured_if_the_gpu_cannot_decode(files: Sequence[str], tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "image.png")
    assert benchmark_device_decoding([str(tmp_path / "image.png")], (24, 32), CUDA, 0.1) is None
    assert benchmark_device_decoding(files, None, CUDA, 0.1) is None
