"""The command of a run, once more or with other values: what a verdict offers must run as it stands."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddpbench.record.config import Config
from ddpbench.record.environment import Environment
from ddpbench.record.flags import Field, flags
from ddpbench.record.loaders import SYNTHETIC
from ddpbench.record.record import Record
from ddpbench.record.request import Laddering, Output, Proving

PROGRAM = "ddpbench"
RUN, DIAGNOSE, SCALE = "run", "diagnose", "scale"
PORT = 29500

CONFIG: Mapping[str, Field] = {field.name: field for field in flags(Config)}
OUTPUT: Mapping[str, Field] = {field.name: field for field in (*flags(Output), *flags(Proving), *flags(Laddering))}
FIELDS: Mapping[str, Field] = {
    spelling: field
    for field in (*CONFIG.values(), *OUTPUT.values())
    for spelling in (field.spelling, *([field.negative] if field.boolean else []), *([field.flag.short] if field.flag.short else []))
}

ONCE = frozenset({"json", "force", "quiet", "apply"})
"""Flags that are not for another run: the record that this one wrote is in the way, and a report is wanted."""

OF_A_DIAGNOSIS, OF_A_LADDER = frozenset({"verify"}), frozenset({"strong"})
"""Flags that a run does not have."""

UNDIAGNOSED = frozenset({"rounds", "steps", "epochs", "fresh", "validate", "warmup", "launches", "profile"})
"""Flags that say how long a run is measured, which a diagnosis decides by itself."""

RENDEZVOUS = ("--standalone", "--nnodes", "--node-rank", "--rdzv", "--master-")
"""How flags of torchrun begin that say where ranks meet."""

SCRIPTS = {False: "launch/slurm_single_node.sbatch", True: "launch/slurm_multi_node.sbatch"}
"""By whether there are several nodes."""

Unit = tuple[str, list[str]]
"""A flag with its value: the name of its field, empty for what is no flag, and its words."""


@dataclass(frozen=True)
class Rerun:
    """A run that is to be started again: its record, and the whole command as it was typed, where that is known."""

    record: Record
    typed: Sequence[str] = ()
    ranks: int | None = None  # other than it had, on one node

    def with_ranks(self, ranks: int) -> Rerun:
        """The same on so many ranks of one node."""
        return replace(self, ranks=ranks)

    def command(self, **values: Sequence[object]) -> str:
        """A shell command that runs it again, in the words it was given, with other ``values`` for some fields of its Config.

        Several values of one field make arms, which one job interleaves and one table compares; none leaves the flag out.
        """
        asked, environment = self.record.asked or self.record.config, self.record.environment
        start, own, given = self._words()
        if self.ranks is not None:
            start, given = _on_ranks(self.ranks, start, given)
        values = {**_single(given, asked), **values}
        if own in (DIAGNOSE, SCALE):
            values = {"time_limit": (), **values}  # it bounds more than a run
        if own == DIAGNOSE:
            values = {**_default_loader(given, asked), **values}
        if values.get("loader", (asked.loader,)) == (SYNTHETIC,):
            values["data_dir"] = ()
        changed = _changed(given, values, ONCE | OF_A_DIAGNOSIS | OF_A_LADDER)
        return shlex.join([*([] if "threads" in values else threads(environment)), *start, *([RUN] if own == RUN else []), *changed])

    def diagnose(self, **values: Sequence[object]) -> str:
        """A shell command that finds out what holds this run back, with other ``values`` for some fields of its Config."""
        asked, environment = self.record.asked or self.record.config, self.record.environment
        start, own, given = self._words()
        values = {**_single(given, asked), **values}
        if own == SCALE:
            values = {"time_limit": (), **values}
        return shlex.join([*threads(environment), *start, DIAGNOSE, *_changed(given, values, ONCE | UNDIAGNOSED | OF_A_LADDER)])

    def has_flag(self, name: str) -> bool:
        """Whether the field ``name`` of its Config was typed: such a value was chosen, perhaps after a comparison."""
        understood = _understood(self.typed, self.record.environment)
        return understood is not None and any(name == field for field, _ in understood[1])

    def _words(self) -> tuple[list[str], str, list[Unit]]:
        """Those up to the program's name, its command if one is named, and the rest.

        As they were typed or, where that is not understood, those of the Config.
        """
        asked, environment = self.record.asked or self.record.config, self.record.environment
        start, given = _understood(self.typed, environment) or (launcher(environment), units(asked.to_argv()))
        _, (first, *_) = given[0]
        return (start, first, given[1:]) if first in (RUN, DIAGNOSE, SCALE) else (start, "", given)


def spelled(name: str, arms: Sequence[object]) -> list[str]:
    """The words that give the field ``name`` the values ``arms``."""
    field = CONFIG[name]
    if field.boolean:
        return [field.spelling if value else field.negative for value in arms]
    return [field.spelling, ",".join(map(str, arms))] if arms else []


def units(words: Sequence[str]) -> list[Unit]:
    """``words`` behind the program's name, each flag with its value; short flags that were typed in one word each get their own.

    Raises LookupError where a flag is not known or has no value.
    """
    rest, found = list(words), []
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            found.append(("", [word]))
            continue
        spelling, _, value = word.replace("_", "-").partition("=") if word.startswith("--") else (word[:2], "", word[2:])
        if spelling == "--amp":
            found.append(("precision", [word]))
            continue
        field = FIELDS[spelling]
        if field.boolean and value:
            word, rest = spelling, [f"-{value}", *rest]
        found.append((field.name, [word] if field.boolean or value else [word, rest.pop(0)]))
    return found


def launcher(environment: Environment) -> list[str]:
    """The words before the workload. On several nodes the command is for each of them, and they meet on the first.

    A job of SLURM's is submitted again, from the root of a clone.
    """
    if environment.launcher == "python":
        return [PROGRAM]
    if environment.launcher == "slurm":
        several = environment.nodes > 1
        return ["sbatch", *([f"--nodes={environment.nodes}"] if several else []), SCRIPTS[several]]
    ranks, meeting = f"--nproc_per_node={environment.world_size // environment.nodes}", ["--standalone"]
    if environment.nodes > 1:
        first = environment.places[0].host.partition("#")[0]  # the name by which it can be reached
        meeting = [f"--nnodes={environment.nodes}", "--rdzv_backend=c10d", f"--rdzv_endpoint={first}:{PORT}"]
    return ["torchrun", *meeting, ranks, "-m", PROGRAM]


def threads(environment: Environment) -> list[str]:
    """OMP_NUM_THREADS as ranks on processors had it, where it would not be so by itself: torchrun gives each of several ranks 1."""
    given = environment.variables.get("OMP_NUM_THREADS")
    if environment.launcher == "slurm":
        return []  # the script's own
    alone = environment.launcher == "python" or environment.world_size == environment.nodes
    by_itself = None if alone else "1"
    return [f"OMP_NUM_THREADS={given}"] if given and given != by_itself and environment.device_type == "cpu" else []


def _understood(typed: Sequence[str], environment: Environment) -> tuple[list[str], list[Unit]] | None:
    """The words up to the program's name, and the flags behind it; ``None`` where they cannot be told apart."""
    place = next((at for at, word in enumerate(typed) if Path(word).name == PROGRAM), None)
    if place is None:
        return None
    start = list(typed[: place + 1])
    try:
        given = units(typed[place + 1 :])
    except LookupError:
        return None
    if environment.launcher != "slurm" and _counts_gpus(given):
        return start, given
    given = [unit for unit in given if unit[0] != "gpus"]
    if environment.launcher == "slurm" or (environment.launcher == "python") == (start[0] in ("torchrun", "accelerate")):
        return launcher(environment), given  # ranks were started by something that is not in these words
    return _on_a_port_of_its_own(start, environment), given


