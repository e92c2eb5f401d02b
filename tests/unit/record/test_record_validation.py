"""Every mutated record is either rejected on load, with its file and field, or has a page."""

from __future__ import annotations

import io
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import mutations
import pytest
from commands import refused
from mutations import Mutation

from ddpbench.analysis.whatif.assumptions import MissingMeasurementError
from ddpbench.analysis.whatif.query import answer_whatif
from ddpbench.bench.journal import load_job
from ddpbench.record.errors import BenchError, UsageError
from ddpbench.record.io import load
from ddpbench.record.prediction import Scenario
from ddpbench.record.record import Job
from ddpbench.record.trace import PHASES
from ddpbench.report import export
from ddpbench.report.console import make_console
from ddpbench.report.markdown import to_markdown
from ddpbench.report.pages.registry import view_of
from ddpbench.report.pages.whatif import render_whatif

ROOT = Path(__file__).parents[3]
SCHEMA_2 = Path(__file__).parent / "schema-2.json"
RESULTS = ROOT / "results"
RUN, SCALE = RESULTS / "h200" / "resnet50-1gpu-dali-cpu.json", RESULTS / "h200" / "scale-resnet50-2gpu.json"
REPRODUCED = RESULTS / "h200" / "reproduce-t4-tensor-cores.json"
DIAGNOSED = RESULTS / "diagnosis" / "resnet18-2-cpu-ranks.json"

NAMED = (
    r"'%s' (has schema|was written by |contains no|is not a ddpbench record: "
    r"([a-z_]+(\[|\.|: )|object missing required field `|truncated or invalid JSON))"
)
"""Start of an error message: the file, then the field."""

POWER_CAP = {"code": "power-cap", "severity": "info", "ranks": [0]}

TRACE = ("records", 0, "rounds", 1, "traces", 0)


def render(job: Job, whatif: bool = False) -> None:
    """Render ``job`` in every format."""
    console = make_console(io.StringIO())
    for verbose, quiet in ((False, False), (True, False), (False, True)):
        view_of(job).render(job, console, RUN, verbose=verbose, quiet=quiet)
    export.jobs_to_json(job)
    export.jobs_to_csv(job)
    to_markdown(job)
    for change in (Scenario(workers=8, cores_per_gpu=8.0), Scenario(batch_size=64, gpus=4)) if whatif else ():
        try:
            answer = answer_whatif(job, change, [])
        except (BenchError, MissingMeasurementError):  # not measured
            continue
        render_whatif(job, answer, console)


def check(path: Path, most: int, folder: Path, whatif: bool = False) -> None:
    """Check that up to ``most`` mutations of the record in ``path`` are rendered or rejected with a field."""
    original, file = mutations.thinned(path), folder / "record.json"
    chosen = mutations.of_every_kind(original)[:most]
    errors = {}
    for mutation in chosen:
        file.write_bytes(mutation.encoded(original))
        try:
            render(load_job(file), whatif)
        except UsageError as problem:
            errors[mutation.kind] = problem.message
        except Exception as problem:
            raise AssertionError(f"{mutation.kind} of {path.name}") from problem
    named = re.compile(NAMED % re.escape(str(file)))
    assert [error for error in errors.items() if not named.match(error[1])] == []
    assert 0 < len(errors) < len(chosen)


@pytest.mark.parametrize(("path", "most"), [(RUN, 120), (SCHEMA_2, 60), (SCALE, 30), (REPRODUCED, 12), (DIAGNOSED, 12)])
def test_mutated_record_is_rejected_with_its_field_or_has_a_page(path: Path, most: int, tmp_path: Path) -> None:
    check(path, most, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "most"), [(RUN, 1500), (SCHEMA_2, 800), (SCALE, 150), (REPRODUCED, 150), (DIAGNOSED, 30)])
def test_many_mutated_records_are_rejected_with_their_field_or_have_a_page(path: Path, most: int, tmp_path: Path) -> None:
    check(path, most, tmp_path, whatif=path == DIAGNOSED)


