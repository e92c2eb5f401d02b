"""What each part of a data pipeline can give, what an image costs in it, and the cores and workers that would keep up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import ceil

from rich.text import Text

from ddpbench.analysis.inputs import Case
from ddpbench.analysis.node_cpu_usage import LEAST_OTHERS
from ddpbench.analysis.pipeline.model import Supply
from ddpbench.analysis.pipeline.peaks import Ceilings
from ddpbench.analysis.pipeline.root_cause import TRAINER
from ddpbench.analysis.pipeline.worker_startup import start_of
from ddpbench.analysis.ranks import mean
from ddpbench.analysis.ratio import Ratio
from ddpbench.analysis.text import device_word
from ddpbench.record.diagnosis import Diagnosis, Storage
from ddpbench.record.record import Record
from ddpbench.record.text import count, trimmed
from ddpbench.report.format import MISSING, about, fixed, milliseconds, percent, significant
from ddpbench.report.layout import GAP, Page, columns, flow, sentence
from ddpbench.report.pages.header import rate
from ddpbench.report.styled import CAUTION, LABEL, inked

INDENT = "  "

SHORT = 0.9
"""A part that gives less than this fraction of the device's rate holds it back."""


@dataclass(frozen=True)
class Part:
    """What one part of the pipeline gives, in images/s of a rank, beside what the device could train."""

    name: str
    gives: float
    device: float | None
    note: str = ""

    @property
    def cells(self) -> list[str]:
        return [f"{INDENT}{self.name}", about(self.gives), _of(self.gives, self.device)]

    @property
    def style(self) -> str:
        return CAUTION if self.device and self.gives < SHORT * self.device else ""


def ceiling_table(record: Record, found: Ceilings, diagnosis: Diagnosis, page: Page, verbose: bool = False) -> Iterator[Text]:
    """Every part that was measured, with its share of the device's rate; then the interference of loader and training.

    Two parts a line if the page has room for them; with ``verbose`` one, with a note on it.
    """
    device = device_word(record.environment)
    known, unit = _parts(record, found, diagnosis), f"{rate(record)} a {device}"
    pairs = _side_by_side(known, page)
    if verbose or max(map(len, pairs)) > page.table_width:
        heading = ["what each part gives", unit, f"of the {device}'s", ""]
        lines = columns([heading, *([*part.cells, part.note if verbose else ""] for part in known)], "<>><", page)
        yield from inked(lines[:1], LABEL)
        for line, part in zip(lines[1:], known, strict=True):
            yield from inked([line], part.style)
    else:
        yield from inked(sentence("", f"what each part gives, {unit}, and its share of what the {device} trains", page), LABEL)
        yield from pairs
    if found.interference:
        yield from inked(sentence(INDENT, f"interference: {_longer(found.interference)} with the loader beside it", page))
    if doubt := _doubt(diagnosis.storage):
        yield from inked(sentence(INDENT, f"files on storage: {doubt}", page))


def _longer(times: Ratio) -> str:
    """``a step takes 31% (22% to 42%, 95%) longer``; of too few rounds for an interval their number stands in its place."""
    more, word = [edge - 1 for edge in (times.center, times.low, times.high)], "longer"
    if times.center < 1:
        more, word = [1 - edge for edge in (times.center, times.high, times.low)], "shorter"
    center, low, high = (percent(edge, 2) for edge in more)
    reach = f"{low} to {high}, 95%" if times.has_interval else count(times.pairs, "pair")
    shown = "" if times.is_more or (times.center > 1 and not times.has_interval) else "none shown, "
    return f"{shown}a step takes {center}{'' if low == high and times.has_interval else f' ({reach})'} {word}"


def _parts(record: Record, found: Ceilings, diagnosis: Diagnosis) -> list[Part]:
    workers = count(record.workers, "worker")
    parts: list[tuple[str, float | None, str]] = [
        (f"{device_word(record.environment)}, batches on it", found.device, ""),
        ("without gradient sync", found.no_sync, ""),
        ("batches in host memory", found.replay, "copies and host"),
        ("copies, page-locked", found.pinned, ""),
        ("copies, pageable" + ("" if record.config.pin_memory else ", in use"), found.pageable, ""),
        ("loader alone", found.alone, "slowest rank"),
        ("loader on one rank", found.alone_single if record.world_size > 1 else None, "the others idle"),
        ("files in memory", found.warm, _resident(diagnosis)),
        ("files on storage", found.cold, _storage(diagnosis)),
        (f"{workers}, all busy", found.workers, ""),
        ("cores", found.cores, ""),
        ("this run", found.given, ""),
    ]
    return [Part(name, gives, found.device, note) for name, gives, note in parts if gives is not None]


def _side_by_side(parts: Sequence[Part], page: Page) -> list[Text]:
    """Two parts a line, each in its colour; the first half is read down the left side."""
    half = ceil(len(parts) / 2)
    left, right = (columns([part.cells for part in side], "<>>", page) for side in (parts[:half], parts[half:]))
    width = max(map(len, left), default=0) + len(GAP)
    lines = []
    for at, (first, second) in enumerate(zip_longest(left, right, fillvalue="")):
        line = Text(f"{first:{width}}{second}".rstrip())
        line.stylize(parts[at].style, 0, width)
        line.stylize(parts[half + at].style if second else "", width)
        lines.append(line)
    return lines


