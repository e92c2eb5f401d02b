"""Scenarios as settings: the fields of a Config that they change, the command that runs them, and whether they can run here."""

from __future__ import annotations

from ddpbench.analysis.command import CONFIG_FIELDS, DATALOADER_FIELDS, CommandBuilder
from ddpbench.analysis.controls import baseline_of
from ddpbench.record.prediction import Scenario
from ddpbench.record.record import Job


def config_fields(scenario: Scenario) -> dict[str, object]:
    """Return the fields of Config that ``scenario`` changes."""
    values = {name: getattr(scenario, name) for name in scenario.__struct_fields__}
    return {name: value for name, value in values.items() if value is not None and name in CONFIG_FIELDS}


def is_runnable(scenario: Scenario) -> bool:
    """Whether flags of a run, or arguments of a script's DataLoader, can express all of ``scenario``.

    More cores or ranks need another machine or launch.
    """
    return all(getattr(scenario, name) is None or name in (*CONFIG_FIELDS, *DATALOADER_FIELDS) for name in scenario.__struct_fields__)


def command_with(job: Job, scenario: Scenario) -> str:
    """Return the command that runs the baseline of ``job`` with ``scenario``."""
    record = baseline_of(job)
    assert record is not None, "predictions belong to a diagnosis"
    return CommandBuilder.of(record, job).command(**{name: (value,) for name, value in config_fields(scenario).items()})
