"""Batches of images, from the files of a dataset: decoded by DALI on a device, or where that does not, as the dataset reads them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
    """On its way. ``places`` are those of the images that ``decoder`` reads; ``files`` and ``crops`` are of those."""

    indices: Sequence[int]
    paths: Sequence[str] = ()
    places: Sequence[int] = ()
    decoder: DaliDecoder | None = None
    files: ReadFiles | None = None
    crops: Crops | None = None
    decoded: Tensor | None = None  # DALI's memory, which it may use again once nothing refers to it
    result: list[Tensor] | Exception | None = None


class Decoders:
    """Those of one loader on ``device`` that are in no use, and the files that DALI cannot read."""

    def __init__(self, device: torch.device, batch_size: int, threads: int) -> None:
        self.device, self._batch_size, self._threads = device, batch_size, threads
        self.stream = SideStream(device)
        self.unreadable: set[str] = set()
        self._idle: list[DaliDecoder] = []

    def take(self, crop: CropAndSize, batch_size: int = 0) -> DaliDecoder:
        """One for batches of at least that size."""
        self._batch_size = max(self._batch_size, batch_size)
        while True:
            try:
                decoder = self._idle.pop()
            except IndexError:
                return DaliDecoder(crop, self.device, self._batch_size, self._threads)
            if decoder.fits(crop, self._batch_size):
                return decoder

    def give_back(self, decoder: DaliDecoder) -> None:
        """It has finished what was begun, or is broken."""
        if not decoder.is_broken:
            self._idle.append(decoder)

    def clear(self) -> None:
        self._idle.clear()


class ImageBatches:
    """The batches of one epoch. ``samples`` are a path and the number of a class each; ``open_image`` is how the dataset reads a file."""

    def __init__(
        self, samples: Sequence[tuple[str, int]], open_image: Any, preparation: ImagePreparation, decoders: Decoders, seed: int
    ) -> None:
        self._samples, self._open, self._preparation, self._decoders = samples, open_image, preparation, decoders
        self._crop_generator = np.random.default_rng(seed)
        self._generator = torch.Generator(decoders.device).manual_seed(seed)
        self._decoder: DaliDecoder | None = None

    def of(self, batches: Iterable[Sequence[int]]) -> Iterator[list[Tensor] | Exception]:
        """The images and targets of each of ``batches``, on the device, or why there are none.

        While one is completed, the next is decoded, and one read.
        """
        reading: _Batch | None = None
        decoding: _Batch | None = None
        for indices in chain(batches, (None, None)):
            if reading is not None:
                _attempt(self._begin_decoding, reading)
            begun = None if indices is None else _Batch(indices)
            if begun is not None:
                _attempt(self._begin_reading, begun)
            if decoding is not None:
                _attempt(self._complete, decoding)
                assert decoding.result is not None, "completed, or failed"
                yield decoding.result
            reading, decoding = begun, reading
        if self._decoder is not None:
            self._decoders.give_back(self._decoder)

    def _begin_reading(self, batch: _Batch) -> None:
        batch.paths = [self._samples[each][0] for each in batch.indices]
        batch.places = [place for place, path in enumerate(batch.paths) if path not in self._decoders.unreadable]
        if batch.places:
            batch.decoder = self._decoder_for(len(batch.places))
            batch.decoder.begin_reading([batch.paths[each] for each in batch.places])

    def _decoder_for(self, batch_size: int) -> DaliDecoder:
        if self._decoder is None or self._decoder.is_broken or batch_size > self._decoder.batch_size:
            self._decoder = self._decoders.take(self._preparation.crop, batch_size)
        return self._decoder

    def _begin_decoding(self, batch: _Batch) -> None:
        files = batch.decoder.finish_reading() if batch.decoder else None
        if batch.decoder and files:
            batch.files, batch.crops = files, self._preparation.crop.crops(files.sizes, self._crop_generator)
            batch.decoder.begin_decoding(files, batch.crops)

    def _complete(self, batch: _Batch) -> None:
        if batch.decoder and batch.files and batch.files.decodes.any():
            batch.decoded = batch.decoder.finish_decoding()
        targets = torch.tensor([self._samples[each][1] for each in batch.indices])
        batch.result = self._decoders.stream.run(lambda: self._made(batch, targets))
        batch.decoded = None  # now that the device has read it

    def _made(self, batch: _Batch, targets: Tensor) -> list[Tensor]:
        device = self._decoders.device
        images = self._one_by_one(batch) if batch.decoder and batch.decoder.is_broken else self._joined(batch)
        for step in self._preparation.steps:
            images = step(images, self._generator)
        return [images, targets.to(device, non_blocking=True)]

    def _joined(self, batch: _Batch) -> Tensor:
        """Uint8 (N, C, H, W), of what was decoded (N, H, W, C), and the rest as the dataset reads it."""
        if batch.decoded is not None and len(batch.decoded) == len(batch.paths):
            return batch.decoded.permute(0, 3, 1, 2).contiguous()
        device, crop = self._decoders.device, self._preparation.crop
        images = torch.empty((len(batch.paths), 3, *crop.size), dtype=torch.uint8, device=device)
        if batch.files is not None and batch.crops is not None:
            decodes = batch.files.decodes
            if batch.decoded is not None:
                images[torch.tensor(batch.places)[torch.from_numpy(decodes)].to(device)] = batch.decoded.permute(0, 3, 1, 2)
            for number in (~decodes).nonzero()[0].tolist():
                place = batch.places[number]
                images[place] = cropped(self._open(batch.paths[place]), batch.crops, number, crop).to(device)
        for place in set(range(len(batch.paths))).difference(batch.places):
            images[place] = self._by_pil(batch.paths[place]).to(device)
        return images

    def _one_by_one(self, batch: _Batch) -> Tensor:
        """Of a batch of which DALI could not decode all. Raises RuntimeError if it cannot decode any: that is no matter of the files."""
        images = [self._one(path) for path in batch.paths]
        if len(images) > 1 and self._decoders.unreadable.issuperset(batch.paths[each] for each in batch.places):
            self._decoders.unreadable.difference_update(batch.paths[each] for each in batch.places)
            raise RuntimeError(f"DALI decodes none of {len(images)} images: {batch.decoder.problem if batch.decoder else ''}")
        return torch.stack(images).to(self._decoders.device)

    def _one(self, path: str) -> Tensor:
        """One image, on the host."""
        if path in self._decoders.unreadable:
            return self._by_pil(path)
        crop, image = self._preparation.crop, None
        decoder = self._decoders.take(crop)
        decoder.begin_reading([path])
        files = decoder.finish_reading()
        if files is not None and files.decodes.all():
            decoder.begin_decoding(files, crop.crops(files.sizes, self._crop_generator))
            image = decoder.finish_decoding()
        on_host = None if image is None else image[0].permute(2, 0, 1).clone().cpu()
        self._decoders.give_back(decoder)
        if on_host is not None:
            return on_host
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


def _attempt(step: Callable[[_Batch], None], batch: _Batch) -> None:
    """``step`` of ``batch``, unless one before has failed."""
    if batch.result is None:
        try:
            step(batch)
        except Exception as problem:
            batch.result = problem
