"""By how much a GPU that decodes changes the pixels of a script's images, and trials of such a loader."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

pytest.importorskip("nvidia.dali")

from ddpbench.loaders import gpu_decoding
from ddpbench.loaders.errors import NotSupportedError
from ddpbench.script.diagnose.pixel_comparison import compare_pixels
from ddpbench.script.diagnose.trial_loader import open_decoding

pytestmark = pytest.mark.usefixtures("without_preparing_library")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture
def loader(tmp_path: Path) -> DataLoader:
    (tmp_path / "a").mkdir()
    for number in range(12):
        colours = np.random.default_rng(number).integers(0, 256, (5, 6, 3), dtype=np.uint8)
        Image.fromarray(colours).resize((80 + number, 60), Image.Resampling.BICUBIC).save(tmp_path / "a" / f"{number}.jpg")
    transform = transforms.Compose([transforms.RandomResizedCrop(24), transforms.RandomHorizontalFlip(), transforms.ToTensor()])
    return DataLoader(ImageFolder(tmp_path, transform), 4, shuffle=True, drop_last=True)


def used(device: str, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """``device``, where DALI decodes on a CPU, too."""
    if device == "cpu":
        monkeypatch.setattr(gpu_decoding, "check_gpu", lambda _: None)
    return torch.device(device, 0) if device == "cuda" else torch.device(device)


@pytest.mark.parametrize("device", DEVICES)
def test_pixels_differ_by_roundings(device: str, loader: DataLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    random.seed(1)
    before = torch.get_rng_state(), random.getstate()
    found = compare_pixels(loader, used(device, monkeypatch))
    assert found.images == 12
    assert 0 < found.mean < 1.0
    assert 1 <= found.max <= 12
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_dataset_that_returns_something_else_is_not_decoded(loader: DataLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFolder, "__getitem__", lambda self, index: (torch.zeros(3, 24, 25), 0))
    with pytest.raises(NotSupportedError, match="another shape, dtype or target"):
        compare_pixels(loader, used("cpu", monkeypatch))


@pytest.mark.parametrize("device", DEVICES)
def test_trial_goes_on_without_end_and_leaves_the_sampler_alone(device: str, loader: DataLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = iter(open_decoding(loader, used(device, monkeypatch)))
    assert [len(next(batches)[0]) for _ in range(10)] == [4] * 10
    assert len(list(open_decoding(loader, used(device, monkeypatch), whole_epochs=True))) == len(loader) == 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nothing_is_decoded_without_a_gpu(loader: DataLoader) -> None:
    with pytest.raises(NotSupportedError, match="cpu is no GPU"):
        open_decoding(loader, torch.device("cpu"))
