"""Environments that see some of the packages installed here, so that nothing is downloaded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def make_environment(folder: Path, wheel: Path, extra: str = "", present: Sequence[str] = (), file: Path | None = None) -> Path:
    """A new environment with ``wheel`` and what it requires, with ``extra`` if named; returns its ``bin`` folder.

    The packages ``present``, and what they require, are there before. ``file`` is installed in place of ``wheel`` if given: the source
    distribution that it was built from. Raises CalledProcessError if a requirement is not installed here.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    (distribution,) = metadata.distributions(path=[str(wheel)])
    _link(_installed_names([*(distribution.requires or []), *present], extra), folder / "linked")
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "linked.pth").write_text(f"{folder / 'linked'}\n")
    installed = file or wheel
    pip(folder / "bin", "install", "--no-index", "--no-build-isolation", f"{installed}[{extra}]" if extra else str(installed))
    return folder / "bin"


def pip(binaries: Path, *words: str, uses_index: bool = False) -> str:
    """Output of the pip of this environment for the one of ``binaries``. Raises CalledProcessError if it fails."""
    command = [sys.executable, "-m", "pip", "--python", str(binaries / "python"), *words]
    variables = environment_variables() | ({} if uses_index else {"PIP_CONFIG_FILE": os.devnull})
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=variables, timeout=120).stdout


def environment_variables() -> dict[str, str]:
    """The variables of this process without PYTHONPATH, which would add the clone to any environment."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def active(requirements: Iterable[str], extras: Iterable[str]) -> list[Requirement]:
    """Those of ``requirements`` that hold here with ``extras``."""
    parsed, contexts = map(Requirement, requirements), [{"extra": extra} for extra in (*extras, "")]
    return [each for each in parsed if each.marker is None or any(map(each.marker.evaluate, contexts))]


def _installed_names(requirements: Sequence[str], extra: str) -> set[str]:
    """Names of the packages that ``requirements`` with ``extra`` need, directly or indirectly."""
    pending, seen = active(requirements, [extra]), set()
    while pending:
        requirement = pending.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) not in seen:
            seen.add((name, extras))
            pending += active(metadata.requires(name) or [], extras)
    return {name for name, _ in seen}


def _link(names: Iterable[str], folder: Path) -> None:
    """Link the files of the packages ``names`` into ``folder``: whole folders, but those that packages share one level deeper."""
    owners = Counter(top for each in metadata.distributions() for top in {file.parts[0] for file in each.files or ()})
    for distribution in map(metadata.distribution, names):
        entries = {file.parts[: 2 if owners[file.parts[0]] > 1 else 1] for file in distribution.files or ()}
        for entry in entries:
            target = folder.joinpath(*entry)
            if entry[0] not in ("..", "__pycache__") and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(str(distribution.locate_file("/".join(entry))))
