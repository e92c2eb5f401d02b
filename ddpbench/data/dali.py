"""The loader ``dali-cpu``: NVIDIA DALI reads, decodes and augments in threads on the CPU, without touching a GPU."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ddpbench.data import folder
from ddpbench.data.delivery import delivery
from ddpbench.data.folder import ImageTree
from ddpbench.data.loader import Batch
from ddpbench.data.pixels import NORMALISATION, finisher
from ddpbench.data.plan import ShardPlan
from ddpbench.data.samples import decode
from ddpbench.record.config import Config
from ddpbench.record.errors import BenchError
from ddpbench.record.record import Data


def open_dali_cpu(config: Config, dataset: str, classes: int, rank: int, world_size: int, device: torch.device) -> DaliCpu:
    """``config.workers`` threads, and ``config.prefetch`` batches kept ready."""
    assert config.data_dir, "checked"
    assert config.batch_size, "settled"
    tree = folder.read(config.data_dir)
    plan = ShardPlan(len(tree.files), config.batch_size, rank, world_size, config.seed, config.shuffle)
    return DaliCpu(tree, plan, config, rank, device)


class DaliCpu:
    """Batches of a DALI pipeline that is fed with file names, so that the plan of every rank, and a damaged file, are known.

    For a GPU rank the pipeline ends at uint8, a quarter of the bytes on the wire; normalisation runs on the GPU.
    """

    def __init__(self, tree: ImageTree, plan: ShardPlan, config: Config, rank: int, device: torch.device) -> None:
        self.data = Data(loader="dali-cpu", description=tree.description, images=len(tree.files), made=tree.made)
        self.in_flight = config.prefetch
        self._files, self._labels = tree.files, torch.tensor(tree.labels)
        self._plan = iter(plan)
        self._ahead: deque[list[int]] = deque()  # planned, and not handed over yet
        self._cuda, self._pin, self._channels_last = device.type == "cuda", config.pin_memory, config.channels_last
        normalise = finisher("imagenet", config.image_size, config.channels_last, device)
        self._deliver = delivery(device, normalise if self._cuda else self._seen_as_nchw)
        self._pipeline = self._build(config, config.seed + rank)

    def next_batch(self, in_hand: Callable[[], None]) -> Batch:
        try:
            (batch,) = self._pipeline.run()
        except RuntimeError as problem:
            raise self._explain(problem) from problem
        images: Tensor = torch.from_dlpack(batch.as_tensor())
        labels = self._labels[self._ahead.popleft()]
        if self._cuda and self._pin:
            images, labels = images.pin_memory(), labels.pin_memory()
        in_hand()
        return self._deliver(images, labels)

    def worker_pids(self) -> list[int]:
        return []

    def close(self) -> None:
        self._pipeline = None

    def _build(self, config: Config, seed: int) -> Any:
        """From names of files to uint8 NHWC for a GPU rank, to normalised float32 for a CPU rank: the recipe of the loader ``torch``."""
        dali: Any = import_module("nvidia.dali")  # a third of a second and optional, so not above; its operators have no types
        fn, types = dali.fn, dali.types
        scale = {"dtype": types.UINT8, "output_layout": "HWC"}
        if not self._cuda:
            known = NORMALISATION["imagenet"]
            mean, std = ([255 * value for value in values] for values in (known.mean, known.std))
            scale = {"dtype": types.FLOAT, "output_layout": "HWC" if self._channels_last else "CHW", "mean": mean, "std": std}
        pipeline = dali.Pipeline(
            batch_size=config.batch_size,
            num_threads=max(1, config.workers or 0),
            device_id=None,
            seed=seed,
            prefetch_queue_depth=config.prefetch,
        )
        with pipeline:
            encoded = fn.io.file.read(fn.external_source(source=self._names, dtype=types.UINT8, ndim=1))
            images, where = self._cropped(fn, types, encoded, config)
            pipeline.set_outputs(fn.crop_mirror_normalize(images, **where, **scale))
        pipeline.build()
        return pipeline

    def _cropped(self, fn: Any, types: Any, encoded: Any, config: Config) -> tuple[Any, dict[str, Any]]:
        """Decoded images, and what is left to the last operator: random crop and flip, or without augmentation the middle."""
        side = config.image_size or 0
        if config.augment:
            images = fn.decoders.image_random_crop(
                encoded, output_type=types.RGB, adjust_orientation=False, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
            )
            resized = fn.resize(images, size=[side, side], interp_type=types.INTERP_TRIANGULAR)
            return resized, {"mirror": fn.random.coin_flip()}
        images = fn.decoders.image(encoded, output_type=types.RGB, adjust_orientation=False)
        resized = fn.resize(images, resize_shorter=round(side * 256 / 224), interp_type=types.INTERP_TRIANGULAR)
        return resized, {"crop": (side, side)}

    def _names(self) -> list[npt.NDArray[np.uint8]]:
        """The names of the next batch's files, as DALI takes them: bytes in arrays."""
        self._ahead.append(next(self._plan))
        return [np.frombuffer(os.fsencode(self._files[index]), np.uint8) for index in self._ahead[-1]]

    def _seen_as_nchw(self, images: Tensor) -> Tensor:
        return images.permute(0, 3, 1, 2) if self._channels_last else images

    def _explain(self, problem: RuntimeError) -> BenchError:
        """DALI does not say which file it could not decode: every file that is on its way is tried."""
        for index in (index for batch in self._ahead for index in batch):
            try:
                decode(self._files[index])
            except BenchError as damaged:
                return damaged
        lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
        return BenchError(f"DALI failed: {lines[-1] if lines else problem}")
