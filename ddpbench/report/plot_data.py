"""What the pictures of jobs show, as plain numbers: curves over batch size, bars of speed-ups, two devices that cross."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ddpbench.analysis.metrics import IMAGES_PER_S, SECONDS, Metric, last_accuracy, mean_std, memory_metric, speedup, time_or_speed_metric
from ddpbench.analysis.stats import PairedRatio
from ddpbench.analysis.sweep_shards import superseded
from ddpbench.record.config import Config
from ddpbench.record.flags import flag_fields
from ddpbench.record.record import Job, Record
from ddpbench.report.pages.arms import arm_name

PLOTTED_FIELDS = ("precision", "batch_size", "workload")
"""Fields that a picture shows by itself."""

LENGTH_FIELDS = ("steps", "epochs")
"""Fields that make a training longer."""

COMPARABLE_FIELDS = (
    "loader",
    *(field.name for field in flag_fields(Config) if field.flag.sweep and field.name not in (*PLOTTED_FIELDS, "seed", "loader")),
    *LENGTH_FIELDS,
)
"""Fields that change what is measured: cells that differ in them lie on no one curve."""


@dataclass(frozen=True)
class SweepPoint:
    """One cell by what a picture tells it by."""

    device: str
    setting: str  # the precision, and what else sets it apart from another cell of its batch
    batch: int
    record: Record
    job_number: int  # its job's number, in the order in which they were started
    started: str  # when that was

    @property
    def comparable_key(self) -> tuple[object, ...]:
        """Equal in cells that differ in nothing but what a picture shows."""
        return tuple(getattr(self.record.config, field) for field in COMPARABLE_FIELDS)


@dataclass(frozen=True)
class PlotCurve:
    """One line: a setting of one device. ``spread`` is a standard deviation a point, 0 where there is none.

    ``no_memory`` are the places where it has no point, since a step did not fit the device.
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
    """How many times as fast as ``base`` each setting of a job is at each batch size, on one device; None where a cell has no figure.

    ``no_memory`` holds the batch sizes of which a step did not fit the device, by setting, the base too; ``empty`` why a batch size
    has nothing to show.
    """

    device: str  # and when the job was, where it has several
    base: str
    item: str  # what a batch is counted in
    batches: Sequence[int]
    speedups: Mapping[str, Sequence[PairedRatio | None]]
    out_of_memory_batches: Mapping[str, Sequence[int]]
    empty_reasons: Mapping[int, str]

    def subset(self, settings: Collection[str]) -> SpeedupPlot:
        """Those settings alone."""
        kept = {setting: each for setting, each in self.speedups.items() if setting in settings}
        lacking = {setting: each for setting, each in self.out_of_memory_batches.items() if setting in (self.base, *kept)}
        there = {size for each in kept.values() for size, found in zip(self.batches, each, strict=True) if found is not None}
        there |= {size for each in lacking.values() for size in each}
        empty = {size: self.empty_reasons.get(size, "no figure") for size in self.batches if size not in there}
        return replace(self, speedups=kept, out_of_memory_batches=lacking, empty_reasons=empty)


@dataclass(frozen=True)
class CrossoverPlot:
    """Two devices over the size of a model, in seconds a training, and where they cross: None where they do not."""

    loser: PlotCurve
    winner: PlotCurve  # the faster one at the end
    layers: Sequence[int]
    crossing: float | None
    low: float | None
    high: float | None

    @property
    def is_cpu_vs_gpu(self) -> bool:
        """Whether it is a GPU's with a processor, as the published one."""
        return {self.loser.setting.partition(",")[0], self.winner.setting.partition(",")[0]} == {"CPU", "GPU"}

    def with_date(self, date: str) -> CrossoverPlot:
        """The same, its devices with ``date`` behind their names."""
        loser, winner = (replace(curve, device=f"{curve.device}{date}") for curve in (self.loser, self.winner))
        return replace(self, loser=loser, winner=winner)


def points_by_workload(jobs: Iterable[Job]) -> dict[str, list[SweepPoint]]:
    """The cells of all jobs by workload, in the order in which the jobs were started."""
    found: dict[str, list[SweepPoint]] = {}
    for number, job in enumerate(sorted(jobs, key=lambda each: each.started)):
        for record in job.records:
            others = _distinguishing_fields(record, job)
            named = [record.config.precision, arm_name(record.config, others) if others else "", record.label]
            cell = SweepPoint(device_name(record), ", ".join(filter(None, named)), record.config.batch_size, record, number, job.started)
            found.setdefault(record.config.workload, []).append(cell)
    return found


def outdated_points(cells: Sequence[SweepPoint]) -> list[SweepPoint]:
    """Those that were measured again, with nothing else in force: curves show the later ones."""
    told = [cell for cell in cells if cell.record.rounds or _ran_out_of_memory(cell.record)]
    return superseded(told, key=lambda cell: (cell.device, cell.setting, cell.batch, cell.comparable_key))


def batch_size_plots(workload: str, cells: Sequence[SweepPoint]) -> list[BatchSizePlot]:
    """Time, or speed, and memory over batch size; none where no setting has two batch sizes, and none of what no cell knows."""
    old = outdated_points(cells)
    cells = [cell for cell in cells if not any(cell is each for each in old)]
    records = [cell.record for cell in cells]
    lasting = time_or_speed_metric(records)
    measures = (("time" if lasting is SECONDS else "speed", lasting), ("memory", memory_metric(records)))
    item = cells[0].record.sample_unit
    drawn = [BatchSizePlot(f"{workload}-{word}", workload, measure.heading, item, _curves(measure, cells)) for word, measure in measures]
    return [chart for chart in drawn if any(len(curve.x) > 1 for curve in chart.curves)]


