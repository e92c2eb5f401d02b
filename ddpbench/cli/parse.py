"""Parses a command line into a Request: resolves names, expands arms, rejects conflicts."""

from __future__ import annotations

import itertools
import os
import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from ddpbench.cli.options import given_options, parse_given
from ddpbench.machine.gpu_queues import use_most_gpu_queues
from ddpbench.record.config import Config, measurement_config
from ddpbench.record.errors import UsageError
from ddpbench.record.io import encode_json
from ddpbench.record.loaders import find_loader, has_gpu_loader
from ddpbench.record.names import lookup
from ddpbench.record.packages import require_torch
from ddpbench.record.private import redact_names
from ddpbench.record.registry import ENGINES, find_precision
from ddpbench.record.request import TORCHRUN_MODULE, OutputOptions, Request, SweepShard
from ddpbench.record.text import pluralize
from ddpbench.workloads import registry as workloads

LAUNCHERS = {
    "torchrun": "torchrun",
    "torch.distributed.run": "torchrun",
    "accelerate": "accelerate",
}


def parse_request(workload: str, given: Mapping[str, Any], argv: Sequence[str], tries_loaders: bool = False) -> Request:
    """The Request for ``workload``; ``given`` maps field names to the text of the flags on the command line.

    ``tries_loaders`` says whether the command also tries other loaders.
    Raises UsageError without torch, for an unknown name, a value out of range, a list if the flag takes one value, and conflicting flags.
    """
    dataset = workloads.find_workload(workload).dataset
    require_torch(f"workload '{workload}'")
    axes = {option.field.name: option.parse_values(text) for option, text in given_options(Config, given)}
    if "precision" in axes:
        axes["precision"] = _resolve_precisions(axes["precision"])
    specs = [find_loader(name) for name in axes.get("loader", ())]
    if any(spec.needs_gpu for spec in specs) or (tries_loaders and has_gpu_loader(dataset)):
        use_most_gpu_queues()  # before --amp below starts CUDA, which then reads no more variables
    if specs and "data_dir" in axes and not any(spec.reads_dataset for spec in specs):
        names = ",".join(axes["loader"])
        raise UsageError(f"--data-dir and --loader {names} contradict each other: {names} reads no files", "use one of them")
    if "epochs" in axes and "steps" in axes:
        raise UsageError("--epochs and --steps contradict each other: both set the length of a round", "use one of them")
    for name in axes.get("engine", ()):
        lookup("engine", name, ENGINES)
    if given.get("amp"):
        axes["precision"] = [_amp_precision(axes, starts_gpus=bool(given.get("gpus")))]
    return Request(
        arms=[Config(workload=workload, **dict(zip(axes, point, strict=True))) for point in itertools.product(*axes.values())],
        output=parse_output(given),
        command=typed_command(argv),
        swept=[name for name, values in axes.items() if len(values) > 1],
    )


def require_single_arm(request: Request) -> Request:
    """``request`` if it has one arm. Raises UsageError if it has several."""
    if len(request.arms) > 1:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in request.swept)
        verb = "gives" if len(request.swept) == 1 else "give"
        raise UsageError(f"this command measures one arm, and {flags} {verb} {len(request.arms)}", "give one value per flag")
    return request


def parse_output(given: Mapping[str, Any]) -> OutputOptions:
    """The output flags. Raises UsageError for a value out of range, and for conflicting flags."""
    flags = parse_given(OutputOptions, given)
    if flags.get("quiet") and flags.get("verbose"):
        raise UsageError("--quiet and --verbose contradict each other", "use one of them")
    return OutputOptions(**flags)


def typed_command(argv: Sequence[str]) -> list[str]:
    """The command that the user typed: the launcher's command line if a launcher started this process."""
    try:
        parent = psutil.Process(os.getppid()).cmdline()
    except psutil.Error:
        parent = []
    if TORCHRUN_MODULE in parent[:3]:  # started by --gpus
        ranks = next(word.partition("=")[2] for word in parent if word.startswith("--nproc_per_node="))
        place = 1 if argv[0] in ("watch", "diagnose") else len(argv)  # behind a script, it would be one of the script's own flags
        return ["ddpbench", *argv[:place], "--gpus", ranks, *argv[place:]]
    for index, word in enumerate(parent[:3]):
        if launcher := LAUNCHERS.get(Path(word).name):
            return [launcher, *parent[index + 1 :]]
    program = ["python", "-m", "ddpbench"] if Path(sys.argv[0]).name == "__main__.py" else ["ddpbench"]
    return [*program, *argv]


def _resolve_precisions(requested: Sequence[str]) -> list[str]:
    """The canonical names of precisions. Raises UsageError for an unknown name, and for two names of one precision."""
    resolved = [find_precision(name).name for name in requested]
    if len(set(resolved)) < len(resolved):
        duplicates = " and ".join(f"'{word}'" for word, name in zip(requested, resolved, strict=True) if resolved.count(name) > 1)
        raise UsageError(f"--precision has {duplicates}, which are the same", "give every arm a different value")
    return resolved


def _amp_precision(axes: Mapping[str, Sequence[Any]], starts_gpus: bool) -> str:
    """The precision that ``--amp`` means on the requested device. Raises UsageError if ``--precision`` differs.

    ``starts_gpus`` (``--gpus``) implies CUDA unless ``--device`` is given.
    """
    device = axes.get("device", ["auto"])[0]
    precision = "amp-fp16" if device == "cuda" or (device == "auto" and (starts_gpus or _cuda_available())) else "amp-bf16"
    if (requested := list(axes.get("precision", [precision]))) != [precision]:
        raise UsageError(f"--amp means {precision} here, but --precision is {','.join(requested)}", "use one of them")
    return precision


def _cuda_available() -> bool:
    import torch  # takes seconds, and only --device auto needs it

    return torch.cuda.is_available()


SHARD_PATTERN = re.compile(r"([0-9]+)/([0-9]+)")


def select_shard(request: Request, text: str) -> Request:
    """``request`` with arm K and every N-th after it, for ``text`` "K/N". Raises UsageError if invalid, or if no arm is left."""
    match = SHARD_PATTERN.fullmatch(text)
    part, num_parts = map(int, match.groups()) if match else (0, 0)
    if not 1 <= part <= num_parts:
        raise UsageError(f"--part cannot be '{text}'", "use K/N, such as 1/4 for the first of four parts")
    num_points = len(request.arms)
    if num_parts > num_points:
        raise UsageError(
            f"--part {text}, but the sweep has only {pluralize(num_points, 'combination')}", f"use at most {pluralize(num_points, 'part')}"
        )
    shard = SweepShard(parts=[part], num_parts=num_parts, num_sweep_points=num_points, sweep_id=_sweep_id(request))
    return msgspec.structs.replace(request, arms=[request.arms[index] for index in shard.indices], sweep_shard=shard)


def _sweep_id(request: Request) -> str:
    """Checksum of what the full sweep measures; of a redacted one without private names, which a checksum could confirm."""
    arms = redact_names(request.arms) if request.output.redact else request.arms
    return f"{zlib.crc32(encode_json([measurement_config(arm) for arm in arms])):08x}"
