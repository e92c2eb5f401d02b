"""Where a script makes what it trains with, in plain data: it holds when the script has ended, and its objects are gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ddpbench.script.cures.cure import Training, own_module
from ddpbench.script.observe.call_sites import CallSite, CallSites, ParsedArguments

LOADER_ARGUMENTS = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "in_order")
"""Arguments of a DataLoader that a diagnosis changes."""


TRAINER_PREFIX = "dataloader_"
"""Of those arguments in the TrainingArguments of transformers."""


@dataclass(frozen=True)
class ModelPlace:
    """Where DDP wraps a model, or an optimizer gets its parameters, whichever comes first; without a ``name`` it is no variable there."""

    site: CallSite
    name: str | None
    device_type: str
    is_of_torch: bool  # its class, which other models of the script may have, too


@dataclass(frozen=True)
class LoaderPlace:
    """Where the DataLoader that is trained on gets its arguments, whose names begin with ``prefix``, and its present ``settings``.

    That is its own call, or that of the arguments of a Trainer; None if another library makes it. ``is_shared`` if it has made loaders of
    several datasets. ``device`` is that of the training if it is not the one that is current without more ado, else empty.
    """

    site: CallSite | None
    settings: Mapping[str, Any]
    prefix: str = ""
    is_shared: bool = False
    device: str = ""


@dataclass(frozen=True)
class TrainingPlaces:
    """The places of one training. A model or an optimizer without one is None."""

    models: Sequence[ModelPlace | None] = ()
    optimizers: Sequence[CallSite | None] = ()
    loader: LoaderPlace | None = None
    arguments: Sequence[ParsedArguments] = ()
    can_compile: bool = False  # on one GPU, where no all-reduce overlaps the backward


def training_places(training: Training, loader: DataLoader[Any] | None, sites: CallSites) -> TrainingPlaces:
    """The places of ``training`` while its objects exist; ``loader`` is the one that it takes its batches from."""
    direct = [site if (site := sites.of(each)) and site.is_direct else None for each in training.optimizers]
    return TrainingPlaces(
        models=[_model_place(each, training.optimizers, sites) for each in training.models],
        optimizers=direct,
        loader=_loader_place(loader, sites, training.device) if loader is not None else None,
        arguments=list(sites.arguments),
        can_compile=_can_compile(training),
    )


def _can_compile(training: Training) -> bool:
    is_plain = not (training.is_compiled or training.replays_graphs or torch.are_deterministic_algorithms_enabled())
    is_plain &= not training.differentiates_twice  # of which a compiled backward has none
    is_plain &= not any(isinstance(each, torch.jit.ScriptModule) for each in training.own_modules())
    is_alone = not distributed.is_initialized() or distributed.get_world_size() == 1
    return training.device.type == "cuda" and is_plain and is_alone and bool(training.models)


def _model_place(model: nn.Module, optimizers: Sequence[Optimizer], sites: CallSites) -> ModelPlace | None:
    own = own_module(model)
    found = [site for each in _users(model, own, optimizers) if (site := sites.of(each))]
    if not found:
        return None
    first = min(found, key=lambda each: each.order)
    device_type = next((each.device.type for each in own.parameters()), "cpu")
    return ModelPlace(first, first.model_names.get(id(own)), device_type, type(own).__module__.startswith("torch."))


def _users(model: nn.Module, own: nn.Module, optimizers: Sequence[Optimizer]) -> Iterator[nn.Module | Optimizer]:
    """What must find the parameters of a model as they will stay."""
    if own is not model:
        yield model
    parameters = {id(each) for each in own.parameters()}
    for optimizer in optimizers:
        if any(id(each) in parameters for group in optimizer.param_groups for each in group["params"]):
            yield optimizer


def _loader_place(loader: DataLoader[Any], sites: CallSites, device: torch.device) -> LoaderPlace:
    settings = {name: getattr(loader, name, None) for name in LOADER_ARGUMENTS}
    own = sites.of_loader(loader)
    trainer = sites.of_trainer(loader.num_workers) if own is None else None
    current = "cpu" if not torch.cuda.is_available() else f"cuda:{torch.cuda.current_device()}"
    is_current = str(device) in (current, current.partition(":")[0])
    is_shared = own is not None and sites.makes_several_loaders(own)
    return LoaderPlace(trainer or own, settings, TRAINER_PREFIX if trainer else "", is_shared, "" if is_current else str(device))
