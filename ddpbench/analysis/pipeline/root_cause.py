"""Why a loader gives too little. The causes are tested in order, each from numbers; the first that holds is named.

Where one holds and the evidence does not separate it from another none is named, and the sentence says which two they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

from ddpbench.analysis.pipeline.costs import READ
from ddpbench.analysis.pipeline.model import MOST_A_CORE, Supply
from ddpbench.record.text import count, trimmed

MOST = 0.5
"""What explains at least this fraction of a wait is what is waited for."""

HARDLY = 0.4
"""What explains less than this fraction of it is not; in between it cannot be told."""

WITHHELD = 0.1
"""A quota that keeps this fraction of the core time from the job that it asks for is felt."""

IDLE = 0.85
"""Workers that make batches for less than this fraction of their time wait for something themselves."""

ENOUGH = 1.1
"""A rate this many times another is greater beyond what is uncertain about it."""

NEARLY = 0.75
"""A stage without which this fraction of the time that is lacking would be there is nearly all that is too much."""

TURNS = 2
"""So many workers a core take turns on it."""

TRAINER = "trainer process"
"""What it costs there to take a batch over from a worker, beside the stages in it."""

STAGES = ("decode", "augment", "collate")
"""The stages of an image that need nothing but a core."""


@dataclass(frozen=True)
class Cause:
    """``name`` is a key of CAUSES; empty where it cannot be told, and ``why`` says between what."""

    name: str
    why: str


def cause(given: Supply, item: str = "image", device: str = "GPU") -> Cause:
    """What makes the loader slow. Names nothing where no stage was timed and no core watched."""
    asked = _Asked(given, item, device)
    return next((found for each in CAUSES if (found := each(asked))), Cause("", ""))


@dataclass(frozen=True)
class _Asked:
    given: Supply
    item: str
    device: str

    def images(self, rate: float) -> str:
        return f"{trimmed(rate)} {self.item}s/s"

    @property
    def all_of_them(self) -> str:
        """``this GPU``, ``4 GPUs``."""
        ranks = self.given.ranks
        return f"this {self.device}" if ranks == 1 else f"{ranks} {self.device}s"


def quota(asked: _Asked) -> Cause | None:
    busy = asked.given.busy
    if busy is None or busy.withheld < WITHHELD:
        return None
    return Cause(
        "quota",
        f"a quota of {trimmed(busy.usable)} of {busy.cores} cores kept {busy.withheld:.0%} of the core time from the job that it asked for",
    )


def hand_over(asked: _Asked) -> Cause | None:
    """Batches that are made, and not yet the trainer's; where workers keep the cores busy it only waits for one of these itself."""
    share, working = asked.given.hand_over_share, asked.given.working
    if asked.given.contended and (asked.given.cores_of_workers or 0.0) >= MOST * asked.given.cores:
        return None
    if share is None or share < HARDLY or (working is not None and working >= IDLE and share < MOST):
        return None
    slow = f"{min(1.0, share):.0%} of the wait for a batch is after its worker has made it"
    if share < MOST:
        return Cause("", f"{slow}: taking it over, or making it, which cannot be told apart")
    idle = f", and the workers are busy for {working:.0%} of their time" if working is not None and working < IDLE else ""
    return Cause("hand-over", f"{slow}{idle}: the trainer process takes batches over too slowly")


def head_of_line(asked: _Asked) -> Cause | None:
    """Workers that would be enough on the mean."""
    given = asked.given
    blocked = given.head_of_line
    if blocked is None or blocked < HARDLY:
        return None
    enough = given.by_workers is not None and given.by_workers / given.device_rate
    ready = f"for {blocked:.0%} of the wait a later batch was ready, and not the one whose turn it was"
    if not enough or enough < 1 / ENOUGH:
        return None  # they are too few as well, and then some batch is always ahead of its turn
    if blocked < MOST or enough < ENOUGH:
        return Cause("", f"{ready}; {count(given.workers, 'worker')} would be just enough, so these two cannot be told apart")
    return Cause("head-of-line", f"{ready}; on the mean the workers make {asked.images(given.by_workers or 0.0)}")


