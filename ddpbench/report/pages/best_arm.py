"""What a comparison of arms comes to, in a line, and the command to go on with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ddpbench.analysis.fastest import BestArm, command_after_comparison, find_best_arm
from ddpbench.record.record import Job
from ddpbench.report.layout import Page, wrap_command, wrap_text
from ddpbench.report.pages.arms import arm_name, ratio_text
from ddpbench.report.pages.header import MAX_NAMED
from ddpbench.report.styled import CAUTION, GOOD, LABEL, styled


def best_arm_lines(job: Job, page: Page) -> Iterator[Text]:
    """Which arm is the fastest, by how much, and the command to go on with. Nothing where there are no two to compare."""
    found = find_best_arm(job.records)
    if found is None:
        return
    kind, says = _best_arm_text(found, job.swept)
    yield from styled(wrap_text(f"{kind}   ", says, page), GOOD if found.is_clear else CAUTION, len(kind))
    if line := command_after_comparison(found, job):
        yield from styled(wrap_command("  next  ", line, page), LABEL, len("  next"))


def _best_arm_text(result: BestArm, swept: Sequence[str]) -> tuple[str, str]:
    """A word, and a sentence."""
    best, than = (arm_name(record.config, swept) for record in (result.best, result.compared_to))
    names = [arm_name(record.config, swept) for record in result.tied]
    close = ", ".join(names) if len(names) <= MAX_NAMED else f"{len(names)} arms"
    center, *reach = ratio_text(result.ratio).split(" ", 1)
    if reach and len(result.candidates) > 2 and result.ratio.has_interval:
        reach = [f"({reach[0].strip('()')}, 95% for all pairs)"]
    behind = " ".join([f"{center} times {than}", *reach])
    if result.is_clear and result.is_ceiling:
        return "CEILING", f"{best}, without a loader: {behind}"
    if result.is_clear:
        return "FASTEST", f"{best}: {behind}" if len(names) == 1 else f"{close}, too close to tell apart; {best}: {behind}"
    if result.are_equivalent:
        return "NO DIFFERENCE", f"{best}: {behind}" if len(names) == 2 else f"between {close}"
    return "INCONCLUSIVE", f"too {'close' if result.ratio.has_interval else 'few rounds'} to tell; {best}: {behind}"
