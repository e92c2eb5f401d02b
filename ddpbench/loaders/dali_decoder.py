"""NVIDIA DALI as a decoder of a batch of image files: read in its threads, decoded, cropped and resized on a device."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode

from ddpbench.loaders.image_crops import CropAndSize, Crops, Pixels

DECODED_AT_ONCE = 2
"""Batches, each by a pipeline of its own: while one waits for the device, the other keeps the cores busy."""

JPEG_START = (0xFF, 0xD8, 0xFF)
KNOWN_CHANNELS = (1, 3)
"""Of a JPEG whose colours DALI converts as PIL does. Others have four: CMYK."""

INTERPOLATION_NAMES = {
    InterpolationMode.BILINEAR: "INTERP_LINEAR",
    InterpolationMode.BICUBIC: "INTERP_CUBIC",
    InterpolationMode.NEAREST: "INTERP_NN",
}


def release_memory() -> None:
    """Give memory of a GPU back that DALI keeps for later batches, if it has been used."""
    if (backend := sys.modules.get("nvidia.dali.backend")) is not None:
        backend.ReleaseUnusedMemory()


@dataclass(frozen=True)
class ReadFiles:
    """The files of a batch in host memory: as DALI holds them, and of each its height and width (N, 2), and whether DALI ``decodes`` it."""

    contents: Any
    sizes: Pixels
    decodes: npt.NDArray[np.bool_]


class DaliDecoder:
    """Reads one batch, and decodes ``DECODED_AT_ONCE``, in the order in which they are begun.

    Once one cannot be read or decoded it ``is_broken``, with all others that were begun: DALI does not say which file it was.
    """

    def __init__(self, crop: CropAndSize, device: torch.device, batch_size: int, threads: int) -> None:
        self.crop, self.device, self.batch_size = crop, device, batch_size
        self.is_broken, self.problem = False, ""
        self._begun: deque[Any] = deque()  # pipelines that decode
        self._reading = self._pipeline(None, threads, self._read_graph)
        gpu = device.index if device.type == "cuda" else None
        share = -(-threads // DECODED_AT_ONCE)
        self._decoding = deque(self._pipeline(gpu, share, self._decode_graph) for _ in range(DECODED_AT_ONCE))  # the next one first

    def fits(self, crop: CropAndSize, batch_size: int) -> bool:
        """Whether it can decode batches of that size, for ``crop``."""
        return (self.crop.size, self.crop.interpolation) == (crop.size, crop.interpolation) and self.batch_size >= batch_size

    def begin_reading(self, paths: Sequence[str]) -> None:
        encoded = np.array([os.fsencode(each) for each in paths])  # all as long as the longest, with zeros at the end
        self._reading.feed_input("path", encoded.view(np.uint8).reshape(len(paths), -1))
        self._reading.schedule_run()

    def finish_reading(self) -> ReadFiles | None:
        """None if a file cannot be read."""
        found = self._outputs(self._reading)
        if found is None:
            return None
        contents, shapes, starts = found
        shape = np.array(shapes.as_array())
        is_jpeg = (starts.as_array() == JPEG_START).all(1)
        return ReadFiles(contents, shape[:, :2], is_jpeg & np.isin(shape[:, 2], KNOWN_CHANNELS))

    def begin_decoding(self, files: ReadFiles, crops: Crops) -> None:
        """Those files that DALI decodes, if there are any."""
        (chosen,) = files.decodes.nonzero()
        if not len(chosen):
            return
        contents = files.contents if files.decodes.all() else [files.contents[each] for each in chosen.tolist()]
        pipeline = self._decoding[0]
        pipeline.feed_input("content", contents)
        pipeline.feed_input("part", crops.parts[chosen].astype(np.int32))
        pipeline.feed_input("resized", crops.sizes[chosen].astype(np.float32))
        pipeline.feed_input("offset", crops.offsets[chosen].astype(np.int32))
        pipeline.schedule_run()
        self._begun.append(pipeline)
        self._decoding.rotate(-1)

    def finish_decoding(self) -> Tensor | None:
        """The images on the device, uint8 (N, H, W, C), which DALI overwrites once there is no reference to them; None if one failed."""
        found = self._outputs(self._begun.popleft())
        if found is None:
            return None
        batch = found[0].as_tensor()
        # complete already: with a stream, that would wait for all later work of DALI, too
        return torch.from_dlpack(batch.__dlpack__(stream=-1) if self.device.type == "cuda" else batch)

    def _outputs(self, pipeline: Any) -> Any:
        if self.is_broken:
            return None
        try:
            return pipeline.outputs()
        except RuntimeError as problem:
            self.problem = str(problem).rpartition("encountered:")[2].strip()  # without the lines of this source
            self.is_broken = True
            return None

    def _pipeline(self, gpu: int | None, threads: int, graph: Any) -> Any:
        dali: Any = import_module("nvidia.dali")  # optional, and takes a third of a second
        pipeline = dali.Pipeline(
            batch_size=self.batch_size,
            num_threads=threads,
            device_id=gpu,
            prefetch_queue_depth=1,
            exec_dynamic=True,  # other executors reuse a batch's memory while it is still referenced
        )
        with pipeline:
            pipeline.set_outputs(*graph(dali.fn, dali.types))
        pipeline.build()
        return pipeline

    def _read_graph(self, fn: Any, types: Any) -> Sequence[Any]:
        content = fn.io.file.read(fn.external_source(name="path", dtype=types.UINT8, ndim=1))
        shape = fn.peek_image_shape(content, adjust_orientation=False, image_type=types.ANY_DATA)
        start = fn.slice(content, 0, len(JPEG_START), axes=[0], normalized_anchor=False, normalized_shape=False, out_of_bounds_policy="pad")
        return content, shape, start

    def _decode_graph(self, fn: Any, types: Any) -> Sequence[Any]:
        content = fn.external_source(name="content", dtype=types.UINT8, ndim=1, no_copy=True)  # the caller keeps the files
        part, offset = (fn.external_source(name=name, dtype=types.INT32, ndim=1) for name in ("part", "offset"))
        resized = fn.external_source(name="resized", dtype=types.FLOAT, ndim=1)
        images = fn.decoders.image_slice(
            content,
            start=part[:2],
            shape=part[2:],
            axes=[0, 1],
            device="mixed" if self.device.type == "cuda" else "cpu",
            output_type=types.RGB,
            jpeg_fancy_upsampling=True,  # as PIL does
            adjust_orientation=False,
        )
        images = fn.resize(images, size=resized, interp_type=getattr(types, INTERPOLATION_NAMES[self.crop.interpolation]), antialias=True)
        return (fn.slice(images, start=offset, shape=list(self.crop.size), axes=[0, 1]),)