@pytest.mark.parametrize(
    ("mutation", "problem"),
    [
        (Mutation((*TRACE, "phases_ms", "data"), drops=True), "records[0].rounds[1].traces[0].phases_ms.data: missing"),
        (Mutation((*TRACE, "totals_ms", "sync"), drops=True), "records[0].rounds[1].traces[0].totals_ms.sync: missing"),
        (Mutation((*TRACE, "totals_ms", "sync"), 1e18), "records[0].rounds[1].traces[0].totals_ms[...]: expected `float` <= 1"),
        (Mutation((*TRACE, "totals_ms", "sync"), 1e9), "records[0].rounds[1].traces[0].totals_ms: 1.0"),
        (Mutation((*TRACE, "phases_ms", "sync"), [1.0]), "records[0].rounds[1].traces[0].phases_ms.sync: 1 step, but other phases have 4"),
        (Mutation((*TRACE, "phases_ms", "sync", 0), -2.0), "records[0].rounds[1].traces[0].phases_ms[...][0]: expected `float` >= -1"),
        (Mutation((*TRACE, "host_lead_ms"), [1.0]), "records[0].rounds[1].traces[0].host_lead_ms: 1 step, but phases_ms has 4"),
        (Mutation((*TRACE, "steps"), 0), "records[0].rounds[1].traces[0].steps: expected `int` >= 1"),
        (Mutation((*TRACE, "steps"), 3), "records[0].rounds[1].traces[0].phases_ms: 4 steps of 3"),
        (Mutation((*TRACE, "rank"), 1), "records[0].rounds[1].traces: ranks 1, expected 0 to 0"),
        (Mutation(TRACE[:-1], []), "records[0].rounds[1].traces: ranks none"),
        (Mutation((*TRACE, "totals_ms"), dict.fromkeys(PHASES, 0.0)), "records[0].rounds[1].traces: no compute time"),
        (Mutation((*TRACE[:4], "wall_s"), 0), "records[0].rounds[1].wall_s: expected `float` >= "),
        (Mutation(("records", 0, "rounds"), []), "records[0].throughput: no rounds"),
        (Mutation(("records", 0, "checks"), [POWER_CAP | {"ranks": [7]}]), "records[0].checks[0].ranks: no rank 7, world size is 1"),
        (Mutation(("records", 0, "checks"), [POWER_CAP | {"ranks": []}]), "records[0].checks[0].ranks: expected `array` of length >= 1"),
        (Mutation(("records", 0, "checks"), [POWER_CAP | {"code": "cold"}]), "records[0].checks[0].code: invalid value 'cold'"),
        (Mutation(("records", 0, "config", "precision"), "fp8"), "records[0].config.precision: unknown 'fp8'"),
        (Mutation(("records", 0, "requested", "precision"), "fp8"), "records[0].requested.precision: unknown 'fp8'"),
        (Mutation(("records", 0, "config", "workload"), "--amp"), "records[0].config.workload: expected `str` matching"),
        (Mutation(("records", 0, "environment", "placements"), []), "records[0].environment.placements: ranks none"),
        (Mutation(("records", 0, "environment", "world_size"), 2**60), "records[0].environment.placements: ranks 0, expected"),
        (Mutation(("records", 0, "environment", "nodes"), 2), "records[0].environment.nodes: 2 for 1 rank"),
        (Mutation(("swept",), ["nonsense"]), "swept[0]: unknown 'nonsense'"),
        (
            Mutation(("sweep_shard",), {"parts": [1], "num_parts": 2, "num_sweep_points": 4, "sweep_id": "x"}),
            "sweep_shard: 2 arms, but the job has 1",
        ),
        (Mutation(("started",), drops=True), "object missing required field `started`"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(map(str, value.place)),
)
def test_inconsistent_field_is_reported(mutation: Mutation, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(mutation.encoded(mutations.thinned(RUN)))
    assert refused(f"report {shlex.quote(str(path))}", capsys).startswith(f"ddpbench: error: '{path}' is not a ddpbench record: {problem}")


@pytest.mark.parametrize("path", [SCALE, RESULTS / "scaling" / "mnist-cnn-2-hosts-100-mbit.json"], ids=lambda path: path.stem)
@pytest.mark.parametrize("missing", ["one", "all from one on"])
def test_scaling_record_without_some_arms_has_a_page_or_is_rejected(path: Path, missing: str, tmp_path: Path) -> None:
    whole, file = mutations.thinned(path), tmp_path / "record.json"
    arms, problems = whole["records"], []
    for at in range(1, len(arms)):
        whole["records"] = arms[:at] + (arms[at + 1 :] if missing == "one" else [])
        file.write_bytes(msgspec.json.encode(whole))
        try:
            render(load_job(file))
        except UsageError as problem:
            problems.append(problem.message)
    expected = f"'{file}' is not a ddpbench record: scaling.verdict: no rounds of 2 ranks, which it is of"
    assert {*problems} <= {expected}
    assert problems or missing == "one"


def test_record_of_an_unknown_published_experiment_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(Mutation(("kind",), "reproduce nothing").encoded(mutations.thinned(RUN)))
    assert refused(f"report {shlex.quote(str(path))}", capsys).startswith("ddpbench: error: unknown published experiment 'nothing'")


def recorded_results() -> list[Any]:
    files = [path for path in sorted(RESULTS.rglob("*.json")) if b'"started"' in path.read_bytes()[:100]]
    return [pytest.param(path, id=path.stem) for path in files]


@pytest.mark.parametrize("path", recorded_results())
def test_every_recorded_result_loads(path: Path) -> None:
    assert load(path).records
