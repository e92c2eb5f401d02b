"""Published experiments as package data: typed, complete, and with known names."""

from __future__ import annotations

import pytest

from ddpbench.published.claims import CLAIM_CHECKS
from ddpbench.published.publications import PublishedMean, load_publication, published_names
from ddpbench.record.errors import UsageError
from ddpbench.record.registry import find_precision


def test_publications_have_their_workloads() -> None:
    workloads = {name: [each.workload for each in load_publication(name).experiments] for name in published_names()}
    assert workloads == {
        "t4-tensor-cores": ["gemm-mlp", "mnist-cnn"],
        "wrn-cifar10-apex-levels": ["wrn28x10-cifar10"],
        "vgg16-cifar10-batch-sweep": ["vgg16-cifar10"],
        "disc-mlp-cpu-vs-gpu": ["disc-mlp"],
        "imagenet-resnet-slurm-vs-container": ["resnet18", "resnet50"],
    }


@pytest.mark.parametrize("name", published_names())
def test_every_row_has_a_known_precision_and_every_claim_a_check(name: str) -> None:
    publication = load_publication(name)
    assert publication.id == name
    assert all(find_precision(row.precision) for each in publication.experiments for row in each.rows if row.precision)
    assert len(CLAIM_CHECKS[name]) == len(publication.claims) > 0


def test_figures_match_the_sources() -> None:
    gemm = load_publication("t4-tensor-cores").experiments[0].rows
    assert [(row.seconds, row.max_memory_allocated_bytes) for row in gemm] == [(7.02, 1_350_681_600), (2.524, 1_577_232_384)]
    vgg = load_publication("vgg16-cifar10-batch-sweep").experiments[0].rows
    assert len(vgg) == 45
    assert vgg[-1].seconds == PublishedMean(45.68, 3.77)
    assert {row.static_loss_scale for row in vgg if row.published_label == "FP16"} == {128}
    dead = next(row for row in load_publication("wrn-cifar10-apex-levels").experiments[0].rows if row.precision == "O3")
    assert (dead.seconds, dead.memory_mib, dead.note) == (None, 4347, "did not converge")
    crossing = load_publication("disc-mlp-cpu-vs-gpu").experiments[0].rows[0]
    assert (crossing.crossover_parameters, crossing.crossover_layers) == (700_000, 10)


def test_unknown_publication_suggests_the_nearest_name() -> None:
    with pytest.raises(UsageError) as refused:
        load_publication("t4-tensor-core")
    assert "did you mean 't4-tensor-cores'" in refused.value.hint