def storage(asked: _Asked) -> Cause | None:
    """By what the workers wait for files; else by how fast the files can be read at all."""
    given, cost = asked.given, asked.given.cost
    if cost is not None and READ in cost.wall:
        share = cost.read_wait_s / cost.wall_s
        if share >= MOST:
            waits = (
                f"of the {trimmed(1000 * cost.wall_s)} ms that a worker takes for an {asked.item} "
                f"it waits {trimmed(1000 * cost.read_wait_s)} for its file"
            )
            if given.contended and given.busy is not None and cost.queued_s is None:
                return Cause("", f"{waits}, and all cores are busy: storage and cores cannot be told apart")
            return Cause("storage", waits)
        if share < HARDLY:
            return None
    rate = given.storage_rate
    reached = max(given.given_rate, given.alone_rate or 0.0)
    if rate is None or rate >= given.device_rate or rate > ENOUGH * reached:
        return None
    return Cause("storage", f"its files can be read at {asked.images(rate)} a {asked.device}")


def elsewhere(asked: _Asked) -> Cause | None:
    """Workers that wait for what is no core, and not for a file as far as that is told: by whether ranks take it from each other."""
    given, cost = asked.given, asked.given.cost
    if cost is None or not cost.mostly_elsewhere or READ in cost.wall:
        return None
    waits = (
        f"of the {trimmed(1000 * cost.wall_s)} ms that a worker takes for an {asked.item} "
        f"it waits {trimmed(1000 * (cost.elsewhere_s or 0.0))}, and for no core"
    )
    if "decode" in cost.wall:
        return Cause("storage", f"{waits}: for its file, which it reads and decodes in one")
    if given.sharing is None:
        return Cause("", f"{waits}: whether more workers would help cannot be told")
    if given.sharing > ENOUGH:
        return Cause("", f"{waits}; one rank alone gets {given.sharing:.1f} times as many: they share what they wait for")
    return None


def idle_workers(asked: _Asked) -> Cause | None:
    """Workers that wait themselves, on cores that are free, are not what is too few; and nothing before told what they wait for."""
    working = asked.given.working
    if working is None or working >= IDLE or asked.given.contended:
        return None
    idle = f"the workers make batches for {working:.0%} of their time"
    return Cause("", f"{idle}, and yet the {asked.device} waits: for what cannot be told")


def oversubscribed(asked: _Asked) -> Cause | None:
    """Workers that are many more than the cores; a few more only where no stage alone is what these lack.

    By their number: what turns cost is seen in what an image costs, too, and so no more is computed of these cores than they give.
    """
    given = asked.given
    workers, crowd = given.ranks * given.workers, TURNS * given.cores
    if not given.contended or workers < crowd or (workers < 2 * crowd and (given.cost is None or one_stage(asked))):
        return None
    if given.cost is not None and given.by_cores is None:
        return None  # there would be too few cores for any number of them
    most = f"; they could load {asked.images(given.by_cores)} a {asked.device} at the most" if given.by_cores else ""
    return Cause("oversubscribed", f"{count(workers, 'worker')} take turns on {count(given.cores, 'core')}{most}")


def one_stage(asked: _Asked) -> Cause | None:
    """The only stage that nearly all of what is lacking goes into; unless there are idle cores for more workers."""
    given, cost = asked.given, asked.given.cost
    if cost is None or given.by_cores is None or _more_workers_gain(given) or _cores_keep_up(given):
        return None
    there = [stage for stage in STAGES if stage in cost.cpu]
    free = {stage: rate for stage in there if (rate := given.cores_give(cost.without_s(stage) + given.main_s))}
    lacking_s = 1 / given.by_cores - 1 / given.device_rate
    enough = [stage for stage, rate in free.items() if 1 / given.by_cores - 1 / rate >= NEARLY * lacking_s]
    if enough != [cost.most_costly]:
        return None
    stage = cost.most_costly
    without = f"without it {trimmed(free[stage])}" if isfinite(free[stage]) else "and nothing else costs any"
    return Cause(
        stage,
        f"{stage} takes {cost.cpu[stage] / cost.cpu_s:.0%} of the core time that an {asked.item} costs: "
        f"{count(given.cores, 'core')} give{'s' if given.cores == 1 else ''} {asked.images(given.by_cores)} a {asked.device}, {without}",
    )


