"""Accuracy of the predictions: trainings with a known fault are diagnosed, changes to them predicted, and then measured.

    python results/calibration/calibration.py [NAME...] [--page]

For each training of ``PLANS`` (or each named one that this machine can run): ``ddpbench diagnose``, the predictions of ``ddpbench whatif``
for every change from that record, and ``ddpbench run`` with the original and the changed settings as interleaved arms. Changes that have a
measured gain in calibration.json are not measured again; remove the file to start from scratch. Writes calibration.json, and generates the
page calibration.md and the plot calibration.png from it and from the verifications; with --page only the page and the plot.

A verification is the record of a ``ddpbench diagnose`` that tried its own predictions. To add one, put its record into ../h200 as
diagnose-NAME.json and run this script with --page: every change that it tried becomes a row. A replaced verification stays there, and its
rows stay in the table, struck out if their rounds are too short.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "support")]

import msgspec  # noqa: E402
from sample_datasets import image_tree  # noqa: E402
from situations.table import SITUATIONS  # noqa: E402

from ddpbench.analysis.compare import throughput_ratio  # noqa: E402
from ddpbench.analysis.controls import baseline_of  # noqa: E402
from ddpbench.analysis.remedies.outcomes import outcomes  # noqa: E402
from ddpbench.analysis.run_length import missing_batches  # noqa: E402
from ddpbench.analysis.whatif.assumptions import MissingMeasurementError  # noqa: E402
from ddpbench.analysis.whatif.query import answer_whatif  # noqa: E402
from ddpbench.bench.launch import strip_flags  # noqa: E402
from ddpbench.record.errors import UsageError  # noqa: E402
from ddpbench.record.io import load  # noqa: E402
from ddpbench.record.prediction import Scenario  # noqa: E402
from ddpbench.record.record import Job, Record  # noqa: E402
from ddpbench.record.remedy import MAX_INTERVAL_RATIO  # noqa: E402
from ddpbench.record.roles import BASELINE_REPEAT, trial_role  # noqa: E402
from ddpbench.report.messages.predictions import missing_measurement_text  # noqa: E402

RECORD, PAGE, PICTURE = HERE / "calibration.json", HERE / "calibration.md", HERE / "calibration.png"
PROVED = HERE.parent / "h200"
DIAGNOSE_S = {"cpu": 36, "cuda": 75}
RUN_S, GRACE_S = 30, 120
LONGER = 3
"""Factor on the time limit of trainings with long steps or very irregular batches, which need several rounds too."""

IMAGES = 96


@dataclass(frozen=True)
class Plan:
    """A training, the changes to it by field, and other plans whose diagnoses supply measurements that its own lacks (``lends``)."""

    name: str
    words: Sequence[str]
    changes: Mapping[str, Sequence[Any]]
    ranks: int = 2
    lends: Sequence[str] = ()
    tree: bool = False
    longer: int = 1
    device: str = "cpu"

    @property
    def can_be_tried(self) -> bool:
        if self.device == "cpu":
            return True
        import torch

        return torch.cuda.device_count() >= self.ranks


def situation(name: str, ranks: int = 2, words: Sequence[str] = (), longer: int = 1, **changes: Sequence[Any]) -> Plan:
    """A situation of tests/situations as a plan."""
    found = next(each for each in SITUATIONS if each.name == name)
    named = name if ranks == 2 else f"{name}, {ranks} rank"
    return Plan(named, [*found.words, *words], changes, ranks, tree=found.tree, longer=longer)


RESNET = ("resnet18", "--image-size", "64", "-b", "8", "-j", "1")
TORCH = (*RESNET, "--loader", "torch")
PLANS = (
    situation("too-few-workers", workers=(2, 4, 8), prefetch=(4,)),
    situation("too-few-workers", 1, workers=(2, 4)),
    situation("slow-storage", workers=(1, 4, 8), prefetch=(6,)),
    situation("slow-storage", 1, workers=(1, 4)),
    situation("slow-decode", workers=(2,), prefetch=(6,)),
    situation("slow-decode", 1, workers=(2, 3)),
    situation("heavy-tail", longer=LONGER, workers=(2, 8), prefetch=(2, 4)),
    situation("heavy-tail", 1, longer=LONGER, prefetch=(3,)),
    situation("handoff", workers=(3,), prefetch=(6,)),
    situation("too-many-workers", longer=LONGER, workers=(1, 2, 4)),
    situation("cifar-per-sample", workers=(2,), prefetch=(6,)),
    situation("loader-contends-cpu", workers=(2, 0)),
    Plan("resnet18", TORCH, {"workers": (2, 0), "loader": ("torch-uint8",)}, lends=("resnet18, uint8",), longer=LONGER),
    Plan("resnet18, 1 rank", TORCH, {"workers": (2, 0)}, ranks=1, longer=LONGER),
    Plan("resnet18, uint8", (*RESNET, "--loader", "torch-uint8"), {"workers": (2,), "batch_size": (16,)}, longer=LONGER),
    Plan(
        "resnet18, H200",
        ("resnet18", "--precision", "o2", "--loader", "torch", "-j", "4"),
        {"workers": (8, 12), "loader": ("torch-uint8", "dali-cpu", "dali-gpu")},
        ranks=1,
        device="cuda",
    ),
    Plan(
        "resnet50, H200",
        ("resnet50", "--amp", "--loader", "dali-cpu", "-j", "8"),
        {"workers": (4, 12), "loader": ("torch-uint8", "dali-gpu")},
        ranks=1,
        device="cuda",
    ),
)


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One change to one training: predicted and measured gain, as ratios of images/s."""

    training: str
    change: str
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    measured: float | None = None
    measured_low: float | None = None
    measured_high: float | None = None
    miss: float | None = None  # predicted over measured step time, before the change
    load: float | None = None  # load average over one minute while it was measured, including its own processes
    problem: str = ""
    struck_out: str = ""  # why this row does not count; empty if it does

    @property
    def error(self) -> float | None:
        """Relative error of the prediction; None without a measurement, or for a single round, which has no interval."""
        if self.predicted is None or self.measured is None or self.measured_low == self.measured_high:
            return None
        return self.predicted / self.measured - 1

    @property
    def is_wide(self) -> bool:
        """Whether the measured interval is too wide to judge the prediction by."""
        return bool(self.measured_low and self.measured_high and self.measured_high > MAX_INTERVAL_RATIO * self.measured_low)

    @property
    def inside(self) -> bool | None:
        if self.is_wide or self.low is None or self.high is None or self.measured is None or self.error is None:
            return None
        return self.low <= self.measured <= self.high