def _on_ranks(ranks: int, start: list[str], given: list[Unit]) -> tuple[list[str], list[Unit]]:
    """The same words for so many ranks of one node: ``--gpus`` counts them where it was typed, torchrun where it was not."""
    if _counts_gpus(given):
        return start, [("gpus", ["--gpus", str(ranks)]) if name == "gpus" else (name, words) for name, words in given]
    return ["torchrun", "--standalone", f"--nproc_per_node={ranks}", "-m", PROGRAM], given


def _counts_gpus(given: Sequence[Unit]) -> bool:
    return any(name == "gpus" for name, _ in given)


def _on_a_port_of_its_own(start: list[str], environment: Environment) -> list[str]:
    """torchrun on one node with ``--standalone``, or two jobs on it would meet at one port; what says where to meet is kept."""
    meets = any(word.replace("_", "-").startswith(RENDEZVOUS) for word in start)
    if start[0] != "torchrun" or environment.nodes > 1 or meets:
        return start
    return ["torchrun", "--standalone", *start[1:]]


def _default_loader(given: Sequence[Unit], asked: Config) -> dict[str, Sequence[object]]:
    """The loader that a diagnosis took where nobody named one: a run would take none."""
    named = {name for name, _ in given}
    return {} if named & {"loader", "data_dir"} or asked.loader is None else {"loader": (asked.loader,)}


def _changed(given: Sequence[Unit], values: Mapping[str, Sequence[object]], dropped: Collection[str]) -> list[str]:
    """The words of ``given`` less those of the fields that are ``dropped`` or get other ``values``, and then those values."""
    kept = [word for name, words in given if name not in values and name not in dropped for word in words]
    return [*kept, *(word for name, arms in values.items() for word in spelled(name, arms))]


def _single(given: Sequence[Unit], asked: Config) -> dict[str, Sequence[object]]:
    """The one value that this arm has of each field that was given several."""
    return {name: (getattr(asked, name),) for name in _listed(given)}


def _listed(given: Sequence[Unit]) -> list[str]:
    """The fields that were given several values, of which this arm had one."""
    ways: dict[str, set[str]] = {}
    for name, words in given:
        if name in CONFIG and CONFIG[name].flag.sweep:
            ways.setdefault(name, set()).update(words if CONFIG[name].boolean else words[-1].split(","))
    return [name for name, values in ways.items() if len(values) > 1]
