"""Data of the plots: their points, curves over batch size, crossovers of two devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ddpbench.analysis.metrics import SECONDS, Metric, mean_std, memory_metric, time_or_speed_metric
from ddpbench.analysis.sweep_shards import superseded
from ddpbench.record.config import Config
from ddpbench.record.flags import flag_fields
from ddpbench.record.loaders import loader_spec
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
    swept: Sequence[str] = ()  # the fields in which the arms of its job differ

    @property
    def comparable_key(self) -> tuple[object, ...]:
        """Equal for arms that differ only in what a plot shows."""
        return tuple(getattr(self.record.config, field) for field in COMPARABLE_FIELDS)

    @property
    def is_synthetic(self) -> bool:
        """Whether it trained on a constant batch, which is never loaded."""
        return not loader_spec(self.record.config.loader).reads_dataset


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
    """Curves over batch size on one pair of axes. Settings measured at a single batch size are left out."""

    name: str  # of the metric, for the file name
    title: str
    y_label: str
    item: str  # what a batch is counted in
    curves: Sequence[PlotCurve]
    varied: Sequence[str] = ()  # fields that distinguish the curves of a device
    num_left_out: int = 0


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
            setting = ", ".join(filter(None, named))
            cell = SweepPoint(device_name(record), setting, record.config.batch_size, record, number, job.started, job.swept)
            found.setdefault(record.config.workload, []).append(cell)
    return found


def outdated_points(cells: Sequence[SweepPoint]) -> list[SweepPoint]:
    """The points that a later measurement of the same arm replaces."""
    return superseded(_measured(cells), key=lambda cell: (cell.device, cell.setting, cell.batch, cell.comparable_key))


def _measured(cells: Sequence[SweepPoint]) -> list[SweepPoint]:
    return [cell for cell in cells if cell.record.rounds or ran_out_of_memory(cell.record)]


def split_synthetic(cells: Sequence[SweepPoint]) -> list[list[SweepPoint]]:
    """The points with loaded data, then those with a synthetic batch, each if there are any.

    The two are never compared: a synthetic batch loads nothing.
    """
    kinds = ([cell for cell in cells if cell.is_synthetic is synthetic] for synthetic in (False, True))
    return [kind for kind in kinds if kind]


def plot_title(cells: Sequence[SweepPoint]) -> str:
    """The workload, and that its data are synthetic."""
    return f"{cells[0].record.config.workload}{', synthetic data' if cells[0].is_synthetic else ''}"


def batch_size_plots(title: str, cells: Sequence[SweepPoint]) -> list[BatchSizePlot]:
    """Time (or speed) and memory over batch size.

    Only plots with a curve of at least two batch sizes.
    """
    old = outdated_points(cells)
    series = _series([cell for cell in _measured(cells) if not any(cell is each for each in old)])
    lines = [alike for alike in series if len({cell.batch for cell in alike}) > 1]
    records = [cell.record for alike in lines for cell in alike]
    if not records:
        return []
    speed = time_or_speed_metric(records)
    varied = varied_fields([cell for alike in lines for cell in alike])
    drawn = [
        BatchSizePlot(name, title, metric.heading, records[0].sample_unit, _curves(metric, lines), varied, len(series) - len(lines))
        for name, metric in (("time" if speed is SECONDS else "speed", speed), ("memory", memory_metric(records)))
    ]
    return [chart for chart in drawn if any(len(curve.x) > 1 for curve in chart.curves)]


def varied_fields(cells: Sequence[SweepPoint]) -> list[str]:
    """The fields that distinguish ``cells`` of a device at a batch size: the precision, those that jobs swept, or others.

    As few as possible; ``role`` if arms of one configuration differ in their role only.
    """
    swept = [field for cell in cells for field in cell.swept if field not in PLOTTED_FIELDS]
    candidates = ["precision", *dict.fromkeys(swept), *COMPARABLE_FIELDS]
    found = []
    for device in dict.fromkeys(cell.device for cell in cells):
        found += _distinguishing([cell for cell in cells if cell.device == device], candidates, known=["batch_size"])
    several = len({cell.setting for cell in cells}) > 1
    return [*dict.fromkeys(found)] or (["role"] if several else [])


def date_suffixes(named: Sequence[tuple[object, str]]) -> list[str]:
    """Suffix of each name: the job's start time if several share the name, else empty."""
    several = Counter(name for name, _ in named)
    return [f", {started[:16].replace('T', ' ')}" if several[name] > 1 else "" for name, started in named]


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


def _series(cells: Sequence[SweepPoint]) -> list[list[SweepPoint]]:
    """The points of each curve, by batch size."""
    series: dict[object, list[SweepPoint]] = {}
    for cell in sorted(cells, key=lambda cell: cell.batch):
        series.setdefault((cell.device, cell.setting, cell.comparable_key), []).append(cell)
    return [series[key] for key in dict.fromkeys((cell.device, cell.setting, cell.comparable_key) for cell in cells)]


def _curves(metric: Metric, series: Sequence[Sequence[SweepPoint]]) -> list[PlotCurve]:
    found = []
    for alike, name in zip(series, _curve_names([alike[0] for alike in series]), strict=True):
        ours = [cell for cell in alike if metric.values(cell.record)]
        out_of_memory = [cell.batch for cell in alike if ran_out_of_memory(cell.record)]
        if ours or out_of_memory:
            values = [metric.values(cell.record) for cell in ours]
            curve = make_curve(alike[0].device, name, [cell.batch for cell in ours], values, metric)
            found.append(replace(curve, out_of_memory_x=out_of_memory))
    return found


def _curve_names(cells: Sequence[SweepPoint]) -> list[str]:
    """The setting of each curve, whose first point is given, with what distinguishes it from others of its name and device."""
    names = [cell.setting for cell in cells]
    for _ in range(2):  # again, since a job may name what others have only as a suffix: the names may meet
        found = []
        for cell, name in zip(cells, names, strict=True):
            namesakes = [each for each, other in zip(cells, names, strict=True) if (each.device, other) == (cell.device, name)]
            fields = _distinguishing(namesakes, COMPARABLE_FIELDS)
            found.append(f"{name}, {arm_name(cell.record.config, fields)}" if fields else name)
        names = found
    return names


def _distinguishing(cells: Sequence[SweepPoint], fields: Iterable[str], known: Sequence[str] = ()) -> list[str]:
    """Those of ``fields`` that distinguish ``cells`` of which ``known`` is equal, as few as possible."""
    found: list[str] = []
    for field in fields:
        if _num_distinct(cells, [*known, *found, field]) > _num_distinct(cells, [*known, *found]):
            found.append(field)
    return found


def _num_distinct(cells: Sequence[SweepPoint], fields: Sequence[str]) -> int:
    return len({tuple(getattr(cell.record.config, field) for field in fields) for cell in cells})


def ran_out_of_memory(record: Record | None) -> bool:
    return record is not None and not record.rounds and record.out_of_memory


def make_curve(device: str, setting: str, x: Sequence[float], values: Sequence[Sequence[float]], metric: Metric) -> PlotCurve:
    stats = [found for each in values if (found := mean_std(each))]
    heights = [each.mean / metric.scale for each in stats]
    return PlotCurve(device, setting, x, heights, [(each.std or 0.0) / metric.scale for each in stats])