def main(names: Sequence[str], page_only: bool) -> None:
    known = {plan.name: plan for plan in PLANS}
    if unknown := set(names) - known.keys():
        sys.exit(f"unknown training: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    folder = Path(os.environ.get("CALIBRATION_KEPT") or tempfile.mkdtemp())
    pairs = msgspec.json.decode(RECORD.read_bytes(), type=list[Pair]) if RECORD.exists() else []
    for name in () if page_only else names or [plan.name for plan in PLANS if plan.can_be_tried]:
        done = {pair.change for pair in pairs if pair.training == name and pair.error is not None}
        for pair in measured(known[name], known, folder, done):
            print(f"{pair.training}: {pair.change}: predicted {pair.predicted}, measured {pair.measured} {pair.problem}", flush=True)
            pairs = [each for each in pairs if (each.training, each.change) != (pair.training, pair.change)] + [pair]
            RECORD.write_bytes(msgspec.json.format(msgspec.json.encode(pairs), indent=1) + b"\n")
    pairs += [pair for file in sorted(PROVED.glob("diagnose-*.json")) for pair in proved(file)]
    PAGE.write_text(page(pairs))
    draw(pairs)


def measured(plan: Plan, known: Mapping[str, Plan], kept: Path, done: set[str]) -> list[Pair]:
    """Measure the plan's changes that are not in ``done``. Every change is predicted before it is measured."""
    changes = {field: [value for value in values if words_of(field, value) not in done] for field, values in plan.changes.items()}
    if not any(changes.values()):
        return []
    job, others = diagnosis(plan, kept), [diagnosis(known[name], kept) for name in plan.lends]
    if isinstance(job, str):
        return [Pair(training=plan.name, change=words_of(field, value), problem=job) for field in changes for value in changes[field]]
    predicted = {(field, value): predict(job, others, field, value) for field in changes for value in changes[field]}
    found = []
    for field, values in changes.items():
        if values:
            run = run_arms(plan, kept, field, values, job)
            found += [finished(plan, field, value, predicted[field, value], run) for value in values]
    return found


def proved(file: Path) -> list[Pair]:
    """The changes that a diagnosis predicted and then tried."""
    job = load(file)
    baseline, arms = baseline_of(job) or job.records[0], {record.role: record for record in job.records}
    config, devices = baseline.config, f"{baseline.world_size} x {baseline.environment.placements[0].device_name}"
    link = f"[record]({os.path.relpath(file, HERE)})"
    training = f"{config.workload} {config.precision} {config.loader} -j {config.workers}, {devices}, {link}"
    return [
        Pair(
            training=training,
            change=each.scenario.flag_text,
            predicted=each.prediction.gain,
            low=each.prediction.low,
            high=each.prediction.high,
            measured=each.measured.center,
            measured_low=each.measured.low,
            measured_high=each.measured.high,
            struck_out=short_rounds(baseline=arms[BASELINE_REPEAT], trial=arms[trial_role(each.scenario)]),
        )
        for each in outcomes(job)
        if each.measured is not None and each.measured.has_interval and not each.prediction.after_trial
    ]


def short_rounds(**sides: Record) -> str:
    """Which arms of a verification have rounds of fewer than 4 batches per worker or DALI pipeline; empty if none has."""
    reasons = []
    for side, record in sides.items():
        if missing := missing_batches(record):
            steps = min(timed.traces[0].steps for timed in record.rounds)
            reasons.append(f"{side} has {steps} steps per round, needs {steps + missing}")
    return "; ".join(reasons)


def diagnosis(plan: Plan, kept: Path) -> Job | str:
    folder = kept / slug(plan.name) / "diagnose"
    records = sorted(folder.glob("*.json"))
    problem = "" if records else carry_out("diagnose", plan, kept, folder, ["--no-verify"], plan.longer * DIAGNOSE_S[plan.device])
    records = sorted(folder.glob("*.json"))
    return load(records[-1]) if records and not problem else problem or "no record"


def predict(job: Job, others: Sequence[Job | str], field: str, value: Any) -> Pair:
    change = Scenario(**{field: value})
    try:
        estimate = answer_whatif(job, change, [other for other in others if isinstance(other, Job)]).estimate
    except UsageError as problem:
        return Pair(training="", change=change.flag_text, problem=problem.message)
    except MissingMeasurementError as error:
        missing = f"missing measurement: {missing_measurement_text(error.missing)}"
        return Pair(training="", change=change.flag_text, problem=missing)
    return Pair(training="", change=change.flag_text, predicted=estimate.gain, low=estimate.low, high=estimate.high, miss=estimate.residual)


def run_arms(plan: Plan, kept: Path, field: str, values: Sequence[Any], job: Job) -> Job | str:
    present = getattr(job.records[0].config, field)
    flag = "--" + field.replace("_", "-")
    folder = kept / slug(plan.name) / field
    arms = [flag, ",".join(map(str, (present, *values)))]
    problem = carry_out("run", plan, kept, folder, arms, plan.longer * (RUN_S + 10 * (len(values) - 1)))
    records = sorted(folder.glob("*.json"))
    return load(records[-1]) if records and not problem else problem or "no record"


def finished(plan: Plan, field: str, value: Any, predicted: Pair, run: Job | str) -> Pair:
    pair = msgspec.structs.replace(predicted, training=plan.name)
    if isinstance(run, str):
        return msgspec.structs.replace(pair, problem=pair.problem or run)
    arm = next(record for record in run.records if getattr(record.config, field) == value)
    found = throughput_ratio(arm, run.records[0])
    if found is None:
        return msgspec.structs.replace(pair, problem=pair.problem or "no shared round")
    if not found.has_interval:
        return msgspec.structs.replace(pair, problem=pair.problem or f"too few shared rounds: {found.pairs}")
    return msgspec.structs.replace(
        pair, measured=found.center, measured_low=found.low, measured_high=found.high, load=round(os.getloadavg()[0], 1)
    )


def carry_out(command: str, plan: Plan, kept: Path, folder: Path, more: Sequence[str], limit_s: float) -> str:
    """Run ddpbench; returns its last two lines of stderr if it failed, else an empty string."""
    data = ["--data-dir", str(tree_in(kept))] if plan.tree else []
    flag = next((word for word in more if word.startswith("--") and word != "--no-verify"), "")
    short = {"--workers": "-j", "--batch-size": "-b"}.get(flag, flag)
    words = strip_flags(plan.words, [*filter(None, {flag, short})])
    ranks = ["--gpus", str(plan.ranks), "--device", plan.device, "--time-limit", str(limit_s)]
    argv = [sys.executable, "-m", "ddpbench", command, *words, *data, *ranks, *more, "-o", str(folder)]
    path = os.pathsep.join(filter(None, [str(TESTS), str(TESTS / "support"), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, timeout=limit_s + GRACE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{command} took too long"
    return "" if done.returncode == 0 else " ".join(done.stderr.strip().splitlines()[-2:])


def tree_in(kept: Path) -> Path:
    folder = kept / "tree"
    return folder if folder.exists() else image_tree(folder, images=IMAGES)


def words_of(field: str, value: Any) -> str:
    return Scenario(**{field: value}).flag_text


def slug(text: str) -> str:
    return "".join(character if character.isalnum() else "-" for character in text)


def page(pairs: Sequence[Pair]) -> str:
    lines = [
        "# Accuracy of the predictions",
        "",
        "Trainings with a known fault (`tests/situations/`), and a few without one, on two ranks and two cores unless stated otherwise.",
        "Each is diagnosed, and the gain of every change is predicted from that record alone, then measured with the original and the",
        "changed setting as interleaved arms of one job (`calibration.json`). Rows that link a record are verifications: the diagnosis",
        "tried the change itself, after it had recorded the prediction. *Inside*: the measured gain lies in the predicted 90% interval.",
        "",
        "```sh",
        "python results/calibration/calibration.py",
        "```",
        "",
        "Both arms of a verification need rounds of at least 4 batches per worker, or per pipeline of a DALI loader. Rows with shorter",
        "rounds are ~~struck out~~. *Too wide*: the measured interval spans more than a factor of 1.5, too wide to judge the prediction.",
        "",
        "| rows | pairs | median absolute error of the gain | inside the 90% interval | typical width of that interval (high / low) |",
        "|---|---|---|---|---|",
        counts("all", pairs),
        counts("without the struck-out rows", [pair for pair in pairs if not pair.struck_out]),
        "",
        "![predicted and measured gain](calibration.png)",
        "",
        "| training | change | predicted (90%) | measured (95%) | error | |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(row, pairs), ""])


def counts(rows: str, pairs: Sequence[Pair]) -> str:
    """The summary of ``pairs``, as a row of a table."""
    measured_pairs = [pair for pair in pairs if pair.error is not None]
    if not measured_pairs:
        return f"| {rows} | 0 of {len(pairs)} | - | - | - |"
    error = f"{100 * median(abs(pair.error or 0.0) for pair in measured_pairs):.1f}%"
    judged = [pair for pair in measured_pairs if not pair.is_wide]
    inside = f"{sum(bool(pair.inside) for pair in judged)} of {len(judged)}"
    return f"| {rows} | {len(measured_pairs)} of {len(pairs)} | {error} | {inside} | {typical(measured_pairs):.2f} |"


def row(pair: Pair) -> str:
    predicted = "-" if pair.predicted is None else f"{pair.predicted:.2f} ({pair.low:.2f} to {pair.high:.2f})"
    measured = "-" if pair.measured is None else f"{pair.measured:.2f} ({pair.measured_low:.2f} to {pair.measured_high:.2f})"
    error = "-" if pair.error is None else f"{100 * pair.error:+.0f}%"
    status = pair.problem or ("a single round" if pair.error is None else _held(pair))
    cells = [pair.training, f"`{pair.change}`", predicted, measured, error, status]
    if pair.struck_out:
        cells = [*(f"~~{cell}~~" for cell in cells[:-1]), f"~~{status}~~ {pair.struck_out}"]
    return f"| {' | '.join(cells)} |"


def _held(pair: Pair) -> str:
    return "too wide" if pair.is_wide else "inside" if pair.inside else "outside"


def typical(pairs: Sequence[Pair]) -> float:
    return exp(median(log(pair.high / pair.low) for pair in pairs if pair.high and pair.low))


def draw(pairs: Sequence[Pair]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    measured_pairs = [pair for pair in pairs if pair.error is not None and pair.low and pair.high and pair.predicted and pair.measured]
    if not measured_pairs:
        return
    figure, axes = pyplot.subplots(figsize=(6.4, 6.0), layout="constrained")
    kinds = (
        ("inside its 90% interval", "o", "black", [pair for pair in measured_pairs if pair.inside and not pair.struck_out]),
        ("outside its 90% interval", "s", "none", [pair for pair in measured_pairs if pair.inside is False and not pair.struck_out]),
        ("measured too widely to judge", "^", "none", [pair for pair in measured_pairs if pair.is_wide and not pair.struck_out]),
        ("struck out", "x", "none", [pair for pair in measured_pairs if pair.struck_out]),
    )
    for kind, marker, fill, chosen in kinds:
        spans = [[pair.predicted - pair.low for pair in chosen], [pair.high - pair.predicted for pair in chosen]]  # type: ignore[operator]
        axes.errorbar(
            [pair.measured for pair in chosen],
            [pair.predicted for pair in chosen],
            yerr=spans,
            fmt=marker,
            color="black",
            ecolor="0.6",
            markerfacecolor=fill,
            markersize=5,
            linewidth=1,
            label=f"{kind}: {len(chosen)}",
        )
    ends = [
        min(min(pair.low, pair.measured) for pair in measured_pairs) / 1.1,
        max(max(pair.high, pair.measured) for pair in measured_pairs) * 1.1,
    ]
    axes.plot(ends, ends, color="0.4", linewidth=1, linestyle="--", label="predicted = measured")
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    ticks = [tick for tick in (0.25, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8, 12, 16) if ends[0] <= tick <= ends[1]]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(matplotlib.ticker.FixedLocator(ticks))
        axis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
        axis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.set_xlabel("measured gain (times as many images/s)")
    axes.set_ylabel("predicted gain (times), with its 90% interval")
    axes.legend(loc="upper left", frameon=False)
    figure.savefig(PICTURE, dpi=150)
    with matplotlib.rc_context({"svg.hashsalt": "ddpbench"}):
        figure.savefig(PICTURE.with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a training of PLANS")
    parser.add_argument("--page", action="store_true", help="write the page and the picture from stored results, without measuring")
    options = parser.parse_args()
    main(options.names, options.page)
