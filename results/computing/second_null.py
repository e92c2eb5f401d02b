"""How often a second switch that does nothing is kept, judged by the first one like any setting.

python results/computing/second_null.py OUT.json NUMBER

Diagnoses ``small_models.py convolutions`` until OUT.json has so many diagnoses. The second null cure takes the place of channels-last, and
the loader is judged quickly; windows and rules are those of every diagnosis. To be run on two quiet CPU cores.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import small_models

SECOND = "channels-last"
LIMIT_S = 75


def diagnose() -> None:
    """``ddpbench diagnose``, with two null cures and nothing else to try."""
    from ddpbench.cli import main
    from ddpbench.script.cures import catalog
    from ddpbench.script.cures.cure import Null
    from ddpbench.script.diagnose import diagnosis, switched_cures

    diagnosis.DEFAULT_LIMIT_S = 8.0
    catalog.CURES = switched_cures.CURES = {"null": Null(), SECOND: Null()}
    sys.exit(main())


def measured() -> dict[str, Any]:
    """One diagnosis."""
    from ddpbench.analysis.screening import is_kept, noise_floor, screened_gain
    from ddpbench.record.io import load

    with tempfile.TemporaryDirectory() as folder:
        words = ["diagnose", "--time-limit", str(LIMIT_S), "-q", "-o", folder, str(Path(small_models.__file__)), "convolutions"]
        subprocess.run([sys.executable, __file__, *words], check=True, capture_output=True)
        found = load(next(Path(folder).glob("*-diagnose.json"))).diagnosis
    assert found is not None
    assert found.screening is not None
    second = next(each for each in found.screening.cures if each.code == SECOND)
    gain, floor = screened_gain(second), noise_floor(found.screening.cures)
    assert gain is not None, second
    interval = [round(each, 4) for each in (gain.center, gain.low, gain.high)]
    return {"noise_floor": round(floor, 4), "gain": interval, "kept": is_kept(second, floor)}


def main() -> None:
    out, number = Path(sys.argv[1]), int(sys.argv[2])
    rows = json.loads(out.read_text()) if out.exists() else []
    while len(rows) < number:
        rows.append(measured())
        out.write_text(json.dumps(rows, indent=1) + "\n")
        print(len(rows), rows[-1], flush=True)
    print(f"kept {sum(row['kept'] for row in rows)} of {len(rows)}")


if __name__ == "__main__":
    diagnose() if sys.argv[1:2] == ["diagnose"] else main()
