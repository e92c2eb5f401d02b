"""The machine as a diagnosis found it: how many cores it may use, by whose leave, and who else is on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ddpbench.analysis.node_cpu_usage import LEAST_OTHERS
from ddpbench.analysis.ranks import mean
from ddpbench.record.diagnosis import SHARED_MEMORY, Surroundings
from ddpbench.record.record import Record
from ddpbench.record.text import count
from ddpbench.report.format import gib, percent, significant
from ddpbench.report.layout import Page, flow
from ddpbench.report.pages.header import MOST_NAMED
from ddpbench.report.styled import LABEL, inked

LABELLED = "machine  "


def machine(record: Record, nodes: Sequence[Surroundings], page: Page, verbose: bool = False) -> Iterator[Text]:
    """A line a node, one for all that are alike, where one is out of the ordinary.

    With ``verbose`` always, and with memory, NUMA nodes, and how often somebody waited for a core.
    """
    if not verbose and not any(map(_unusual, nodes)):
        return
    told: dict[tuple[str, ...], list[str]] = {}
    for node in nodes:
        told.setdefault((*_granted(node), *(_more(record, node) if verbose else ())), []).append(node.host)
    for items, hosts in told.items():
        which = [", ".join(hosts) if len(hosts) <= MOST_NAMED else count(len(hosts), "node")] if len(told) > 1 else []
        yield from inked(flow(LABELLED, [*which, *items], page), LABEL, len(LABELLED.strip()))


def _unusual(node: Surroundings) -> bool:
    """Whether not all cores are there for the job, or some are far from its GPUs."""
    return node.quota is not None or node.slurm is not None or (node.others_cores or 0.0) >= LEAST_OTHERS or bool(_far(node))


def _far(node: Surroundings) -> list[str]:
    return [str(each.rank) for each in node.numa if each.cores and each.gpu and not set(each.cores) & set(each.gpu)]


def _granted(node: Surroundings) -> Iterator[str]:
    yield f"{count(node.affinity, 'core')} by affinity"
    yield "no quota" if node.quota is None else f"a quota of {node.quota:g}"
    if node.slurm is not None:
        yield f"{node.slurm} by SLURM"
    if node.others_cores is not None:
        there = node.others_cores >= LEAST_OTHERS
        yield f"others kept {significant(node.others_cores, 2)} busy before" if there else "nobody else there before"
    if far := _far(node):
        yield f"GPU and cores on different NUMA nodes: rank {', '.join(far)}"


def _more(record: Record, node: Surroundings) -> Iterator[str]:
    if node.memory_bytes is not None:
        yield f"{gib(node.memory_bytes)} GiB of memory"
    if node.shm_free_bytes is not None:
        yield f"{gib(node.shm_free_bytes)} GiB free in {SHARED_MEMORY}"
    there = {place.rank for place in record.environment.places if place.host == node.host}
    pressed = mean(trace.cores.pressure for trace in record.traces if trace.rank in there and trace.cores)
    if pressed is not None:
        yield f"a thread waited for a core {percent(pressed, 2)} of the time"
    for each in node.numa:
        for what, where in (("cores", each.cores), ("GPU", each.gpu)):
            if where:
                yield f"{what} of rank {each.rank} on NUMA node {', '.join(map(str, where))}"
