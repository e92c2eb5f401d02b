"""``decode_on_gpu``: the same samples, decoded by DALI, here on the CPU too; or the loader as it is, with the reason."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import ks_2samp
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Subset, default_collate
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode, v2

pytest.importorskip("nvidia.dali")

from ddpbench.loaders import decode_on_gpu
from ddpbench.loaders.errors import NotSupportedError
from ddpbench.loaders.gpu_decoding import DecodingLoader, check_decode_on_gpu
from ddpbench.loaders.image_crops import RandomResizedCrop

pytestmark = pytest.mark.usefixtures("without_preparing_library")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
NORMALIZE = v1.Normalize((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
CENTER = v1.Compose([v1.Resize(40), v1.CenterCrop(32), v1.PILToTensor()])
AUGMENT = v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor(), NORMALIZE, v1.RandomErasing()])
NUMBER = 30


def photograph(seed: int, width: int, height: int) -> Image.Image:
    colours = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(colours).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for number in range(NUMBER):
        path = root / f"class{number % 3}" / f"{number:02}.jpg"
        path.parent.mkdir(exist_ok=True)
        photograph(number, 50 + 3 * number, 90 - number).save(path, quality=92)
    return root


def decoding(loader: DataLoader[Any], device: str) -> DecodingLoader:
    check_decode_on_gpu(loader)
    return DecodingLoader(loader, torch.device(device, 0) if device == "cuda" else torch.device(device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 8},
        {"batch_size": 8, "shuffle": True, "drop_last": True, "num_workers": 1},
        {"batch_size": 1, "sampler": [3, 3, 0, 29]},
        {"batch_sampler": BatchSampler(RandomSampler(range(NUMBER)), 7, False)},
        {"batch_sampler": [[1], [2, 3, 4, 5], [6, 7]]},
        {"batch_sampler": [np.array([1, 4]), np.array([2, 3])]},
    ],
    ids=["in order", "shuffled", "single", "batch sampler", "growing batches", "arrays"],
)
def test_samples_are_the_same_and_pixels_nearly(options: dict[str, Any], folder: Path, device: str) -> None:
    data = ImageFolder(folder, CENTER)
    expected, found = DataLoader(data, **options), decoding(DataLoader(data, **options), device)
    assert len(found) == len(expected)
    torch.manual_seed(3)
    before = [batch for _ in range(2) for batch in expected]
    after_s = torch.rand(1)
    torch.manual_seed(3)
    after = [batch for _ in range(2) for batch in found]
    assert torch.equal(torch.rand(1), after_s), "as many numbers of the default generator are drawn"
    assert len(before) == len(after) > 0
    for old, new in zip(before, after, strict=True):
        assert type(new) is type(old)
        images, targets = new
        assert torch.equal(targets.cpu(), old[1])
        assert (images.shape, images.dtype, images.device.type, images.is_contiguous()) == (old[0].shape, old[0].dtype, device, True)
        difference = (images.cpu().int() - old[0].int()).abs()
        assert difference.float().mean() < 1.0
        assert difference.max() <= 8


@pytest.mark.parametrize("device", DEVICES)
def test_augmented_batches_have_the_form_of_those_of_the_script(folder: Path, device: str) -> None:
    data = Subset(Subset(ImageFolder(folder, AUGMENT), range(0, 30, 2)), [3, 1, 9, 9, 0, 14])
    for old, new in zip(DataLoader(data, 4), decoding(DataLoader(data, 4), device), strict=True):
        assert torch.equal(old[1], new[1].cpu())
        assert (old[0].shape, old[0].dtype) == (new[0].shape, new[0].dtype)
        assert abs(float(old[0].mean() - new[0].mean())) < 1.0


def seeded_epoch(data: Dataset[Any]) -> list[torch.Tensor]:
    torch.manual_seed(7)
    return [images for images, _ in decoding(DataLoader(data, 8, shuffle=True), "cpu")]


def test_same_seed_draws_the_same_crops(folder: Path) -> None:
    data = ImageFolder(folder, AUGMENT)
    first, second = seeded_epoch(data), seeded_epoch(data)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    epochs = decoding(DataLoader(data, 30), "cpu")
    assert not torch.equal(next(iter(epochs))[0], next(iter(epochs))[0])


@pytest.mark.parametrize("size", [(300, 400), (60, 500), (90, 40), (10, 500)])
def test_crops_are_distributed_as_those_of_torchvision(size: tuple[int, int]) -> None:
    height, width = size
    transform = v1.RandomResizedCrop(24)
    torch.manual_seed(0)
    image = Image.new("L", (width, height))
    theirs = np.array([transform.get_params(image, list(transform.scale), list(transform.ratio)) for _ in range(3000)])
    ours = RandomResizedCrop((24, 24), InterpolationMode.BILINEAR, (0.08, 1.0), (3 / 4, 4 / 3))
    found = ours.crops(np.tile([height, width], (3000, 1)), np.random.default_rng(0)).parts
    assert (found[:, :2] >= 0).all()
    assert (found[:, :2] + found[:, 2:] <= [height, width]).all()
    for column in range(4):
        assert ks_2samp(theirs[:, column], found[:, column]).pvalue > 0.001
    if size == (10, 500):
        assert (found == theirs).mean() > 0.9, "mostly the middle"


def write_odd(folder: Path) -> list[str]:
    """Files that are no plain JPEGs, each beside a usual one; returns their names."""
    image, on_its_side = photograph(1, 64, 48), Image.Exif()
    on_its_side[0x0112] = 6  # its orientation
    saved = {
        "cmyk.jpg": (image.convert("CMYK"), {}),
        "gray.jpg": (image.convert("L"), {"quality": 95}),
        "rotated.jpg": (image, {"exif": on_its_side}),
        "progressive.jpg": (image, {"progressive": True, "quality": 95}),
        "small.jpg": (image.resize((7, 5)), {"quality": 95}),
        "rgb.png": (image, {}),
        "png.jpeg": (image, {"format": "PNG"}),
        "alpha.png": (image.convert("RGBA"), {}),
        "palette.png": (image.convert("P"), {}),
        "deep.png": (Image.fromarray(np.arange(64 * 48, dtype=np.uint16).reshape(48, 64) * 20), {}),
        "lossless.webp": (image, {"lossless": True}),
    }
    for name, (odd, options) in saved.items():
        (folder / "a").mkdir(exist_ok=True)
        odd.save(folder / "a" / name, **options)
    return sorted(saved)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("number", range(11))
def test_odd_files_are_read_as_by_the_script(number: int, tmp_path: Path, device: str) -> None:
    name = write_odd(tmp_path)[number]
    for each in (tmp_path / "a").iterdir():
        if each.name != name:
            each.unlink()
    photograph(5, 60, 60).save(tmp_path / "a" / "usual.jpg")
    data = ImageFolder(tmp_path, CENTER)
    old, new = next(iter(DataLoader(data, 2))), next(iter(decoding(DataLoader(data, 2), device)))
    difference = (old[0].int() - new[0].cpu().int()).abs()
    assert difference.max() <= 12, name
    assert difference.float().mean() < 1.5, name
    if name.endswith(("png", "webp")) or name in ("cmyk.jpg", "png.jpeg"):
        odd = data.samples.index((str(tmp_path / "a" / name), 0))
        assert torch.equal(old[0][odd], new[0][odd].cpu()), "exactly as PIL reads it"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("content", [b"", b"\xff\xd8\xff\xe0 no image", b"text"], ids=["empty", "cut", "text"])
def test_broken_file_raises_what_the_script_would_get(content: bytes, tmp_path: Path, device: str) -> None:
    (tmp_path / "a").mkdir()
    for number in range(5):
        photograph(number, 60, 50).save(tmp_path / "a" / f"{number}.jpg")
    (tmp_path / "a" / "5.jpg").write_bytes(content)
    photograph(6, 60, 50).save(tmp_path / "a" / "6.jpg")
    data = ImageFolder(tmp_path, CENTER)
    expected: type[BaseException] = Exception
    try:
        list(DataLoader(data, 2))
    except Exception as problem:
        expected = type(problem)
    loader = decoding(DataLoader(data, 2), device)
    batches = iter(loader)
    assert [len(next(batches)[0]) for _ in range(2)] == [2, 2]
    with pytest.raises(expected):
        next(batches)
    assert len(next(batches)[0]) == 1, "the epoch goes on, as that of the script"
    assert next(batches, None) is None
    good = decoding(DataLoader(Subset(data, range(5)), 2), device)
    assert sum(len(images) for images, _ in good) == 5


def test_file_that_only_pil_reads_is_named_once(tmp_path: Path) -> None:
    """A cut JPEG, if the script allows such."""
    from PIL import ImageFile

    (tmp_path / "a").mkdir()
    photograph(1, 200, 150).save(tmp_path / "a" / "0.jpg", quality=95)
    whole = (tmp_path / "a" / "0.jpg").read_bytes()
    (tmp_path / "a" / "1.jpg").write_bytes(whole[: len(whole) // 2])
    loader = decoding(DataLoader(ImageFolder(tmp_path, CENTER), 2), "cpu")
    before, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, True
    try:
        with pytest.warns(UserWarning, match="reads .*1.jpg as before: DALI cannot") as warned:
            assert [len(images) for _ in range(2) for images, _ in loader] == [2, 2]
        assert len(warned) == 1
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


def test_failure_that_concerns_all_files_is_no_matter_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import ImageFile

    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    (tmp_path / "a").mkdir()
    for number in range(2):
        path = tmp_path / "a" / f"{number}.jpg"
        photograph(number, 200, 150).save(path, quality=95)
        path.write_bytes(path.read_bytes()[:3000])
    with pytest.warns(UserWarning, match="as before"), pytest.raises(RuntimeError, match="DALI decodes none of 2 images: "):
        next(iter(decoding(DataLoader(ImageFolder(tmp_path, CENTER), 2), "cpu")))


@pytest.mark.parametrize("device", DEVICES)
def test_batches_own_their_memory(folder: Path, device: str) -> None:
    loader = decoding(DataLoader(ImageFolder(folder, CENTER), 5), device)
    kept = [images for images, _ in loader]
    copies = [each.clone() for each in kept]
    for images, _ in loader:
        images.zero_()
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_epochs_may_be_left_and_run_side_by_side(folder: Path, device: str) -> None:
    loader = decoding(DataLoader(ImageFolder(folder, CENTER), 4), device)
    for _ in range(3):
        next(iter(loader))
    for (a, _), (b, _) in zip(loader, loader, strict=True):
        assert torch.equal(a, b)
    assert len(list(loader)) == len(loader) == 8


def test_transform_is_read_again_for_every_epoch(folder: Path) -> None:
    data = ImageFolder(folder, CENTER)
    loader = decoding(DataLoader(data, 4), "cpu")
    assert next(iter(loader))[0].shape[2:] == (32, 32)
    data.transform = v1.Compose([v1.RandomResizedCrop((16, 20)), v1.ToTensor()])
    images = next(iter(loader))[0]
    assert (images.shape[2:], images.dtype) == ((16, 20), torch.float32)
    data.transform = v1.Compose([v1.Resize((9, 9)), v1.ColorJitter(), v1.ToTensor()])
    with pytest.warns(UserWarning, match="leaves the loader as it is: its transform ColorJitter"):
        assert next(iter(loader))[0].shape[2:] == (9, 9)


class Preset:
    """As in torchvision's reference scripts."""

    def __init__(self) -> None:
        self.transforms = CENTER

    def __call__(self, img: Any) -> Any:
        return self.transforms(img)


