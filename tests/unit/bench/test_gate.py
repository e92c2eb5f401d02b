"""``--fail-if-data-wait`` on a script whose waits for data are not seen."""

from __future__ import annotations

import records
from msgspec.structs import replace
from page_jobs import watching

from ddpbench.bench.gate import NO_LOADER_HINT, gate_error
from ddpbench.record.errors import DataWaitExceeded


def test_waits_that_are_not_seen_do_not_pass() -> None:
    record = records.script_without_loader()
    record = replace(record, config=replace(record.config, fail_if_data_wait=90.0))
    error = gate_error([record], watching(record))
    assert error is not None
    assert (type(error) is DataWaitExceeded, error.hint) == (False, NO_LOADER_HINT)
    seen = records.watched_script()
    seen = replace(seen, config=replace(seen.config, fail_if_data_wait=99.0))
    assert gate_error([seen], watching(seen)) is None
