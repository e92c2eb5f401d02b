"""The edit of a script that makes it train as advised from its start, also when it resumes an older checkpoint."""

from __future__ import annotations

import ast
import copy
import inspect
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from ddpbench.record.remedy import Advice
from ddpbench.record.screening import CureCode
from ddpbench.record.script_diff import EditObstacle, Part, ScriptDiff
from ddpbench.record.verdict import ChangeDataLoader
from ddpbench.script.edits.arguments import own_arguments
from ddpbench.script.edits.places import LOADER_ARGUMENTS, LoaderPlace, ModelPlace, TrainingPlaces
from ddpbench.script.edits.source import Source, assigned_name, binds
from ddpbench.script.observe.call_sites import CallSite

FUSED_KERNELS = """\
import ddpbench.kernels
ddpbench.kernels.fuse({name})"""

KEEP_FUSED = """\
def keep_fused(_, state):  # an older checkpoint says that it is not
    for group in state["param_groups"]:
        group["fused"] = True
{moments}{name}.register_load_state_dict_pre_hook(keep_fused)"""

CHANNELS_LAST_MOMENTS = """\
    for moments in state["state"].values():  # in the order of the weights, as the fused kernel reads them
        for name, moment in moments.items():
            if getattr(moment, "ndim", 0) == 4:
                moments[name] = moment.contiguous(memory_format={torch}.channels_last)
"""

AUTOCAST = """\
def in_bfloat16(forward):  # of a class, so that copies of the model train so, too
    def autocast_forward(module, *arguments, **options):
        if not module.training:
            return forward(module, *arguments, **options)
        with {torch}.autocast("{device}", {torch}.bfloat16):
            return forward(module, *arguments, **options)
    autocast_forward.__wrapped__ = forward  # its signature
    return autocast_forward
type({name}).forward = in_bfloat16(type({name}).forward)"""

OF_A_MODEL: Mapping[CureCode, str] = {
    "channels-last": "{name}.to(memory_format={torch}.channels_last)",
    "fused-kernels": FUSED_KERNELS,
    "bf16-autocast": AUTOCAST,
}
"""Lines that each model needs."""

COMPILE = "{name}.compile()"

TF32_PRODUCTS = '{torch}.set_float32_matmul_precision("high")'

POSITIONS = {name: place - 1 for place, name in enumerate(inspect.signature(DataLoader.__init__).parameters)}
"""Of the arguments of a DataLoader that are not only keywords."""


class CannotEdit(Exception):
    """There is no safe place for a line."""

    def __init__(self, reason: EditObstacle) -> None:
        super().__init__(reason)
        self.reason: EditObstacle = reason


def advised_diff(advice: Advice, places: TrainingPlaces, folder: str) -> ScriptDiff | None:
    """What makes a script train as ``advice`` says; None if that says to change nothing. ``folder`` is what paths are relative to."""
    loader, computing = advice.change, advice.computing
    if not (loader or computing):
        return None
    if not (loader is None or isinstance(loader, ChangeDataLoader)):
        return ScriptDiff(obstacle="by-hand")
    try:
        return ScriptEdit(places, folder).found(loader, computing.cures if computing else [])
    except CannotEdit as problem:
        return ScriptDiff(obstacle=problem.reason)
    except SyntaxError:  # in what the edits made
        return ScriptDiff(obstacle="no-safe-place")


def compiled_diff(advice: Advice, places: TrainingPlaces, folder: str) -> ScriptDiff | None:
    """What ``advice`` says, and the models compiled, in place of fused kernels; None where that has no safe place, or may harm."""
    loader, computing = advice.change, advice.computing
    if not places.can_compile:
        return None
    cures = [each for each in (computing.cures if computing else ()) if each != "fused-kernels"]
    try:
        edit = ScriptEdit(places, folder)
        edit.compile_models()
        return edit.found(loader if isinstance(loader, ChangeDataLoader) else None, cures)
    except (CannotEdit, SyntaxError):
        return None


