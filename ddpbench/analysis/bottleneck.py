"""Which limit a run hit, from what the run itself measured. The limits are tested in order; the first that holds is the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum
from statistics import median

import msgspec

from ddpbench.analysis.command import Rerun
from ddpbench.analysis.cores import crowded, kept_from_cores, need
from ddpbench.analysis.cures import CURES
from ddpbench.analysis.evidence import steps, too_few_for_a_verdict
from ddpbench.analysis.ranks import COMPUTE
from ddpbench.analysis.stats import variation
from ddpbench.analysis.straggler import StragglerNote
from ddpbench.analysis.summary import Summary, summarise
from ddpbench.analysis.surroundings import cores_given, count, wanted_of
from ddpbench.analysis.trust import MOST_VARIATION
from ddpbench.record.record import Record
from ddpbench.record.trace import WAITS_FOR_OTHERS
from ddpbench.record.verdict import Verdict

BINDING = 0.10
"""A wait is a limit from this fraction of the step."""

BUSY = 0.85
"""Below this fraction in kernels, of the step less its waits for data, copies and other ranks, a GPU waits for launches."""

EXPLAINS_NOISE = ("noisy-neighbour", "data-bound", "host-to-device-bound")
"""Limits that come from outside of the training, and vary by nature: the device stood waiting for data, or was not given to the job."""

HARDLY_AHEAD = 0.10
"""A host less than this fraction of a step ahead of its GPU hardly keeps up with it."""

MOST_UNEXPLAINED = 0.20

SLOW_IN = {
    "data": "in getting its data",
    "host to device": "in copying to the device",
    "compute": "in computing",
    "clock": "with a lower clock",
    "host": "between the phases, on its host",
}

Limit = Callable[[Record, Summary, float], Verdict | None]


def verdict(record: Record, summary: Summary, typed: Sequence[str] = ()) -> Verdict | None:
    """The limit that ``record`` hit, why, and a command to try next, in the words of ``typed``. None without rounds.

    From too few rounds or steps, or where the rounds vary by more than the noise rule allows, the verdict is inconclusive, and
    ``why`` says what it looks like. Noise leaves a limit standing that explains it and that every round on its own shows: a wait
    for data, or somebody else's work. Computing and the ranks' waits for each other are no explanation of why they vary.
    """
    if summary.step_ms is None:
        return None
    found = _first_limit(record, summary, summary.step_ms)
    if doubt := _doubt(record, found):
        found = Verdict(kind="inconclusive", says=doubt, why=_looks_like(found), rank=found.rank)
    return msgspec.structs.replace(found, next=CURES[found.kind](Rerun(record, typed), summary))


def _doubt(record: Record, found: Verdict) -> str:
    """Why ``found`` cannot be told with confidence; empty where it can."""
    if too_few_for_a_verdict(record):
        return f"{count(len(record.rounds), 'round')} and {count(steps(record), 'step')} are too few for a confident verdict"
    spread = variation([timed.images_per_s for timed in record.rounds])
    if spread <= MOST_VARIATION or (found.kind in EXPLAINS_NOISE and _every_round_shows(found.kind, record)):
        return ""
    return f"the rounds vary by {spread:.1%}, too much for a confident verdict"


def _looks_like(found: Verdict) -> str:
    return found.says if found.kind == "inconclusive" else f"most like {found.kind}: {found.says}"


def _first_limit(record: Record, summary: Summary, step_ms: float) -> Verdict:
    return next(held for limit in LIMITS if (held := limit(record, summary, step_ms)))


def _every_round_shows(kind: str, record: Record) -> bool:
    for timed in record.rounds:
        alone = msgspec.structs.replace(record, rounds=[timed], launch_gap=None)
        summary = summarise(alone)
        if summary.step_ms is None or _first_limit(alone, summary, summary.step_ms).kind != kind:
            return False
    return True


def straggler(record: Record, summary: Summary, step_ms: float) -> Verdict | None:
    """One rank, every round; unless the others wait longer for data of their own than they wait for it."""
    slow = summary.slow
    if slow is None or slow.lost_ms <= median(row.data_ms for row in summary.ranks if row.rank != slow.rank):
        return None
    own_ms = next(row.own_ms for row in summary.ranks if row.rank == slow.rank)
    return Verdict(
        kind="straggler",
        says=f"rank {slow.rank} ({_place(record, slow)}) is {slow.excess:.0%} slower than the others, {SLOW_IN[slow.kind]}",
        why=f"its own time is {_about(own_ms)} ms a step, the others' {_about(own_ms / (1 + slow.excess))}; "
        f"it costs {_about(slow.cost_images_per_s)} {record.item}s/s",
        rank=slow.rank,
    )


def noisy_neighbour(record: Record, summary: Summary, step_ms: float) -> Verdict | None:
    kept = kept_from_cores(record)
    if not kept:
        return None
    wanted = need(record)
    return Verdict(
        kind="noisy-neighbour",
        says=f"other processes seem to take cores: {cores_given(record)}",
        why=f"the job itself asks for {wanted.cores} of {wanted.usable:g} usable cores, and hardly waited for data or for other ranks",
        rank=next(iter(kept)) if len(kept) == 1 else None,
    )


def data_bound(record: Record, summary: Summary, step_ms: float) -> Verdict | None:
    if summary.data_wait_share is None or summary.data_wait_share < BINDING:
        return None
    device, batch = _device(record), record.config.batch_size or 0
    compute_ms = fsum(summary.phases_ms[phase] for phase in COMPUTE)
    return Verdict(
        kind="data-bound",
        says=f"{_who(record, 'wait')} {summary.data_wait_share:.0%} of every step for data",
        why=f"the loader gives {_about(1000 * batch / step_ms)} {record.item}s/s a {device}, "
        f"the {device} could train {_about(1000 * batch / compute_ms)}",
    )


def host_to_device_bound(record: Record, summary: Summary, step_ms: float) -> Verdict | None:
    copy_ms = summary.phases_ms["host_to_device"]
    if copy_ms < BINDING * step_ms:
        return None
    return Verdict(
        kind="host-to-device-bound",
        says=f"{_who(record, 'wait')} {copy_ms / step_ms:.0%} of every step for batches to be copied",
        why=f"the copy holds the {_device(record)} up for {_about(copy_ms)} of {_about(step_ms)} ms",
    )


def too_few_cores(record: Record, summary: Summary, step_ms: float) -> Verdict | None:
    """Ranks that take turns on the cores: what looks like a wait for other ranks, or like computing, is one for a core."""
    node = crowded(record)
    if node is None:
        return None
    seen = sync_bound(record, summary, step_ms) or compute_bound(record, summary, step_ms)
    return Verdict(
        kind="inconclusive",
        says=f"too few cores: {wanted_of(node)} > {node.usable:g} usable cores",
        why=f"they take turns on the cores and wait for each other; {_looks_like(seen)}",
    )


def launch_bound(record: Record, summary: Summary, step_ms: float) -> Verdict | None:
    """By the profiler's kernels where it saw them, else by the host's lead. A CPU has no launches to wait for."""
    if record.environment.device_type != "cuda":
        return None
    gap = record.launch_gap
    if gap is not None:
        free_ms = gap.step_ms - fsum(summary.phases_ms[phase] for phase in ("data", "host_to_device", *WAITS_FOR_OTHERS))
        held = gap.kernel_ms < BUSY * free_ms
        why = f"kernels run for {_about(gap.kernel_ms)} of the {_about(free_ms)} ms in which the GPU waits for nothing else"
    elif summary.lead_ms is not None:
        held = summary.lead_ms < HARDLY_AHEAD * step_ms
        why = f"when it has issued a step of {_about(step_ms)} ms the host is {_about(summary.lead_ms)} ms ahead of the GPU"
    else:
        return None
    if not held:
        return None
    return Verdict(
        kind="launch-bound",
        says="the host cannot issue kernels as fast as the GPU runs them",
        why=why,
    )


def sync_bound(record: Record, summary: Summary, step_ms: float) -> Verdict | None:
    waits_ms = (summary.sync_ms or 0) - (summary.late_data_ms or 0)
    if waits_ms < BINDING * step_ms:
        return None
    return Verdict(
        kind="sync-bound",
        says=f"{waits_ms / step_ms:.0%} of every step is gradient sync that backward does not hide",
        why=f"{_about(waits_ms)} of {_about(step_ms)} ms, "
        f"for the gradients of {_about(record.parameters / 1e6)} million parameters on {record.world_size} ranks",
    )


def unexplained(record: Record, summary: Summary, step_ms: float) -> Verdict | None:
    rest_ms = summary.phases_ms["unexplained"]
    if rest_ms < MOST_UNEXPLAINED * step_ms:
        return None
    return Verdict(
        kind="inconclusive",
        says=f"{rest_ms / step_ms:.0%} of every step is not explained by its phases",
        why=f"{_about(rest_ms)} of {_about(step_ms)} ms pass on the wall clock and in no phase",
    )


def compute_bound(record: Record, summary: Summary, step_ms: float) -> Verdict:
    share = fsum(summary.phases_ms[phase] for phase in COMPUTE) / step_ms
    forward, backward, optimizer = (_about(summary.phases_ms[phase]) for phase in COMPUTE)
    return Verdict(
        kind="compute-bound",
        says=f"{_who(record, 'compute')} {share:.0%} of every step: healthy",
        why=f"forward {forward}, backward {backward}, optimizer {optimizer} of {_about(step_ms)} ms"
        + (f"; MFU {summary.mfu:.0%} of the measured ceiling" if summary.mfu is not None else ""),
    )


LIMITS: tuple[Limit, ...] = (
    straggler,
    noisy_neighbour,
    data_bound,
    host_to_device_bound,
    too_few_cores,
    launch_bound,
    sync_bound,
    unexplained,
    compute_bound,
)


def _device(record: Record) -> str:
    return "GPU" if record.environment.device_type == "cuda" else "rank"


def _who(record: Record, verb: str) -> str:
    """``the GPUs wait``, ``the GPU waits``, ``the ranks wait``."""
    return f"the {_device(record)} {verb}s" if record.world_size == 1 else f"the {_device(record)}s {verb}"


def _place(record: Record, slow: StragglerNote) -> str:
    return f"{slow.host}, GPU {slow.device_index}" if record.environment.device_type == "cuda" else slow.host


def _about(value: float) -> str:
    """Three significant digits."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"
