"""What others have published for ResNet-50, beside a run of it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from ddpbench.analysis.references import beside
from ddpbench.record.record import Record
from ddpbench.report.figures import significant
from ddpbench.report.ink import LABEL, inked
from ddpbench.report.layout import Page, columns, sentence

TITLE = "published, ResNet-50 v1.5; ratio: here over published, a GPU"
CAVEAT = "data, batch and stack differ from this run's: a ratio says whether its speed is usual, and no more"


def published(record: Record, page: Page) -> Iterator[Text]:
    """A table of the published throughputs, by whose they are and on which data; nothing where none is of this run's kind."""
    found = beside(record)
    if not found:
        return
    rows = [["  GPU", "GPUs", "batch", "precision", "images/s", "ratio"]]
    for each in found:
        theirs = each.reference
        figures = [str(theirs.gpus), str(theirs.batch_per_gpu), theirs.precision, f"{theirs.images_per_s:,g}"]
        rows.append([f"  {theirs.gpu}", *figures, significant(each.ratio)])
    head, *lines = columns(rows, "<>><>>", page)
    yield from inked(sentence("", TITLE, page), LABEL)
    yield from inked([head], LABEL)
    whose = ""
    for each, line in zip(found, lines, strict=True):
        if whose != (whose := f"{each.reference.stack}; {each.reference.data}"):
            yield from inked(sentence("", whose, page))
        yield Text(line)
    yield from inked(sentence("", CAVEAT, page))