def cost_line(case: Case, given: Supply, page: Page) -> Iterator[Text]:
    """What an image costs, in a line."""
    if given.cost is None or given.image_s is None:
        return
    trainer = [f"{TRAINER} {milliseconds(given.main_s)}"] if given.main_s else []
    stages = [f"{stage} {milliseconds(spent_s)}" for stage, spent_s in given.cost.cpu.items()]
    yield from _row(case.record.item, [f"{milliseconds(given.image_s)} ms of a core", *stages, *trainer], page)


def cost_table(case: Case, given: Supply, page: Page) -> Iterator[Text]:
    """What an image costs in the workers by stage, in the trainer, and how long it takes to hand a batch over."""
    if given.cost is None or given.image_s is None:
        return
    cost, item = given.cost, case.record.item
    rows = [
        [f"{INDENT}{stage}", milliseconds(cost.cpu[stage]), milliseconds(cost.wall[stage]), percent(cost.cpu[stage] / cost.cpu_s, 2)]
        for stage in cost.cpu
    ]
    if given.main_s:
        rows.append([f"{INDENT}{TRAINER}", milliseconds(given.main_s), MISSING, MISSING])
    rows.append([f"{INDENT}in all", milliseconds(given.image_s), milliseconds(cost.wall_s), MISSING])
    heading = [f"what an {item} costs, in ms", "of a core", "in a worker", "share"]
    lines = columns([heading, *rows], "<>>>", page)
    yield from inked(lines[:1], LABEL)
    yield from inked(lines[1:])
    handed = mean(trace.loading.hand_over_ms for trace in case.record.traces if trace.loading)
    if handed is not None:
        yield from inked(sentence(INDENT, f"hand-over: {significant(handed, 2)} ms of the wait for a batch is after it was made", page))


def needs(record: Record, given: Supply, page: Page) -> Iterator[Text]:
    """Cores and workers that would keep up with the device, or with the trainer process where that is slower; and what is there."""
    device = device_word(record.environment)
    cores = [f"there are {given.cores / given.ranks:g} a {device}"]
    if given.whole_cores_wanted is not None:
        cores = [f"needed {trimmed(given.whole_cores_wanted)} a {device}", f"there are {given.cores / given.ranks:g}"]
    if given.busy is not None:
        others = f", {significant(given.busy.others, 2)} with others" if given.busy.others >= LEAST_OTHERS else ""
        cores.append(f"{given.busy.share:.0%} busy{others}")
    if given.handed_too_slowly:
        cores.append(f"for {about(given.most_rate)} {rate(record)}: one {TRAINER} hands over no more")
    yield from _row("cores", cores, page)
    if given.workers_wanted is not None and given.workers_of_use is not None:
        there = "there is 1" if given.workers == 1 else f"there are {given.workers}"
        keep = f"these cores can keep {given.workers_of_use} busy"
        yield from _row("workers", [f"needed {given.workers_wanted:,} a {device}", there, keep], page)


def starting(record: Record, given: Supply, diagnosis: Diagnosis, page: Page) -> Iterator[Text]:
    """What it costs where workers do not persist: here batches flow over an epoch's end, in many a script they do not."""
    start = start_of(record, given, diagnosis)
    if start is None or given.cost is None:
        return
    always = record.data is not None and record.data.starts_anew
    anew = f"{percent(start.share, 2)} of an epoch, {'for which these start anew' if always else 'if workers start anew for it'}"
    yield from _row("start", [f"the first batch comes after {significant(start.first_s, 2)} s", anew], page)


def utilised(record: Record, found: Ceilings, page: Page) -> Iterator[Text]:
    """AU, and what the rest of it comes to in a day."""
    if found.utilisation is None:
        return
    share = min(1.0, found.utilisation)
    words = [f"{percent(share, 2)} of what the {device_word(record.environment)} could train"]
    hours = 24 * record.world_size
    if record.environment.device_type == "cuda" and share < 0.95:
        words.append(f"{fixed((1 - share) * hours, 0)} of {hours:,} GPU-hours a day are lost")
    yield from _row("AU", words, page)


def _row(label: str, items: Sequence[str], page: Page) -> list[Text]:
    return inked(flow(f"{label:9}", items, page), LABEL, len(label))


def _resident(diagnosis: Diagnosis) -> str:
    storage = diagnosis.storage
    return f"{percent(storage.resident, 2)} lie there" if storage and storage.resident is not None else ""


def _storage(diagnosis: Diagnosis) -> str:
    return diagnosis.storage.file_system if diagnosis.storage else ""


def _doubt(storage: Storage | None) -> str:
    """Why there is no rate of them, or what speaks against it; empty where nothing does."""
    if storage is None or storage.proved:
        return ""
    return f"no rate: {storage.cold_why}" if storage.cold is None else "that they came from a device, and no cache, is not proved"


def _of(value: float, device: float | None) -> str:
    """A share of the device's rate, in two digits, or three of what is above it."""
    if not device:
        return MISSING
    share = 100 * value / device
    return f"{about(share, 3 if share >= 100 else 2)}%"
