"""The edit of a script that switches cures on from its start, so that a training resumed from an older checkpoint has them, too."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ddpbench.record.screening import CureCode, EditObstacle
from ddpbench.script.cures.cure import Training
from ddpbench.script.edits.source import Source, assigned_name
from ddpbench.script.observe.call_sites import CallSite, CallSites

KEEP_FUSED = (
    '{name}.register_load_state_dict_pre_hook(lambda _, state: [group.update(fused=True) for group in state["param_groups"]] and None)'
)
"""A checkpoint that was written before says that the optimizer is not fused."""


class CannotEdit(Exception):
    """There is no safe place for a line."""

    def __init__(self, reason: EditObstacle) -> None:
        super().__init__(reason)
        self.reason: EditObstacle = reason


class ScriptEdit:
    """The sources of one script, as the edits of its cures make them. ``folder`` is what paths in the diff are relative to."""

    def __init__(self, training: Training, sites: CallSites, folder: str) -> None:
        self._training, self._sites, self._folder = training, sites, folder
        self._sources: dict[str, Source] = {}

    def diff(self, cures: Sequence[CureCode]) -> str:
        """What ``git apply`` takes in that folder. Raises CannotEdit."""
        for code in cures:
            if code == "channels-last":
                for model in self._training.models:
                    self._convert(model)
            elif code == "fused-optimizer":
                for optimizer in self._training.optimizers:
                    self._fuse(optimizer)
            else:
                raise CannotEdit("changes-numbers")
        return "".join(source.diff() for source in self._sources.values())

    def _convert(self, model: nn.Module) -> None:
        """Before DDP wraps it and an optimizer gets its parameters, whichever comes first."""
        own = model.module if isinstance(model, DistributedDataParallel) else model
        parameters = {id(each) for each in own.parameters()}
        makers: list[object] = [model] if own is not model else []
        makers += [
            each
            for each in self._training.optimizers
            if any(id(one) in parameters for group in each.param_groups for one in group["params"])
        ]
        sites = [site for each in makers if (site := self._sites.of(each))]
        if not sites:
            raise CannotEdit("no-source")
        first = min(sites, key=lambda each: each.order)
        name = first.model_names.get(id(own))
        if name is None or not first.torch_name:
            raise CannotEdit("no-name")
        source = self._source(first)
        call = source.call(first.line, *self._class_names(makers))
        statement = source.statement(call) if call else None
        if statement is None:
            raise CannotEdit("no-safe-place")
        source.insert_before(statement, f"{name}.to(memory_format={first.torch_name}.channels_last)")

    def _fuse(self, optimizer: Optimizer) -> None:
        site = self._sites.of(optimizer)
        if site is None:
            raise CannotEdit("no-source")
        source = self._source(site)
        call = source.call(site.line, type(optimizer).__name__)
        statement = source.statement(call) if call else None
        name = assigned_name(statement, call) if statement and call else None
        if call is None or statement is None or name is None or not source.set_keyword(call, "fused", "True"):
            raise CannotEdit("no-safe-place")
        source.insert_after(statement, KEEP_FUSED.format(name=name))

    @staticmethod
    def _class_names(makers: Sequence[object]) -> set[str]:
        """Under which their classes are usually called."""
        return {type(each).__name__ for each in makers} | {"DDP"}

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
