"""Data of the speed-up plots: the arms of a comparison relative to its reference."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import fmean

from ddpbench.analysis.metrics import SAMPLES_PER_S, last_accuracy, speedup
from ddpbench.analysis.stats import PairedRatio
from ddpbench.record.record import Record
from ddpbench.record.registry import PRECISION_ALIASES
from ddpbench.report.messages.arms import arm_name, arm_values
from ddpbench.report.plot_data import SweepPoint, date_suffixes, ran_out_of_memory, varied_fields


@dataclass(frozen=True)
class SpeedupPlot:
    """Speed-up over ``reference`` of each other setting per batch size: one comparison, of one job on one device.

    A speed-up is None without a figure. ``out_of_memory_batches`` holds, by setting and for ``reference`` too, the batch sizes that ran
    out of memory; ``empty_reasons`` says why a batch size shows nothing.
    """

    device: str
    reference: str
    item: str  # what a batch is counted in
    batches: Sequence[int]
    speedups: Mapping[str, Sequence[PairedRatio | None]]
    out_of_memory_batches: Mapping[str, Sequence[int]]
    empty_reasons: Mapping[int, str]
    varied: Sequence[str]  # the fields in which its arms differ
    date: str = ""  # of the job, if several of this device share a figure

    def subset(self, settings: Collection[str]) -> SpeedupPlot:
        """The same plot with only these settings."""
        kept = {setting: each for setting, each in self.speedups.items() if setting in settings}
        out_of_memory = {setting: each for setting, each in self.out_of_memory_batches.items() if setting in (self.reference, *kept)}
        shown = {size for each in kept.values() for size, found in zip(self.batches, each, strict=True) if found is not None}
        shown |= {size for each in out_of_memory.values() for size in each}
        empty = {size: self.empty_reasons.get(size, "no result") for size in self.batches if size not in shown}
        return replace(self, speedups=kept, out_of_memory_batches=out_of_memory, empty_reasons=empty)


def speedup_plots(cells: Sequence[SweepPoint], reference: str | None = None) -> list[SpeedupPlot]:
    """One plot per job and device, relative to the slowest arm, or to the slowest one that ``reference`` names.

    Jobs and devices with the same settings are relative to the same one: the slowest over all of them. Empty without a second setting.
    """
    alike: dict[frozenset[str], list[SweepPoint]] = {}
    for ours in comparisons(cells):
        alike.setdefault(_settings(ours), []).extend(ours)
    found: list[tuple[str, SpeedupPlot]] = []
    for ours in comparisons(cells):
        shared = _find_reference(alike[_settings(ours)], reference)
        if drawn := _speedup_plot(ours, shared) or _speedup_plot(ours, _find_reference(ours, reference)):
            found.append((ours[0].started, drawn))
    dates = date_suffixes([((each.device, *each.varied), started) for started, each in found])
    return [replace(each, date=date) for (_, each), date in zip(found, dates, strict=True)]


def reference_choices(cells: Sequence[SweepPoint], reference: str) -> list[str]:
    """The settings that speed-ups can be relative to; empty if ``reference`` names one of them."""
    compared = [cell for ours in comparisons(cells) if speedup_plots(ours) for cell in ours if SAMPLES_PER_S.values(cell.record)]
    return [] if any(_is_named(cell, reference) for cell in compared) else [*dict.fromkeys(cell.setting for cell in compared)]


def comparisons(cells: Sequence[SweepPoint]) -> list[list[SweepPoint]]:
    """The points of each job on each device."""
    keys = dict.fromkeys((cell.job_number, cell.device) for cell in cells)
    return [[cell for cell in cells if (cell.job_number, cell.device) == key] for key in keys]


def _is_named(cell: SweepPoint, name: str) -> bool:
    """Whether ``name`` is the arm's name in a plot or on a page, or one of its values."""
    config = cell.record.config
    names = [cell.setting, *cell.setting.split(", "), arm_name(config, cell.swept), *arm_values(config, cell.swept)]
    names += [arm_name(config, [field]) for field in cell.swept]
    return _normalized(PRECISION_ALIASES.get(name.upper(), name)) in map(_normalized, names)


