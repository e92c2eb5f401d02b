"""The header of a page about a user's own script."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from ddpbench.record.record import Record
from ddpbench.record.script import WatchedScript
from ddpbench.record.text import pluralize
from ddpbench.report.layout import LABEL, Page, styled, wrap_items
from ddpbench.report.pages.header import batch_and_version_items, labelled_lines, loader_items, machine_text, texts_in_common


def script_header_lines(command: str, record: Record, page: Page) -> Iterator[Text]:
    """Script and model, machine and batch, data."""
    script, name = record.script or WatchedScript(), f"ddpbench {command}"
    title = [record.config.workload, *_training_items(record, script)]
    yield from styled(wrap_items(f"{name}  ", title, page, gap="  "), LABEL, len(name))
    unknown = ["batch_size"] if script.step == "update" else []
    machine = [machine_text(record.environment), *texts_in_common(batch_and_version_items(record, page), unknown)]
    yield from styled(wrap_items("", machine, page, gap="     "))
    if record.data:
        samples = f", {pluralize(script.num_samples, 'sample')}" if script.num_samples is not None else ""
        yield from labelled_lines("data", [f"{script.dataset}{samples}", *texts_in_common(loader_items(record))], page)
    elif script.step == "update":
        yield from labelled_lines(
            "data", ["from no DataLoader in the thread that trains: a step is an update, and waits for data count as script"], page
        )


def _training_items(record: Record, script: WatchedScript) -> Iterator[str]:
    yield record.config.precision
    if script.model:
        yield script.model.replace("DistributedDataParallel", "DDP")
    if script.optimizers:
        yield ", ".join(dict.fromkeys(script.optimizers))
    if record.world_size > 1 and not record.uses_ddp:
        yield "no DDP"
