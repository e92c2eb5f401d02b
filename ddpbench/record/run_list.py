"""The runs below a folder, read as far as a list of them needs: a thousand records in seconds."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ddpbench.record.config import Config
from ddpbench.record.errors import UsageError
from ddpbench.record.io import OLDEST_SCHEMA, job_files
from ddpbench.record.record import SCHEMA, ThroughputEstimate
from ddpbench.record.request import SweepShard


class ListedVerdict(msgspec.Struct, frozen=True):
    """What a list shows of a verdict."""

    kind: str
    cause: str | None = None


class ListedRole(msgspec.Struct, frozen=True):
    kind: str = "run"


class ListedSoftware(msgspec.Struct, frozen=True):
    torch: str = ""


class ListedPlacement(msgspec.Struct, frozen=True):
    device_name: str = ""


class ListedEnvironment(msgspec.Struct, frozen=True):
    world_size: int
    software: ListedSoftware
    placements: list[ListedPlacement] = []


class ListedScript(msgspec.Struct, frozen=True):
    """Of a list, only that a record is of a user's script matters."""


class ListedRecord(msgspec.Struct, frozen=True):
    """What a list shows of a record."""

    config: Config
    environment: ListedEnvironment
    status: str = "running"
    sample_unit: str = "image"
    role: ListedRole = ListedRole()
    script: ListedScript | None = None  # of a user's script, whose rounds and threads are not settings
    throughput: ThroughputEstimate | None = None
    verdict: ListedVerdict | None = None


class ListedScaling(msgspec.Struct, frozen=True):
    verdict: ListedVerdict | None = None


class ListedRun(msgspec.Struct, frozen=True):
    """What a list shows of a job."""

    schema: int
    started: str
    command: list[str]
    records: list[ListedRecord]
    kind: str = "run"
    swept: list[str] = []
    scaling: ListedScaling | None = None
    sweep_shard: SweepShard | None = None

    @property
    def main(self) -> ListedRecord:
        """The record that stands for the job: its baseline, or that of most ranks."""
        baseline = next((each for each in self.records if each.role.kind == "baseline"), None)
        return baseline or max(self.records, key=lambda each: each.environment.world_size)


RunFile = tuple[Path, ListedRun]


def list_runs(folder: Path) -> tuple[list[RunFile], list[UsageError]]:
    """The runs below ``folder``, oldest first, and one error per file that is no record."""
    runs: list[RunFile] = []
    skipped: list[UsageError] = []
    for path in sorted(job_files(folder.rglob("*.json"))):
        try:
            run = msgspec.json.decode(path.read_bytes(), type=ListedRun)
        except (OSError, ValueError, RecursionError) as problem:  # msgspec's errors are ValueErrors
            skipped.append(UsageError(f"'{path}' is not a ddpbench record: {str(problem).partition(' - ')[0]}"))
            continue
        if not OLDEST_SCHEMA <= run.schema <= SCHEMA or not run.records:
            skipped.append(UsageError(f"'{path}' has schema {run.schema}" if run.records else f"'{path}' contains no training"))
            continue
        runs.append((path, run))
    return sorted(runs, key=lambda file: file[1].started), skipped