def _normalized(name: str) -> list[str]:
    return name.lower().replace(",", " ").split()


def _settings(cells: Sequence[SweepPoint]) -> frozenset[str]:
    return frozenset(cell.setting for cell in cells)


def _speedup_plot(cells: Sequence[SweepPoint], reference: str | None) -> SpeedupPlot | None:
    """The speed-ups over ``reference`` of one job on one device; None if there are none."""
    if reference is None:
        return None
    placed = {(cell.setting, cell.batch): cell.record for cell in cells}
    settings = list(dict.fromkeys(setting for setting, _ in placed))
    sizes = sorted({batch for _, batch in placed})
    speedups = {
        setting: [speedup(placed.get((reference, size)), placed.get((setting, size))) for size in sizes]
        for setting in settings
        if setting != reference
    }
    out_of_memory = {setting: [size for size in sizes if ran_out_of_memory(placed.get((setting, size)))] for setting in settings}
    known = {setting: each for setting, each in speedups.items() if any(each) or out_of_memory[setting]}
    if not any(any(each) for each in known.values()):
        return None
    empty = {
        size: _why_empty(reference, placed.get((reference, size)))
        for at, size in enumerate(sizes)
        if not any(each[at] for each in known.values()) and not any(size in each for each in out_of_memory.values())
    }
    diverged = _diverged(cells)
    named = {setting: f"{setting}, not converging" if setting in diverged else setting for setting in settings}
    return SpeedupPlot(
        device=cells[0].device,
        reference=named[reference],
        item=cells[0].record.sample_unit,
        batches=sizes,
        speedups={named[setting]: each for setting, each in known.items()},
        out_of_memory_batches={named[setting]: each for setting, each in out_of_memory.items()},
        empty_reasons=empty,
        varied=[*(["batch_size"] if len(sizes) > 1 else []), *varied_fields(cells)],
    )


def _find_reference(cells: Sequence[SweepPoint], requested: str | None) -> str | None:
    """The slowest setting, if possible one that ``requested`` names, else one that converges; None without a figure."""
    measured = [cell for cell in cells if SAMPLES_PER_S.values(cell.record)]
    named = [cell for cell in measured if requested and _is_named(cell, requested)]
    converging = [cell for cell in measured if cell.setting not in _diverged(cells)]
    return _slowest(measured, _settings(named or converging or measured))


def _slowest(cells: Sequence[SweepPoint], candidates: Collection[str]) -> str | None:
    """The candidate with the lowest throughput relative to all settings of its job at its batch sizes, as a geometric mean."""
    relative: dict[str, list[float]] = {cell.setting: [] for cell in cells if cell.setting in candidates}
    groups: dict[object, dict[str, float]] = {}
    for cell in cells:
        speeds = groups.setdefault((cell.job_number, cell.device, cell.batch), {})
        speeds[cell.setting] = fmean(map(log, SAMPLES_PER_S.values(cell.record)))
    for speeds in groups.values():
        for setting in speeds.keys() & relative.keys() if len(speeds) > 1 else ():
            relative[setting].append(speeds[setting] - fmean(speeds.values()))
    return min(relative, key=lambda setting: fmean(relative[setting] or [0.0]), default=None)


def _diverged(cells: Sequence[SweepPoint]) -> frozenset[str]:
    """The settings that never converge."""
    best = max((last_accuracy(cell.record) or 0.0 for cell in cells), default=0.0)
    return _settings(cells) - {cell.setting for cell in cells if not _did_not_converge(cell.record, best)}


def _did_not_converge(record: Record, best: float) -> bool:
    """Whether its accuracy is below half of the job's best: its speed is that of a useless training."""
    accuracy = last_accuracy(record)
    return accuracy is not None and accuracy < best / 2


def _why_empty(reference: str, record: Record | None) -> str:
    if record is None:
        return f"no {reference}"
    return f"{reference} only" if SAMPLES_PER_S.values(record) else f"{reference} {record.status}"
