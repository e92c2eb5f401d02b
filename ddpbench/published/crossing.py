"""The model size from which one device trains faster than the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log

from ddpbench.analysis.metrics import SECONDS
from ddpbench.analysis.stats import Interval, PairedRatio, ratio_of
from ddpbench.record.record import Job, Record
from ddpbench.record.text import format_3sig
from ddpbench.report.messages.roles import role_name


@dataclass(frozen=True)
class CrossoverPoint:
    """One model on both devices, with the seconds of each shared round in the same order."""

    parameters: int
    layers: int
    first_s: Sequence[float]
    second_s: Sequence[float]

    @property
    def ratio(self) -> PairedRatio:
        """Seconds on the second device over seconds on the first."""
        return ratio_of(self.first_s, self.second_s)


@dataclass(frozen=True)
class Crossing:
    """Where ``winner``, the faster device at the largest model, becomes faster.

    ``parameters`` is None if it is faster at every model. ``low`` or ``high`` is None if that end of the interval lies beyond the
    models; both are None if single rounds give no interval.
    """

    loser: str  # the devices' names
    winner: str
    points: Sequence[CrossoverPoint]  # by rising parameters
    parameters: float | None
    low: float | None = None
    high: float | None = None

    @property
    def interval_ends(self) -> tuple[float, float]:
        """The interval, with an open end replaced by the smallest or largest model."""
        return self.low or self.points[0].parameters, self.high or self.points[-1].parameters

    @property
    def interval_points(self) -> Sequence[CrossoverPoint]:
        """The models around the interval, which depends on them only."""
        low, high = self.interval_ends
        at_or_below = [place for place, point in enumerate(self.points) if point.parameters <= low]
        at_or_above = [place for place, point in enumerate(self.points) if point.parameters >= high]
        return self.points[max(at_or_below, default=0) : min(at_or_above, default=len(self.points)) + 1]

    @property
    def has_interval(self) -> bool:
        return any(point.ratio.low < point.ratio.high for point in self.interval_points)

    @property
    def is_clear(self) -> bool:
        """Whether an end of the interval lies between the models; also True without a crossing or an interval."""
        return self.parameters is None or not self.has_interval or self.low is not None or self.high is not None

    @property
    def is_cpu_vs_gpu(self) -> bool:
        """Whether one side is a GPU. The other can only be a CPU."""
        return "GPU" in (self.winner, self.loser)

    @property
    def interval_kind(self) -> str:
        """How the interval differs from a 95% one; empty if it does not.

        It does if a model around it has too few rounds for a confidence interval.
        """
        without_interval = [point for point in self.interval_points if not point.ratio.has_interval]
        if not without_interval:
            return ""
        return "range of the rounds" if len(without_interval) == len(self.interval_points) else "partly the range of too few rounds"

    @property
    def undecided_layers(self) -> list[int]:
        """The layers of the models whose rounds show neither device to be faster."""
        return [point.layers for point in self.points if point.ratio.low <= 1 <= point.ratio.high]

    def layers_at(self, parameters: float) -> float:
        """The depth of a model with ``parameters``, interpolated between its two neighbours."""
        for before, after in pairwise(self.points):
            if parameters <= after.parameters:
                fraction = max(0.0, log(parameters / before.parameters) / log(after.parameters / before.parameters))
                return before.layers + (after.layers - before.layers) * fraction
        return float(self.points[-1].layers)


def find_crossing(first: str, second: str, points: Sequence[CrossoverPoint]) -> Crossing:
    """Find from which size to the largest model one device is faster.

    ``points`` needs at least one. The log time ratio is interpolated piecewise over log parameters: on a GPU small models are bound
    by launches and large ones by arithmetic, so no single line or power law fits both. The interval reaches from where the 95% band
    of the ratio first touches 1 to where it leaves it (inverse regression by the band, as Fieller's); nothing is resampled.
    """
    ordered = sorted(points, key=lambda point: point.parameters)
    loser, winner = first, second
    if ordered[-1].ratio.center > 1:
        loser, winner = second, first
        ordered = [CrossoverPoint(point.parameters, point.layers, point.second_s, point.first_s) for point in ordered]
    center = _last_crossing(ordered, lambda ratio: ratio.center)
    if center is None or all(point.ratio.low == point.ratio.high for point in ordered):
        return Crossing(loser, winner, ordered, center)
    low, high = _last_crossing(ordered, lambda ratio: ratio.low), _last_crossing(ordered, lambda ratio: ratio.high)
    return Crossing(loser, winner, ordered, center, low, high)


def describe_crossing(crossing: Crossing) -> str:
    """``GPU is faster than CPU from 602,000 parameters (599,000 to 605,000) on, 9.9 layers (9.9 to 9.9)``."""
    winner, loser, points = format_device(crossing.winner), format_device(crossing.loser), crossing.points
    if crossing.parameters is None:
        sizes = dict.fromkeys(f"{point.parameters:,}" for point in (points[0], points[-1]))
        models = f"{' to '.join(sizes)} parameters"
        if not crossing.undecided_layers:
            return f"no crossing: {winner} is faster than {loser} at every model, {models}"
        undecided = ", ".join(map(str, crossing.undecided_layers))
        looks = f"no crossing: {winner} looks faster than {loser} at every model, {models}"
        return f"{looks}, but the difference is within the noise at {undecided} layers"
    parameters, layers = f"{format_3sig(crossing.parameters)} parameters", f"{crossing.layers_at(crossing.parameters):.1f} layers"
    if not crossing.is_clear:
        models = f"{points[0].parameters:,} to {points[-1].parameters:,} parameters"
        return f"no clear crossing: {winner} looks faster than {loser} from {parameters} on, but the interval covers all models, {models}"
    if crossing.has_interval:
        low, high = crossing.interval_ends
        open_ends = [" or fewer" if crossing.low is None else "", " or more" if crossing.high is None else ""]
        kind = f"{crossing.interval_kind}: " if crossing.interval_kind else ""
        parameters += f" ({kind}{format_3sig(low)}{open_ends[0]} to {format_3sig(high)}{open_ends[1]})"
        layers += f" ({crossing.layers_at(low):.1f} to {crossing.layers_at(high):.1f})"
    else:
        parameters += " (no interval)"
    return f"{winner} is faster than {loser} from {parameters} on, {layers}"


def format_device(name: str) -> str:
    """A device label within a sentence: ``CPU with 2 threads``."""
    return name.replace(", ", " with ")


def crossing_of(job: Job) -> Crossing | None:
    """The crossing of a job's two devices over the models that both trained.

    None unless there are two devices and a shared model. Models are those with their depth in the name. The device is the record's
    label ("CPU, 4 threads") or, without one, the device type.
    """
    records = [record for record in job.records if num_layers(record.config.workload)]
    sides = list(dict.fromkeys(map(device_label, records)))
    if len(sides) != 2:
        return None
    first, second = sides
    points = []
    for workload in dict.fromkeys(record.config.workload for record in records):
        by_device = {device_label(record): record for record in records if record.config.workload == workload}
        if len(by_device) < 2:
            continue
        first_s, second_s = SECONDS.values_by_round(by_device[first]), SECONDS.values_by_round(by_device[second])
        if shared := sorted(first_s.keys() & second_s.keys()):
            paired = [first_s[index] for index in shared], [second_s[index] for index in shared]
            points.append(CrossoverPoint(by_device[first].num_parameters, num_layers(workload), *paired))
    return find_crossing(first, second, points) if points else None


def device_label(record: Record) -> str:
    """The label of the device that a record trained on."""
    return role_name(record.role) or ("GPU" if record.environment.device_type == "cuda" else "CPU")


def num_layers(workload: str) -> int:
    """The layers in a name such as ``disc-mlp-10``; 0 for other families."""
    family, _, digits = workload.rpartition("-")
    return int(digits) if family == "disc-mlp" and digits.isdigit() else 0


def _last_crossing(points: Sequence[CrossoverPoint], bound: Callable[[Interval], float]) -> float | None:
    """The parameters from which ``bound`` of the ratio stays below 1.

    None if it never does, or does from the smallest model on.
    """
    heights = [(log(point.parameters), log(bound(point.ratio))) for point in points]
    for (start, above), (end, below) in reversed(list(pairwise(heights))):
        if below >= 0:
            return None
        if above >= 0:
            return exp(start + (end - start) * above / (above - below))
    return None


def missing_depths(job: Job, measured_layers: Sequence[int]) -> str:
    """List the depths of ``job`` that are not in ``measured_layers``; empty if none."""
    missing = [
        str(layers)
        for layers in dict.fromkeys(num_layers(record.config.workload) for record in job.records)
        if layers not in measured_layers
    ]
    return f"missing: {', '.join(missing)} layers" if missing else ""
