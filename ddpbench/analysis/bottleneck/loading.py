"""Limits that lie outside of the training: its data, the cores and the GPU time that it is given."""

from __future__ import annotations

from math import sqrt

from ddpbench.analysis.bottleneck.training import launch_bound
from ddpbench.analysis.checks.node import cores_given
from ddpbench.analysis.controls import step_s, times_as_long
from ddpbench.analysis.cpu_demand import FAIR, kept_from_cores, need
from ddpbench.analysis.evidence import BINDING
from ddpbench.analysis.inputs import Case
from ddpbench.analysis.node_cpu_usage import Busy, busiest
from ddpbench.analysis.pipeline.interference import Stolen, decodes_on_device, kept_ms, stolen
from ddpbench.analysis.pipeline.model import Supply, supply
from ddpbench.analysis.pipeline.root_cause import IDLE, cause
from ddpbench.analysis.text import device_word, who
from ddpbench.record.findings import Verdict
from ddpbench.record.record import Record
from ddpbench.record.text import count, trimmed

STANDING = 1.2
"""Workers that take this many times as long as they work stand for a core."""


def loader_steals_cpu(case: Case) -> Verdict | None:
    found = stolen(case)
    if found is None or found.on_the_device:
        return None
    return Verdict(
        kind="loader-steals-cpu",
        says=f"the data loader takes the cores that the training needs: {_longer(found)}",
        why=found.why,
    )


def loader_steals_gpu(case: Case) -> Verdict | None:
    found = stolen(case)
    if found is None or not found.on_the_device:
        return None
    return Verdict(
        kind="loader-steals-gpu",
        says=f"the data loader decodes on the GPU that trains: {_longer(found)}",
        why=found.why,
    )


def noisy_neighbour(case: Case) -> Verdict | None:
    """By the cores that others keep busy where these were watched, else by what ranks that compute got of them."""
    record = case.record
    busy = busiest(record)
    if busy is not None:
        return _watched_neighbour(case, busy)
    kept = kept_from_cores(record)
    if not kept:
        return None
    wanted = need(record)
    return Verdict(
        kind="noisy-neighbour",
        says=f"other processes seem to take cores: {cores_given(record)}",
        why=f"the job itself asks for {wanted.cores} of {count(wanted.usable, 'usable core')}, "
        "and hardly waited for data or for other ranks",
        rank=next(iter(kept)) if len(kept) == 1 else None,
    )


def data_bound(case: Case) -> Verdict | None:
    """A device that waits for data and, where it was measured without a loader, is faster so; or a processor that readies it itself."""
    record, share = case.record, case.summary.data_wait_share
    slower = times_as_long(record, case.around.device)
    if share is None or share < BINDING or (slower is not None and slower.center < 1 + BINDING / 2):
        return _readied_by_trainers(case)
    if decodes_on_device(record) and case.around.device is None:
        return _slow_or_stealing(record, share)
    given, on = supply(case), device_word(record.environment)
    found = cause(given, record.item, on)
    return Verdict(
        kind="data-bound",
        says=f"{who(record, 'wait')} {share:.0%} of every step for data",
        why="; ".join(filter(None, [rates(case), found.why])),
        cause=found.name,
    )


def rates(case: Case) -> str:
    """What the loader gives, and what the device could train."""
    given, on = supply(case), device_word(case.record.environment)
    return f"the loader gives {trimmed(given.given_rate)} {case.record.item}s/s a {on}, the {on} could train {trimmed(given.device_rate)}"


