"""What the pictures of jobs show, as plain numbers: curves over batch size, bars of speed-ups, two devices that cross."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ddpbench.analysis.cells import out_of_memory
from ddpbench.analysis.crossover import crossing_of, side
from ddpbench.analysis.effects import Times, speedup
from ddpbench.analysis.measures import SECONDS, Measure, duration, memory, spread
from ddpbench.record.record import Job, Record
from ddpbench.report.arms import arm_name

SHOWN = ("precision", "batch_size", "workload")
"""Fields that a picture shows by itself."""

LENGTH = ("steps", "epochs")
"""Fields that make a training longer: the times of two that differ in them lie on no one curve."""


@dataclass(frozen=True)
class Cell:
    """One cell by what a picture tells it by."""

    device: str
    setting: str  # the precision, and what else sets it apart from another cell of its batch
    batch: int
    like: tuple[object, ...]  # equal in cells that differ in nothing but what a picture shows
    record: Record


@dataclass(frozen=True)
class Curve:
    """One line: a setting of one device. ``spread`` is a standard deviation a point, 0 where there is none.

    ``no_memory`` are the places where it has no point, since a step did not fit the device.
    """

    device: str
    setting: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float]
    no_memory: Sequence[float] = ()

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
    """How many times as fast as ``base`` each setting is at each batch size, on one device; None where a cell has no figure.

    ``no_memory`` holds the batch sizes of which a step did not fit the device, by setting, the base too.
    """

    device: str
    base: str
    item: str  # what a batch is counted in
    batches: Sequence[int]
    speedups: Mapping[str, Sequence[Times | None]]
    no_memory: Mapping[str, Sequence[int]]


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
        for record in job.records:
            others = _told_apart_by(record, job)
            named = [record.config.precision, arm_name(record.config, others) if others else "", record.label]
            like = tuple(getattr(record.config, field) for field in (*LENGTH, *job.swept) if field not in SHOWN)
            cell = Cell(device_name(record), ", ".join(filter(None, named)), record.config.batch_size or 0, like, record)
            found.setdefault(record.config.workload, {})[cell.device, cell.setting, cell.batch] = cell
    return {workload: list(cells.values()) for workload, cells in found.items()}


def charts(workload: str, cells: Sequence[Cell]) -> list[Chart]:
    """Time, or speed, and memory over batch size; none where no setting has two batch sizes, and none of what no cell knows."""
    records = [cell.record for cell in cells]
    lasting = duration(records)
    measures = (("time" if lasting is SECONDS else "speed", lasting), ("memory", memory(records)))
    item = cells[0].record.item
    drawn = [Chart(f"{workload}-{word}", workload, measure.heading, item, _curves(measure, cells)) for word, measure in measures]
    return [chart for chart in drawn if any(len(curve.x) > 1 for curve in chart.curves)]


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
        lacking = {setting: [size for size in sizes if _did_not_fit(placed.get((setting, size)))] for setting in settings}
        known = {setting: each for setting, each in speedups.items() if any(each) or lacking[setting]}
        if any(any(each) for each in known.values()):
            found.append(Bars(device, base, cells[0].record.item, sizes, known, lacking))
    return found


def races(jobs: Iterable[Job]) -> list[Race]:
    """One a job that timed models on two devices."""
    return [race for job in jobs if (race := _race(job))]


def device_name(record: Record) -> str:
    """The device without its maker, and how many of them."""
    name = record.environment.places[0].device.removeprefix("NVIDIA ").removeprefix("Tesla ")
    return name if record.world_size == 1 else f"{record.world_size} x {name}"


def _told_apart_by(record: Record, job: Job) -> list[str]:
    """The swept fields in which other cells differ from ``record`` that a picture would show in its place."""

    def shown(each: Record) -> tuple[object, ...]:
        return (*(getattr(each.config, field) for field in SHOWN), device_name(each), each.label)

    rivals = [each for each in job.records if shown(each) == shown(record)]
    return [field for field in job.swept if len({getattr(each.config, field) for each in rivals}) > 1]


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
    for device, setting, like in dict.fromkeys((cell.device, cell.setting, cell.like) for cell in cells):
        alike = [cell for cell in cells if (cell.device, cell.setting, cell.like) == (device, setting, like)]
        alike.sort(key=lambda cell: cell.batch)
        ours = [cell for cell in alike if measure.values(cell.record)]
        lacking = [cell.batch for cell in alike if _did_not_fit(cell.record)]
        if ours or lacking:
            curve = _curve(device, setting, [cell.batch for cell in ours], [measure.values(cell.record) for cell in ours], measure)
            found.append(replace(curve, no_memory=lacking))
    return found


def _did_not_fit(record: Record | None) -> bool:
    return record is not None and not record.rounds and out_of_memory(record)


def _curve(device: str, setting: str, x: Sequence[float], values: Sequence[Sequence[float]], measure: Measure) -> Curve:
    spreads = [held for each in values if (held := spread(each))]
    heights = [held.mean / measure.scale for held in spreads]
    return Curve(device, setting, x, heights, [(held.sd or 0.0) / measure.scale for held in spreads])