class Brighter(Preset):
    def __call__(self, img: Any) -> Any:
        return self.transforms(img) + 1


@pytest.mark.parametrize(
    "transform",
    [
        Preset(),
        v2.Compose([v2.ToImage(), v2.RandomResizedCrop(20, antialias=True), v2.ToDtype(torch.float32, scale=True), v2.ToPureTensor()]),
        v1.Compose([v1.RandomResizedCrop(20, interpolation=InterpolationMode.BICUBIC), v1.PILToTensor()]),
        v1.Compose([v1.Resize((30, 20)), v1.ToTensor(), v2.RandomErasing(value="random")]),
        v1.Compose([v1.RandomResizedCrop(20), v1.ToTensor(), v1.RandomErasing(1.0, value=(0.1, 0.2, 0.3))]),
    ],
    ids=["preset", "v2", "bicubic", "exact size", "erasing"],
)
def test_known_transforms(transform: Any, folder: Path) -> None:
    data = ImageFolder(folder, transform)
    old, new = next(iter(DataLoader(data, 6))), next(iter(decoding(DataLoader(data, 6), "cpu")))
    assert (old[0].shape, old[0].dtype) == (new[0].shape, new[0].dtype)


@pytest.mark.slow
@pytest.mark.parametrize("is_training", [True, False])
def test_transforms_of_timm(is_training: bool, folder: Path) -> None:
    create_transform = pytest.importorskip("timm.data").create_transform
    data = ImageFolder(folder, create_transform(24, is_training=is_training, color_jitter=None, interpolation="bicubic"))
    old, new = next(iter(DataLoader(data, 6))), next(iter(decoding(DataLoader(data, 6), "cpu")))
    assert (old[0].shape, old[0].dtype) == (new[0].shape, new[0].dtype)
    if not is_training:
        assert (old[0] - new[0]).abs().mean() < 0.05
    data.transform = create_transform(24, is_training=True)
    with pytest.raises(NotSupportedError, match="ColorJitter"):
        check_decode_on_gpu(DataLoader(data, 6))
    data.transform = create_transform(24, is_training=True, color_jitter=None, interpolation="random")
    with pytest.raises(NotSupportedError, match="interpolates at random"):
        check_decode_on_gpu(DataLoader(data, 6))


