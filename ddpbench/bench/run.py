"""The main job: one training an arm, as fast as it goes, each loader alone where loaders are compared, a look inside a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from ddpbench.bench.arm import Arm
from ddpbench.bench.ground import Ground
from ddpbench.bench.inside import look_inside
from ddpbench.bench.job_spec import OpenJournal, Recipe
from ddpbench.bench.journal import new_journal
from ddpbench.bench.loader_bench import WINDOW_S, loader_alone
from ddpbench.bench.runner import carry_out
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.request import Request
from ddpbench.report.pages.registry import Render
from ddpbench.report.pages.run import render_run


def run(request: Request) -> NoReturn:
    """Trains every arm of the request on this rank, and ends the process with the exit code."""
    carry_out(request, Running(new_journal, render_run, "loader" in request.swept))


class Running(Recipe):
    """Each loader alone where loaders are compared, and a look inside a step."""

    def __init__(self, open_journal: OpenJournal, render: Render, compares_loaders: bool) -> None:
        super().__init__(open_journal, render)
        self._compares_loaders = compares_loaders

    def before_rounds(self, ground: Ground) -> None:
        if self._compares_loaders:
            loaders_alone(ground)

    def after_rounds(self, ground: Ground, arms: Sequence[Arm]) -> None:
        look_inside_each(ground, arms)


def loaders_alone(ground: Ground) -> None:
    """What each loader gives with nobody training, and what it costs, beside which the trainings are read."""
    for index, config in enumerate(ground.configs):
        if config.loader == SYNTHETIC:
            continue
        ground.begin("measuring a loader alone", f"measuring the loader {config.loader} alone")
        told = ground.world.gather(loader_alone(config, ground.world, WINDOW_S))
        if ground.journal:
            ground.journal.learn_of_arm(index, alone=told)


def look_inside_each(ground: Ground, arms: Sequence[Arm]) -> None:
    """The profiler's window of each arm, one arm on the device at a time; of several only where its trace is wanted."""
    if len(arms) == 1 or arms[0].config.profile:
        for index in range(len(arms)):
            look_inside(ground, arms, index)
