"""The workload registry is correct, and every model can be built and trained."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ddpbench.cli.listing import named_workloads
from ddpbench.record.errors import UsageError
from ddpbench.record.names import import_object
from ddpbench.workloads.init_model import SkipRandomWeights, clone
from ddpbench.workloads.model_cost import check_batch_of_one, model_cost
from ddpbench.workloads.registry import _MEASURED, TORCHVISION_NAMES, WORKLOADS, find_workload, is_workload
from ddpbench.workloads.spec import WorkloadSpec

NAMED = [spec for spec in WORKLOADS.values() if spec.parameters is not None]


def test_names_equal_torchvision_models() -> None:
    assert set(TORCHVISION_NAMES) == set(torchvision.models.list_models(module=torchvision.models))
    assert len(TORCHVISION_NAMES) == len(set(TORCHVISION_NAMES))


def test_named_workloads() -> None:
    assert {spec.name for spec in NAMED} == {
        *("resnet18", "resnet50", "vgg16-cifar10", "wrn28x10-cifar10", "mnist-cnn", "gemm-mlp", "disc-mlp-10")
    }
    assert all(name == spec.name for name, spec in WORKLOADS.items())


def test_list_shows_every_measured_workload_in_order() -> None:
    assert [spec.name for spec in _MEASURED if spec.parameters is None or spec.gflop_per_sample is None] == []
    assert named_workloads() == [*_MEASURED]


@pytest.mark.parametrize("spec", NAMED, ids=lambda spec: spec.name)
def test_parameters_and_flops_of_named_workloads_are_correct(spec: WorkloadSpec) -> None:
    model = import_object(spec.model)(spec.image_size, spec.classes)
    with torch.device("meta"):
        twin = import_object(spec.model)(spec.image_size, spec.classes)
        samples, labels = torch.empty(2, *spec.input_shape(None)), torch.zeros(2, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        nn.functional.cross_entropy(twin(samples), labels).backward()
    counted = model_cost(model, spec.input_shape(None), spec.classes)
    assert counted.parameters == spec.parameters == sum(parameter.numel() for parameter in twin.parameters())
    assert counted.flops_per_sample == counter.get_total_flops() / 2
    assert counted.flops_per_sample == pytest.approx((spec.gflop_per_sample or 0) * 1e9, rel=1e-3)


def test_flops_of_grouped_convolution_are_counted_per_group() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1, groups=3, bias=False), nn.Conv2d(3, 3, 1, groups=3, bias=False), nn.Flatten())
    forward = 2 * 3 * 8 * 8  # per layer: one multiply-add per channel and pixel
    assert model_cost(model, (3, 8, 8), 192).flops_per_sample == 2 * forward + 3 * forward, (
        "two weight gradients, one input gradient, none for the images"
    )


def test_counting_leaves_the_model_unchanged() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 2)).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model_cost(model, (3, 8, 8), 2)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_clone_has_equal_weights_in_separate_memory(device: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[1].weight = model[0].bias  # one parameter under two names
    model[0].weight.requires_grad_(False)
    twin = clone(model, torch.device(device))
    for (name, own), there in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        assert there.device.type == device
        assert there.data_ptr() != own.data_ptr(), name
        assert torch.equal(there.cpu(), own), name
    assert twin[1].weight is twin[0].bias
    assert not twin[0].weight.requires_grad
    with torch.no_grad():
        twin[1].running_mean.add_(1)
    assert not model[1].running_mean.any()


def test_vgg16_matches_the_publication() -> None:
    model = import_object(find_workload("vgg16-cifar10").model)(32, 10)
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert [(c.out_channels, c.kernel_size) for c in convolutions] == [
        *((width, (3, 3)) for width in (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)),
        *((width, (1, 1)) for width in (4096, 4096, 10)),
    ]
    assert all(convolution.bias is None for convolution in convolutions)
    assert sum(isinstance(module, nn.BatchNorm2d) for module in model.modules()) == 15
    assert sum(isinstance(module, nn.MaxPool2d) for module in model.modules()) == 5


def parameters(name: str) -> int:
    spec = find_workload(name)
    return model_cost(import_object(spec.model)(spec.image_size, spec.classes), spec.input_shape(None), spec.classes).parameters


@pytest.mark.parametrize("width", [1, 4, 64])
def test_narrow_vgg16_keeps_its_proportions(width: int) -> None:
    square = 9 * (1 + 2 + 4 + 8 + 2 * 16 + 32 + 5 * 64) + 8 * 64 + 64 * 64  # 3x3 convolutions of the stages, 1x1 of the classifier
    linear = 9 * 3 + 64 * 10 + 2 * (2 * 1 + 2 * 2 + 3 * 4 + 6 * 8 + 2 * 64)  # the first and last layer, two weights per batch norm
    assert parameters(f"vgg16-{width}-cifar10") == square * width**2 + linear * width


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        *(("wrn40x1-cifar10", 0.6), ("wrn40x2-cifar10", 2.2), ("wrn40x4-cifar10", 8.9), ("wrn40x8-cifar10", 35.7)),
        *(("wrn28x10-cifar10", 36.5), ("wrn28x12-cifar10", 52.5), ("wrn22x8-cifar10", 17.2), ("wrn22x10-cifar10", 26.8)),
        *(("wrn16x8-cifar10", 11.0), ("wrn16x10-cifar10", 17.1)),
    ],
)
def test_wide_resnet_sizes_match_the_paper(name: str, millions: float) -> None:
    spec = find_workload(name)
    assert spec.name == name
    with torch.device("meta"):
        model = import_object(spec.model)(32, 10)
    biases = sum(module.bias.numel() for module in model.modules() if isinstance(module, nn.Conv2d))  # the paper's models have none
    weights = sum(parameter.numel() for parameter in model.parameters()) - biases
    assert weights / 1e6 == pytest.approx(millions, abs=0.051)  # the table rounds or truncates


def test_wide_resnet_has_expected_depth_dropout_and_shortcuts() -> None:
    model = import_object(find_workload("wrn28x2-cifar10").model)(32, 10)
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert len([c for c in convolutions if c.kernel_size == (3, 3)]) + 1 == 26, "28 layers with 1x1 shortcuts and the classifier"
    assert len([c for c in convolutions if c.kernel_size == (1, 1)]) == 3
    assert all(convolution.bias is not None for convolution in convolutions)
    assert {module.p for module in model.modules() if isinstance(module, nn.Dropout)} == {0.3}
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [(2, 22), (3, 70), (4, 230), (5, 806), (6, 2982), (7, 11430), (8, 44710), (9, 176806), (10, 703142), (11, 2804390), (12, 11201190)],
)
def test_disc_mlp_doubles_its_width_per_layer(layers: int, expected: int) -> None:
    model = import_object(find_workload(f"disc-mlp-{layers}").model)(None, 2)
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert [module.in_features for module in linear] == [2**power for power in range(1, layers + 1)]
    assert parameters(f"disc-mlp-{layers}") == expected


def test_gemm_mlp_has_three_square_layers() -> None:
    model = import_object(find_workload("gemm-mlp").model)(None, 4096)
    assert [type(module).__name__ for module in model] == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]
    assert {(m.in_features, m.out_features) for m in model if isinstance(m, nn.Linear)} == {(4096, 4096)}
    assert parameters("gemm-mlp-64") == 3 * (64 * 64 + 64)


@pytest.mark.parametrize("image_size", [6, 28, 32])
def test_mnist_cnn_accepts_other_image_sizes(image_size: int) -> None:
    assert import_object(find_workload("mnist-cnn").model)(image_size, 10)(torch.zeros(2, 1, image_size, image_size)).shape == (2, 10)
    with pytest.raises(UsageError, match="mnist-cnn does not support images of 5 px"):
        import_object(find_workload("mnist-cnn").model)(5, 10)


@pytest.mark.parametrize("name", ["gemm-mlp", "disc-mlp-4"])
def test_vector_workloads_reject_image_size(name: str) -> None:
    assert len(find_workload(name).input_shape(None)) == 1
    with pytest.raises(UsageError, match=f"{name} trains on .* numbers") as refused:
        find_workload(name).input_shape(32)
    assert "--image-size" in refused.value.hint


@pytest.mark.parametrize(
    ("name", "says", "hint"),
    [
        ("wrn27x10-cifar10", "depth 27 is out of range", "depth 10 to 100 in steps of 6, width 1 to 20"),
        ("wrn28x21-cifar10", "width 21 is out of range", "depth 10 to 100 in steps of 6, width 1 to 20"),
        ("wrn28x0-cifar10", "width 0 is out of range", "depth 10 to 100 in steps of 6, width 1 to 20"),
        ("vgg16-0-cifar10", "width 0 is out of range", "width 1 to 256"),
        ("disc-mlp-1", "layers 1 is out of range", "layers 2 to 12"),
        ("disc-mlp-13", "layers 13 is out of range", "layers 2 to 12"),
        ("gemm-mlp-20000", "width 20000 is out of range", "width 8 to 16,384"),
    ],
)
def test_out_of_range_number_is_rejected_with_the_range(name: str, says: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"no workload '{name}': {says}") as refused:
        find_workload(name)
    assert refused.value.hint == hint
    assert is_workload(name), "the family is recognised"


@pytest.mark.parametrize("name", ["disc-mlp", "disc-mlp-07", "wrn28x10", "wrnAx10-cifar10", "disc-mlp-7x"])
def test_invalid_family_name_is_unknown(name: str) -> None:
    assert not is_workload(name)
    with pytest.raises(UsageError, match=f"unknown workload '{name}'"):
        find_workload(name)


@pytest.mark.parametrize("name", ["wrn16x4-cifar10", "vgg16-64-cifar10", "disc-mlp-7", "gemm-mlp-256", "resnet50"])
def test_family_member_keeps_its_name(name: str) -> None:
    assert find_workload(name).name == name
    assert is_workload(name)


@pytest.mark.parametrize("image_size", [16, 32, 64])
def test_vgg16_accepts_multiples_of_16(image_size: int) -> None:
    assert import_object(find_workload("vgg16-2-cifar10").model)(image_size, 10)(torch.zeros(2, 3, image_size, image_size)).shape == (2, 10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "image_size"),
    [("resnet18", 32), ("googlenet", 64), ("inception_v3", 96), ("vit_b_32", 64), ("swin_t", 64), ("maxvit_t", 224)],
)
def test_torchvision_models_have_one_output_for_cross_entropy(name: str, image_size: int) -> None:
    model = import_object(find_workload(name).model)(image_size, 7).to("meta")
    scores = model(torch.empty(2, 3, image_size, image_size, device="meta"))
    assert scores.shape == (2, 7)
    nn.functional.cross_entropy(scores, torch.zeros(2, dtype=torch.long, device="meta")).backward()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TORCHVISION_NAMES if name not in ("regnet_y_128gf", "vit_h_14")])
def test_every_torchvision_model_can_be_built_and_counted(name: str) -> None:
    spec = find_workload(name)
    with torch.device("cpu" if name.startswith("regnet") else "meta"):  # meta skips initialisation; regnet needs real tensors
        model = import_object(spec.model)(spec.image_size, spec.classes)
    counted = model_cost(model, spec.input_shape(None), spec.classes)
    assert counted.parameters > 1e6
    assert 1e8 < counted.flops_per_sample < 1e12


@pytest.mark.parametrize("name", ["vit_b_16", "maxvit_t"])
def test_impossible_image_size_is_rejected_when_building(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} does not support images of 50 px"):
        import_object(find_workload(name).model)(50, 10)
    with pytest.raises(UsageError, match="VGG16 on CIFAR-10 does not support images of 50 px"):
        import_object(find_workload("vgg16-cifar10").model)(50, 10)


def test_impossible_image_size_is_rejected_when_counting() -> None:
    with pytest.raises(UsageError, match="does not support images of 16 px"):
        model_cost(import_object(find_workload("alexnet").model)(16, 10), (3, 16, 16), 10)


def test_similar_workload_name_is_suggested() -> None:
    with pytest.raises(UsageError, match="unknown workload 'resnet5'") as refused:
        find_workload("resnet5")
    assert "resnet50" in refused.value.hint


def test_weights_that_are_skipped_are_within_the_bounds_of_a_truncated_distribution() -> None:
    """torch draws until they are."""
    with SkipRandomWeights():
        weights = nn.init.trunc_normal_(torch.full((4, 4), 1e9))
    assert weights.abs().max() <= 2


def test_batch_of_one_needs_several_values_per_channel() -> None:
    check_batch_of_one("resnet18", 64)
    check_batch_of_one("disc-mlp-4", None)
    with pytest.raises(UsageError, match=r"^resnet18 cannot train on batches of one sample: Expected more than 1 value per channel"):
        check_batch_of_one("resnet18", 32)
