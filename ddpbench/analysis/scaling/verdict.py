"""What a ladder comes to: the one thing that most images are lost to, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from ddpbench.analysis.bottleneck.verdict import repeated
from ddpbench.analysis.command import Rerun
from ddpbench.analysis.evidence import LEAST_FOR_A_VERDICT
from ddpbench.analysis.resampling import resamples, single_rounds
from ddpbench.analysis.scaling.allreduce import Traffic, traffic
from ddpbench.analysis.scaling.ladder import MOST_EFFICIENCY, Rung, ladder
from ddpbench.analysis.scaling.runs import Arms, arms_of
from ddpbench.analysis.scaling.waterfall import (
    ALL_REDUCE,
    CONTENTION,
    DATA,
    DDP,
    RESIDUAL,
    SMALLER_BATCH,
    STRAGGLER,
    Term,
    Waterfall,
    waterfall,
)
from ddpbench.analysis.summary import summarise
from ddpbench.record.findings import Check, Verdict
from ddpbench.record.record import Job, Record
from ddpbench.record.scaling import Scaling
from ddpbench.record.scaling import rung as name_of
from ddpbench.record.text import count, trimmed

SCALES = 0.03
"""Losing less than this fraction of the ideal, a training scales."""

SATURATED = 0.7
"""All-reduce that reaches this fraction of what the links give gets all that there is, about."""


@dataclass(frozen=True)
class Found:
    """Everything that a verdict stands on."""

    arms: Arms
    way: Waterfall
    rungs: list[Rung]
    traffic: Traffic | None

    @property
    def last(self) -> Record:
        assert self.arms.last is not None, "a way down leads somewhere"
        return self.arms.last

    @property
    def hosts(self) -> list[str]:
        return list(dict.fromkeys(place.host for place in self.last.environment.places))

    @property
    def run(self) -> Rerun:
        """Of the last rung: of a batch that was shared it has a rank's share."""
        return Rerun(self.last, "scale")


def found_of(job: Job, arms: Arms) -> Found | None:
    """None where there is no way down from the first rung to the last; where there is one, both have a figure."""
    way = waterfall(arms)
    if way is None:
        return None
    return Found(arms, way, ladder(arms, way), traffic(arms))


def verdict(found: Found) -> Verdict:
    """One of the verdicts on a ladder, by the means of its rounds."""
    way, worst, top = found.way, found.way.greatest[0], found.rungs[-1]
    if top.doubts:
        return _in_doubt(top)
    if way.lost < SCALES:
        return Verdict(
            kind="scales", says=f"{found.arms.ranks} ranks keep {1 - way.lost:.1%} of {found.arms.ranks} times one", why=_account(found)
        )
    return OF_TERM[worst.name](found, worst)


def judge_scaling(job: Job, arms: Arms) -> None:
    """Gives ``job`` its verdict, and every rung that is too good to be true the check that says so."""
    found = found_of(job, arms)
    arms.scaling.verdict = _repeated(found, job) if found else _too_little(arms.scaling)
    for rung in found.rungs if found else ladder(arms, None):
        record = arms.rungs[rung.ranks]
        if rung.doubts and rung.efficiency:
            record.checks.append(
                Check(
                    name="implausible",
                    effect="warns",
                    sentence=f"{rung.efficiency.center:.1%} of {rung.ranks} times one rank; of the one rank: {'; '.join(rung.doubts)}",
                    numbers={"efficiency": rung.efficiency.center},
                    hint="one rank is no measure before it runs as fast as any other: nothing else on the machine, more --rounds",
                )
            )


def _repeated(found: Found, job: Job) -> Verdict:
    """The verdict with the share of resamples that name the same loss; inconclusive from too few rounds."""
    plain, (rounds, _) = verdict(found), LEAST_FOR_A_VERDICT
    few = min(len(record.rounds) for record in found.arms.there() if record is not found.arms.communication)
    if few < rounds and plain.kind != "baseline-in-doubt":
        says = f"{count(few, 'round')} {'is' if few == 1 else 'are'} too few to tell what is lost"
        return Verdict(kind="inconclusive", says=says, why=_account(found))
    alone = _verdicts(single_rounds(job.records), job)
    if {each.kind for each in alone} != {plain.kind}:
        alone = _verdicts(resamples(job.records), job)
    return repeated(plain, alone, has_controls=True)


def _verdicts(resampled: Iterable[Sequence[Record | None]], job: Job) -> list[Verdict]:
    """One per resample in which all rungs have a round."""
    found = []
    for records in resampled:
        again = msgspec.structs.replace(job, records=[_with_its_figure(record) for record in records if record])
        arms = arms_of(again)
        ways = found_of(again, arms) if arms else None
        found += [verdict(ways)] if ways else []
    return found


def _with_its_figure(record: Record) -> Record:
    """The resampled record with the figure of its own rounds."""
    if record.headline is None or not record.rounds:
        return record
    middle = median(timed.images_per_s for timed in record.rounds)
    return msgspec.structs.replace(record, headline=msgspec.structs.replace(record.headline, images_per_s=middle))


def _too_little(scaling: Scaling) -> Verdict | None:
    """Where the time ended before a rung had a round; None where something else did, of which the page tells."""
    missing = [label for label in map(name_of, scaling.ladder) if label in scaling.left_out]
    if not missing:
        return None
    return Verdict(
        kind="inconclusive",
        says=f"{' and '.join(missing)} had no round: what is lost on the way was not measured",
        why=scaling.left_out[missing[-1]],
        next="a longer --time-limit",
    )


