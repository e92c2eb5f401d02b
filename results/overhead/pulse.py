"""Cost of one step's marks in the loop: host timestamps and progress marker together, and the progress marker alone.

python results/overhead/pulse.py results/overhead/pulse.json
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


class Still:
    """A progress marker that does nothing."""

    def end_phase(self, phase_index: int) -> None:
        pass


def microseconds_a_step(pulse: ProgressMarker) -> float:
    """All marks of a step, the minimum over several runs of ``STEPS`` steps, because noise only adds."""
    clock = HostStepTimer(pulse)
    clock.begin(STEPS)
    begin = perf_counter()
    for _ in range(STEPS):
        for phase in range(len(PHASES)):
            clock.mark(phase)
    return (perf_counter() - begin) / STEPS * 1e6


def main(target: str) -> None:
    """Measures both ways in turns and writes them."""
    beating = ProgressMarker(600.0)
    watchdog = Watchdog(beating, lambda mark: None, lambda seconds: None, lambda: None)
    watchdog.start()
    pairs = [(microseconds_a_step(beating), microseconds_a_step(Still())) for _ in range(REPEATS)]  # type: ignore[arg-type]
    watchdog.stop()
    result = {
        "command": "python results/overhead/pulse.py",
        "processor": platform.processor() or platform.machine(),
        "marks_us_a_step": [round(with_pulse, 4) for with_pulse, _ in pairs],
        "marks_without_pulse_us_a_step": [round(without, 4) for _, without in pairs],
        "pulse_us_a_step": median(with_pulse - without for with_pulse, without in pairs),
    }
    Path(target).write_text(json.dumps(result, indent=1) + "\n")
    print(f"pulse: {result['pulse_us_a_step']:.2f} microseconds a step, {result['pulse_us_a_step'] / 14_000:.4%} of a 14 ms step")


if __name__ == "__main__":
    main(*sys.argv[1:])
