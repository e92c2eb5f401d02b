"""Cost of the marks per step: host timestamps with the progress marker, and the progress marker alone.

python results/overhead/progress_marker.py results/overhead/progress_marker.json
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

from ddpbench.machine.progress_marker import ProgressMarker, Watchdog
from ddpbench.machine.step_timer import HostStepTimer
from ddpbench.record.trace import PHASES

STEPS, REPEATS = 20_000, 15


class SilentMarker:
    """A progress marker that does nothing."""

    def end_phase(self, phase_index: int) -> None:
        pass

    def enter(self, phase: str) -> None:
        pass


def marks_us_per_step(marker: ProgressMarker) -> float:
    """Microseconds per step for the marks of all phases, mean over ``STEPS`` steps."""
    timer = HostStepTimer(marker)
    timer.begin(STEPS)
    begin = perf_counter()
    for _ in range(STEPS):
        for phase in range(len(PHASES)):
            timer.mark(phase)
    return (perf_counter() - begin) / STEPS * 1e6


def main(target: str) -> None:
    """Measure both variants in turns and write the result to ``target``."""
    active = ProgressMarker(600.0)
    watchdog = Watchdog(active, lambda mark: None, lambda seconds: None, lambda: None)
    watchdog.start()
    pairs = [(marks_us_per_step(active), marks_us_per_step(SilentMarker())) for _ in range(REPEATS)]  # type: ignore[arg-type]
    watchdog.stop()
    result = {
        "command": "python results/overhead/progress_marker.py",
        "processor": platform.processor() or platform.machine(),
        "marks_us_per_step": [round(with_marker, 4) for with_marker, _ in pairs],
        "marks_without_progress_marker_us_per_step": [round(without, 4) for _, without in pairs],
        "progress_marker_us_per_step": median(with_marker - without for with_marker, without in pairs),
    }
    Path(target).write_text(json.dumps(result, indent=1) + "\n")
    us_per_step = result["progress_marker_us_per_step"]
    print(f"progress marker: {us_per_step:.2f} microseconds per step, {us_per_step / 14_000:.4%} of a 14 ms step")


if __name__ == "__main__":
    main(*sys.argv[1:])
