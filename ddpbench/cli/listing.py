"""Output of ``list`` and ``env``: the names that flags accept, as text and as JSON, and the fingerprint of this machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.columns import Columns
from rich.console import Console
from rich.table import Table

from ddpbench.published.publications import load_publication, published_names
from ddpbench.record.loaders import LOADERS, LoaderSpec
from ddpbench.record.registry import DATASETS, ENGINES, PRECISIONS
from ddpbench.record.text import printable
from ddpbench.workloads.families import FAMILIES
from ddpbench.workloads.registry import WORKLOADS
from ddpbench.workloads.spec import WorkloadSpec

GFLOPS_NOTE = "GFLOPs: forward and backward pass of one sample, 2 FLOPs per multiply-add"


def print_choices(console: Console) -> None:
    """Print workloads with their size, precisions, loaders, engines and published experiments, one per line."""
    detailed, others = named_workloads(), other_workloads()
    table = _table("workload", "", "parameters", "sample", "GFLOPs")
    for spec in detailed:
        table.add_row(spec.name, spec.help, f"{spec.parameters:,}", sample_text(spec), f"{spec.gflop_per_sample:.3g}")
    console.print(table)
    console.print(GFLOPS_NOTE, style="dim")
    _print_names(console, "family", ((family.name, f"{family.help}; {family.range_hint()}") for family in FAMILIES))
    console.print()
    console.print("other torchvision classification models, on ImageNet:")
    console.print(Columns(others, padding=(0, 2), column_first=True))
    _print_names(console, "precision", ((spec.name, spec.help) for spec in PRECISIONS.values()))
    _print_names(console, "loader", ((spec.name, f"{spec.help}; for {dataset_titles(spec)}") for spec in LOADERS.values()))
    _print_names(console, "engine", ENGINES.items())
    _print_names(
        console, "published experiment", ((publication.id, publication.title) for publication in map(load_publication, published_names()))
    )


def print_fingerprint(console: Console, rows: Sequence[tuple[str, str, str]]) -> None:
    """Print the rows (name, value, how to install it if missing) of the fingerprint."""
    table = _table("", "")
    for name, value, remedy in rows:
        table.add_row(name, printable(f"{value}: {remedy}" if remedy else value))
    console.print(table)


def choices_to_json() -> str:
    """One JSON object with the properties of everything that ``print_choices`` prints; sizes of workloads may be null."""
    choices = {
        "workloads": [_workload_properties(spec) for spec in WORKLOADS.values()],
        "families": [
            {
                "name": family.name,
                "help": family.help,
                "ranges": {word: {"first": each[0], "last": each[-1], "step": each.step} for word, each in family.ranges.items()},
            }
            for family in FAMILIES
        ],
        "precisions": [asdict(spec) | {"aliases": spec.aliases} for spec in PRECISIONS.values()],
        "loaders": [
            {name: getattr(spec, name) for name in ("name", "help", "datasets", "worker_type", "on_device", "needs_gpu", "modules")}
            for spec in LOADERS.values()
        ],
        "engines": [{"name": name, "help": help} for name, help in ENGINES.items()],
        "published_experiments": [
            {"name": publication.id, "help": publication.title} for publication in map(load_publication, published_names())
        ],
    }
    return json.dumps(choices, indent=2)


def named_workloads() -> list[WorkloadSpec]:
    """The workloads whose size is known."""
    return [spec for spec in WORKLOADS.values() if spec.parameters is not None and spec.gflop_per_sample is not None]


def other_workloads() -> list[str]:
    """The names of torchvision's other models, sorted."""
    return sorted(WORKLOADS.keys() - {spec.name for spec in named_workloads()})


def _workload_properties(spec: WorkloadSpec) -> dict[str, Any]:
    names = ("name", "help", "dataset", "classes", "sample_unit", "batch_cuda", "batch_cpu", "parameters", "gflop_per_sample")
    return {name: getattr(spec, name) for name in names} | {"input_shape": spec.input_shape(None)}


def sample_text(spec: WorkloadSpec) -> str:
    """Name and shape of one sample: ``image 3x224x224``."""
    return f"{spec.sample_unit} {'x'.join(map(str, spec.input_shape(None)))}"


def dataset_titles(spec: LoaderSpec) -> str:
    """The datasets that a loader reads: ``CIFAR-10 and MNIST``."""
    *others, last = (DATASETS[name].title for name in spec.datasets)
    return f"{', '.join(others)} and {last}" if others else last


def _print_names(console: Console, kind: str, names: Iterable[tuple[str, str]]) -> None:
    table = _table(kind, "")
    for row in names:
        table.add_row(*row)
    console.print()
    console.print(table)


def _table(*titles: str) -> Table:
    """A table without lines: a name, text that may wrap, then right-aligned numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=any(titles))
    for column, title in enumerate(titles):
        table.add_column(
            title,
            justify="right" if title and column > 1 else "left",
            style="cyan" if column == 0 else "",
            no_wrap=column != 1,
            overflow="fold",
        )
    return table
