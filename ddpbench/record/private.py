"""Private values of a record, such as hosts and folders, and their placeholders with ``--redact``.

A field that holds a private value has one of the types below, by which ``redact`` finds it.
"""

from __future__ import annotations

import getpass
import re
import shlex
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec

if TYPE_CHECKING:
    from ddpbench.record.record import Job


class Private(Enum):
    """Kinds of private text, each with the placeholder that replaces it."""

    HOST = "node"  # node-0, node-1: one per host
    GPU = "GPU"
    FOLDER = "DIR"
    ENTRY = "MODULE:NAME"  # package.module:name; a registered name is public
    FILE = "FILE"
    TEXT = "TEXT"  # its private parts are replaced
    COMMAND = "COMMAND"  # shell; likewise
    SOURCE = "SOURCE"  # of a program: nothing of it remains


HostName = Annotated[str, Private.HOST]
GpuId = Annotated[str, Private.GPU]
Folder = Annotated[str, Private.FOLDER]
EntryName = Annotated[str, Private.ENTRY]
FileMessage = Annotated[str, Private.FILE]
FreeText = Annotated[str, Private.TEXT]
ShellCommand = Annotated[str, Private.COMMAND]
SourceText = Annotated[str, Private.SOURCE]

Change = Callable[[Private, str], str]
Names = dict[tuple[Private, str], str]
Value = TypeVar("Value")

PUBLIC_WORDS = frozenset({"--quick"})
"""Words of a command that a redacted record keeps: with --quick, the page of a reproduction compares no figures."""


def redact(job: Job) -> Job:
    """A copy of ``job`` with placeholders for hosts, GPUs, folders, files and user-defined entries, and without its command."""
    names = placeholders(job)
    scrubber = _Scrubber(names)

    def change(kind: Private, text: str) -> str:
        if kind in (Private.TEXT, Private.COMMAND):
            return scrubber.command(text) if kind is Private.COMMAND else scrubber.text(text)
        if kind is Private.SOURCE:
            return ""
        return names.get((kind, text), text)

    command = [word for word in job.command if word in PUBLIC_WORDS]
    return msgspec.structs.replace(_map_private(job, change), command=command, redacted=True)


def redact_names(value: Value) -> Value:
    """A copy of ``value``, such as a Config or a list of them, with placeholders for its private names."""
    names = placeholders(value)
    return _map_private(value, lambda kind, text: names.get((kind, text), text))


def restore_names(job: Job, names: Names) -> Job:
    """A copy of the redacted ``job`` with the real names of ``names`` in place of their placeholders."""
    real = {(kind, placeholder): text for (kind, text), placeholder in reversed(names.items())}  # of equal folders, the first
    return _map_private(job, lambda kind, text: real.get((kind, text), text))


def placeholders(value: object) -> Names:
    """The placeholder of each private name in ``value``, numbered in the order of its fields."""
    names: Names = {}
    counts: Counter[Private] = Counter()

    def add(kind: Private, text: str) -> str:
        is_name = bool(text) and kind not in (Private.TEXT, Private.COMMAND, Private.SOURCE) and (kind is not Private.ENTRY or ":" in text)
        if is_name and (kind, text) not in names:
            without_slash = kind, text.rstrip("/")  # a resolved Config has the folder in this form
            if without_slash in names:
                names[kind, text] = names[without_slash]
            else:
                names[kind, text] = _placeholder(kind, counts[kind])
                counts[kind] += 1
        return text

    _map_private(value, add)
    return names


def _placeholder(kind: Private, index: int) -> str:
    if kind in (Private.HOST, Private.GPU):
        return f"{kind.value}-{index}"
    return f"{kind.value}-{index + 1}" if index else kind.value


def _map_private(value: Value, change: Change) -> Value:
    """``value`` with every private text in it replaced by ``change``; the parts without one are shared with ``value``."""
    mapped: Value = _map_any(value, change)
    return mapped


