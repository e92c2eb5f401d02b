"""The page of launches of a script with and without a change of its code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ddpbench.record.proof import Proof, SideLaunch
from ddpbench.record.record import Job
from ddpbench.report.console import page_for, print_lines, print_sections, record_path_lines
from ddpbench.report.format import MISSING, format_gib, format_rounded
from ddpbench.report.grid import Grid, GridColumn
from ddpbench.report.layout import CAUTION, GOOD, LABEL, Page, align_columns, styled, wrap_text
from ddpbench.report.messages.proof import HEADINGS, first_step_text, proof_claim, proof_gain_text, unchanged_text
from ddpbench.report.pages.script_header import script_header_lines


def render_proof(job: Job, console: Console, path: Path | None, *, verbose: bool = False, quiet: bool = False) -> None:
    """Print what the launches show, then one row for each; ``quiet`` prints the first part only."""
    page, record, proof = page_for(console, verbose), job.records[0], job.proof
    assert proof is not None, "the job of ab"
    verdict = [*_verdict_lines(proof, page)]
    if quiet:
        print_lines(console, verdict)
        return
    rows = [("launch", *_heads(job)), *(_row(each, proof) for each in proof.launches)]
    first, *others = align_columns(rows, "<>>>", page)
    table = [*styled([first], LABEL), *styled(others)]
    print_sections(console, [[*script_header_lines("ab", record, page)], verdict, table, [*record_path_lines(path, page)]])


def _verdict_lines(proof: Proof, page: Page) -> Iterator[Text]:
    kind = HEADINGS[proof.code]
    yield from styled(wrap_text(f"{kind}   ", proof_claim(proof), page), GOOD if proof.code == "proved" else CAUTION, len(kind))
    texts = {"gain": proof_gain_text(proof), "first step": first_step_text(proof), "same": unchanged_text(proof), "diff": proof.diff}
    for label, text in texts.items():
        if text:
            yield from styled(wrap_text(f"  {label}  ", text, page), LABEL, len(label) + 2)


def _heads(job: Job) -> tuple[str, str, str]:
    return f"{job.records[0].sample_unit}s/s", "peak GiB", "first step"


def _row(launch: SideLaunch, proof: Proof) -> tuple[str, str, str, str]:
    name = os.path.basename(proof.diff) if launch.is_changed else "as it is"
    first = MISSING if launch.first_step_s is None else f"{format_rounded(launch.first_step_s, 2)} s"
    return name, format_rounded(launch.samples_per_s, 4), format_gib(launch.peak_bytes), first


def proof_tables(job: Job) -> list[Grid]:
    """One row per launch."""
    proof = job.proof
    if proof is None:
        return []
    names, *figures = zip(*(_row(each, proof) for each in proof.launches), strict=True)
    columns = [GridColumn(head, list(cells)) for head, cells in zip(_heads(job), figures, strict=True)]
    return [Grid("launches", [GridColumn("launch", list(names))], columns)]


def proof_findings(job: Job) -> list[str]:
    """What the launches show, one sentence each."""
    if job.proof is None:
        return []
    first = first_step_text(job.proof)
    found = [
        f"{HEADINGS[job.proof.code].lower()}: {proof_claim(job.proof)}",
        proof_gain_text(job.proof),
        first and f"the first step {first}",
        unchanged_text(job.proof),
    ]
    return [each for each in found if each]
