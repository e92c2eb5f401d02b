"""Pages of ``ab``: golden files. ``DDPBENCH_GOLDEN=write`` rewrites them."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from proofs import PROOFS

from ddpbench.record.record import Job
from ddpbench.report.console import make_console
from ddpbench.report.markdown import to_markdown
from ddpbench.report.pages.proof import render_proof

GOLDEN = Path(__file__).parent / "golden" / "ab"


def printed(job: Job, quiet: bool = False) -> str:
    stream = io.StringIO()
    render_proof(job, make_console(stream), Path("results/runs/20261130T120000Z-train-py-ab.json"), quiet=quiet)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def default_terminal_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", PROOFS)
def test_page_matches_golden_file(name: str) -> None:
    page, golden = printed(PROOFS[name]()), GOLDEN / f"{name}.80.txt"
    if os.environ.get("DDPBENCH_GOLDEN") == "write":
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(page, encoding="utf-8")
    assert page == golden.read_text(encoding="utf-8")
    assert all(len(line) <= 80 for line in page.splitlines())


def test_no_golden_page_is_unused() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {f"{name}.80.txt" for name in PROOFS}


def test_quiet_page_is_the_verdict() -> None:
    assert printed(PROOFS["ab-proved"](), quiet=True).startswith("PROVED   with the change the script computes 1.94 times as fast\n")


def test_markdown_has_the_launches_and_what_they_show() -> None:
    text = to_markdown(PROOFS["ab-refuted"]())
    assert "| faster.diff | 1,940 |" in " ".join(text.split())
    assert "its loss is not finite" in text