def _map_any(value: Any, change: Change) -> Any:
    if isinstance(value, msgspec.Struct):
        kinds, changed = _private_fields(type(value)), {}
        for name in value.__struct_fields__:
            old = getattr(value, name)
            new = _map_text(old, kinds[name], change) if name in kinds else _map_any(old, change)
            if new is not old:
                changed[name] = new
        return msgspec.structs.replace(value, **changed) if changed else value
    if isinstance(value, list | tuple) and value and not isinstance(value[0], float | int | str):
        parts = [_map_any(each, change) for each in value]
        return value if all(new is old for new, old in zip(parts, value, strict=True)) else type(value)(parts)
    return value


def _map_text(value: Any, kind: Private, change: Change) -> Any:
    if isinstance(value, list):
        return [change(kind, text) for text in value]
    if isinstance(value, dict):
        return {name: change(kind, text) for name, text in value.items()}
    return value if value is None else change(kind, value)


@cache
def _private_fields(struct: type[msgspec.Struct]) -> dict[str, Private]:
    """The fields of ``struct`` that hold private text, by the annotation of their type."""
    hints = get_type_hints(struct, include_extras=True)
    return {name: kind for name, annotation in hints.items() if (kind := _kind_of(annotation))}


def _kind_of(annotation: Any) -> Private | None:
    if isinstance(annotation, Private):
        return annotation
    return next((kind for part in (*get_args(annotation), *getattr(annotation, "__metadata__", ())) if (kind := _kind_of(part))), None)


PUBLIC_PATHS = frozenset({"launch/slurm_single_node.sbatch", "launch/slurm_multi_node.sbatch", "/dev/shm", "/dev/shm/ddpbench-data"})
"""Paths that are the same for every user."""

FILE_SUFFIXES = "py|pyc|so|json|jpe?g|png|bmp|gif|webp|tiff?|ppm|pt|pth|npy|bin|idx|gz|tar|zip|txt|csv|log|sh|sbatch"

PLACEHOLDER = r"(?:DIR|FILE|PATH|ADDRESS|MODULE(?::NAME)?)(?:-\d+)?"

PRIVATE_TEXT = re.compile(
    rf"""
    (?P<placeholder> \b{PLACEHOLDER}(?![\w/\\-]) )
    | (?P<phrase> (?<=raised\ in\ ).+?(?=:\d+) | (?<=rounds\ are\ in\ )[^;]+ )
    | (?<!\w)(?P<quote>['"])(?P<quoted>.+?)(?P=quote)(?!\w)
    | (?P<gpu> \b(?:GPU|MIG)-[0-9a-f]{{8}}[0-9a-f-]* )
    | (?P<file> [\w.-]+\.(?:{FILE_SUFFIXES})(?![\w/\\]) )
    | (?P<address> \[[^\]\s]+\]:\d+ | (?<=\()[\w.-]+(?=,\ \d{{2,5}}\)) | \b(?:\d{{1,3}}\.){{3}}\d{{1,3}}(?:/\d+|:\d+)?
        | (?<![\w:])(?:[0-9a-fA-F]{{0,4}}:){{3,7}}[0-9a-fA-F]{{0,4}} | \b[\w-]+(?:\.[\w-]+)*:\d{{4,5}}\b | [\w.+-]+@[\w.-]*\w )
    | (?P<path> [^\s'"(),;<>\[\]{{}}|=]*[/\\][^\s'"(),;<>\[\]{{}}|]* | ~\w* )
    | (?P<entry> \b[A-Za-z_][\w.]*:[A-Za-z_]\w* )
    | (?P<word> [\w.#-]+ )
    """,
    re.VERBOSE,
)
"""What may be private in a text, and every other word, which may be a name."""

RATE_OR_RATIO = re.compile(r"[A-Za-z]+/s|\d+/\d+|I/O")
LIKE_A_NAME = re.compile(r"\S*(?:[:@~]|\.(?!$|\d))\S*")
MODULE_NAMED = re.compile(r"(?<=No module named )'[^']*'")
FOLDER_OPERAND = re.compile(r"""((?<!\S)(?:--data-dir[ =]|cp -r ))('[^']*(?:'"'"'[^']*)*'|\S+)""")


