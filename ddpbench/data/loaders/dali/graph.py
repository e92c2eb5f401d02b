"""The recipe of the loader ``torch`` as DALI's operators: from names of files to batches, or only the first stages of that."""

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
"""The name of a file as DALI takes it: its bytes."""


def dali_layout(config: ResolvedConfig) -> Layout:
    return "HWC" if config.channels_last else "CHW"


def encode_path(file: str) -> EncodedPath:
    return np.frombuffer(os.fsencode(file), np.uint8)


@dataclass(frozen=True)
class DaliGraph:
    """From a name to an image (S, S, 3) or (3, S, S): cropped, flipped and normalised; in ``UINT8`` normalising is left to others.

    With ``gpu``, decoding and all that follows is that GPU's work; ``decoder`` is what else its decoder is told.
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
        """A pipeline that takes the files of its next batch from ``names``, ``prefetch`` ahead, and ends with stage ``last_stage``."""
        dali: Any = import_module("nvidia.dali")  # a third of a second and optional, so not above; its operators have no types
        pipeline = dali.Pipeline(
            batch_size=batch_size,
            num_threads=threads,
            device_id=self.gpu,
            seed=seed,
            prefetch_queue_depth=prefetch,
            exec_dynamic=True,  # the other executors use a batch's memory again while somebody still refers to it
        )
        with pipeline:
            content = dali.fn.io.file.read(dali.fn.external_source(source=names, dtype=dali.types.UINT8, ndim=1))
            pipeline.set_outputs(content if last_stage == "read" else self._images(dali, content, last_stage))
        pipeline.build()
        return pipeline

    def to_nchw(self, batch: Tensor) -> Tensor:
        """What the pipeline gives, as (B, 3, S, S), where it lies."""
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
        """A random part, flipped or not; without augmentation the middle, of which an eighth is cut off."""
        fn, side = dali.fn, self.image_size
        if self.augment:
            return fn.crop_mirror_normalize(fn.resize(images, size=[side, side]), mirror=fn.random.coin_flip(), **self._output(dali))
        resized = fn.resize(images, resize_shorter=resize_size(side))
        return fn.crop_mirror_normalize(resized, crop=(side, side), **self._output(dali))

    def _output(self, dali: Any) -> dict[str, Any]:
        output = {"dtype": getattr(dali.types, self.dtype), "output_layout": self.layout}
        if self.dtype == "UINT8":
            return output
        known = NORMALIZATION["imagenet"]
        return {**output, "mean": [255 * mean for mean in known.mean], "std": [255 * std for std in known.std]}
