"""From the words of a command to the Request it stands for: names looked up, arms laid out, contradictions refused."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from ddpbench.cli.options import options
from ddpbench.data import catalogue as loaders
from ddpbench.record.catalogue import ENGINES, PRECISIONS
from ddpbench.record.config import Config
from ddpbench.record.errors import UsageError
from ddpbench.record.names import lookup
from ddpbench.record.request import Output, Request
from ddpbench.workloads import catalogue as workloads

LAUNCHERS = {
    "torchrun": "torchrun",
    "torch.distributed.run": "torchrun",
    "ddpbench.experiments.torchrun": "torchrun",
    "accelerate": "accelerate",
}


def request(workload: str, given: Mapping[str, Any], words: Sequence[str]) -> Request:
    """What the words ask for; ``given`` holds the text of every flag that was given, by the name of its field.

    Raises UsageError for an unknown name, a value out of range, a list where there is one value, and a contradiction.
    """
    workloads.find(workload)
    given = {name: text for name, text in given.items() if text not in (None, ())}
    axes = {name: option.values(given[name]) for option in options(Config) if (name := option.field.name) in given}
    output = {name: option.value(given[name]) for option in options(Output) if (name := option.field.name) in given}
    if output.get("quiet") and output.get("verbose"):
        raise UsageError("--quiet and --verbose contradict each other", "give one of them")
    for name in axes.get("precision", ()):
        lookup("precision", name, PRECISIONS)
    sources = [loaders.find(name) for name in axes.get("loader", ())]
    if sources and "data_dir" in axes and not any(source.reads_files for source in sources):
        named = ",".join(axes["loader"])
        raise UsageError(f"--data-dir and --loader {named} contradict each other: {named} reads no files", "give one of them")
    for name in axes.get("engine", ()):
        lookup("engine", name, ENGINES)
    if given.get("amp"):
        axes["precision"] = [_amp(axes)]
    return Request(
        arms=[Config(workload=workload, **dict(zip(axes, point, strict=True))) for point in itertools.product(*axes.values())],
        output=Output(**output),
        command=as_typed(words),
        swept=[name for name, values in axes.items() if len(values) > 1],
    )


def as_typed(words: Sequence[str]) -> list[str]:
    """The command that a person typed to get here: the launcher's, where one started this process."""
    try:
        parent = psutil.Process(os.getppid()).cmdline()
    except psutil.Error:
        parent = []
    for place, word in enumerate(parent[:3]):
        if launcher := LAUNCHERS.get(Path(word).name):
            return [launcher, *parent[place + 1 :]]
    program = ["python", "-m", "ddpbench"] if Path(sys.argv[0]).name == "__main__.py" else ["ddpbench"]
    return [*program, *words]


def _amp(axes: Mapping[str, Sequence[Any]]) -> str:
    """The mixed precision that ``--amp`` means on the device asked for; raises UsageError where ``--precision`` says otherwise."""
    asked = axes.get("device", ["auto"])[0]
    precision = "amp-fp16" if asked == "cuda" or (asked == "auto" and _cuda()) else "amp-bf16"
    if (named := list(axes.get("precision", [precision]))) != [precision]:
        raise UsageError(f"--amp means {precision} here, and --precision says {','.join(named)}", "give one of them")
    return precision


def _cuda() -> bool:
    import torch  # seconds of import, which only a run on an automatic device needs

    return torch.cuda.is_available()
