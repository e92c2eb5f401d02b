"""The examples in docs/examples, which users copy, work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from documents import ROOT
from open_loaders import config, opened, take
from scripts.limits import LAUNCHERS

from ddpbench.cli import main
from ddpbench.record.loaders import find_loader
from ddpbench.workloads.init_model import init_model
from ddpbench.workloads.registry import find_workload


@pytest.fixture(autouse=True)
def root_of_the_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def test_example_workload_learns_from_its_loader() -> None:
    spec = find_workload("docs.examples.quadrants:WORKLOAD")
    model = init_model(spec.model, None, spec.classes, seed=0)
    loader = "docs.examples.quadrants:train"
    settled = config(find_loader(loader).name, image_size=None, batch_size=spec.batch_cpu, workers=0, channels_last=False)
    losses = []
    with opened(settled, spec.dataset, classes=spec.classes) as batches:
        for _ in range(100):
            points, quadrants = take(batches, 1)
            loss = torch.nn.functional.cross_entropy(model(points), quadrants)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter -= spec.lr * gradient
            losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


@pytest.mark.slow
def test_example_script_trains() -> None:
    script = ROOT / "docs" / "examples" / "train_script.py"
    done = subprocess.run(
        [sys.executable, str(script), "--epochs", "1", "--samples", "64"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("epoch 0: loss ")


@pytest.mark.slow
def test_example_classifier_trains_on_image_files(tmp_path: Path) -> None:
    assert main(["make-data", "imagenet", str(tmp_path), "--images", "16", "--classes", "2", "-q"]) == 0
    script = ROOT / "docs" / "examples" / "train_images.py"
    flags = ["--epochs", "1", "--batch-size", "4", "--image-size", "32", "--workers", "1"]
    done = subprocess.run(
        [*LAUNCHERS["torchrun"], str(script), str(tmp_path), *flags], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.startswith("epoch 0: loss ")
    assert (tmp_path / "model.pt").is_file()


def test_example_of_a_slow_loader_delivers_its_shard() -> None:
    settled = config("docs.examples.slow_reads:train", image_size=28, batch_size=4, workers=0, channels_last=False)
    with opened(settled, "mnist", classes=10, rank=1, world_size=2) as batches:
        images, labels = take(batches, 1)
    assert (images.shape, labels.shape) == ((4, 1, 28, 28), (4,))


@pytest.mark.slow
def test_example_of_fused_kernels_trains(tmp_path: Path) -> None:
    script = ROOT / "docs" / "examples" / "fused_kernels.py"
    flags = ["--model", "resnet18", "--batch", "2", "--size", "32", "--steps", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [*LAUNCHERS["torchrun"], str(script), *flags],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "images/s, loss" in done.stdout
