"""Where one device overtakes another as the model grows: both train every depth in one job, and the crossing is fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ddpbench.bench.cells import build_request, resumable_journal
from ddpbench.bench.job_spec import ResumableJobSpec
from ddpbench.bench.runner import run_job
from ddpbench.published.crossover_page import render_crossover
from ddpbench.published.sides import crossover_arms, resolve_sides, side_label
from ddpbench.record.record import slug
from ddpbench.record.request import CrossoverOptions, OutputOptions


def run_crossover(options: CrossoverOptions, overrides: Mapping[str, Any], output: OutputOptions, command: Sequence[str]) -> NoReturn:
    """Times both sides at every depth that is asked for, or what the journal lacks of them, and ends the process with the exit code.

    ``overrides`` are fields of Config that hold in every cell. Raises UsageError where there are no two sides.
    """
    chosen = resolve_sides(options.devices, options.threads)
    stem = slug(" ".join(["crossover", options.family, *(side_label(side) for side in chosen)]))
    request = build_request(crossover_arms(options.family, chosen, options.layers), overrides, output, command)
    run_job(request, ResumableJobSpec(resumable_journal(stem, "crossover"), render_crossover))
