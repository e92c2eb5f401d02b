"""Finds out whether an error that ended a script comes from its protection.

Either the kernel has denied a write to a file of the user, or native code looked for a file that is in the scratch folder only.
"""

from __future__ import annotations

import errno
import os
import posix
import re
from collections.abc import Iterator, Sequence

from ddpbench.report.messages.protected_files import FIND
from ddpbench.script.protect.overlay import Overlay, mode_of
from ddpbench.script.protect.redirect import read_path
from ddpbench.script.protect.refusal import Refusal, RefusedWrite

QUOTED, BEFORE_COLON = re.compile(r"""'([^'\n]+)'|"([^"\n]+)\""""), re.compile(r"^([^:'\"\n]+): ", re.MULTILINE)
"""Names in a message of a library."""

DENIALS, DENIED = (errno.EACCES, errno.EROFS), re.compile(r"\[[Ee]rrno 13\]|Permission denied")
MISSING = re.compile(r"\[[Ee]rrno 2\]|No such file|does not exist|not found|can't open|cannot open|[Ff]ailed to open", re.IGNORECASE)
"""How libraries word what they get from the system."""

STARTERS = {"subprocess", "os"}
"""Modules whose errors are about a program that cannot be started."""


def find_denied(problem: BaseException | None, overlay: Overlay, has_landlock: bool) -> Refusal | None:
    """The file that ``problem``, or an error that led to it, names, if the script would have written or found it without protection."""
    for each in _with_causes(problem):
        if isinstance(each, RefusedWrite) and each.filename:
            return Refusal("write", str(each.filename))
        is_denial = has_landlock and _has(each, DENIALS, DENIED)
        if not (is_denial or _has(each, [errno.ENOENT], MISSING)) or _is_of_a_program(each):
            continue
        for name, must_exist in _names(each):
            if is_denial and _would_be_allowed(name, must_exist, overlay):
                return Refusal("write", name)
            if not is_denial and _is_in_scratch_only(name, overlay):
                return Refusal(FIND, name)
    return None


def _with_causes(problem: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while problem is not None and id(problem) not in seen:
        seen.add(id(problem))
        yield problem
        problem = problem.__cause__ or problem.__context__


def _has(problem: BaseException, numbers: Sequence[int], message: re.Pattern[str]) -> bool:
    """Whether the error has one of the numbers of the system; if it has none, whether it quotes its message."""
    number = getattr(problem, "errno", None) or getattr(problem, "code", None)
    return number in numbers or (number is None and message.search(str(problem)) is not None)


def _is_of_a_program(problem: BaseException) -> bool:
    """Whether a program could not be started."""
    traceback = problem.__traceback__
    while traceback and traceback.tb_next:
        traceback = traceback.tb_next
    return traceback is not None and traceback.tb_frame.f_globals.get("__name__") in STARTERS


def _names(problem: BaseException) -> Iterator[tuple[str, bool]]:
    """Names that may be paths, the likeliest first, and whether one must exist to be a path."""
    for attribute in ("filename", "filename2"):
        if text := read_path(getattr(problem, attribute, None)):
            yield text, False
    text = str(problem)
    for groups in QUOTED.findall(text)[::-1]:  # a traceback of a worker comes first
        yield "".join(groups), False
    for name in BEFORE_COLON.findall(text)[::-1]:
        yield name, True


def _would_be_allowed(name: str, must_exist: bool, overlay: Overlay) -> bool:
    """Whether the user may write the file, or create it: ``access`` does not know of the kernel's restriction."""
    try:
        key, _, _ = overlay.locate(name)
    except (OSError, ValueError):
        return False
    folder = key.rpartition("/")[0] or "/"
    exists = bool(mode_of(key))
    return not overlay.is_free(key) and (exists or not must_exist) and posix.access(key if exists else folder, os.W_OK)


def _is_in_scratch_only(name: str, overlay: Overlay) -> bool:
    try:
        key, place, _ = overlay.locate(name)
    except (OSError, ValueError):
        return False
    return place is not None and place != key and bool(mode_of(place)) and not mode_of(key)
