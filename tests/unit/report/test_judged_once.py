"""A record is judged once, and its page only reads it: traced over kept records."""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ddpbench.analysis.judge import judge_all
from ddpbench.bench.journal import load_job
from ddpbench.record.record import Job, Record
from ddpbench.record.remedy import Remedy
from ddpbench.report.console import make_console
from ddpbench.report.pages.registry import view_of

PACKAGE = Path(sys.modules[Job.__module__.partition(".")[0]].__path__[0])
RESULTS = PACKAGE.parent / "results"
DIAGNOSED = RESULTS / "watch" / "train-images-2-h100.json"


def trace_functions(action: Callable[[], Any], *kinds: type) -> Counter[str]:
    """How often each function of the package was called in ``action`` with an argument of ``kinds``; any argument if there are none."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code.co_name.startswith("<") or not code.co_filename.startswith(str(PACKAGE)):
            return
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if not kinds or any(isinstance(frame.f_locals.get(name), kinds) for name in arguments):
            calls[f"{Path(code.co_filename).relative_to(PACKAGE).with_suffix('')}:{code.co_name}"] += 1

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


def show(job: Job, path: Path) -> None:
    view_of(job).render(job, make_console(io.StringIO(), 80), path, verbose=False, quiet=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["watch/train-images-2-h100", "watch/train-script-diagnosed", "diagnosis/slow-reads"])
def test_remedies_are_recommended_once_and_never_by_the_page(name: str) -> None:
    path = RESULTS / f"{name}.json"
    job = load_job(path)
    assert trace_functions(lambda: judge_all(job))["analysis/remedies/recommend:recommend"] == 1
    rendering = trace_functions(lambda: show(job, path))
    assert not [name for name in rendering if name.startswith(("analysis/remedies/", "analysis/whatif/", "analysis/bottleneck/"))]


def test_few_functions_lie_between_a_record_and_its_page() -> None:
    job = load_job(DIAGNOSED)
    record = trace_functions(lambda: show(job, DIAGNOSED), Job, Record)
    remedy = trace_functions(lambda: (judge_all(job), show(job, DIAGNOSED)), Remedy)
    print("a record is passed to", len(record), "functions:", *sorted(record), sep="\n  ")
    print("a remedy is passed to", len(remedy), "functions:", *sorted(remedy), sep="\n  ")
    assert 30 < len(record) <= 60
    assert 8 < len(remedy) <= 25
