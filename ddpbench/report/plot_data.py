"""Data of the plots: curves over batch size, speed-up bars, crossovers of two devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ddpbench.analysis.metrics import SAMPLES_PER_S, SECONDS, Metric, last_accuracy, mean_std, memory_metric, speedup, time_or_speed_metric
from ddpbench.analysis.stats import PairedRatio
from ddpbench.analysis.sweep_shards import superseded
from ddpbench.record.config import Config
from ddpbench.record.flags import flag_fields
from ddpbench.record.record import Job, Record
from ddpbench.report.messages.arms import arm_name
from ddpbench.report.messages.roles import role_name

PLOTTED_FIELDS = ("precision", "batch_size", "workload")
"""Fields that a plot shows directly."""

LENGTH_FIELDS = ("steps", "epochs")
"""Fields that set the length of a training."""

COMPARABLE_FIELDS = (
    "loader",
    *(field.name for field in flag_fields(Config) if field.flag.sweep and field.name not in (*PLOTTED_FIELDS, "seed", "loader")),
    *LENGTH_FIELDS,
)
"""Fields that change what is measured: arms that differ in them are not on one curve."""


@dataclass(frozen=True)
class SweepPoint:
    """One arm's record with the keys by which a plot places it."""

    device: str
    setting: str  # the precision, and what else distinguishes it from others at its batch size
    batch: int
    record: Record
    job_number: int  # index of its job, by start time
    started: str  # start time of its job

    @property
    def comparable_key(self) -> tuple[object, ...]:
        """Equal for arms that differ only in what a plot shows."""
        return tuple(getattr(self.record.config, field) for field in COMPARABLE_FIELDS)


@dataclass(frozen=True)
class PlotCurve:
    """One line: a setting on one device. ``spread`` is a standard deviation per point.

    It is 0 if unknown. ``out_of_memory_x`` are the places without a point because a step ran out of memory.
    """

    device: str
    setting: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float]
    out_of_memory_x: Sequence[float] = ()

    @property
    def name(self) -> str:
        return ", ".join(filter(None, [self.device, self.setting]))


@dataclass(frozen=True)
class BatchSizePlot:
    """Curves over batch size on one pair of axes."""

    stem: str  # of the file
    title: str
    y_label: str
    item: str  # what a batch is counted in
    curves: Sequence[PlotCurve]


@dataclass(frozen=True)
class SpeedupPlot:
    """Speed-up over ``base`` of each setting per batch size, on one device.

    A speed-up is None without a figure. ``out_of_memory_batches`` holds, by setting and for ``base`` too, the batch sizes that ran out
    of memory; ``empty_reasons`` says why a batch size shows nothing.
    """

    device: str  # with the job's start time if several jobs share the name
    base: str
    item: str  # what a batch is counted in
    batches: Sequence[int]
    speedups: Mapping[str, Sequence[PairedRatio | None]]
    out_of_memory_batches: Mapping[str, Sequence[int]]
    empty_reasons: Mapping[int, str]

    def subset(self, settings: Collection[str]) -> SpeedupPlot:
        """The same plot with only these settings."""
        kept = {setting: each for setting, each in self.speedups.items() if setting in settings}
        out_of_memory = {setting: each for setting, each in self.out_of_memory_batches.items() if setting in (self.base, *kept)}
        shown = {size for each in kept.values() for size, found in zip(self.batches, each, strict=True) if found is not None}
        shown |= {size for each in out_of_memory.values() for size in each}
        empty = {size: self.empty_reasons.get(size, "no result") for size in self.batches if size not in shown}
        return replace(self, speedups=kept, out_of_memory_batches=out_of_memory, empty_reasons=empty)


@dataclass(frozen=True)
class CrossoverPlot:
    """Seconds per training over model size on two devices, and where they cross.

    ``crossing`` is None if they do not.
    """

    loser: PlotCurve
    winner: PlotCurve  # the faster device at the largest model
    layers: Sequence[int]
    crossing: float | None
    low: float | None
    high: float | None

    @property
    def is_cpu_vs_gpu(self) -> bool:
        """Whether it compares a CPU with a GPU, as the published one does."""
        return {self.loser.setting.partition(",")[0], self.winner.setting.partition(",")[0]} == {"CPU", "GPU"}

    def with_date(self, date: str) -> CrossoverPlot:
        """The same plot with ``date`` appended to the device names."""
        loser, winner = (replace(curve, device=f"{curve.device}{date}") for curve in (self.loser, self.winner))
        return replace(self, loser=loser, winner=winner)


