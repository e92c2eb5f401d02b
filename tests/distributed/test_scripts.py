"""Scripts of users, in each framework that people train with: watched rightly, and changed in nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launches import BARE_ENV, only_record
from scripts.limits import LAUNCHERS, SCRIPTS, Script, Seen

from ddpbench.record.record import Record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(110)]

RANKS = {"plain": 1, "torchrun": 2, "accelerate": 2}


@pytest.mark.parametrize("each", [each for each in SCRIPTS if not each.is_cuda], ids=lambda each: each.title)
def test_script_prints_the_same_losses_and_is_watched_rightly(
    each: Script, start: Callable[..., Any], launch: Callable[..., Any], results: Path
) -> None:
    assert each.seen is not None
    launcher, words = LAUNCHERS[each.launcher], [str(each.path), *each.short]
    bare = start([*launcher, *words], env=BARE_ENV)
    watched = launch([*launcher, "-m", "ddpbench", "watch", "-o", str(results), *words])
    assert watched.returncode == 0, watched.stderr
    alone = bare.wait(60.0)
    assert losses(watched.stdout) == losses(alone.stdout)
    assert len(losses(alone.stdout)) >= 2
    record = only_record(results)
    assert record.status == "ok", record.fault
    assert facts(record, each.seen) == each.seen
    assert record.world_size == RANKS[each.launcher]
    assert record.rounds


@pytest.mark.cuda
@pytest.mark.parametrize("each", [each for each in SCRIPTS if each.is_cuda], ids=lambda each: each.title)
def test_script_on_a_gpu_is_watched_and_trains_the_same(each: Script, launch: Callable[..., Any], results: Path) -> None:
    words = [str(each.path), *each.short]
    bare = launch([sys.executable, *words])
    watched = launch([sys.executable, "-m", "ddpbench", "watch", "-o", str(results), *words])
    assert (watched.returncode, losses(watched.stdout)) == (0, losses(bare.stdout)), watched.stderr
    record = only_record(results)
    assert (record.status, record.environment.device_type) == ("ok", "cuda")
    assert record.rounds


def losses(stdout: str) -> list[str]:
    """The lines with losses or weights, of which two runs print the same."""
    return [line for line in stdout.splitlines() if "loss " in line or "weights " in line]


def facts(record: Record, expected: Seen) -> Seen:
    """What ``record`` says of the script; the phases as in ``expected`` if they are long enough, else how long they are."""
    assert record.script is not None
    script, config = record.script, record.config
    return Seen(
        model=script.model,
        optimizers=tuple(script.optimizers),
        dataset=script.dataset,
        loader=config.loader,
        batches=script.batches,
        epochs=script.epochs,
        batch_size=config.batch_size,
        batches_per_update=script.batches_per_update,
        precision=config.precision,
        engine=config.engine,
        is_unfed=script.step == "update",
        outside=tuple(sorted(script.outside_s)),
        least_ms=tuple((phase, min(least, phase_ms(record, phase))) for phase, least in expected.least_ms),
    )


def phase_ms(record: Record, phase: str) -> float:
    """Mean of a phase per step, over all rounds and ranks."""
    return sum(trace.total_ms(phase) for trace in record.traces) / sum(trace.steps for trace in record.traces)
