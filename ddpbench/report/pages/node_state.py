"""The machine as a diagnosis found it: usable cores, what limits them, who else uses them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ddpbench.analysis.node_cpu_usage import MIN_OTHER_CORES
from ddpbench.analysis.ranks import mean_or_none
from ddpbench.record.diagnosis import SHM_DIR, NodeState
from ddpbench.record.record import Record
from ddpbench.record.text import numbered, pluralize
from ddpbench.report.format import format_gib, format_percent, format_significant
from ddpbench.report.layout import LABEL, Page, styled, wrap_items
from ddpbench.report.pages.header import MAX_NAMED

MACHINE_LABEL = "machine  "


def node_state_lines(record: Record, nodes: Sequence[NodeState], page: Page) -> Iterator[Text]:
    """One line per group of identical nodes; nothing if all are ordinary, unless the page is verbose.

    A verbose page adds memory, NUMA nodes and CPU pressure.
    """
    if not page.verbose and not any(map(_unusual, nodes)):
        return
    hosts_by_state: dict[tuple[str, ...], list[str]] = {}
    for node in nodes:
        hosts_by_state.setdefault((*_allowed_core_items(node), *(_detail_items(record, node) if page.verbose else ())), []).append(
            node.host
        )
    for items, hosts in hosts_by_state.items():
        named = [", ".join(hosts) if len(hosts) <= MAX_NAMED else pluralize(len(hosts), "node")] if len(hosts_by_state) > 1 else []
        yield from styled(wrap_items(MACHINE_LABEL, [*named, *items], page), LABEL, len(MACHINE_LABEL.strip()))


def _unusual(node: NodeState) -> bool:
    """Whether some cores are unavailable (quota, SLURM, other processes) or far from the job's GPUs."""
    return (
        node.cpu_quota_cores is not None
        or node.slurm_cores is not None
        or (node.other_busy_cores or 0.0) >= MIN_OTHER_CORES
        or bool(_ranks_far_from_gpu(node))
    )


def _ranks_far_from_gpu(node: NodeState) -> list[int]:
    return [each.rank for each in node.numa if each.core_nodes and each.gpu_nodes and not set(each.core_nodes) & set(each.gpu_nodes)]


def _allowed_core_items(node: NodeState) -> Iterator[str]:
    yield f"{pluralize(node.affinity_cores, 'core')} by affinity"
    yield "no CPU quota" if node.cpu_quota_cores is None else f"CPU quota {node.cpu_quota_cores:g}"
    if node.slurm_cores is not None:
        yield f"{node.slurm_cores} by SLURM"
    if node.other_busy_cores is not None:
        busy = node.other_busy_cores >= MIN_OTHER_CORES
        yield f"{format_significant(node.other_busy_cores, 2)} cores busy before the job" if busy else "idle before the job"
    if far := _ranks_far_from_gpu(node):
        yield f"GPU and cores on different NUMA nodes: {numbered('rank', far)}"


def _detail_items(record: Record, node: NodeState) -> Iterator[str]:
    if node.usable_memory_bytes is not None:
        yield f"{format_gib(node.usable_memory_bytes)} GiB memory"
    if node.shm_free_bytes is not None:
        yield f"{format_gib(node.shm_free_bytes)} GiB free in {SHM_DIR}"
    ranks = {place.rank for place in record.environment.placements if place.host == node.host}
    pressure = mean_or_none(trace.cpu_usage.cpu_pressure_fraction for trace in record.traces if trace.rank in ranks and trace.cpu_usage)
    if pressure is not None:
        yield f"CPU pressure {format_percent(pressure, 2)}"
    for each in node.numa:
        for resource, numa_nodes in (("cores", each.core_nodes), ("GPU", each.gpu_nodes)):
            if numa_nodes:
                yield f"{resource} of rank {each.rank} on {numbered('NUMA node', numa_nodes)}"