def points_by_workload(jobs: Iterable[Job]) -> dict[str, list[SweepPoint]]:
    """The points of all jobs by workload, ordered by job start time."""
    found: dict[str, list[SweepPoint]] = {}
    for number, job in enumerate(sorted(jobs, key=lambda each: each.started)):
        for record in job.records:
            others = _distinguishing_fields(record, job)
            named = [record.config.precision, arm_name(record.config, others) if others else "", role_name(record.role, job)]
            cell = SweepPoint(device_name(record), ", ".join(filter(None, named)), record.config.batch_size, record, number, job.started)
            found.setdefault(record.config.workload, []).append(cell)
    return found


def outdated_points(cells: Sequence[SweepPoint]) -> list[SweepPoint]:
    """The points that a later measurement of the same arm replaces."""
    measured = [cell for cell in cells if cell.record.rounds or _ran_out_of_memory(cell.record)]
    return superseded(measured, key=lambda cell: (cell.device, cell.setting, cell.batch, cell.comparable_key))


def batch_size_plots(workload: str, cells: Sequence[SweepPoint]) -> list[BatchSizePlot]:
    """Time (or speed) and memory over batch size.

    Only plots with a curve of at least two batch sizes.
    """
    old = outdated_points(cells)
    cells = [cell for cell in cells if not any(cell is each for each in old)]
    records = [cell.record for cell in cells]
    speed = time_or_speed_metric(records)
    metrics = (("time" if speed is SECONDS else "speed", speed), ("memory", memory_metric(records)))
    item = cells[0].record.sample_unit
    drawn = [BatchSizePlot(f"{workload}-{name}", workload, metric.heading, item, _curves(metric, cells)) for name, metric in metrics]
    return [chart for chart in drawn if any(len(curve.x) > 1 for curve in chart.curves)]


def speedup_plots(cells: Sequence[SweepPoint]) -> list[SpeedupPlot]:
    """One plot per job and device: speed-ups over fp32, or over the first setting.

    Empty without a second setting.
    """
    found: list[tuple[str, SpeedupPlot]] = []
    for job, device in dict.fromkeys((cell.job_number, cell.device) for cell in cells):
        ours = [cell for cell in cells if (cell.job_number, cell.device) == (job, device)]
        if drawn := _speedup_plot(ours):
            found.append((ours[0].started, drawn))
    dates = date_suffixes([(each.device, started) for started, each in found])
    return [replace(each, device=f"{each.device}{date}") for (_, each), date in zip(found, dates, strict=True)]


def date_suffixes(named: Sequence[tuple[object, str]]) -> list[str]:
    """Suffix of each name: the job's start time if several share the name, else empty."""
    several = Counter(name for name, _ in named)
    return [f", {started[:16].replace('T', ' ')}" if several[name] > 1 else "" for name, started in named]


def _speedup_plot(cells: Sequence[SweepPoint]) -> SpeedupPlot | None:
    """The speed-ups of one job on one device; None if there are none."""
    placed = {(cell.setting, cell.batch): cell.record for cell in cells}
    settings = list(dict.fromkeys(setting for setting, _ in placed))
    sizes = sorted({batch for _, batch in placed})
    base = "fp32" if "fp32" in settings else settings[0]
    speedups = {
        setting: [speedup(placed.get((base, size)), placed.get((setting, size))) for size in sizes]
        for setting in settings
        if setting != base
    }
    out_of_memory = {setting: [size for size in sizes if _ran_out_of_memory(placed.get((setting, size)))] for setting in settings}
    known = {setting: each for setting, each in speedups.items() if any(each) or out_of_memory[setting]}
    empty = {
        size: _why_empty(base, placed.get((base, size)))
        for at, size in enumerate(sizes)
        if not any(each[at] for each in known.values()) and not any(size in each for each in out_of_memory.values())
    }
    if not any(any(each) for each in known.values()):
        return None
    best = max((last_accuracy(cell.record) or 0.0 for cell in cells), default=0.0)
    diverged = {setting for setting in known if all(_did_not_converge(cell.record, best) for cell in cells if cell.setting == setting)}
    named = {setting: f"{setting}, not converging" if setting in diverged else setting for setting in settings}
    drawn = {named[setting]: each for setting, each in known.items()}
    renamed_out_of_memory = {named[setting]: each for setting, each in out_of_memory.items()}
    return SpeedupPlot(cells[0].device, base, cells[0].record.sample_unit, sizes, drawn, renamed_out_of_memory, empty)


