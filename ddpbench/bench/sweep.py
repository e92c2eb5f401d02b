"""A sweep: every cell of the cross product trained anew in every round, in a file that a second call goes on with."""

from __future__ import annotations

from typing import NoReturn

import msgspec

from ddpbench.bench.cells import kept_as
from ddpbench.bench.job_spec import ContinuedRecipe
from ddpbench.bench.runner import carry_out
from ddpbench.record.record import slug
from ddpbench.record.request import Request
from ddpbench.report.pages.sweep import render_sweep


def sweep(request: Request) -> NoReturn:
    """Trains every cell of the request, or those that its journal lacks, and ends the process with the exit code."""
    axes = " ".join(request.swept) or request.arms[0].precision
    part = f" part {request.share.numbers[0]} of {request.share.of}" if request.share else ""
    stem = slug(f"sweep {request.arms[0].workload} {axes}{part}")
    carry_out(anew(request), ContinuedRecipe(kept_as(stem, "sweep"), render_sweep))


def anew(request: Request) -> Request:
    """The request with every round a training of its own, unless it says otherwise."""
    arms = [msgspec.structs.replace(arm, fresh=True) if arm.fresh is None else arm for arm in request.arms]
    return msgspec.structs.replace(request, arms=arms)
