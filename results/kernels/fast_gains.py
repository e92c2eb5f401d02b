"""Write what each setting that ``--fast`` chooses gains, which pages show, from the records of ``ideas.py`` beside this script.

python results/kernels/fast_gains.py [TARGET.json]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TARGET = HERE.parents[1] / "ddpbench" / "report" / "messages" / "fast_gains.json"
SETTINGS = {"fused kernels": "fused_kernels", "CUDA graph": "cuda_graph", "no broadcast of buffers": "broadcast_buffers"}
"""Ideas that are settings, and their fields."""


def gains_of(record: dict[str, Any]) -> dict[str, Any]:
    """The step without a setting, relative to that with all of them: center, low, high."""
    _, _, _, workload, batch_size, *_ = record["command"].split()
    longer = {idea["idea"]: [round(end, 3) for end in idea["step_without_relative_to_all"]] for idea in record["ideas"]}
    return {
        "workload": workload,
        "precision": "amp-fp16",
        "batch_size": int(batch_size),
        "gpu": record["device"],
        "gains": {field: longer[name] for name, field in SETTINGS.items()},
    }


def main(target: Path = TARGET) -> None:
    records = [json.loads(path.read_text()) for path in sorted(HERE.glob("ideas-*.json"))]
    target.write_text(json.dumps([gains_of(record) for record in records], indent=1) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
