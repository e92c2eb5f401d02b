"""What a loader takes from the training beside it: measured by an experiment or, on processors, told by who got the cores."""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum, inf

from ddpbench.analysis.controls import step_s, times_as_long
from ddpbench.analysis.cpu_demand import FAIR, Need, least_threads, need, traces_on, trainer_got, worker_cpu_s
from ddpbench.analysis.evidence import BINDING
from ddpbench.analysis.inputs import Case
from ddpbench.analysis.node_cpu_usage import watched
from ddpbench.analysis.pipeline.model import Supply, supply
from ddpbench.analysis.ranks import COMPUTE
from ddpbench.analysis.ratio import Ratio
from ddpbench.record.loaders import spec_of
from ddpbench.record.record import Record
from ddpbench.record.text import trimmed


@dataclass(frozen=True)
class Stolen:
    """``fraction`` is how much longer a step takes for it: g."""

    fraction: float
    why: str
    on_the_device: bool


def stolen(case: Case) -> Stolen | None:
    """What the loader takes, where that is a limit: more of a step than the wait for its data.

    One that could not keep up if it had everything for itself takes what it needs: then the run is bound by data, if it waits for them;
    unless both are on the device, and sharing it costs a step more than the loader's own slowness.
    """
    given = supply(case)
    slow = given.wait_share >= BINDING and given.loader_rate is not None and given.loader_rate < given.device_rate
    if slow and not (decodes_on_device(case.record) and _crowded(given)):
        return None
    longer = times_as_long(case.around.beside, case.around.device)
    if longer is not None:
        return _measured(case, longer)
    return _by_cores(case)


def decodes_on_device(record: Record) -> bool:
    return record.environment.device_type == "cuda" and spec_of(record.config.loader).gpu


def _crowded(given: Supply) -> bool:
    """Whether sharing the device costs an image more time than the loader, alone, takes longer than the training."""
    alone_s, device_s, given_s = (1 / (rate or inf) for rate in (given.loader_rate, given.device_rate, given.given_rate))
    return given_s - alone_s > alone_s - device_s


def _measured(case: Case, longer: Ratio) -> Stolen | None:
    """Training that needs no data, with the loader beside it and without.

    A loader that decodes on the device is slower for the training there, too: then the wait for data is no other limit.
    """
    on_the_device, device_s = decodes_on_device(case.record), step_s(case.around.device)
    if device_s is None:
        return None
    beside_ms, device_ms = 1000 * longer.center * device_s, 1000 * device_s
    taken_ms = min(beside_ms, case.step_ms) - device_ms
    if taken_ms < BINDING * device_ms or (taken_ms < case.data_wait_ms and not on_the_device):
        return None
    return Stolen(
        longer.center - 1,
        f"a step on batches that are there already takes {trimmed(device_ms)} ms alone, "
        f"{trimmed(beside_ms)} while the loader runs; the run waits {trimmed(case.data_wait_ms)} of {trimmed(case.step_ms)} ms for data",
        on_the_device,
    )


def _by_cores(case: Case) -> Stolen | None:
    """Ranks on processors that got fewer cores than they compute with, where all are busy, and not with others."""
    record, node = case.record, need(case.record)
    traces, busy, least = traces_on(record, node.host), watched(record, node.host), least_threads(node.threads)
    got = trainer_got(traces)
    if record.environment.device_type != "cpu" or busy is None or got is None or busy.shared or not busy.all_of_them:
        return None
    loading = fsum(map(worker_cpu_s, traces)) / fsum(timed.wall_s for timed in record.rounds)
    if node.trainers > node.usable or loading < BINDING * node.usable or kept_ms(case, node) < case.largest_wait_ms:
        return None
    return Stolen(
        least / max(got, 0.01) - 1,
        f"while it computes a rank gets {trimmed(got)} of {trimmed(least)} cores, and the loader's workers keep {trimmed(loading)} "
        f"of {trimmed(node.usable)} busy",
        False,
    )


def kept_ms(case: Case, node: Need) -> float:
    """Of a step, for how long a rank of ``node`` computes only because it got too few of its cores; 0 where it got its share."""
    got, least = trainer_got(traces_on(case.record, node.host)), least_threads(node.threads)
    if got is None or got >= FAIR * least:
        return 0.0
    return (1 - got / least) * fsum(case.summary.phases_ms[phase] for phase in COMPUTE)
