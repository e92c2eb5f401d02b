"""Scripts under results/ run at a small size, and their pages follow from the stored records."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import pytest
import records
from open_loaders import NO_DALI
from sample_datasets import image_tree

from ddpbench.analysis.judge import judge_all
from ddpbench.record.checks import Noisy
from ddpbench.record.io import encode_json, load, save

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
RESULTS = ROOT / "results"
SCRIPTS = sorted(RESULTS.rglob("*.py"))
PROOF = RESULTS / "h200" / "diagnose-resnet50-2gpu.json"
NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "0"}  # interpreted, the fused kernels would take minutes
BASELINE = """print('{"images_per_s": 1.0, "loss": 0.0}')"""

Run = Callable[..., str]


@pytest.fixture
def run(launch: Callable[..., Any]) -> Run:
    """``run(script, *words, ranks=)`` returns the output of ``script``, which must succeed; with ``ranks`` torchrun starts it."""

    def go(script: Path, *words: str, ranks: int = 0, gpus: bool = False) -> str:
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"] if ranks else []
        environment = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, TESTS / "support"))), **({} if gpus else NO_GPU)}
        done = launch([sys.executable, *torchrun, str(script), *words], timeout=170.0, env=environment)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    return go


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Path]:
    """``copied(name)`` returns a copy of that folder of results/, for scripts that write next to themselves."""
    (tmp_path / "tests").symlink_to(TESTS)

    def go(name: str) -> Path:
        return Path(shutil.copytree(RESULTS / name, tmp_path / "results" / name))

    return go


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.relative_to(RESULTS).as_posix())
def test_script_can_be_imported(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(script.parent), *sys.path])
    runpy.run_path(str(script))


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("words", "kept", "ranks"),
    [
        ("simulation/speed.py OUT", "simulation/speed.json", 0),
        (f"thin.py {PROOF} OUT 4", PROOF, 0),
        pytest.param("overhead/progress_marker.py OUT", "overhead/progress_marker.json", 0, marks=pytest.mark.slow),
        pytest.param("overhead/watch.py OUT --pairs 1", "overhead/watch-h100.json", 0, marks=pytest.mark.slow),
        pytest.param("overhead/gather.py OUT", "overhead/gather.json", 2, marks=pytest.mark.slow),
        pytest.param("loading/small.py OUT --batches 8", "loading/small.json", 0, marks=pytest.mark.slow),
        pytest.param("loading/uint8.py JPEGS OUT --batches 8", "loading/uint8.json", 0, marks=pytest.mark.slow),
        pytest.param("loading/pipelines.py JPEGS OUT 1 --rounds 1", "loading/pipelines.json", 0, marks=[pytest.mark.slow, NO_DALI]),
        pytest.param(
            "harness-tax/tax.py shufflenet_v2_x0_5 1 OUT --precision amp-bf16 --pairs 1",
            "harness-tax/resnet18-4gpu.json",
            1,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "kernels/steps.py shufflenet_v2_x0_5 2 OUT --arms eager,fused --dtype bf16 --steps 1 --rounds 2",
            "kernels/resnet50-512-h200.json",
            1,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "kernels/ideas.py shufflenet_v2_x0_5 2 OUT --steps 1 --rounds 2",
            "kernels/ideas-resnet50-256-h200.json",
            1,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "harness-tax/first_step.py shufflenet_v2_x0_5 2 OUT --times 1",
            "harness-tax/first-step-resnet50-512-h200.json",
            0,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "harness-tax/launches.py BASELINE 1 disc-mlp-5 1 OUT --pairs 1",
            "harness-tax/resnet18-4gpu-launches.json",
            0,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_script_writes_a_record_like_the_stored_one(words: str, kept: str, ranks: int, run: Run, tmp_path: Path) -> None:
    made = {"OUT": tmp_path / "record.json", "JPEGS": tmp_path / "jpegs", "BASELINE": tmp_path / "baseline.py"}
    image_tree(made["JPEGS"], images=16)
    made["BASELINE"].write_text(BASELINE)
    script, *rest = [str(made.get(word, word)) for word in words.split()]
    run(RESULTS / script, *rest, ranks=ranks)
    written, there = json.loads(made["OUT"].read_bytes()), json.loads((RESULTS / kept).read_bytes())
    if "schema" in there:
        there = json.loads(encode_json(load(RESULTS / kept)))  # with the optional fields that later releases added
    assert written.keys() == there.keys()


@pytest.mark.cuda
@pytest.mark.parametrize(
    "words",
    [
        "harness-tax/tax.py resnet18 2 OUT --pairs 1",
        "kernels/steps.py resnet18 8 OUT --arms eager-graph,fused-graph --steps 1 --rounds 2",
        "kernels/sgd.py vgg16-cifar10 OUT --steps 5 --rounds 2",
        "roofline/counters.py OUT --batch 64",
        "scaling/bare_ladder.py resnet18 2 OUT",
        "scaling/later_groups.py one,destroy",
    ],
)
def test_script_runs_on_every_gpu(words: str, run: Run, tmp_path: Path) -> None:
    import torch

    script, *rest = words.replace("OUT", str(tmp_path / "record.json")).split()
    assert run(RESULTS / script, *rest, ranks=torch.cuda.device_count(), gpus=True)


@pytest.mark.slow
def test_bytes_of_layers_are_counted_without_a_gpu(run: Run, tmp_path: Path) -> None:
    run(RESULTS / "roofline" / "counters.py", str(tmp_path / "counters.json"), "--batch", "2")
    layers = {row["layer"]: row for row in json.loads((tmp_path / "counters.json").read_bytes())["layers"]}
    assert {row["measured_bytes"] for row in layers.values()} == {None}
    map_bytes = 4 * 2 * 256 * 56 * 56  # float32
    assert layers["ReLU"]["counted_bytes"] == 5 * map_bytes
    assert layers["batch norm"]["counted_bytes"] == pytest.approx(8 * map_bytes, rel=0.01)


def test_judging_again_changes_only_checks_and_verdicts(run: Run, tmp_path: Path) -> None:
    kept, copy = load(RESULTS / "h200" / "resnet50-1gpu-10-launches.json"), tmp_path / "record.json"
    (record,) = kept.records
    assert record.throughput
    assert len(record.throughput.launch_samples_per_s) == 10
    assert record.verdict
    unjudged = msgspec.structs.replace(record, checks=[Noisy(round_cv=0.1)], verdict=None, status="invalid")
    save(msgspec.structs.replace(kept, records=[unjudged]), copy)
    run(RESULTS / "judge_again.py", str(copy))
    assert encode_json(load(copy)) == encode_json(kept)


def test_judging_again_drops_the_figure_of_a_record_with_an_error() -> None:
    job = records.job(records.record())
    judge_all(job)
    (record,) = job.records
    assert record.throughput
    record.rounds[0] = msgspec.structs.replace(record.rounds[0], params_in_sync=False)
    runpy.run_path(str(RESULTS / "judge_again.py"))["judge_again"](job)
    assert (record.status, record.throughput) == ("invalid", None)


def test_straggler_tables_follow_from_stored_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RESULTS / "stragglers"
    monkeypatch.syspath_prepend(folder)
    stragglers, memory = map(importlib.import_module, ("stragglers", "memory"))
    for device, ranks, share in (("cpu", 2, 0.25), ("cuda", 4, 0.05)):
        kept = folder / f"{device}-{ranks}-ranks.json"
        measured = msgspec.json.decode(kept.read_bytes(), type=stragglers.Results)
        options = Namespace(device=device, ranks=ranks, share=share, steps=20)
        assert stragglers.table(measured, options) == kept.with_suffix(".md").read_text()
    rounds = json.loads((folder / "memory.json").read_bytes())
    del rounds["command"]
    for name, each in rounds.items():
        line = memory.line(name, msgspec.convert(each, list[list[stragglers.RankReport]]))
        assert line in (folder / "memory.md").read_text().splitlines()


@pytest.mark.slow
def test_situation_that_cannot_run_leaves_the_page_unchanged(run: Run, copied: Callable[[str], Path]) -> None:
    folder = copied("diagnosis")
    (folder / "README.md").unlink()
    run(folder / "situations.py", "launch-bound")
    for name in ("README.md", "situations.json"):
        assert (folder / name).read_text() == (RESULTS / "diagnosis" / name).read_text()


def test_calibration_page_and_plots_follow_from_stored_records(run: Run, copied: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied("calibration")
    (tmp_path / "results" / "h200").mkdir()
    for record in (RESULTS / "h200").glob("diagnose-*.json"):
        shutil.copy(record, tmp_path / "results" / "h200")
    for name in ("calibration.md", "calibration.png", "calibration.svg"):
        (folder / name).unlink()
    run(folder / "calibration.py", "--page")
    assert (folder / "calibration.md").read_text() == (RESULTS / "calibration" / "calibration.md").read_text()
    assert {path.suffix for path in folder.iterdir()} >= {".png", ".svg"}


def test_gains_that_pages_show_follow_from_stored_records(run: Run, tmp_path: Path) -> None:
    run(RESULTS / "kernels" / "fast_gains.py", tmp_path / "gains.json")
    assert (tmp_path / "gains.json").read_text() == files("ddpbench.report.messages").joinpath("fast_gains.json").read_text()


def test_parts_of_a_step_follow_from_the_stored_trace(run: Run, tmp_path: Path) -> None:
    stored = RESULTS / "kernels" / "vgg16-cifar10-fast-h200.json"
    trace, made = stored.with_suffix(".trace.json.gz"), tmp_path / stored.name
    run(RESULTS / "kernels" / "step_parts.py", str(trace), str(made), "--parameters", "33650624", "--copy-gb-per-s", "4205")
    assert json.loads(made.read_bytes()) == json.loads(stored.read_bytes())


def test_page_of_fast_trainings_follows_from_stored_records(run: Run, copied: Callable[[str], Path]) -> None:
    folder = copied("h200")
    (folder / "fast.md").unlink()
    run(folder / "fast.py")
    assert (folder / "fast.md").read_text() == (RESULTS / "h200" / "fast.md").read_text()


@pytest.fixture
def calibration() -> dict[str, Any]:
    return runpy.run_path(str(RESULTS / "calibration" / "calibration.py"))


def test_prediction_equals_that_of_the_verified_record(calibration: dict[str, Any]) -> None:
    proof = RESULTS / "h200" / "diagnose-resnet18-uint8-8-workers.json"
    (kept,) = [pair for pair in calibration["proved"](proof) if pair.change == "--workers 15"]
    pair = calibration["predict"](load(proof), [], "workers", 15)
    assert (pair.predicted, pair.high) == pytest.approx((kept.predicted, kept.high))
    assert 0.9 * kept.low < pair.low < kept.low, "wider: this record lacks the loader benchmark with a worker for every core"


def test_measured_gain_is_relative_to_the_first_arm(calibration: dict[str, Any]) -> None:
    predicted = calibration["predict"](load(PROOF), [], "workers", 12)
    run = load(RESULTS / "h200" / "resnet50-dali-gpu-threads.json")
    pair = calibration["finished"](calibration["PLANS"][0], "workers", 12, predicted, run)
    assert pair.problem == ""
    assert pair.measured == pytest.approx(1.03, abs=0.005)


def test_verification_with_short_rounds_is_struck_out_with_the_reason(calibration: dict[str, Any]) -> None:
    dali, uint8 = calibration["proved"](PROOF)
    assert dali.struck_out == "baseline has 12 steps per round, needs 32"
    assert uint8.struck_out == "baseline has 12 steps per round, needs 32; trial has 21 steps per round, needs 32"
    assert calibration["row"](dali).startswith("| ~~resnet50 ")
    assert calibration["row"](dali).endswith(f" ~~outside~~ {dali.struck_out} |")