def host_to_device_bound(case: Case) -> Verdict | None:
    """By the wait for the copy; else by what training from memory of the host takes longer than from the device's own.

    On processors nothing is copied.
    """
    record, copy_ms = case.record, case.summary.phases_ms["host_to_device"]
    if record.environment.device_type != "cuda":
        return None
    copies = case.around.diagnosis.copies if case.around.diagnosis else None
    if copy_ms >= BINDING * case.step_ms:
        pageable = ""
        if copies is not None and not record.config.pin_memory:
            from_pageable, from_pinned = trimmed(copies.pageable / 1e9), trimmed(copies.pinned / 1e9)
            pageable = f"; from pageable memory {from_pageable} GB/s are copied, from pinned {from_pinned}"
        return Verdict(
            kind="host-to-device-bound",
            says=f"{who(record, 'wait')} {copy_ms / case.step_ms:.0%} of every step for batches to be copied",
            why=f"the copy holds the {device_word(record.environment)} up for {trimmed(copy_ms)} of {trimmed(case.step_ms)} ms{pageable}",
        )
    device_s, longer = step_s(case.around.device), times_as_long(case.around.replay, case.around.device)
    if device_s is None or longer is None or longer.center < 1 + BINDING:
        return None
    copies_ms = 1000 * device_s * (longer.center - 1)
    return Verdict(
        kind="host-to-device-bound",
        says=f"with batches that are ready in the host's memory a step takes {longer.center - 1:.0%} longer than with those on the "
        f"{device_word(record.environment)}",
        why=f"it takes {trimmed(1000 * device_s + copies_ms)} ms, {trimmed(copies_ms)} of them for copies and the host, "
        "whatever the loader",
    )


def _slow_or_stealing(record: Record, share: float) -> Verdict:
    """Of a run alone: its forward and backward are those beside the decoding, and tell nothing of what the GPU could train."""
    itself = "it decodes" if record.world_size == 1 else "they decode"
    return Verdict(
        kind="inconclusive",
        says=f"{who(record, 'wait')} {share:.0%} of every step for batches that {itself}",
        why="a loader that is too slow and one that takes the GPU from the training look alike from within a run",
    )


def _readied_by_trainers(case: Case) -> Verdict | None:
    """Batches that ranks on processors themselves finish: that is where GPUs wait for a copy."""
    record, spent_ms = case.record, case.summary.phases_ms["host_to_device"]
    if record.environment.device_type != "cpu" or spent_ms < BINDING * case.step_ms:
        return None
    return Verdict(
        kind="data-bound",
        says=f"{who(record, 'spend')} {spent_ms / case.step_ms:.0%} of every step on batches that are not ready to train on",
        why=f"the trainer process itself finishes each batch for {trimmed(spent_ms)} of {trimmed(case.step_ms)} ms, "
        "and trains none meanwhile",
        cause="hand-over",
    )


def _watched_neighbour(case: Case, busy: Busy) -> Verdict | None:
    """Others on cores that are all busy, who take more of them than the job itself has too few, and whom it is seen to wait for."""
    if not (busy.shared and busy.all_of_them and busy.others + busy.own >= busy.cores * FAIR):
        return None
    given, node = supply(case), need(case.record)
    waits = given.wait_share >= BINDING and given.by_cores
    lacking = max(node.trainers / node.usable, given.device_rate / given.by_cores if waits and given.by_cores else 1.0)
    if busy.cores / max(busy.cores - busy.others, 0.1) < lacking or not _waits_for_a_core(case):
        return None
    before = [each.others_cores for each in (case.around.diagnosis.surroundings if case.around.diagnosis else []) if each.host == busy.host]
    already = f"; before anything of it ran they kept {trimmed(before[0])} busy" if before and before[0] else ""
    return Verdict(
        kind="noisy-neighbour",
        says=f"others keep {trimmed(busy.others)} of the {busy.cores} cores busy that the job may use, and it waits for them",
        why=f"it got {trimmed(busy.own)} of them itself, and none was left{already}; others are other processes or, where this machine "
        "is a virtual one, its host",
    )


def _waits_for_a_core(case: Case) -> bool:
    """Whether that is the larger part of what it waits for: of its workers' time, or of its trainers'."""
    record, given = case.record, supply(case)
    if given.wait_share >= BINDING and _workers_wait_for_a_core(given):
        return True
    if record.environment.device_type == "cuda":
        return launch_bound(case) is not None
    return kept_ms(case, need(record)) >= case.largest_wait_ms


def _workers_wait_for_a_core(given: Supply) -> bool:
    """Workers that are what is waited for, and would give most of what is lacking if they always had a core."""
    if given.working is not None and given.working < IDLE:
        return False
    if given.cost is None:
        return False
    if given.cost.queued_s is None:
        return given.cost.standing >= STANDING
    faster = given.cost.wall_s / max(given.cost.wall_with_a_core_s(), 1e-9)
    return faster >= max(STANDING, sqrt(given.device_rate / given.given_rate))


def _longer(found: Stolen) -> str:
    return f"a step takes {found.fraction:.0%} longer beside it"
