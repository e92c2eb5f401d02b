"""Finds a loader by name, including user-defined ones. Torch-free."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ddpbench.record import names
from ddpbench.record.errors import UsageError
from ddpbench.record.loaders import LOADERS, LoaderSpec, user_loader_spec

LOADER_KWARGS = ("config", "dataset", "classes", "rank", "world_size", "device")
"""Parameter names that a user-defined loader function may have."""


def find_loader(name: str) -> LoaderSpec:
    """The loader called ``name``, or the one at ``package.module:name``.

    That object is a LoaderSpec, or a function that returns batches. Raises UsageError if it does not exist, or if the function has
    required parameters other than LOADER_KWARGS.
    """
    if ":" not in name:
        return names.lookup("loader", name, LOADERS)
    found = names.import_object(name)
    if isinstance(found, LoaderSpec):
        return found
    if not callable(found):
        raise UsageError(f"'{name}' is not a loader", "it must be a function that returns batches of (samples, labels), like a DataLoader")
    if unknown := set(accepted_kwargs(found, required_only=True)) - set(LOADER_KWARGS):
        raise UsageError(f"'{name}' has unknown parameters: {', '.join(sorted(unknown))}", f"supported are {', '.join(LOADER_KWARGS)}")
    return user_loader_spec(name)


def accepted_kwargs(function: Callable[..., Any], required_only: bool = False) -> list[str]:
    """Parameter names of a function; with ``required_only``, only those without a default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some built-ins have no signature
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [parameter for parameter in parameters if parameter.kind not in variable]
    return [parameter.name for parameter in named if not required_only or parameter.default is inspect.Parameter.empty]