def busy_cores(asked: _Asked) -> Cause | None:
    """Of a loader that does not tell what an image costs."""
    given, busy = asked.given, asked.given.busy
    if given.cost is not None or busy is None or not busy.all_of_them:
        return None
    all_busy = f"all {trimmed(busy.usable)} usable cores are busy, {trimmed(busy.own)} with the job itself"
    if busy.shared:
        return Cause("", f"{all_busy} and {trimmed(busy.others)} with others: which of the two is too much cannot be told")
    return Cause("too-few-cores", all_busy)


def too_few_cores(asked: _Asked) -> Cause | None:
    given = asked.given
    if given.cost is None or _more_workers_gain(given) or _cores_keep_up(given):
        return None
    if given.by_cores is None and not given.contended:
        return None
    gives = f"they give {asked.images(given.by_cores)} a {asked.device}" if given.by_cores else f"training alone takes {given.trainers}"
    keeps_up = f"keeping up takes {count(given.whole_cores_wanted or 0.0, 'core')} a {asked.device}"
    if given.handed_too_slowly:
        keeps_up = f"with {count(given.whole_cores_wanted or 0.0, 'core')} one trainer process hands over {asked.images(given.most_rate)}"
    return Cause(
        "too-few-cores",
        f"no number of workers can feed {asked.all_of_them} from {count(given.cores, 'core')}: {gives}; {keeps_up}",
    )


def too_few_workers(asked: _Asked) -> Cause | None:
    """Workers that are all busy, on cores that are not."""
    given = asked.given
    wanted, useful = given.workers_wanted, given.workers_of_use
    if wanted is None or useful is None or given.cost is None or given.by_cores is None:
        return None
    best, by_workers = min(wanted, useful), given.by_workers or 0.0
    if best <= given.workers:
        return None
    if given.contended and given.busy is not None:
        return Cause("", f"all {trimmed(given.busy.usable)} usable cores are busy, and loading needs not so many: by what cannot be told")
    has = f"{count(given.workers, 'worker')} a {asked.device} give{'s' if given.workers == 1 else ''} {asked.images(by_workers)}"
    if by_workers >= given.device_rate:
        return Cause("", f"{has}, which on the mean is enough: for what the {asked.device} waits cannot be told")
    worker_s = given.worker_s or 0.0
    if best < worker_s * given.most_rate <= worker_s * given.by_cores:
        more = f"; more than {MOST_A_CORE} per core fill the memory"
        return Cause("too-few-workers", f"{has}; {best} would give {trimmed(best / worker_s)}{more}")
    if given.by_cores >= given.most_rate:
        keeps_up = "would keep up, and there are cores for them"
        if given.handed_too_slowly:
            keeps_up = f"would give {trimmed(given.most_rate)}, and no more is handed over by one trainer process"
        return Cause("too-few-workers", f"{has}; {best} {keeps_up}")
    return Cause(
        "too-few-workers",
        f"{has}; {best} would give {trimmed(given.by_cores)}, and no more can be had from {count(given.cores, 'core')}",
    )


CAUSES: tuple[Callable[[_Asked], Cause | None], ...] = (
    quota,
    hand_over,
    head_of_line,
    storage,
    elsewhere,
    idle_workers,
    oversubscribed,
    one_stage,
    busy_cores,
    too_few_cores,
    too_few_workers,
)


def _cores_keep_up(given: Supply) -> bool:
    return given.by_cores is not None and given.by_cores >= given.device_rate


def _more_workers_gain(given: Supply) -> bool:
    """Whether more workers on these cores, which are not all busy, load faster: the first change to make, whatever limits after it."""
    if given.by_cores is None or given.by_workers is None or given.contended:
        return False
    return min(given.by_cores, given.most_rate) >= ENOUGH * given.by_workers
