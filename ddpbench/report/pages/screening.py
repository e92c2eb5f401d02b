"""The settings that were screened, with their gains of computing alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ddpbench.analysis.screening import kept_cures, rounding_cures
from ddpbench.record.diagnosis import Diagnosis
from ddpbench.record.remedy import ScreenedRemedy
from ddpbench.report.grid import Grid, GridColumn
from ddpbench.report.layout import LABEL, Page, styled, wrap_command, wrap_text
from ddpbench.report.messages.screening import COMPILE_TEXT, loss_comparison_text, no_time_text, screened_gain_text

HEADING, MEASURED = "settings of computing", "measured (95%), on batches that are ready"

OBVIOUS = (
    "already-on",
    "no-convolutions",
    "volumes",
    "no-bfloat16",
    "no-tf32",
    "mostly-convolutions",
    "other-precision",
    "no-device-kernel",
    "nothing-to-fuse",
)
"""Obstacles that follow from what the script is."""


def screened_remedies(diagnosis: Diagnosis | None) -> list[ScreenedRemedy]:
    """Those of the remedies that were screened."""
    return [each for each in (diagnosis.remedies if diagnosis else None) or () if isinstance(each, ScreenedRemedy)]


def screening_lines(diagnosis: Diagnosis, page: Page) -> Iterator[Text]:
    """The trials, and why others were not tried; only a verbose page has the obvious reasons."""
    shown = [each for each in screened_remedies(diagnosis) if page.verbose or each.obstacle not in OBVIOUS]
    if not shown:
        return
    if all(each.obstacle == "no-time" for each in shown):
        yield from styled(wrap_text(f"{HEADING}  ", no_time_text(shown), page), LABEL, len(HEADING))
        return
    width = max(len(HEADING), *(len(each.code) + 2 for each in shown))
    yield from styled([f"{HEADING:{width}}  {MEASURED}"], LABEL)
    for each in shown:
        yield from styled(wrap_text(f"  {each.code:{width - 2}}  ", screened_gain_text(each), page), LABEL, len(each.code) + 2)
    if diagnosis.screening and rounding_cures(kept_cures(diagnosis.screening)):
        text = loss_comparison_text(diagnosis.screening.loss_comparison)
        yield from styled(wrap_text(f"{'  losses':{width}}  ", text, page), LABEL, len("  losses"))
    if diagnosis.compile_diff is not None and diagnosis.compile_diff.proof:
        yield from styled(wrap_text(f"{'  torch.compile':{width}}  ", COMPILE_TEXT, page), LABEL, len("  torch.compile"))
        yield from styled(wrap_command("    ", diagnosis.compile_diff.proof, page))


def screening_grid(remedies: Sequence[ScreenedRemedy]) -> Grid:
    """All of them, with their gains."""
    names, gains = [each.code for each in remedies], [screened_gain_text(each) for each in remedies]
    return Grid("screened settings", [GridColumn("setting", names)], [GridColumn(MEASURED, gains)])
