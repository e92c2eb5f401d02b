"""The command of a run, once more or with other values: what a verdict offers must run as it stands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

from ddpbench.record.config import Config
from ddpbench.record.environment import Environment
from ddpbench.record.flags import flags
from ddpbench.record.record import Record

PORT = 29500


def command(record: Record, **values: Sequence[object]) -> str:
    """A shell command that runs ``record`` again, started the way it was, with other ``values`` for some fields of its Config.

    Several values of one field make arms, which one job interleaves and one table compares. What was left automatic stays so.
    """
    fields = {field.name: field for field in flags(Config)}
    unchanged = msgspec.structs.replace(record.asked or record.config, **{name: fields[name].default for name in values})
    changed = [word for name, arms in values.items() for word in (fields[name].spelling, ",".join(map(str, arms)))]
    return shlex.join([*launcher(record.environment), *unchanged.to_argv(), *changed])


def launcher(environment: Environment) -> list[str]:
    """The words before the workload. On several nodes the command is for each of them, and they meet on the first."""
    if environment.launcher == "python":
        return ["ddpbench"]
    ranks = [f"--nproc_per_node={environment.world_size // environment.nodes}"]
    if environment.nodes > 1:
        meeting = ["--rdzv_backend=c10d", f"--rdzv_endpoint={environment.places[0].host}:{PORT}"]
        ranks = [f"--nnodes={environment.nodes}", *ranks, *meeting]
    return ["torchrun", *ranks, "-m", "ddpbench"]
