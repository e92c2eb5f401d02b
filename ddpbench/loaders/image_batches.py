"""Batches of images, from the files of a dataset: decoded by DALI on a device, or where that does not, as the dataset reads them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ddpbench.loaders.batch_transforms import BatchTransform
from ddpbench.loaders.dali_decoder import DaliDecoder, ReadFiles
from ddpbench.loaders.image_crops import CropAndSize, Crops, cropped
from ddpbench.loaders.side_stream import SideStream


@dataclass(frozen=True)
class ImagePreparation:
    """What a transform does to an image: a crop of the file's pixels, and steps that are applied to whole batches."""

    crop: CropAndSize
    steps: Sequence[BatchTransform]


@dataclass
class _Batch:
    """On its way. ``places`` are those of the images that ``decoder`` reads; it gets ``files`` and ``crops`` of those."""

    paths: list[str]
    targets: Tensor
    places: list[int]
    decoder: DaliDecoder
    files: ReadFiles | None = None
    crops: Crops | None = None


@dataclass
class Decoders:
    """Those that are in no use, and the files that DALI cannot read, or not as PIL does."""

    device: torch.device
    batch_size: int
    threads: int
    idle: list[DaliDecoder] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)

    def take(self, crop: CropAndSize, batch_size: int = 0) -> DaliDecoder:
        """One for batches of at least that size."""
        self.batch_size = max(self.batch_size, batch_size)
        while self.idle:
            decoder = self.idle.pop()
            if decoder.crop == crop and decoder.batch_size >= self.batch_size:
                return decoder
        return DaliDecoder(crop, self.device, self.batch_size, self.threads)


class ImageBatches:
    """The batches of one epoch. ``samples`` are a path and the number of a class each; ``open_image`` is how the dataset reads a file."""

    def __init__(
        self, samples: Sequence[tuple[str, int]], open_image: Any, preparation: ImagePreparation, decoders: Decoders, seed: int
    ) -> None:
        self._samples, self._open, self._preparation, self._decoders = samples, open_image, preparation, decoders
        self._crop_generator = np.random.default_rng(seed)
        self._generator = torch.Generator(decoders.device).manual_seed(seed)
        self._stream = SideStream(decoders.device)
        self._decoder: DaliDecoder | None = None

    def of(self, batches: Iterable[list[int]]) -> Iterator[list[Tensor]]:
        """The images and targets of each of ``batches``, on the device. While one is completed, the next is decoded, and one read."""
        reading: _Batch | None = None
        decoding: _Batch | None = None
        for indices in chain(batches, (None, None)):
            if reading is not None:
                self._begin_decoding(reading)
            begun = None if indices is None else self._begun(indices)
            if decoding is not None:
                yield self._finished(decoding)
            reading, decoding = begun, reading
        if self._decoder is not None and not self._decoder.is_broken:
            self._decoders.idle.append(self._decoder)

    def _begun(self, indices: list[int]) -> _Batch:
        paths, targets = zip(*(self._samples[each] for each in indices), strict=True)
        places = [place for place, path in enumerate(paths) if path not in self._decoders.unreadable]
        decoder = self._decoder
        if decoder is None or decoder.is_broken or len(paths) > decoder.batch_size:
            decoder = self._decoder = self._decoders.take(self._preparation.crop, len(paths))
        if places:
            decoder.begin_reading([paths[each] for each in places])
        return _Batch(list(paths), torch.tensor(targets), places, decoder)

    def _begin_decoding(self, batch: _Batch) -> None:
        if batch.decoder.is_broken or not batch.places:
            return
        files = batch.decoder.finish_reading()
        if files is not None:
            batch.files, batch.crops = files, self._preparation.crop.crops(files.sizes, self._crop_generator)
            batch.decoder.begin_decoding(files, batch.crops)

    def _finished(self, batch: _Batch) -> list[Tensor]:
        return self._stream.run(lambda: self._complete(batch))

    def _complete(self, batch: _Batch) -> list[Tensor]:
        device = self._decoders.device
        decoded = batch.decoder.finish_decoding() if batch.files is not None and batch.files.decodes.any() else None
        if batch.files is None or batch.crops is None or batch.decoder.is_broken:
            images = torch.stack([self._one(path) for path in batch.paths]).to(device)
        else:
            images = self._joined(batch, batch.files, batch.crops, decoded)
        for step in self._preparation.steps:
            images = step(images, self._generator)
        return [images, batch.targets.to(device, non_blocking=True)]

    def _joined(self, batch: _Batch, files: ReadFiles, crops: Crops, decoded: Tensor | None) -> Tensor:
        """Uint8 (N, C, H, W), of what was ``decoded`` (N, H, W, C), and the rest as PIL reads it."""
        if decoded is not None and len(decoded) == len(batch.paths):
            return decoded.permute(0, 3, 1, 2).contiguous()
        device, crop = self._decoders.device, self._preparation.crop
        images = torch.empty((len(batch.paths), 3, *crop.size), dtype=torch.uint8, device=device)
        places = torch.tensor(batch.places)
        if decoded is not None:
            images[places[torch.from_numpy(files.decodes)].to(device)] = decoded.permute(0, 3, 1, 2)
        for number in (~files.decodes).nonzero()[0].tolist():
            place = batch.places[number]
            images[place] = cropped(self._open(batch.paths[place]), crops, number, crop).to(device)
        for place in set(range(len(batch.paths))).difference(batch.places):
            images[place] = self._by_pil(batch.paths[place]).to(device)
        return images

    def _one(self, path: str) -> Tensor:
        """One image of a batch of which DALI could not read all, on the host."""
        if path in self._decoders.unreadable:
            return self._by_pil(path)
        crop, image = self._preparation.crop, None
        decoder = self._decoders.take(crop)
        decoder.begin_reading([path])
        files = decoder.finish_reading()
        if files is not None and files.decodes.all():
            decoder.begin_decoding(files, crop.crops(files.sizes, self._crop_generator))
            image = decoder.finish_decoding()
        if not decoder.is_broken:
            self._decoders.idle.append(decoder)
        if image is not None:
            return image[0].permute(2, 0, 1).cpu()
        found = self._by_pil(path)
        if decoder.is_broken:
            self._decoders.unreadable.add(path)
            warnings.warn(f"ddpbench.loaders.decode_on_gpu reads {path} as before: DALI cannot", stacklevel=2)
        return found

    def _by_pil(self, path: str) -> Tensor:
        """As the dataset reads it. Raises what the dataset raises."""
        image: Image.Image = self._open(path)
        crop = self._preparation.crop
        return cropped(image, crop.crops(np.array([[image.height, image.width]]), self._crop_generator), 0, crop)
