"""The page of an answer to "what if": the gain first, then what it was told from, and what it takes for granted."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from ddpbench.analysis.controls import diagnosed
from ddpbench.analysis.text import device_word
from ddpbench.analysis.whatif.gain import CONFIDENCE
from ddpbench.analysis.whatif.query import Answer
from ddpbench.record.loaders import spec_of
from ddpbench.record.record import Job, Record
from ddpbench.record.text import count
from ddpbench.report.console import page_of, show_sections
from ddpbench.report.format import about, percent, ranged
from ddpbench.report.layout import Page, flow, sentence
from ddpbench.report.pages.header import rate, titled
from ddpbench.report.styled import CAUTION, GOOD, LABEL, inked

MISSES = 0.1
"""A model that is further off than this fraction of the run that it was told from is not to be trusted in silence."""


def render_answer(job: Job, found: Answer, console: Console) -> None:
    """Prints what ``found`` says of the run that ``job`` diagnosed."""
    page, record = page_of(console), diagnosed(job) or job.records[0]
    show_sections(
        console, [[*titled("whatif", record, page)], [*_gain(found, record, page)], [*_why(found, record, page)], [*_assumed(found, page)]]
    )


def gain_text(center: float, low: float, high: float) -> str:
    """``1.42x (1.34 to 1.51)``."""
    return ranged(center, low, high, "x", width_digits=1)


def _gain(found: Answer, record: Record, page: Page) -> Iterator[Text]:
    price, unit = found.price, rate(record)
    label = found.change.words
    if price.low <= 1 <= price.high:
        says, style = f"no gain that is certain: {gain_text(price.gain, price.low, price.high)}", CAUTION
    else:
        says = gain_text(price.gain, price.low, price.high)
        style = GOOD if price.gain > 1 else CAUTION
    yield from inked(sentence("", f"{label}:  {says}", page), style)
    reach = [about(found.now_images_per_s * edge) for edge in (price.gain, price.low, price.high)]
    yield from _row("now", [f"{about(found.now_images_per_s)} {unit}, measured"], page)
    yield from _row("then", [f"{reach[0]} {unit}  ({reach[1]} to {reach[2]}, {CONFIDENCE:.0%})"], page)
    if found.as_it_is.words:
        yield from inked(sentence("         ", f"{found.as_it_is.words} is the present setting, and gains nothing", page))


def _why(found: Answer, record: Record, page: Page) -> Iterator[Text]:
    price, device = found.price, device_word(record.environment)
    limit = [f"{price.held_by}:", f"{about(1000 * price.after.step / price.miss)} ms a step"]
    if not (record.environment.device_type == "cpu" and price.held_by.startswith("the cores")):  # there they compute and load by turns
        limit[-1] += ","
        limit.append(f"the {device} waits {percent(max(0.0, price.after.waiting), 2)} of it for data")
    yield from _row("limit", limit, page)
    yield from _row("by", [*_situation(found, device)], page)
    off = f"{percent(abs(price.miss - 1), 2)} {'longer' if price.miss > 1 else 'shorter'}"
    checked = sentence("model    ", f"it makes a step of the run as it was {off} than measured", page)
    yield from inked(checked, CAUTION if abs(price.miss - 1) > MISSES else "")


def _situation(found: Answer, device: str) -> Iterator[str]:
    after = found.after
    hands, each = ("thread", "a pipeline") if spec_of(after.loader).threaded else ("worker", "each")
    yield f"loader {after.loader}"
    yield f"{count(after.workers, hands)} a {device}"
    yield f"{after.prefetch} batches ahead {each}"
    yield f"batch {after.batch} x {after.ranks}"
    if after.cores is not None:
        cores = after.cores / after.ranks_a_node
        yield f"{count(cores, 'core')} a {device}"


def _assumed(found: Answer, page: Page) -> Iterator[Text]:
    texts = [each.text for each in found.price.assumed]
    texts.append("rounds and batches as uneven as measured, and nobody else on the machine who was not there")
    yield from inked(["taken for granted"], LABEL)
    for text in texts:
        yield from inked(sentence("  - ", text, page))


def _row(label: str, items: list[str], page: Page) -> list[Text]:
    return inked(flow(f"{label:9}", items, page, gap=" " if label == "limit" else "   "), LABEL, len(label))