class Own(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)


def collate(samples: Sequence[Any]) -> Any:
    return default_collate(samples)


def relabelled(data: ImageFolder) -> ImageFolder:
    data.samples = [(path, float(target)) for path, target in data.samples]
    return data


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda root: DataLoader(Own(root, CENTER)), "the class of its dataset is Own"),
        (lambda root: DataLoader(ImageFolder(root, CENTER, loader=Image.open)), "does not read files with PIL"),
        (lambda root: DataLoader(ImageFolder(root, CENTER, target_transform=str)), "target_transform"),
        (lambda root: DataLoader(ImageFolder(root, Brighter())), "RandomResizedCrop, or with Resize"),
        (lambda root: DataLoader(ImageFolder(root, v1.Compose([v1.Resize(32), v1.ToTensor()]))), "RandomResizedCrop, or with Resize"),
        (lambda root: DataLoader(ImageFolder(root, v1.Compose([v1.Resize(20), v1.CenterCrop(32), v1.ToTensor()]))), "not larger"),
        (
            lambda root: DataLoader(ImageFolder(root, v1.Compose([v1.RandomResizedCrop(32), v1.ColorJitter(), v1.ToTensor()]))),
            "ColorJitter",
        ),
        (lambda root: DataLoader(ImageFolder(root, v1.RandomResizedCrop(32))), "returns no tensors"),
        (lambda root: DataLoader(ImageFolder(root, lambda image: image)), "RandomResizedCrop, or with Resize"),
        (lambda root: DataLoader(ImageFolder(root)), "RandomResizedCrop, or with Resize"),
        (lambda root: DataLoader(ImageFolder(root, v2.Compose([v2.ToImage(), v2.RandomResizedCrop(20, antialias=False)]))), "smoothing"),
        (lambda root: DataLoader(relabelled(ImageFolder(root, CENTER))), "not one integer"),
        (lambda root: DataLoader(ImageFolder(root, CENTER), collate_fn=collate), "collate function"),
        (lambda root: DataLoader(ImageFolder(root, CENTER), batch_size=None), "no batches"),
        (lambda root: DataLoader(ImageFolder(root, CENTER), worker_init_fn=print, num_workers=1), "worker_init_fn"),
        (
            lambda root: DataLoader(ImageFolder(root, v1.RandomResizedCrop(9, interpolation=InterpolationMode.LANCZOS))),
            "interpolates by lanczos",
        ),
    ],
)
def test_unsupported_loaders_are_left_alone(make: Any, reason: str, folder: Path) -> None:
    loader = make(folder)
    with pytest.raises(NotSupportedError, match=reason):
        check_decode_on_gpu(loader)