def _did_not_converge(record: Record, best: float) -> bool:
    """Whether its accuracy is below half of the job's best: its speed is that of a useless training."""
    accuracy = last_accuracy(record)
    return accuracy is not None and accuracy < best / 2


def _why_empty(base: str, record: Record | None) -> str:
    if record is None:
        return f"no {base}"
    return f"{base} only" if SAMPLES_PER_S.values(record) else f"{base} {record.status}"


def device_name(record: Record) -> str:
    """The device without its vendor, and how many of them."""
    name = record.environment.placements[0].device_name.removeprefix("NVIDIA ").removeprefix("Tesla ")
    return name if record.world_size == 1 else f"{record.world_size} x {name}"


def _distinguishing_fields(record: Record, job: Job) -> list[str]:
    """The swept fields that distinguish ``record`` from arms that a plot would draw in the same place."""

    def shown(each: Record) -> tuple[object, ...]:
        return each.config.precision, each.config.workload, device_name(each), each.role

    alike = [each.config for each in job.records if shown(each) == shown(record)]
    values = {
        field: {(config.batch_size, getattr(config, field)) for config in alike} for field in job.swept if field not in PLOTTED_FIELDS
    }
    return [field for field, found in values.items() if len(found) > len({batch for batch, _ in found})]


def _curves(metric: Metric, cells: Sequence[SweepPoint]) -> list[PlotCurve]:
    found = []
    for device, setting, like in dict.fromkeys((cell.device, cell.setting, cell.comparable_key) for cell in cells):
        namesakes = [cell for cell in cells if (cell.device, cell.setting) == (device, setting)]
        alike = [cell for cell in namesakes if cell.comparable_key == like]
        alike.sort(key=lambda cell: cell.batch)
        ours = [cell for cell in alike if metric.values(cell.record)]
        out_of_memory = [cell.batch for cell in alike if _ran_out_of_memory(cell.record)]
        if ours or out_of_memory:
            name = f"{setting}{_distinguishing_suffix(alike[0], namesakes)}"
            curve = make_curve(device, name, [cell.batch for cell in ours], [metric.values(cell.record) for cell in ours], metric)
            found.append(replace(curve, out_of_memory_x=out_of_memory))
    return found


def _distinguishing_suffix(cell: SweepPoint, namesakes: Sequence[SweepPoint]) -> str:
    """What distinguishes ``cell`` from others of its name, with as few fields as possible."""
    fields: list[str] = []
    for field in COMPARABLE_FIELDS:
        if _num_distinct(namesakes, [*fields, field]) > _num_distinct(namesakes, fields):
            fields.append(field)
    return f", {arm_name(cell.record.config, fields)}" if fields else ""


def _num_distinct(cells: Sequence[SweepPoint], fields: Sequence[str]) -> int:
    return len({tuple(getattr(cell.record.config, field) for field in fields) for cell in cells})


def _ran_out_of_memory(record: Record | None) -> bool:
    return record is not None and not record.rounds and record.out_of_memory


def make_curve(device: str, setting: str, x: Sequence[float], values: Sequence[Sequence[float]], metric: Metric) -> PlotCurve:
    stats = [found for each in values if (found := mean_std(each))]
    heights = [each.mean / metric.scale for each in stats]
    return PlotCurve(device, setting, x, heights, [(each.std or 0.0) / metric.scale for each in stats])