def speedup_plots(cells: Sequence[SweepPoint]) -> list[SpeedupPlot]:
    """One a job and device: speed-ups over fp32, or over the first setting where there is no fp32; none without a second setting."""
    found: list[tuple[str, SpeedupPlot]] = []
    for job, device in dict.fromkeys((cell.job_number, cell.device) for cell in cells):
        ours = [cell for cell in cells if (cell.job_number, cell.device) == (job, device)]
        if drawn := _speedup_plot(ours):
            found.append((ours[0].started, drawn))
    dates = date_suffixes([(each.device, started) for started, each in found])
    return [replace(each, device=f"{each.device}{date}") for (_, each), date in zip(found, dates, strict=True)]


def date_suffixes(named: Sequence[tuple[object, str]]) -> list[str]:
    """What each name needs behind it: when its job was started, where several have that name."""
    several = Counter(name for name, _ in named)
    return [f", {started[:16].replace('T', ' ')}" if several[name] > 1 else "" for name, started in named]


def _speedup_plot(cells: Sequence[SweepPoint]) -> SpeedupPlot | None:
    """Of one job on one device."""
    placed = {(cell.setting, cell.batch): cell.record for cell in cells}
    settings = list(dict.fromkeys(setting for setting, _ in placed))
    sizes = sorted({batch for _, batch in placed})
    base = "fp32" if "fp32" in settings else settings[0]
    speedups = {
        setting: [speedup(placed.get((base, size)), placed.get((setting, size))) for size in sizes]
        for setting in settings
        if setting != base
    }
    lacking = {setting: [size for size in sizes if _ran_out_of_memory(placed.get((setting, size)))] for setting in settings}
    known = {setting: each for setting, each in speedups.items() if any(each) or lacking[setting]}
    empty = {
        size: _why_empty(base, placed.get((base, size)))
        for at, size in enumerate(sizes)
        if not any(each[at] for each in known.values()) and not any(size in each for each in lacking.values())
    }
    if not any(any(each) for each in known.values()):
        return None
    best = max((last_accuracy(cell.record) or 0.0 for cell in cells), default=0.0)
    lost = {setting for setting in known if all(_did_not_converge(cell.record, best) for cell in cells if cell.setting == setting)}
    named = {setting: f"{setting}, not converging" if setting in lost else setting for setting in settings}
    drawn = {named[setting]: each for setting, each in known.items()}
    no_memory = {named[setting]: each for setting, each in lacking.items()}
    return SpeedupPlot(cells[0].device, base, cells[0].record.sample_unit, sizes, drawn, no_memory, empty)


def _did_not_converge(record: Record, best: float) -> bool:
    """Whether it learned less than half of what the best of its job did: its speed is of a training that nobody wants."""
    accuracy = last_accuracy(record)
    return accuracy is not None and accuracy < best / 2


def _why_empty(base: str, record: Record | None) -> str:
    if record is None:
        return f"no {base}"
    return f"{base} alone" if IMAGES_PER_S.values(record) else f"{base} {record.status}"


def device_name(record: Record) -> str:
    """The device without its maker, and how many of them."""
    name = record.environment.placements[0].device_name.removeprefix("NVIDIA ").removeprefix("Tesla ")
    return name if record.world_size == 1 else f"{record.world_size} x {name}"


def _distinguishing_fields(record: Record, job: Job) -> list[str]:
    """The swept fields in which cells differ at one batch that a picture would show in each other's place, ``record`` among them."""

    def shown(each: Record) -> tuple[object, ...]:
        return each.config.precision, each.config.workload, device_name(each), each.label

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
        lacking = [cell.batch for cell in alike if _ran_out_of_memory(cell.record)]
        if ours or lacking:
            name = f"{setting}{_distinguishing_suffix(alike[0], namesakes)}"
            curve = make_curve(device, name, [cell.batch for cell in ours], [metric.values(cell.record) for cell in ours], metric)
            found.append(replace(curve, out_of_memory_x=lacking))
    return found


def _distinguishing_suffix(cell: SweepPoint, namesakes: Sequence[SweepPoint]) -> str:
    """In what ``cell`` differs from others of its name: as few fields as tell all of them apart."""
    told: list[str] = []
    for field in COMPARABLE_FIELDS:
        if _num_distinct(namesakes, [*told, field]) > _num_distinct(namesakes, told):
            told.append(field)
    return f", {arm_name(cell.record.config, told)}" if told else ""


def _num_distinct(cells: Sequence[SweepPoint], fields: Sequence[str]) -> int:
    return len({tuple(getattr(cell.record.config, field) for field in fields) for cell in cells})


def _ran_out_of_memory(record: Record | None) -> bool:
    return record is not None and not record.rounds and record.out_of_memory


def make_curve(device: str, setting: str, x: Sequence[float], values: Sequence[Sequence[float]], metric: Metric) -> PlotCurve:
    spreads = [held for each in values if (held := mean_std(each))]
    heights = [held.mean / metric.scale for held in spreads]
    return PlotCurve(device, setting, x, heights, [(held.std or 0.0) / metric.scale for held in spreads])
