"""What a comparison of arms comes to, in a line, and the command to go on with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ddpbench.analysis.fastest import Fastest, command_after, fastest
from ddpbench.record.record import Job
from ddpbench.report.layout import Page, command, sentence
from ddpbench.report.pages.arms import arm_name, ratio_text
from ddpbench.report.pages.header import MOST_NAMED
from ddpbench.report.styled import CAUTION, GOOD, LABEL, inked


def conclusion(job: Job, page: Page) -> Iterator[Text]:
    """Which arm is the fastest, by how much, and the command to go on with. Nothing where there are no two to compare."""
    found = fastest(job.records)
    if found is None:
        return
    kind, says = _concluded(found, job.swept)
    yield from inked(sentence(f"{kind}   ", says, page), GOOD if found.clear else CAUTION, len(kind))
    if line := command_after(found, job):
        yield from inked(command("  next  ", line, page), LABEL, len("  next"))


def _concluded(found: Fastest, swept: Sequence[str]) -> tuple[str, str]:
    """A word, and a sentence."""
    best, than = (arm_name(record.config, swept) for record in (found.best, found.than))
    names = [arm_name(record.config, swept) for record in found.close]
    close = ", ".join(names) if len(names) <= MOST_NAMED else f"{len(names)} arms"
    center, *reach = ratio_text(found.ratio).split(" ", 1)
    if reach and len(found.compared) > 2 and found.ratio.has_interval:
        reach = [f"({reach[0].strip('()')}, 95% for all pairs)"]
    behind = " ".join([f"{center} times {than}", *reach])
    if found.clear and found.is_ceiling:
        return "CEILING", f"{best}, without a loader: {behind}"
    if found.clear:
        return "FASTEST", f"{best}: {behind}" if len(names) == 1 else f"{close}, too close to tell apart; {best}: {behind}"
    if found.alike:
        return "NO DIFFERENCE", f"{best}: {behind}" if len(names) == 2 else f"between {close}"
    return "INCONCLUSIVE", f"too {'close' if found.ratio.has_interval else 'few rounds'} to tell; {best}: {behind}"
