"""Where one device overtakes another as the model grows: both train every depth in one job, and the crossing is fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ddpbench.bench.cells import kept_as, request_of
from ddpbench.bench.job_spec import ContinuedRecipe
from ddpbench.bench.runner import carry_out
from ddpbench.published.crossover_page import render_crossover
from ddpbench.published.sides import cells, label, sides
from ddpbench.record.record import slug
from ddpbench.record.request import Output, Racing


def crossover(asked: Racing, given: Mapping[str, Any], output: Output, command: Sequence[str]) -> NoReturn:
    """Times both sides at every depth that is asked for, or what the journal lacks of them, and ends the process with the exit code.

    ``given`` are fields of Config that hold in every cell. Raises UsageError where there are no two sides.
    """
    chosen = sides(asked.devices, asked.threads)
    stem = slug(" ".join(["crossover", asked.family, *(label(side) for side in chosen)]))
    request = request_of(cells(asked.family, chosen, asked.layers), given, output, command)
    carry_out(request, ContinuedRecipe(kept_as(stem, "crossover"), render_crossover))
