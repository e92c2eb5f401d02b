"""The state of a training in host memory, from which the same steps can be repeated."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from ddpbench.machine.random_states import RandomStates
from ddpbench.script.cures.cure import Training


class Snapshot:
    """Weights, buffers, what optimizers keep, their settings, loss scales and the global random states of ``training``, as of now."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._tensors = [(each, _kept(each)) for each in (*training.parameters, *training.buffers)]
        self._states = [
            (optimizer, parameter, {name: _kept(value) for name, value in state.items()})
            for optimizer in training.optimizers
            for parameter, state in optimizer.state.items()
        ]
        self._groups = [(group, _settings(group)) for optimizer in training.optimizers for group in optimizer.param_groups]
        self._scalers = [(each, copy.deepcopy(each.state_dict())) for each in training.scalers]
        self.random_states = RandomStates(training.device)

    def restore(self) -> None:
        """Set all of it again, in place. What an optimizer has for other parameters since then stays."""
        with torch.no_grad():
            for tensor, kept in self._tensors:
                tensor.data.copy_(kept)
            for optimizer, parameter, state in self._states:
                _restore(optimizer.state[parameter], state)
        self._set_groups()
        for scaler, state in self._scalers:
            scaler.load_state_dict(state)
        self.random_states.restore()

    @contextmanager
    def settings_held(self) -> Iterator[None]:
        """Every step of an optimizer has the learning rates of the snapshot, inside: a scheduler counts on, and would change them."""
        handle = register_optimizer_step_pre_hook(self._hold)
        try:
            yield
        finally:
            handle.remove()

    def _hold(self, optimizer: Optimizer, *_: Any) -> None:
        if any(optimizer is each for each in self._training.optimizers):
            self._set_groups()

    def _set_groups(self) -> None:
        for group, settings in self._groups:
            _restore(group, settings)


def snapshot_bytes(training: Training) -> int:
    """Host memory that a snapshot of ``training`` takes."""
    state = (value for optimizer in training.optimizers for values in optimizer.state.values() for value in values.values())
    return sum(each.nbytes for each in (*training.parameters, *training.buffers, *state) if isinstance(each, Tensor))


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _kept(value) for name, value in group.items() if name not in ("params", "fused")}


def _kept(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else copy.copy(value)


def _restore(present: dict[str, Any], kept: Mapping[str, Any]) -> None:
    """Set the entries of ``present`` that ``kept`` has; tensors keep their device and strides."""
    for name, value in kept.items():
        if isinstance(value, Tensor) and isinstance(present.get(name), Tensor):
            present[name].data.copy_(value)
        else:
            present[name] = value
