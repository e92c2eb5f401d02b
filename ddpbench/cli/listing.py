"""What ``list`` and ``env`` print: every name that a flag takes, and the machine a record would name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.columns import Columns
from rich.console import Console
from rich.table import Table

from ddpbench.data.catalogue import LOADERS, LoaderSpec
from ddpbench.record.catalogue import ENGINES, PRECISIONS
from ddpbench.workloads.catalogue import WORKLOADS

DATASETS = {"imagenet": "ImageNet", "cifar10": "CIFAR-10"}
"""What people call the data sets."""


def print_choices(console: Console) -> None:
    """Workloads with their size, precisions, loaders and engines, a line each."""
    sized = [spec for spec in WORKLOADS.values() if spec.parameters is not None and spec.gflops is not None]
    others = sorted(WORKLOADS.keys() - {spec.name for spec in sized})
    table = _table("workload", "", "parameters", "GFLOPs an image")
    for spec in sized:
        table.add_row(spec.name, spec.help, f"{spec.parameters:,}", f"{spec.gflops:.2f}")
    console.print(table)
    console.print("forward and backward of one image at the workload's own size, 2 a multiply-add\n", style="dim")
    console.print("and torchvision's other classification models, on ImageNet:")
    console.print(Columns(others, padding=(0, 2), column_first=True))
    _print_names(console, "precision", ((spec.name, spec.help) for spec in PRECISIONS.values()))
    _print_names(console, "loader", ((spec.name, f"{spec.help}; for {_datasets(spec)}") for spec in LOADERS.values()))
    _print_names(console, "engine", ENGINES.items())


def print_fingerprint(console: Console, rows: Sequence[tuple[str, str, str]]) -> None:
    """The fingerprint's rows (what, value, how to get it where it is missing)."""
    table = _table("", "")
    for what, value, how in rows:
        table.add_row(what, f"{value}: {how}" if how else value)
    console.print(table)


def _datasets(spec: LoaderSpec) -> str:
    return " and ".join(DATASETS[name] for name in spec.datasets)


def _print_names(console: Console, kind: str, names: Iterable[tuple[str, str]]) -> None:
    table = _table(kind, "")
    for row in names:
        table.add_row(*row)
    console.print()
    console.print(table)


def _table(*titles: str) -> Table:
    """A table without lines: a name, words that may wrap, figures to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=any(titles))
    for place, title in enumerate(titles):
        table.add_column(
            title,
            justify="right" if title and place > 1 else "left",
            style="cyan" if place == 0 else "",
            no_wrap=place == 0,
            overflow="fold",
        )
    return table
