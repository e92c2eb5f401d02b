"""What to try next in a watched script, in the script's own terms: no command of ddpbench changes it."""

from __future__ import annotations

from math import ceil

from ddpbench.analysis.command import TOP_COMMAND
from ddpbench.analysis.cpu_demand import cpu_demand
from ddpbench.analysis.inputs import AnalysisInput
from ddpbench.record.verdict import ChangeDataLoader, NextStep, RunCommand, Verdict


def script_step(inputs: AnalysisInput, verdict: Verdict) -> NextStep | None:
    """The next step after ``verdict`` on a watched script; None if no single change suggests itself."""
    match verdict.kind:
        case "data-bound":
            return _more_workers(inputs)
        case "host-to-device-bound" if not inputs.record.config.pin_memory:
            return ChangeDataLoader(pin_memory=True)
        case "noisy-neighbour":
            return RunCommand(TOP_COMMAND)
    return None


def _more_workers(inputs: AnalysisInput) -> ChangeDataLoader | None:
    """As many workers as deliver a batch per step without waits; None if these run already.

    At most as many as there are cores for, but one in any case: it prepares a batch while the process trains.

    It assumes that all workers are busy while the run waits, and that twice the workers deliver twice the batches. Without workers, the
    wait is the time in which one worker would prepare a batch.
    """
    workers, training_ms = inputs.record.workers, inputs.step_ms - inputs.data_wait_ms
    batch_ms = workers * inputs.step_ms if workers else inputs.data_wait_ms  # that one worker takes
    suggested = min(ceil(batch_ms / training_ms), max(1, cpu_demand(inputs.record).max_workers))
    return ChangeDataLoader(num_workers=suggested) if suggested > workers else None