def _in_doubt(top: Rung) -> Verdict:
    assert top.efficiency is not None, "doubts come from an efficiency"
    return Verdict(
        kind="baseline-in-doubt",
        says=f"{top.efficiency.center:.1%} of {top.ranks} times one rank cannot be (above {MOST_EFFICIENCY:.0%}): the one rank was slow",
        why="; ".join(top.doubts),
    )


def _of_all_reduce(found: Found, term: Term) -> Verdict:
    several = len(found.hosts) > 1
    links = f"the network between {_named(found.hosts)}" if several else _links(found.last)
    return Verdict(
        kind="network-bound" if several else "link-bound",
        says=f"{links} is the limit: {term.lost:.0%} of the ideal is lost to gradients on their way",
        why=_of_links(found),
        next=_fewer_bytes(found),
    )


def _of_links(found: Found) -> str:
    sent = found.traffic
    if sent is None or sent.alone_ms is None:
        return _account(found)
    sends = f"a step sends {trimmed(sent.total / 1e6)} MB in {count(len(sent.buckets), 'bucket')}"
    text = f"{sends}, which takes {trimmed(sent.alone_ms)} ms alone"
    if sent.reached and sent.ceiling:
        share, reached, ceiling = sent.reached / sent.ceiling, trimmed(sent.reached / 1e6), f"{trimmed(sent.ceiling / 1e6)} MB/s"
        ends = "all that it gives" if share >= SATURATED else "larger buckets may get more of it"
        there = (
            f"{reached} of {ceiling} measured on it: {ends}" if share <= 1 else f"{reached} MB/s, above the {ceiling} measured on it before"
        )
        text += f"; that is {there}"
    if sent.hidden is not None:
        text += f"; backward hides {sent.hidden:.0%}"
    return text


def _of_contention(found: Found, term: Term) -> Verdict:
    record = found.last
    what = "host, power and bus" if record.environment.device_type == "cuda" else "cores, caches and memory"
    return Verdict(
        kind="contention-bound",
        says=f"ranks take {what} from each other: {term.lost:.0%} of the ideal is lost with every rank for itself",
        why=f"a step without any communication takes {trimmed(term.ms)} ms more on all ranks at once than on one alone{_others(found)}",
    )


def _of_data(found: Found, term: Term) -> Verdict:
    return Verdict(
        kind="data-bound",
        says=f"the ranks wait for data: {term.lost:.0%} of the ideal is lost to it",
        why=f"{trimmed(term.ms)} ms of every step, which batches on the device do not cost",
        next=found.run.diagnose(),
    )


def _of_straggler(found: Found, term: Term) -> Verdict:
    slow = summarise(found.last).slow
    who = f"rank {slow.rank} ({slow.host})" if slow else "now one rank, now another"
    why = (
        f"{slow.excess:.0%} more own time than the others, {slow.kind}, in every round" if slow else "no rank is the slowest in every round"
    )
    return Verdict(
        kind="straggler",
        says=f"{term.lost:.0%} of the ideal is lost to waiting for {who}",
        why=f"{why}; {trimmed(term.ms)} ms of every step",
        rank=slow.rank if slow else None,
    )


def _of_ddp(found: Found, term: Term) -> Verdict:
    cost = found.traffic.by_arms_ms if found.traffic else None
    return Verdict(
        kind="ddp-bound",
        says=f"ranks compute more slowly in DDP than for themselves: {term.lost:.0%} of the ideal",
        why=f"{trimmed(term.ms)} ms a step of their own time, in which the all-reduce works beside the backward"
        + (f"; all that other ranks cost a step is {trimmed(cost)} ms" if cost is not None and cost > 0 else ""),
        next=_fewer_bytes(found),
    )


def _of_batch(found: Found, term: Term) -> Verdict:
    return Verdict(
        kind="batch-bound",
        says=f"{found.last.config.batch_size} a rank is too little work: {term.lost:.0%} of the ideal is lost to the smaller batch",
        why=f"a step of one rank with that share takes {trimmed(term.ms)} ms more than its part of the whole batch",
    )


def _unexplained(found: Found, term: Term) -> Verdict:
    return Verdict(kind="unexplained", says=f"{term.lost:.0%} of the ideal is lost without a name", why=_account(found))


OF_TERM: dict[str, Callable[[Found, Term], Verdict]] = {
    SMALLER_BATCH: _of_batch,
    CONTENTION: _of_contention,
    DATA: _of_data,
    ALL_REDUCE: _of_all_reduce,
    STRAGGLER: _of_straggler,
    DDP: _of_ddp,
    RESIDUAL: _unexplained,
}


def _others(found: Found) -> str:
    """Somebody else on the machine, who may be the one that takes."""
    seen = any(check.name == "noisy-neighbour" for record in found.arms.there() for check in record.checks)
    return "; but other people's processes took cores meanwhile" if seen else ""


def _account(found: Found) -> str:
    """The losses, the greatest first, as shares of the ideal."""
    lost = sorted((term for term in found.way.terms if term.lost > 0.001), key=lambda term: -term.lost)
    return ", ".join(f"{term.name} {term.lost:.1%}" for term in lost) or "nothing is lost"


def _fewer_bytes(found: Found) -> str:
    """The run with and without half the bytes, where its gradients are not halved already."""
    config = found.last.config
    if config.comm_hook != "none" or config.precision not in ("torch-default", "fp32", "tf32", "amp-fp16", "amp-bf16"):
        return ""
    half = "bf16" if found.last.environment.device_type == "cpu" else "fp16"
    return found.run.command(comm_hook=("none", half))


def _named(hosts: list[str]) -> str:
    return f"{hosts[0]} and {hosts[1]}" if len(hosts) == 2 else f"{len(hosts)} nodes"


def _links(record: Record) -> str:
    return "what connects the GPUs of this node" if record.environment.device_type == "cuda" else "what connects the ranks of this node"