class ScriptEdit:
    """The sources of one script, with its edits. ``folder`` is what paths in the diff are relative to."""

    def __init__(self, places: TrainingPlaces, folder: str) -> None:
        self._places, self._folder = places, folder
        self._sources: dict[str, Source] = {}
        self._arguments: list[str] = []
        self._has_literal_workers = False

    def found(self, loader: ChangeDataLoader | None, cures: Sequence[CureCode]) -> ScriptDiff:
        """The diff, the arguments of the script, or both, that make ``loader`` and ``cures`` of it, or one of the two.

        Raises CannotEdit if neither has a safe place.
        """
        parts: list[tuple[Part, Callable[[], None]]] = [("loader", partial(self._change_loader, loader))] if loader is not None else []
        parts += [("computing", partial(self._switch_on, cures))] if cures else []
        failed: dict[Part, EditObstacle] = {}
        for part, edit in parts:
            sources, arguments = copy.deepcopy(self._sources), [*self._arguments]
            try:
                edit()
            except CannotEdit as problem:
                self._sources, self._arguments = sources, arguments
                failed[part] = problem.reason
        missing, obstacle = next(iter(failed.items()), (None, None))
        text = "".join(each.diff() for each in self._sources.values())
        if not (text or self._arguments):  # or what they would change is gone
            raise CannotEdit(obstacle or "no-source")
        return ScriptDiff(text=text, arguments=shlex.join(self._arguments), obstacle=obstacle, missing=missing)

    # the loader

    def _change_loader(self, change: ChangeDataLoader) -> None:
        """By the script's own arguments where it has some, else in the call of its DataLoader."""
        place = self._places.loader
        if change.shared_handles or change.divide_samples or change.ready_indices:
            raise CannotEdit("by-hand")
        if place is None:
            raise CannotEdit("no-source")
        if place.site and place.site.is_of_subclass:  # whose arguments are its own
            raise CannotEdit("no-safe-place")
        if change.resident:
            self._replace_loader(place, "resident")
        if change.decode_on_gpu:
            self._replace_loader(place, "decode_on_gpu")
        for name in LOADER_ARGUMENTS:
            value = getattr(change, name)
            if value is not None and value != place.settings[name]:
                self._set(name, value, place)

    def _replace_loader(self, place: LoaderPlace, function: str) -> None:
        """A line after the loader is made, or around its DataLoader if that has no name: ``function`` of ``ddpbench.loaders``."""
        if place.site is None or place.prefix:
            raise CannotEdit("no-source")
        if place.is_shared or place.device.startswith("cuda"):  # by a loader whose batches are read on the host, or by another rank
            raise CannotEdit("by-hand")
        source = self._source(place.site)
        call, statement = source.call(place.site.line, place.site.class_name), source.statement(place.site.line)
        if call is None or statement is None or source.mentions(function):
            raise CannotEdit("no-safe-place")
        device = f', "{place.device}"' if place.device else ""
        if name := assigned_name(statement, call):
            source.insert_after(statement, f"from ddpbench.loaders import {function}\n{name} = {function}({name}{device})")
        else:
            source.insert_before(statement, f"from ddpbench.loaders import {function}")
            source.wrap(call, f"{function}(", f"{device})")

    def _set(self, name: str, value: Any, place: LoaderPlace) -> None:
        source = self._source(place.site) if place.site else None
        call = source.call(place.site.line, place.site.class_name) if source and place.site else None
        keyword, position = f"{place.prefix}{name}", None if place.prefix else POSITIONS[name]
        written = source.keyword(call, keyword) if source and call else None
        is_default = source is not None and call is not None and written is None and not source.may_hide(call, keyword, position)
        words = [] if is_default else own_arguments(self._places.arguments, name, value, place.settings[name], written)
        if words:
            self._arguments += words
        elif source is None or (place.prefix and name == "in_order"):  # a Trainer has no such argument
            raise CannotEdit("no-source")
        elif call is None or not source.set_keyword(call, keyword, self._guarded(name, value, source, call, place.prefix), position):
            raise CannotEdit("no-safe-place")

    def _guarded(self, name: str, value: Any, source: Source, call: ast.Call, prefix: str) -> str:
        """The text of ``value``. Some arguments do not go without workers: they depend on them where those are not a number."""
        workers = source.keyword(call, f"{prefix}num_workers")
        self._has_literal_workers |= name == "num_workers" or workers is None or isinstance(workers, ast.Constant)
        if name not in ("prefetch_factor", "persistent_workers") or self._has_literal_workers:
            return repr(value)
        assert workers is not None, "an expression"
        text = source.written(workers) if isinstance(workers, ast.Name | ast.Attribute | ast.Call) else f"({source.written(workers)})"
        return f"{text} > 0" if value is True else f"{value!r} if {text} else None"

    # computing

    def compile_models(self) -> None:
        """When they are called first, so that what else is done to them comes before. Raises CannotEdit."""
        for model in self._places.models:
            self._insert(model, COMPILE)

    def _switch_on(self, cures: Sequence[CureCode]) -> None:
        for code in cures:
            if code in OF_A_MODEL:
                for model in self._places.models:
                    self._insert(model, OF_A_MODEL[code])
            elif code == "tf32-products":
                self._insert(next(iter(self._places.models), None), TF32_PRODUCTS, needs_model=False)
            elif code == "fused-optimizer":
                for optimizer in self._places.optimizers:
                    self._fuse(optimizer, "channels-last" in cures)
            else:
                raise CannotEdit("by-hand")

    def _insert(self, place: ModelPlace | None, code: str, needs_model: bool = True) -> None:
        """``code`` before a model is wrapped, and an optimizer gets its parameters."""
        if place is None:
            raise CannotEdit("no-source")
        torch = place.site.torch_name
        if not torch or (needs_model and place.name is None):
            raise CannotEdit("no-name")
        names = [torch.partition(".")[0], *([place.name] if needs_model and place.name else ())]
        source = self._source(place.site)
        statement = source.statement(place.site.line)
        is_inner = statement is not None and any(binds(statement, each.partition(".")[0]) for each in names)
        if statement is None or is_inner or (code == AUTOCAST and place.is_of_torch):
            raise CannotEdit("no-safe-place")
        code = code.format(name=place.name, torch=torch, device=place.device_type)
        source.insert_before(source.before_branches(statement, names), code)

    def _fuse(self, site: CallSite | None, channels_last: bool) -> None:
        if site is None:
            raise CannotEdit("no-source")
        if channels_last and not site.torch_name:
            raise CannotEdit("no-name")
        source = self._source(site)
        call, statement = source.call(site.line, site.class_name), source.statement(site.line)
        name = assigned_name(statement, call) if statement and call else None
        if call is None or statement is None or name is None or not source.set_keyword(call, "fused", "True"):
            raise CannotEdit("no-safe-place")
        moments = CHANNELS_LAST_MOMENTS.format(torch=site.torch_name) if channels_last else ""
        source.insert_after(statement, KEEP_FUSED.format(name=name, moments=moments))

    def _source(self, site: CallSite) -> Source:
        if site.has_changed:
            raise CannotEdit("source-changed")
        if site.path not in self._sources:
            name = os.path.relpath(site.path, self._folder)
            if name.startswith(".."):
                raise CannotEdit("elsewhere")
            try:
                self._sources[site.path] = Source(name, Path(site.path).read_bytes().decode("utf-8"))
            except (OSError, ValueError, SyntaxError) as problem:
                raise CannotEdit("no-source") from problem
        return self._sources[site.path]
