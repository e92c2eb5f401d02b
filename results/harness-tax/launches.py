"""ddpbench compared with a bare script, in alternating launches: the whole overhead of ddpbench is included.

    python results/harness-tax/launches.py BASELINE.py GPUS WORKLOAD STEPS TARGET.json [--pairs 3]

BASELINE.py takes --model, --steps and --batch-size, and prints a JSON line with ``images_per_s`` and a finite ``loss``.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

from ddpbench.analysis.stats import ratio_of
from ddpbench.record.io import load

BATCH = 256


def main(baseline: Path, gpus: int, workload: str, steps: int, target: Path, pairs: int) -> None:
    """Run ``pairs`` pairs of launches in ABBA order and write them to ``target``."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={gpus}"]

    def bare() -> float:
        words = ["--model", workload, "--precision", "amp-fp16", "--batch-size", str(BATCH), "--steps", str(3 * steps)]
        printed = subprocess.run([*torchrun, str(baseline), *words], check=True, capture_output=True, text=True).stdout
        result = json.loads(printed.splitlines()[-1])
        assert math.isfinite(result["loss"]), "a run with a loss that is not finite looks fast"
        return float(result["images_per_s"])

    def ours() -> float:
        with tempfile.TemporaryDirectory() as folder:
            words = [workload, "--precision", "amp-fp16", "-b", str(BATCH), "--steps", str(steps), "--rounds", "3", "-q", "-o", folder]
            subprocess.run([*torchrun, "-m", "ddpbench", *words], check=True, capture_output=True)
            (path,) = Path(folder).glob("*.json")
            headline = load(path).records[0].throughput
            assert headline is not None
            return headline.samples_per_s

    found: list[dict[str, float]] = []
    for pair in range(pairs):
        sides = [("bare", bare), ("ddpbench", ours)]
        found.append({name: measure() for name, measure in (sides if pair % 2 == 0 else reversed(sides))})
    ratio = ratio_of([pair["bare"] for pair in found], [pair["ddpbench"] for pair in found])
    result = {
        "command": f"python results/harness-tax/launches.py {baseline.name} {gpus} {workload} {steps}",
        "images_per_s": found,
        "ratio": ratio.center,
        "ratio_low": ratio.low,
        "ratio_high": ratio.high,
    }
    target.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{workload} on {gpus} GPUs: {ratio.center:.4f} ({ratio.low:.4f} to {ratio.high:.4f}) of {baseline.name}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("baseline", type=Path, metavar="BASELINE.py")
    parser.add_argument("gpus", type=int, metavar="GPUS")
    parser.add_argument("workload", metavar="WORKLOAD")
    parser.add_argument("steps", type=int, metavar="STEPS", help="per round, of three")
    parser.add_argument("target", type=Path, metavar="TARGET.json")
    parser.add_argument("--pairs", type=int, default=3, help="of launches (default: %(default)s)")
    main(**vars(parser.parse_args()))
