"""The cures that are on in a window, on one rank."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import torch

from ddpbench.record.screening import NULL, CureCode, Obstacle
from ddpbench.script.cures.catalog import CURES, obstacle
from ddpbench.script.cures.snapshot import Snapshot
from ddpbench.script.diagnose.stage import FailedCure, RankResults, first_line
from ddpbench.script.observe.observer import Observer
from ddpbench.script.ranks.observation import Observation


class SwitchedCures:
    """Switches cures on for a window. One that cannot be switched on has failed: its windows are like those without it."""

    def __init__(self, results: RankResults) -> None:
        self._results = results
        self._on: Sequence[CureCode] = ()  # in the present window
        self._snapshot: Snapshot | None = None
        self.losses: list[list[float]] = []
        """Of the windows that began with the snapshot, on this rank."""

    def obstacles(self, observation: Observation) -> list[tuple[CureCode, Obstacle | None]]:
        """All cures in their order, and why they are not tried."""
        training = observation.training
        with observation.observer.paused():
            return [(code, obstacle(code, training)) for code in CURES]

    def failure(self, code: CureCode) -> str:
        """Why ``code`` could not be switched on, on this rank; empty if it could."""
        return next((each.message for each in self._results.failed_cures if each.code == code), "")

    def switch_on(self, codes: Sequence[CureCode], window: ExitStack, observation: Observation) -> None:
        """Switch ``codes`` on until the end of ``window``, in their order."""
        observation.keep_precision()
        window.callback(self._end)
        device = observation.observer.device
        _wait_for(device)
        window.callback(_wait_for, device)  # after all are off
        for code in codes:
            if self.failure(code):
                continue
            try:
                with observation.observer.paused():
                    window.enter_context(CURES[code].switched_on(observation.training))
                self._on = [*self._on, *([code] if code != NULL else ())]
            except Exception as problem:
                self._results.failed_cures.append(FailedCure(code, first_line(problem)))
        _wait_for(device)
        window.callback(_wait_for, device)  # before any is off

    def restart(self, window: ExitStack, observation: Observation) -> None:
        """Set the training back to where the first call was, and keep its losses until the end of ``window``.

        In the second of the plain runs that count, a training that draws random numbers draws others: dropout draws in the order of
        memory, which a cure may change.
        """
        observer, is_second = observation.observer, len(self.losses) == 2
        with observer.paused():
            if self._snapshot is None:
                self._snapshot = Snapshot(observation.training)
            has_drawn = self._snapshot.random_states.torch_has_drawn
            self._snapshot.restore()
            if is_second and has_drawn:
                torch.manual_seed(torch.initial_seed() + 1)
        window.enter_context(self._snapshot.settings_held())
        observer.losses = []
        window.callback(self._keep_losses, observer)

    def _keep_losses(self, observer: Observer) -> None:
        self.losses.append([float(each) for each in observer.losses or ()])
        observer.losses = None

    def blame(self, problem: str) -> CureCode | None:
        """The script has raised ``problem``: the last cure that is on has failed with it; None if none is on."""
        if not self._on:
            return None
        self._results.failed_cures.append(FailedCure(self._on[-1], problem))
        return self._on[-1]

    def _end(self) -> None:
        self._on = ()


def _wait_for(device: torch.device | None) -> None:
    """Until it has done all of its work: the script may train on another stream than the one that switches."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def allocator_retries(device: torch.device | None) -> int:
    """How often the allocator of a GPU has freed its cache to find memory; 0 on the CPU."""
    return int(torch.cuda.memory_stats(device)["num_alloc_retries"]) if device is not None and device.type == "cuda" else 0