class _Scrubber:
    """Replaces the private names of a record in texts, and anything like a path, a file, an address or a module."""

    def __init__(self, names: Names) -> None:
        self._folders = {text: placeholder for (kind, text), placeholder in names.items() if kind is Private.FOLDER}
        self._names: dict[str, str] = {}
        self._name_parts = _local_names()
        for (kind, text), placeholder in names.items():
            if kind is Private.HOST:
                network_name = text.partition("#")[0]  # of several nodes with one name
                self._names = {network_name: placeholder, network_name.partition(".")[0]: placeholder} | self._names
            elif kind is Private.ENTRY:
                self._name_parts |= dict.fromkeys(text.partition(":")[0].split("."), "MODULE")
        exact = (Private.HOST, Private.GPU, Private.ENTRY)
        self._names |= {text: placeholder for (kind, text), placeholder in names.items() if kind in exact}

    def text(self, text: str) -> str:
        """``text``, such as the message of an exception, with placeholders for its private parts."""
        for folder, placeholder in self._folders.items():
            if "/" in folder:  # others may be ordinary words, and are replaced only in quotes
                text = re.sub(rf"(?<![\w./-]){re.escape(folder)}(?![\w-])", placeholder, text)
        return self._scrub(MODULE_NAMED.sub("'MODULE'", text), self._name_parts | self._names)

    def command(self, command: str) -> str:
        """The shell ``command`` with placeholders for its private parts."""
        return self._scrub(FOLDER_OPERAND.sub(lambda match: match[1] + self._operand(match[2]), command), self._names)

    def _operand(self, word: str) -> str:
        """The placeholder of a folder, or of each in a comma list."""
        try:
            folder = "".join(shlex.split(word))
        except ValueError:  # of a file from elsewhere: an odd number of quotes
            return Private.FOLDER.value
        parts = [folder] if folder in self._folders else folder.split(",")
        return ",".join(self._folders.get(part, part if part in PUBLIC_PATHS else Private.FOLDER.value) for part in parts)

    def _scrub(self, text: str, words: Mapping[str, str]) -> str:
        return PRIVATE_TEXT.sub(lambda match: self._replacement(match, words), text)

    def _replacement(self, match: re.Match[str], words: Mapping[str, str]) -> str:
        found = match[0]
        match match.lastgroup:
            case "quoted":
                return f"{match['quote']}{self._quoted(match['quoted'], words)}{match['quote']}"
            case "phrase" | "path" if found not in PUBLIC_PATHS and not RATE_OR_RATIO.fullmatch(found.rstrip(".:")):
                return "PATH" + found[len(found.rstrip(".:")) :]
            case "gpu":
                return words.get(found, Private.GPU.value)
            case "address":
                host, _, port = found.rpartition(":")
                host = host.strip("[]")
                return f"{words[host]}:{port}" if host in words else words.get(found, "ADDRESS")
            case "entry":
                return words.get(found, Private.ENTRY.value)
            case "file":
                return Private.FILE.value
            case "word":
                return _replace_word(found, words)
        return found

    def _quoted(self, text: str, words: Mapping[str, str]) -> str:
        """A text in quotes: a folder, another path, a sentence, or the name of a file or a module."""
        if text in self._folders:
            return self._folders[text]
        if re.fullmatch(PLACEHOLDER, text) or text in PUBLIC_PATHS:
            return text
        if "/" in text or "\\" in text:
            return "PATH"
        scrubbed = self._scrub(text, words)
        return "PATH" if scrubbed == text and LIKE_A_NAME.fullmatch(text) else scrubbed


def _replace_word(word: str, words: Mapping[str, str]) -> str:
    """The placeholder of a name, also with a domain (``node-01.example.org``) or at the end of a sentence; else ``word``."""
    name = word.rstrip(".")
    host, _, domain = name.partition(".")
    known = words.get(name) or (words.get(host) if domain[:1].isalpha() else None)
    return known + word[len(name) :] if known else word


def _local_names() -> dict[str, str]:
    """Placeholders for this machine and this user, which a message may name although the record does not."""
    names = {socket.gethostname(): "HOST"}
    with suppress(KeyError, OSError):  # a user without a name
        if (user := getpass.getuser()) != "root":  # an ordinary word, too
            names[user] = "USER"
    return names
