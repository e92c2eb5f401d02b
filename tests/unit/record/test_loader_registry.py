"""The registry of loaders: which of them may replace which."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpbench.record import loaders
from ddpbench.record.loaders import LOADERS, alternative_loaders

ALTERNATIVES = {
    ("torch", "imagenet"): ["torch-uint8", "dali-cpu", "dali-gpu"],
    ("torch-uint8", "imagenet"): ["dali-cpu", "dali-gpu"],
    ("dali-cpu", "imagenet"): ["torch-uint8", "dali-gpu"],
    ("dali-gpu", "imagenet"): ["dali-cpu"],
    ("torch", "cifar10"): ["tensor"],
    ("torch-uint8", "cifar10"): ["tensor"],
    ("torch", "mnist"): ["tensor"],
    ("torch-uint8", "mnist"): ["tensor"],
    ("torch", "disc"): ["tensor"],
}


@pytest.mark.parametrize(("name", "dataset"), [(spec.name, dataset) for spec in LOADERS.values() for dataset in spec.datasets])
def test_alternative_loaders_replace_the_present_one_on_the_same_dataset(name: str, dataset: str) -> None:
    assert [spec.name for spec in alternative_loaders(name, dataset)] == ALTERNATIVES.get((name, dataset), [])


def test_user_defined_loader_has_no_alternative() -> None:
    assert alternative_loaders("my_data:train", "imagenet") == []


def test_replaced_loaders_are_registered() -> None:
    assert {name for spec in LOADERS.values() for name in spec.replaces} <= LOADERS.keys()


def test_new_loader_is_an_alternative_to_those_that_it_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    new = replace(LOADERS["torch-uint8"], name="cached", replaces=("torch-uint8",))
    monkeypatch.setattr(loaders, "LOADERS", {**LOADERS, "cached": new})
    assert [spec.name for spec in alternative_loaders("torch-uint8", "imagenet")] == ["dali-cpu", "dali-gpu", "cached"]
    assert new not in alternative_loaders("torch", "imagenet")
    assert [spec.name for spec in alternative_loaders("torch-uint8", "cifar10")] == ["tensor"], "its data are on the device"
