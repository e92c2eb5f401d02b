"""What loaders did: in a run what an image cost, where loaders are compared a row each."""

from __future__ import annotations

from collections.abc import Iterator
from math import fsum

from rich.text import Text

from ddpbench.analysis.pipeline.costs import cost_of_run
from ddpbench.analysis.ranks import mean
from ddpbench.record.record import Job, Record
from ddpbench.report.format import MISSING, about, gib, milliseconds, significant
from ddpbench.report.layout import Page, columns, flow
from ddpbench.report.pages.arms import arm_name
from ddpbench.report.pages.header import labelled, rate
from ddpbench.report.styled import LABEL, inked


def loading(record: Record, page: Page) -> Iterator[Text]:
    """What an image cost its workers. Nothing where the loader does not tell."""
    if cost := cost_of_run(record):
        stages = ", ".join(f"{stage} {milliseconds(span)}" for stage, span in cost.cpu.items())
        yield from labelled("load", [f"{milliseconds(cost.cpu_s)} ms of a core an {record.item}: {stages}"], page)


def loaders(job: Job, page: Page) -> Iterator[Text]:
    """A row a loader that was measured alone, beside the trainings of the same job. Nothing where none was."""
    measured = [record for record in job.records if record.alone]
    if not measured:
        return
    unit = rate(*job.records)
    heading = ["loader", f"alone, {unit}", "training", "core-ms", "GiB", "first batch"]
    rows = [heading, *([arm_name(record.config, job.swept), *_row(record)] for record in measured)]
    lines = columns(rows, "<>>>>>", page)
    yield from inked(lines, LABEL, len(lines[0]))
    item = measured[0].item
    explained = [
        f"alone: all ranks' loaders with nobody training, {unit}",
        f"core-ms: of a core, to load an {item}",
        "GiB: workers of a rank",
    ]
    yield from inked(flow("  ", explained, page))


def _row(record: Record) -> list[str]:
    """Rates are of all ranks, which wait for the slowest; memory is the most of any rank."""
    alone = record.alone
    images = sum(each.images for each in alone)
    cores_s = fsum(each.cpu_s + each.main_cpu_s for each in alone) / images if images else None
    memory = max((each.memory_bytes for each in alone if each.memory_bytes is not None), default=None)
    return [
        about(len(alone) * min(each.images_per_s for each in alone), 4),
        about(record.headline.images_per_s, 4) if record.headline else MISSING,
        MISSING if cores_s is None else milliseconds(cores_s),
        gib(memory),
        f"{significant(mean(each.first_batch_s for each in alone), 2)} s",
    ]
