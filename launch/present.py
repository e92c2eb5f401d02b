"""Tells which torch the Python that runs this already has, without importing it, so that an install can leave it alone.

Prints shell assignments: present_torch (its version; empty when there is none, or when it is too old for ddpbench),
present_cuda (the CUDA version it was built for; empty for a CPU build), present_site (the folder it lies in).
With a path as argument, writes a pip constraint file there that holds torch and torchvision at their versions.
"""

from __future__ import annotations

import importlib.util
import re
import runpy
import shlex
import sys
from importlib import metadata
from pathlib import Path

OLDEST = (2, 9)


def version_of(package: str) -> str:
    """The installed version of ``package``, or an empty string."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def main() -> None:
    spec = importlib.util.find_spec("torch")
    version = version_of("torch") if spec and spec.origin else ""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    folder = Path(spec.origin).parent if spec and spec.origin and numbers >= OLDEST else None
    cuda = runpy.run_path(str(folder / "version.py")).get("cuda") if folder else None
    facts = {"present_torch": version if folder else "", "present_cuda": cuda or "", "present_site": str(folder.parent) if folder else ""}
    print("\n".join(f"{name}={shlex.quote(value)}" for name, value in facts.items()))
    if len(sys.argv) > 1:
        held = [f"{package}=={found}" for package in ("torch", "torchvision") if folder and (found := version_of(package))]
        Path(sys.argv[1]).write_text("".join(f"{line}\n" for line in held))


main()
