"""What the pictures of jobs show, as plain numbers: curves over batch size, bars of speed-ups, two devices that cross."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ddpbench.analysis.crossover import crossing_of, side
from ddpbench.analysis.effects import speedup
from ddpbench.analysis.measures import SECONDS, Measure, memory, spread
from ddpbench.analysis.stats import Interval
from ddpbench.record.record import Job, Record
from ddpbench.report.arms import arm_name

ON_AN_AXIS = ("precision", "batch_size", "workload")
"""Swept fields that a picture shows by itself; any other is part of a curve's name."""


@dataclass(frozen=True)
class Cell:
    """One cell by what a picture tells it by."""

    device: str
    setting: str  # the precision, and what else sets it apart
    batch: int
    record: Record


@dataclass(frozen=True)
class Curve:
    """One line: a setting of one device. ``spread`` is a standard deviation a point, 0 where there is none."""

    device: str
    setting: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float]

    @property
    def name(self) -> str:
        return ", ".join(filter(None, [self.device, self.setting]))


@dataclass(frozen=True)
class Chart:
    """Curves over batch size on one pair of axes."""

    stem: str  # of the file
    title: str
    y_label: str
    item: str  # what a batch is counted in
    curves: Sequence[Curve]


@dataclass(frozen=True)
class Bars:
    """How many times as fast as ``base`` each setting is at each batch size, on one device; None where a cell has no figure."""

    device: str
    base: str
    item: str  # what a batch is counted in
    batches: Sequence[int]
    speedups: Mapping[str, Sequence[Interval | None]]


@dataclass(frozen=True)
class Race:
    """Two devices over the size of a model, in seconds a training, and where they cross: None where they do not."""

    loser: Curve
    winner: Curve  # the faster one at the end
    layers: Sequence[int]
    crossing: float | None
    low: float | None
    high: float | None


def cells_by_workload(jobs: Iterable[Job]) -> dict[str, list[Cell]]:
    """The cells of all jobs by workload; where two are alike in everything that a picture shows, the one started last."""
    found: dict[str, dict[tuple[str, str, int], Cell]] = {}
    for job in sorted(jobs, key=lambda each: each.started):
        others = [field for field in job.swept if field not in ON_AN_AXIS]
        for record in job.records:
            named = [record.config.precision, arm_name(record.config, others) if others else "", record.label]
            cell = Cell(device_name(record), ", ".join(filter(None, named)), record.config.batch_size or 0, record)
            found.setdefault(record.config.workload, {})[cell.device, cell.setting, cell.batch] = cell
    return {workload: list(cells.values()) for workload, cells in found.items()}


def charts(workload: str, cells: Sequence[Cell]) -> list[Chart]:
    """Time and memory over batch size; none where the cells have no two batch sizes, and none of what no cell knows."""
    if len({cell.batch for cell in cells}) < 2:
        return []
    measures = (("time", SECONDS), ("memory", memory(cell.record for cell in cells)))
    drawn = [Chart(f"{workload}-{word}", workload, measure.heading, cells[0].record.item, _curves(measure, cells)) for word, measure in measures]
    return [chart for chart in drawn if chart.curves]


def bars(cells: Sequence[Cell]) -> list[Bars]:
    """One a device: speed-ups over fp32, or over the first setting where there is no fp32; none without a second setting."""
    found = []
    for device in dict.fromkeys(cell.device for cell in cells):
        placed = {(cell.setting, cell.batch): cell.record for cell in cells if cell.device == device}
        settings = list(dict.fromkeys(setting for setting, _ in placed))
        sizes = sorted({batch for _, batch in placed})
        base = "fp32" if "fp32" in settings else settings[0]
        speedups = {
            setting: [speedup(placed.get((base, size)), placed.get((setting, size))) for size in sizes]
            for setting in settings
            if setting != base
        }
        known = {setting: each for setting, each in speedups.items() if any(each)}
        if known:
            found.append(Bars(device, base, cells[0].record.item, sizes, known))
    return found


def races(jobs: Iterable[Job]) -> list[Race]:
    """One a job that timed models on two devices."""
    return [race for job in jobs if (race := _race(job))]


def device_name(record: Record) -> str:
    """The device without its maker, and how many of them."""
    name = record.environment.places[0].device.removeprefix("NVIDIA ").removeprefix("Tesla ")
    return name if record.world_size == 1 else f"{record.world_size} x {name}"


def _race(job: Job) -> Race | None:
    crossing = crossing_of(job)
    if crossing is None:
        return None
    devices = {side(record): device_name(record) for record in job.records}
    points = crossing.points
    parameters = [point.parameters for point in points]
    return Race(
        _curve(devices[crossing.loser], crossing.loser, parameters, [point.first_s for point in points], SECONDS),
        _curve(devices[crossing.winner], crossing.winner, parameters, [point.second_s for point in points], SECONDS),
        [point.layers for point in points],
        crossing.parameters,
        crossing.low,
        crossing.high,
    )


def _curves(measure: Measure, cells: Sequence[Cell]) -> list[Curve]:
    found = []
    for device, setting in dict.fromkeys((cell.device, cell.setting) for cell in cells):
        ours = [cell for cell in cells if (cell.device, cell.setting) == (device, setting) and measure.values(cell.record)]
        ours.sort(key=lambda cell: cell.batch)
        if ours:
            found.append(_curve(device, setting, [cell.batch for cell in ours], [measure.values(cell.record) for cell in ours], measure))
    return found


def _curve(device: str, setting: str, x: Sequence[float], values: Sequence[Sequence[float]], measure: Measure) -> Curve:
    spreads = [held for each in values if (held := spread(each))]
    heights = [held.mean / measure.scale for held in spreads]
    return Curve(device, setting, x, heights, [(held.sd or 0.0) / measure.scale for held in spreads])
