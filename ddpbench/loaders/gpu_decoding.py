"""A DataLoader of an ImageFolder whose files are decoded, cropped and resized on the GPU that trains."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any
from weakref import finalize

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ddpbench.loaders.errors import NotSupportedError
from ddpbench.loaders.image_batches import Decoders, ImageBatches, ImagePreparation
from ddpbench.loaders.original import check_plain, current_device, ranks_on_this_node, sample_order, unwrapped
from ddpbench.loaders.side_stream import hand_over
from ddpbench.machine.host import usable_cores
from ddpbench.record.loaders import DECODED_AHEAD
from ddpbench.record.packages import is_installed

MIN_FREE_BYTES = 4e9
"""Of the GPU's memory, for DALI's decoders and the batches on their way."""

MAX_THREADS = 16
END_TIMEOUT_S = 10.0


def decode_on_gpu(loader: DataLoader[Any], device: torch.device | str | None = None) -> DataLoader[Any]:
    """A DataLoader of the same samples as ``loader``, of which ``device`` decodes the images; by default the current GPU.

    The dataset is torchvision's ``ImageFolder`` or ``ImageNet``, or a ``Subset`` of one. Its transform crops and resizes first, and all
    steps after that can be applied to whole batches. NVIDIA DALI reads and decodes. Samplers, order, structure, shapes, dtypes and targets
    stay; random steps draw as the originals do, from generators of their own. There are no workers. The batches are on ``device``, and own
    their memory.

    **Pixels differ slightly**: DALI decodes and interpolates with other roundings than PIL. Files that it would read in another way, which
    are all but JPEGs of one or three colours, are read as before.

    If part of ``loader`` is not supported, warns with the reason and returns ``loader`` itself.
    """
    try:
        check_decode_on_gpu(loader)
        if not torch.cuda.is_available():
            raise NotSupportedError("there is no GPU")
    except NotSupportedError as problem:
        _warn(problem)
        return loader
    return DecodingLoader(loader, None if device is None else torch.device(device))


def _warn(problem: NotSupportedError) -> None:
    warnings.warn(f"ddpbench.loaders.decode_on_gpu leaves the loader as it is: {problem}", stacklevel=3)


def check_decode_on_gpu(loader: DataLoader[Any]) -> ImagePreparation:
    """How images of ``loader`` are prepared. Raises NotSupportedError if ``decode_on_gpu`` would leave it as it is, whatever the GPU."""
    check_plain(loader)
    if library := _preparing_library():
        raise NotSupportedError(f"{library} may make another loader of it, which was not tested")
    prepared = check_dataset(loader.dataset)
    if not is_installed("nvidia.dali"):
        raise NotSupportedError("NVIDIA DALI is not installed")
    return prepared


def check_dataset(dataset: Any) -> ImagePreparation:
    """How images of ``dataset`` are prepared. Raises NotSupportedError."""
    source, _ = unwrapped(dataset)
    if not type(source).__module__.startswith("torchvision.datasets."):
        raise NotSupportedError(f"the class of its dataset is {type(source).__name__}")
    import torchvision
    from torchvision.datasets import ImageFolder, ImageNet
    from torchvision.datasets.folder import default_loader

    if type(source) not in (ImageFolder, ImageNet):
        raise NotSupportedError(f"the class of its dataset is {type(source).__name__}")
    if source.loader is not default_loader or torchvision.get_image_backend() != "PIL":
        raise NotSupportedError("its dataset does not read files with PIL")
    if source.target_transform is not None:
        raise NotSupportedError("its dataset has a target_transform")
    if not all(type(target) is int for _, target in source.samples):
        raise NotSupportedError("its targets are not one integer for each image")
    return preparation(source.transform)


def _preparing_library() -> str:
    """The library in use that takes DataLoaders apart; empty if none is."""
    if not sys.modules.keys().isdisjoint(("lightning.pytorch", "pytorch_lightning", "lightning.fabric", "lightning_fabric")):
        return "Lightning"
    accelerate = sys.modules.get("accelerate.state")
    return "Accelerate" if accelerate is not None and accelerate.PartialState._shared_state else ""


def check_gpu(device: torch.device) -> None:
    """Raises NotSupportedError if it is none, or has too little memory left. What torch keeps for itself is of no use to DALI."""
    if device.type != "cuda":
        raise NotSupportedError(f"{device} is no GPU")
    if (free := torch.cuda.mem_get_info(device)[0]) < MIN_FREE_BYTES:
        raise NotSupportedError(f"{free / 1e9:.1f} GB of memory are free on {device}, and {MIN_FREE_BYTES / 1e9:.0f} are needed")


def preparation(transform: Any) -> ImagePreparation:
    """``transform`` in parts that a batch can go through. Raises NotSupportedError."""
    from ddpbench.loaders.batch_transforms import AS_TENSORS, batch_transforms, flattened
    from ddpbench.loaders.image_crops import check_like_pil, crop_and_size

    steps = flattened(transform)
    before = [each for each in steps[:1] if type(each) in AS_TENSORS]
    crop, number = crop_and_size(steps[len(before) :])
    if before:
        check_like_pil(steps[1])
    return ImagePreparation(crop, batch_transforms([*before, *steps[len(before) + number :]]))


class DecodingLoader(DataLoader[Any]):
    """``loader``, with the images of its ImageFolder decoded on ``device``; by default the GPU that is current at the first epoch.

    An epoch reads the transform again. If that has become unknown, or the GPU has too little memory, it is one of ``loader`` itself.
    """

    def __init__(self, loader: DataLoader[Any], device: torch.device | None) -> None:
        super().__init__(loader.dataset, generator=loader.generator, **sample_order(loader))
        self._original, self._device = loader, device
        self._decoders: Decoders | None = None

    def _get_iterator(self) -> Any:
        try:
            prepared, decoders = check_dataset(self._original.dataset), self._usable_decoders()
        except NotSupportedError as problem:
            _warn(problem)
            return iter(self._original)
        source, indices = unwrapped(self._original.dataset)
        samples = source.samples if indices is None else [source.samples[each] for each in indices]
        drawn = iter(self._index_sampler)
        # an iterator of a DataLoader draws it there, too
        seed = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())
        batches = ImageBatches(samples, source.loader, prepared, decoders, seed)
        return DecodingEpoch(self._index_sampler, drawn, batches.of)

    def _usable_decoders(self) -> Decoders:
        """Raises NotSupportedError if the device has no memory for them."""
        if self._decoders is None:
            device = self._device or current_device()
            if device.type == "cuda":
                device = device if device.index is not None else current_device()
                check_gpu(device)
            threads = max(1, min(MAX_THREADS, int(usable_cores() / ranks_on_this_node()) - 1))  # one is left for the trainer
            self._decoders = Decoders(device, self.batch_size or 1, threads)
            finalize(self, self._decoders.clear)  # at the end of the process, while DALI can still end
        return self._decoders


class DecodingEpoch:
    """The batches of one epoch, which a thread makes ahead. The thread that iterates draws their indices, as that of a DataLoader does."""

    def __init__(self, sampler: Any, drawn: Iterator[Any], make: Callable[[Iterable[Any]], Iterator[list[Tensor] | Exception]]) -> None:
        self._sampler, self._sampler_iter = sampler, drawn  # the name that iterators of a DataLoader have for it
        self._requests: SimpleQueue[Any] = SimpleQueue()
        self._ready: SimpleQueue[list[Tensor] | BaseException] = SimpleQueue()
        self._pending = 0
        thread = threading.Thread(target=_make_batches, args=(self._requests, self._ready, make), name="decode_on_gpu", daemon=True)
        thread.start()
        finalize(self, _end, self._requests, thread)
        for _ in range(DECODED_AHEAD):
            self._request()

    def _request(self) -> None:
        indices = next(self._sampler_iter, None)
        self._requests.put(indices)
        self._pending += indices is not None

    def __iter__(self) -> DecodingEpoch:
        return self

    def __next__(self) -> list[Tensor]:
        if not self._pending:
            raise StopIteration
        self._request()
        batch = self._ready.get()
        self._pending -= 1
        if isinstance(batch, BaseException):
            raise batch
        hand_over(batch)
        return batch

    def __len__(self) -> int:
        return len(self._sampler)


def _make_batches(
    requests: SimpleQueue[Any],
    ready: SimpleQueue[list[Tensor] | BaseException],
    make: Callable[[Iterable[Any]], Iterator[list[Tensor] | Exception]],
) -> None:
    def requested() -> Iterator[Any]:
        while (indices := requests.get()) is not None:
            yield indices

    try:
        for batch in make(requested()):
            ready.put(batch)
    except BaseException as problem:  # of no batch: there are no more, and the trainer must not wait for them
        for _ in range(DECODED_AHEAD + 1):
            ready.put(problem)


def _end(requests: SimpleQueue[Any], thread: threading.Thread) -> None:
    """Drop what the epoch has not used; also at the end of the process, where DALI must not be at work any more."""
    with suppress(Empty):
        while True:
            requests.get_nowait()
    requests.put(None)
    if thread is not threading.current_thread():
        thread.join(END_TIMEOUT_S)
