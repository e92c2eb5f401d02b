"""What is refused to a script, because it would change a file of the user."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """``action`` is that of an audit event, such as ``open`` or ``rename``; ``name`` is a path, a command line or a repository."""

    action: str
    name: str


class RefusedWrite(PermissionError):
    """Raised in the script in place of what was refused. Its ``filename`` is the name."""
