"""The recipe of the loader ``torch`` as a DALI graph.

It leads from file names to batches, or ends after the first stages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ddpbench.data.crop import CROP_RATIO, CROP_SCALE, resize_size
from ddpbench.data.normalize import NORMALIZATION
from ddpbench.record.config import ResolvedConfig

Stage = Literal["read", "decode", "augment"]
DaliDtype = Literal["UINT8", "FLOAT", "FLOAT16"]
Layout = Literal["HWC", "CHW"]

EncodedPath = npt.NDArray[np.uint8]
"""A file name as a byte array, which DALI expects."""


def dali_layout(config: ResolvedConfig) -> Layout:
    return "HWC" if config.channels_last else "CHW"


def encode_path(file: str) -> EncodedPath:
    return np.frombuffer(os.fsencode(file), np.uint8)


@dataclass(frozen=True)
class DaliGraph:
    """From a file name to an image (S, S, 3) or (3, S, S): cropped, flipped and normalised.

    With dtype ``UINT8`` the image is not normalised. With ``gpu``, decoding and all later operators run on that GPU; ``decoder`` holds
    extra options of its decoder.
    """

    image_size: int
    augment: bool
    dtype: DaliDtype
    layout: Layout
    gpu: int | None = None
    decoder: Mapping[str, float] = field(default_factory=dict)

    def build_pipeline(
        self, names: Iterator[list[EncodedPath]], batch_size: int, threads: int, prefetch: int, seed: int, last_stage: Stage = "augment"
    ) -> Any:
        """A pipeline that ends with ``last_stage``.

        It takes the files of each batch from ``names``, ``prefetch`` batches ahead.
        """
        dali: Any = import_module("nvidia.dali")  # optional, takes a third of a second to import, and is untyped
        pipeline = dali.Pipeline(
            batch_size=batch_size,
            num_threads=threads,
            device_id=self.gpu,
            seed=seed,
            prefetch_queue_depth=prefetch,
            exec_dynamic=True,  # other executors reuse a batch's memory while it is still referenced
        )
        with pipeline:
            content = dali.fn.io.file.read(dali.fn.external_source(source=names, dtype=dali.types.UINT8, ndim=1))
            pipeline.set_outputs(content if last_stage == "read" else self._images(dali, content, last_stage))
        pipeline.build()
        return pipeline

    def to_nchw(self, batch: Tensor) -> Tensor:
        """The pipeline's output viewed as (B, 3, S, S), without a copy."""
        return batch.permute(0, 3, 1, 2) if self.layout == "HWC" else batch

    def _images(self, dali: Any, content: Any, last_stage: Stage) -> Any:
        decoders, options = dali.fn.decoders, {"output_type": dali.types.RGB, "adjust_orientation": False}
        if self.gpu is not None:
            options.update(device="mixed", **self.decoder)
        if self.augment:
            shape = {"random_area": list(CROP_SCALE), "random_aspect_ratio": list(CROP_RATIO)}
            images = decoders.image_random_crop(content, **shape, **options)
        else:
            images = decoders.image(content, **options)
        return images if last_stage == "decode" else self._augmented(dali, images)

    def _augmented(self, dali: Any, images: Any) -> Any:
        """Random crop and flip; without augmentation a centre crop of seven eighths of the shorter edge."""
        fn, side = dali.fn, self.image_size
        if self.augment:
            return fn.crop_mirror_normalize(fn.resize(images, size=[side, side]), mirror=fn.random.coin_flip(), **self._output(dali))
        resized = fn.resize(images, resize_shorter=resize_size(side))
        return fn.crop_mirror_normalize(resized, crop=(side, side), **self._output(dali))

    def _output(self, dali: Any) -> dict[str, Any]:
        output = {"dtype": getattr(dali.types, self.dtype), "output_layout": self.layout}
        if self.dtype == "UINT8":
            return output
        normalization = NORMALIZATION["imagenet"]
        return {**output, "mean": [255 * mean for mean in normalization.mean], "std": [255 * std for std in normalization.std]}
