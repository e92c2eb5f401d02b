"""The ``crossover`` command: train every model size on two devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ddpbench.bench.arm_specs import build_request, resumable_journal
from ddpbench.bench.job_spec import ResumableJobSpec
from ddpbench.bench.runner import run_job
from ddpbench.published import views
from ddpbench.published.crossover_sides import crossover_arms, resolve_sides, side_label
from ddpbench.record.io import slug
from ddpbench.record.request import CrossoverOptions, OutputOptions


def run_crossover(options: CrossoverOptions, overrides: Mapping[str, Any], output: OutputOptions, command: Sequence[str]) -> NoReturn:
    """Time both sides at every requested depth and exit with the job's exit code.

    Skips what the journal already holds. ``overrides`` are Config fields for every arm. Raises UsageError unless there are two sides.
    """
    views.register()
    sides = resolve_sides(options.devices, options.threads)
    stem = slug(" ".join(["crossover", options.family, *(side_label(side) for side in sides)]))
    request = build_request(crossover_arms(options.family, sides, options.layers), overrides, output, command)
    run_job(request, ResumableJobSpec(resumable_journal(stem, "crossover")))
