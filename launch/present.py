"""Reports the torch installed for the running Python, without importing it, so that an install can keep it.

Prints shell assignments: present_torch (its version; empty if it is missing, or too old for ddpbench), present_cuda (the CUDA
version it was built for; empty for a CPU build), present_site (its site-packages folder). With a path as argument, also writes
a pip constraint file that pins torch and torchvision to their installed versions.
"""

from __future__ import annotations

import importlib.util
import re
import runpy
import shlex
import sys
from importlib import metadata
from pathlib import Path

OLDEST = (2, 6)


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
    values = {"present_torch": version if folder else "", "present_cuda": cuda or "", "present_site": str(folder.parent) if folder else ""}
    print("\n".join(f"{name}={shlex.quote(value)}" for name, value in values.items()))
    if len(sys.argv) > 1:
        pins = [f"{package}=={pinned}" for package in ("torch", "torchvision") if folder and (pinned := version_of(package))]
        Path(sys.argv[1]).write_text("".join(f"{line}\n" for line in pins))


main()
