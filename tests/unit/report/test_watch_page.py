"""Words on the page of a watched script."""

from __future__ import annotations

import io

import pytest
import records
from msgspec.structs import replace

from ddpbench.analysis.judge import judge
from ddpbench.report.console import make_console
from ddpbench.report.pages.watch import render_watch


@pytest.mark.parametrize(("epochs", "name"), [(3, "between epochs 0.50%"), (1, "other work 0.50%")])
def test_only_several_epochs_have_time_between_them(epochs: int, name: str) -> None:
    record = records.watched_script()
    assert record.script is not None
    record.script = replace(record.script, epochs=epochs)
    judge(record)
    stream = io.StringIO()
    render_watch(records.job(record), make_console(stream), None)
    page = " ".join(stream.getvalue().split())
    assert name in page
    assert ("between epochs" in page) == (epochs > 1)
