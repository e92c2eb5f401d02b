"""Models with known CPU cost and gradient size."""

from __future__ import annotations

from torch import Tensor, nn

from ddpbench.workloads.registry import WorkloadSpec

SIDE = 32


def build_light(image_size: int, classes: int) -> nn.Module:
    """About 2 ms of CPU per image."""
    return _convolutional(16, 5, classes)


class Dim(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        if not images.is_meta and images.max() > 50:
            raise ValueError("too bright")
        return images


def build_dim(image_size: int, classes: int) -> nn.Module:
    """The same, which rejects bright images."""
    return nn.Sequential(Dim(), build_light(image_size, classes))


def build_heavy(image_size: int, classes: int) -> nn.Module:
    """Several times the cost of ``light``."""
    return _convolutional(32, 5, classes)


def build_dense(image_size: int, classes: int) -> nn.Module:
    """About 30 ms of CPU per image, much more than gradient sync and loading."""
    return _convolutional(96, 6, classes)


def build_small(image_size: int, classes: int) -> nn.Module:
    """About 0.1 ms of CPU per image."""
    layers = [nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, classes))


def build_wide(image_size: int, classes: int) -> nn.Module:
    """Many parameters and little compute."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * image_size**2, 4096), nn.ReLU(), nn.Linear(4096, classes))


def build_deep(image_size: int, classes: int) -> nn.Module:
    """Many nearly empty kernels."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * image_size**2, 16), *(nn.Tanh() for _ in range(400)), nn.Linear(16, classes))


def _convolutional(width: int, depth: int, classes: int) -> nn.Module:
    layers = [layer for _ in range(depth) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())]
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)
    )


def _spec(name: str, dataset: str, batch: int) -> WorkloadSpec:
    return WorkloadSpec(
        name=name,
        help=name,
        dataset=dataset,  # type: ignore[arg-type]
        image_size=SIDE,
        classes=10,
        model=f"situations.workloads:build_{name.split('_')[0]}",
        batch_cuda=batch,
        batch_cpu=batch,
    )


light, light_cifar = _spec("light", "imagenet", 8), _spec("light_cifar", "cifar10", 8)
dim_cifar = _spec("dim_cifar", "cifar10", 8)
heavy, heavy_cifar = _spec("heavy", "imagenet", 8), _spec("heavy_cifar", "cifar10", 8)
dense, dense_cifar = _spec("dense", "imagenet", 16), _spec("dense_cifar", "cifar10", 16)
small, small_cifar = _spec("small", "imagenet", 8), _spec("small_cifar", "cifar10", 128)
wide_cifar = _spec("wide_cifar", "cifar10", 2)
deep_cifar = _spec("deep_cifar", "cifar10", 8)
