"""What a GPU that decodes makes of a script's images, compared with what the script's own dataset makes of them."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch.utils.data import DataLoader

from ddpbench.loaders.errors import NotSupportedError
from ddpbench.record.diagnosis import PixelDifference

COMPARED_IMAGES = 32


def compare_pixels(loader: DataLoader[Any], device: torch.device) -> PixelDifference:
    """Decode some images of ``loader`` on ``device`` and with PIL, the same crops of each.

    Raises NotSupportedError if ``loader`` cannot be decoded there, or its samples have other shapes, dtypes or targets then.
    """
    from ddpbench.loaders.gpu_decoding import check_decode_on_gpu, check_gpu  # torchvision takes a second
    from ddpbench.loaders.image_batches import Decoders, ImageBatches, ImagePreparation
    from ddpbench.loaders.original import unwrapped

    prepared = check_decode_on_gpu(loader)
    check_gpu(device)
    source, indices = unwrapped(loader.dataset)
    samples = source.samples if indices is None else [source.samples[each] for each in indices]
    chosen = random.Random(0).sample(range(len(samples)), min(COMPARED_IMAGES, len(samples)))
    decoded_by_gpu, decoded_by_pil = Decoders(device, 1, threads=1), Decoders(device, 1, threads=1)
    decoded_by_pil.unreadable.update(samples[each][0] for each in chosen)

    def images(decoders: Decoders, prepared: ImagePreparation) -> list[Any]:
        """One by one, so that both draw the same crops."""
        return list(ImageBatches(samples, source.loader, prepared, decoders, seed=0).of([[each] for each in chosen]))

    (first, target), *_ = images(decoded_by_gpu, prepared)
    own, own_target = _own_sample(loader, chosen[0])
    if (own.shape, own.dtype, own_target) != (first.shape[1:], first.dtype, int(target)):
        raise NotSupportedError("its samples would have another shape, dtype or target")
    pixels = ImagePreparation(prepared.crop, ())
    pairs = zip(images(decoded_by_gpu, pixels), images(decoded_by_pil, pixels), strict=True)
    differences = torch.cat([(new.int() - old.int()).abs().flatten() for (new, _), (old, _) in pairs])
    return PixelDifference(images=len(chosen), mean=float(differences.double().mean()), max=float(differences.max()))


def _own_sample(loader: DataLoader[Any], index: int) -> Any:
    """As the script's dataset returns it, without an effect on random numbers that the script draws."""
    state = random.getstate()
    with torch.random.fork_rng(devices=[]):
        sample = loader.dataset[index]
    random.setstate(state)
    return sample
