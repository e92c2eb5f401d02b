"""The catalogue of workloads tells the truth, and every model in it can be built and trained."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ddpbench.record.errors import UsageError
from ddpbench.record.names import resolve
from ddpbench.workloads.catalogue import WORKLOADS, WorkloadSpec, find
from ddpbench.workloads.cost import cost
from ddpbench.workloads.torchvision_names import TORCHVISION_NAMES

NAMED = [spec for spec in WORKLOADS.values() if spec.parameters is not None]
TINY = WorkloadSpec(name="tiny", help="", dataset="cifar10", image_size=8, classes=2, model="nowhere:build", batch_cuda=1, batch_cpu=1)


def tiny() -> WorkloadSpec:
    return TINY


def test_the_names_are_those_of_torchvision() -> None:
    assert set(TORCHVISION_NAMES) == set(torchvision.models.list_models(module=torchvision.models))
    assert len(TORCHVISION_NAMES) == len(set(TORCHVISION_NAMES))


def test_named_workloads() -> None:
    assert {spec.name for spec in NAMED} == {"resnet18", "resnet50", "vgg16-cifar10"}
    assert all(name == spec.name for name, spec in WORKLOADS.items())


@pytest.mark.parametrize("spec", NAMED, ids=lambda spec: spec.name)
def test_parameters_and_flops_of_named_workloads(spec: WorkloadSpec) -> None:
    model = resolve(spec.model)(spec.image_size, spec.classes)
    with torch.device("meta"):
        twin = resolve(spec.model)(spec.image_size, spec.classes)
        images, labels = torch.empty(2, 3, spec.image_size, spec.image_size), torch.zeros(2, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        nn.functional.cross_entropy(twin(images), labels).backward()
    counted = cost(model, spec.image_size)
    assert counted.parameters == spec.parameters == sum(parameter.numel() for parameter in twin.parameters())
    assert counted.flops_per_image == counter.get_total_flops() / 2
    assert counted.flops_per_image == pytest.approx((spec.gflops or 0) * 1e9, rel=1e-3)


def test_flops_of_a_grouped_convolution_are_those_of_its_groups() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1, groups=3, bias=False), nn.Conv2d(3, 3, 1, groups=3, bias=False))
    forward = 2 * 3 * 8 * 8  # of one layer: a multiply-add a channel and pixel
    assert cost(model, 8).flops_per_image == 2 * forward + 3 * forward, "two of the weights, one of the layer between, none of the images"


def test_counting_leaves_the_model_alone() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 2)).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    cost(model, 8)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_vgg16_is_the_published_one() -> None:
    model = resolve("ddpbench.workloads.cifar:vgg16")(32, 10)
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert [(c.out_channels, c.kernel_size) for c in convolutions] == [
        *((width, (3, 3)) for width in (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)),
        *((width, (1, 1)) for width in (4096, 4096, 10)),
    ]
    assert all(convolution.bias is None for convolution in convolutions)
    assert sum(isinstance(module, nn.BatchNorm2d) for module in model.modules()) == 15
    assert sum(isinstance(module, nn.MaxPool2d) for module in model.modules()) == 5


@pytest.mark.parametrize("image_size", [16, 32, 64])
def test_vgg16_takes_multiples_of_16(image_size: int) -> None:
    assert resolve("ddpbench.workloads.cifar:vgg16")(image_size, 10)(torch.zeros(2, 3, image_size, image_size)).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "image_size"),
    [("resnet18", 32), ("googlenet", 64), ("inception_v3", 96), ("vit_b_32", 64), ("swin_t", 64), ("maxvit_t", 224)],
)
def test_one_output_for_plain_cross_entropy(name: str, image_size: int) -> None:
    model = resolve(find(name).model)(image_size, 7).to("meta")
    scores = model(torch.empty(2, 3, image_size, image_size, device="meta"))
    assert scores.shape == (2, 7)
    nn.functional.cross_entropy(scores, torch.zeros(2, dtype=torch.long, device="meta")).backward()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TORCHVISION_NAMES if name not in ("regnet_y_128gf", "vit_h_14")])
def test_every_model_builds_and_can_be_counted(name: str) -> None:
    spec = find(name)
    counted = cost(resolve(spec.model)(spec.image_size, spec.classes), spec.image_size)
    assert counted.parameters > 1e6
    assert 1e8 < counted.flops_per_image < 1e12


@pytest.mark.parametrize("name", ["vit_b_16", "maxvit_t"])
def test_an_impossible_image_size_is_refused_when_building(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} cannot take images of 50 px"):
        resolve(find(name).model)(50, 10)
    with pytest.raises(UsageError, match="vgg16-cifar10 cannot take images of 50 px"):
        resolve(find("vgg16-cifar10").model)(50, 10)


def test_an_image_size_the_layers_cannot_take_is_refused_when_counting() -> None:
    with pytest.raises(UsageError, match="cannot take images of 16 px"):
        cost(resolve(find("alexnet").model)(16, 10), 16)


def test_a_near_name_is_suggested() -> None:
    with pytest.raises(UsageError, match="unknown workload 'resnet5'") as refused:
        find("resnet5")
    assert "resnet50" in refused.value.hint


@pytest.mark.parametrize("attribute", ["TINY", "tiny"])
def test_a_workload_from_outside(attribute: str) -> None:
    assert find(f"test_workloads:{attribute}") is TINY


@pytest.mark.parametrize("attribute", ["NAMED", "nothing"])
def test_what_is_no_workload_is_refused(attribute: str) -> None:
    with pytest.raises(UsageError, match=attribute):
        find(f"test_workloads:{attribute}")
