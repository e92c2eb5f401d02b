"""The page of a ladder: what its rungs keep of one rank's speed, and where the rest goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ddpbench.analysis.scaling.ladder import MOST_EFFICIENCY, Rung, ladder
from ddpbench.analysis.scaling.runs import arms_of
from ddpbench.analysis.scaling.verdict import Found, found_of
from ddpbench.analysis.scaling.waterfall import DATA, STRAGGLER, Term
from ddpbench.analysis.summary import summarise
from ddpbench.analysis.text import device_word
from ddpbench.record.record import Job, Record
from ddpbench.record.scaling import WITH_DATA
from ddpbench.record.scaling import rung as label_of
from ddpbench.record.text import count
from ddpbench.report.console import page_of, show, show_sections
from ddpbench.report.format import MISSING, about, adding_up, fixed, interval, percent
from ddpbench.report.layout import Page, columns, flow, sentence
from ddpbench.report.pages.checks import reasons, unmeasured, warnings
from ddpbench.report.pages.header import labelled, place, rate
from ddpbench.report.pages.ranks import slow_rank
from ddpbench.report.pages.status import endings
from ddpbench.report.pages.transport import travel
from ddpbench.report.pages.verdict import verdict_lines, verdict_text
from ddpbench.report.styled import CAUTION, LABEL, inked

EFFICIENCY, LOST_TO = "efficiency %", "lost to"

IN_DOUBT = "in doubt"
QUIET_CORES = 0.05
"""A rank that keeps less of a core busy while it waits takes nothing from the others."""


def render_scaling(job: Job, console: Console, path: Path | None, *, verbose: bool = False, quiet: bool = False) -> None:
    """Prints the verdict on ``job``, its ladder, and the way down from N times one rank, as far as it was measured.

    ``verbose`` adds the checks that had nothing to say, ``quiet`` leaves the verdict. ``path`` is where the record lies, ``None`` where
    it could not be saved.
    """
    page, arms = page_of(console), arms_of(job)
    found = found_of(job, arms) if arms else None
    verdict = [*verdict_lines(job.scaling.verdict, page)] if job.scaling and job.scaling.verdict else []
    if quiet:
        why = reasons(_named(job), page) if job.records[0].config.strict else ()
        show(console, [*verdict, *why])
        return
    sections: list[Sequence[Text]] = [[*_head(job, page)], [*endings(_named(job), page)], verdict]
    if arms and arms.rungs:
        down = _way_down(found, page) if found else ()
        sections.append([*_ladder(found.rungs if found else ladder(arms, None), job, page), *down])
    if found:
        slow = slow_rank(found.last, summarise(found.last).slow, page)
        sections += [[*_links(found, page)], slow]
    checked = {name: record for name, record in _named(job).items() if verbose or record in (arms.rungs.values() if arms else ())}
    last = [*_left_out(job, page), *warnings(checked, page, verbose), *([Text(str(path))] if path else [])]
    show_sections(console, [*sections, last])


def rungs_of(job: Job) -> dict[str, Rung]:
    """The rungs of a ladder by the label of their training; none of a job of another kind."""
    arms = arms_of(job)
    if arms is None:
        return {}
    found = found_of(job, arms)
    return {label_of(each.ranks): each for each in (found.rungs if found else ladder(arms, None))}


def concluded(job: Job) -> Iterator[str]:
    """The verdict on the ladder, and the way down in one line, as far as they are there."""
    if job.scaling and job.scaling.verdict:
        yield verdict_text(job.scaling.verdict)
    arms = arms_of(job)
    if arms and (found := found_of(job, arms)):
        yield ", ".join(_steps_down(found))


def _named(job: Job) -> dict[str, Record]:
    return {record.label: record for record in job.records}


def _head(job: Job, page: Page) -> Iterator[Text]:
    top = max(job.records, key=lambda record: record.world_size)
    config, scaling = top.config, job.scaling
    strong = scaling is not None and scaling.strong
    title = [config.workload, config.precision, "strong scaling" if strong else "weak scaling"]
    yield from inked(flow("ddpbench scale  ", title, page, gap="  "), LABEL, len("ddpbench scale"))
    shared = (
        f"batch {top.global_batch} shared by {top.world_size}" if strong else f"batch {config.batch_size} a {device_word(top.environment)}"
    )
    rounds = f"up to {count(config.rounds, 'round')}, interleaved"
    where = [place(top.environment), *filter(None, [travel(top.environment)])]
    fed = next((record.config.loader for record in job.records if record.label == WITH_DATA), None)
    batches = f"batches that lie on the device; loader {fed} in one arm, '{WITH_DATA}'" if fed else "batches that lie on the device"
    yield from inked(flow("", [*where, shared, batches, f"torch {top.environment.software.torch}", rounds], page))


def _ladder(rungs: Sequence[Rung], job: Job, page: Page) -> Iterator[Text]:
    device = device_word(job.records[0].environment)
    heading = [f"{device}s", rate(job.records[0]), f"a {device}", EFFICIENCY, LOST_TO]
    rows = [heading, *([str(rung.ranks), *_figures(rung), efficiency_text(rung), rung.lost_to] for rung in rungs)]
    lines = columns(rows, ">>><<", page)
    yield from inked(lines, LABEL, len(lines[0]))
    if doubts := next((rung.doubts for rung in rungs if rung.doubts), None):
        text = f"more than {MOST_EFFICIENCY:.0%} of so many times one rank cannot be; of the one: {'; '.join(doubts)}"
        yield from inked(sentence(f"{IN_DOUBT}  ", text, page), CAUTION, len(IN_DOUBT))


def _figures(rung: Rung) -> tuple[str, str]:
    low, high = (rung.reach.low, rung.reach.high) if rung.reach else (rung.images_per_s, rung.images_per_s)
    each = [value / rung.ranks for value in (rung.images_per_s, low, high)]
    return interval(rung.images_per_s, low, high)[0], interval(each[0], each[1], each[2])[0]


def efficiency_text(rung: Rung) -> str:
    """In percent, with its interval; one that cannot be has a word behind it."""
    if rung.efficiency is None:
        return MISSING
    if rung.ranks == 1:
        return "100"
    ratio = rung.efficiency
    center, low, high = interval(100 * ratio.center, 100 * ratio.low, 100 * ratio.high)
    within = f" ({low} to {high})" if ratio.has_interval else f" ({count(ratio.pairs, 'pair')})"
    return f"{center}{within}" + (f" {IN_DOUBT}" if rung.doubts else "")


def _way_down(found: Found, page: Page) -> Iterator[Text]:
    ideal, *items = _steps_down(found)
    yield Text()
    yield from inked(flow(f"{ideal}  ", items, page), LABEL, len(ideal) + 2)


def _steps_down(found: Found) -> list[str]:
    """``24,800 ideal``, what is lost on the way, ``= 23,900``."""
    way = found.way
    decimals = 0 if way.measured >= 1000 else 1 if way.measured >= 100 else 2
    numbers = adding_up([way.ideal, *(term.images_per_s for term in way.terms)], decimals)
    items = [
        f"{term.name} {_signed(printed)}{_reach(term, decimals)}{_whose(found, term)}"
        for term, printed in zip(way.terms, numbers[1:], strict=True)
    ]
    if way.term(DATA) is None:
        items.insert(1 if len(items) > 1 else 0, f"{DATA} {MISSING}")
    reached = f"= {fixed(way.measured, decimals)}{'' if way.term(DATA) is None else f' {WITH_DATA}'}"
    return [f"{numbers[0]} ideal", *items, reached]


def _signed(printed: str) -> str:
    """A gain among losses is seen to be one."""
    return printed if printed.startswith("-") or not printed.strip("0.") else f"+{printed}"


def _reach(term: Term, decimals: int) -> str:
    return "" if term.reach is None else f" +-{fixed(term.reach, decimals)}"


def _whose(found: Found, term: Term) -> str:
    slow = summarise(found.last).slow if term.name == STRAGGLER else None
    return f" (rank {slow.rank})" if slow else ""


def _links(found: Found, page: Page) -> Iterator[Text]:
    sent = found.traffic
    if sent is None:
        return
    sizes = ", ".join(_megabytes(size) for size in sent.buckets[:8]) + (" ..." if len(sent.buckets) > 8 else "")
    yield from labelled("sent", [f"{_megabytes(sent.total)} MB a step in {count(len(sent.buckets), 'bucket')}: {sizes} MB"], page)
    items = [] if sent.alone_ms is None else [f"{about(sent.alone_ms)} ms alone"]
    if sent.reached and sent.ceiling:
        of = f"of {_rate(sent.ceiling)} measured" if sent.reached <= sent.ceiling else f"above the {_rate(sent.ceiling)} measured before"
        items.append(f"bus {_rate(sent.reached)} {of}")
    if found.arms.scaling.bus:
        reached = ", ".join(f"{_rate(value)} at {_megabytes(size)} MB" for size, value in found.arms.scaling.bus.items())
        items.append(f"({reached})")
    yield from labelled("bus", items, page)
    hidden = [] if sent.hidden is None else [f"{percent(sent.hidden, 2)} of that behind the backward, by the clock"]
    if sent.seen_hidden is not None:
        hidden.append(f"{percent(sent.seen_hidden, 2)} as the profiler sees it")
    yield from labelled("hid", hidden, page)
    cost = [] if sent.by_arms_ms is None else [f"other ranks take {about(sent.by_arms_ms)} ms of a step by the arms"]
    if cost and sent.by_clock_ms is not None:
        cost.append(f"{about(sent.by_clock_ms)} ms by the clock")
    yield from labelled("cost", cost, page)


def _left_out(job: Job, page: Page) -> Iterator[Text]:
    if job.scaling is None:
        return
    yield from unmeasured({"loss to data" if name == WITH_DATA else name: why for name, why in job.scaling.left_out.items()}, page)
    if (job.scaling.waiting_cores or 0.0) > QUIET_CORES:
        text = f"a rank that waited for its turn kept {job.scaling.waiting_cores:.2f} of a core busy"
        yield from inked(sentence("warning  ", text, page), CAUTION, len("warning"))


def _megabytes(size: float) -> str:
    return about(size / 1e6)


def _rate(bytes_per_s: float) -> str:
    return f"{about(bytes_per_s / 1e9)} GB/s" if bytes_per_s >= 1e9 else f"{about(bytes_per_s / 1e6)} MB/s"
