"""Configurations with other loaders that a diagnosis benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest
import sample_datasets
from open_loaders import NO_DALI, config
from training import world_of_one

from ddpbench.bench.diagnose.alternatives import alternative_configs
from ddpbench.record.config import ResolvedConfig


def alternatives(of: ResolvedConfig) -> list[tuple[str, float | None]]:
    return [(found.loader, found.hw_decoder_load) for found in alternative_configs(of, world_of_one())]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample_datasets.image_tree(tmp_path_factory.mktemp("tree"))


def test_alternatives_keep_every_other_field(tree: Path) -> None:
    present = config("dali-cpu", tree, device="cpu", workers=3)
    [found] = alternative_configs(present, world_of_one())
    assert (found.loader, found.workers, found.data_dir, found.batch_size) == ("torch-uint8", 3, str(tree), present.batch_size)


@NO_DALI
def test_gpu_loader_needs_a_gpu(tree: Path) -> None:
    assert alternatives(config("torch", tree, device="cpu")) == [("torch-uint8", None), ("dali-cpu", None)]
    assert alternatives(config("torch", tree, device="cuda")) == [("torch-uint8", None), ("dali-cpu", None), ("dali-gpu", None)]


@NO_DALI
@pytest.mark.parametrize("load", [None, 0.8, 0.99])
def test_more_hardware_decoding_comes_first_unless_it_is_set(load: float | None, tree: Path) -> None:
    more = [] if load == 0.99 else [("dali-gpu", 0.99)]
    assert alternatives(config("dali-gpu", tree, device="cuda", hw_decoder_load=load)) == [*more, ("dali-cpu", None)]