@pytest.mark.parametrize("library", ["Lightning", "Accelerate"])
def test_loaders_that_a_library_takes_apart_are_left_alone(library: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if library == "Lightning":
        monkeypatch.setitem(sys.modules, "lightning.pytorch", sys.modules[__name__])
    else:
        accelerate = pytest.importorskip("accelerate")
        monkeypatch.setattr(accelerate.state.PartialState, "_shared_state", {"device": torch.device("cpu")})
    with pytest.raises(NotSupportedError, match=f"{library} may make another loader"):
        check_decode_on_gpu(DataLoader(ImageFolder(folder, CENTER)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_loader_stays(folder: Path) -> None:
    loader = DataLoader(ImageFolder(folder, CENTER))
    with pytest.warns(UserWarning, match="decode_on_gpu leaves the loader as it is: there is no GPU"):
        assert decode_on_gpu(loader) is loader


SCRIPT = """
import sys, torch
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from ddpbench.loaders.gpu_decoding import DecodingLoader
data = ImageFolder(sys.argv[1], T.Compose([T.RandomResizedCrop(24), T.ToTensor()]))
batches = iter(DecodingLoader(DataLoader(data, 2), torch.device("cpu")))
print(next(batches)[0].shape)
if sys.argv[2] == "raises":
    raise SystemExit(3)
if sys.argv[2] == "goes on":
    print(len(list(batches)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code", "printed"), [("ends", 0, ""), ("raises", 3, ""), ("goes on", 0, "14\n")])
def test_process_ends_quietly(how: str, code: int, printed: str, folder: Path) -> None:
    """While batches are made, and after the last."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(folder), how], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (code, f"torch.Size([2, 3, 24, 24])\n{printed}"), done.stderr
    assert "Traceback" not in done.stderr
