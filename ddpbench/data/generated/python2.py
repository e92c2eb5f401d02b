"""Python 2's pickles, in which CIFAR-10 is published: text is bytes there, which a reader takes for text or for bytes as it likes."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pickletools import opcodes
from typing import Any

PROTOCOL = 3
CODE = {opcode.name: opcode.code.encode("latin-1") for opcode in opcodes}


def dumps(values: Mapping[str, Any]) -> bytes:
    """The pickle of a dictionary, whose values are ASCII text, lists of it, or anything that has none."""
    items = b"".join(_text(key) + _value(value) for key, value in values.items())
    return b"".join([CODE["PROTO"], bytes([PROTOCOL]), CODE["EMPTY_DICT"], CODE["MARK"], items, CODE["SETITEMS"], CODE["STOP"]])


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list) and value and isinstance(value[0], str):
        return b"".join([CODE["EMPTY_LIST"], CODE["MARK"], *map(_text, value), CODE["APPENDS"]])
    return pickle.dumps(value, PROTOCOL)[2:-1]  # without its own opcodes of the protocol and of the end


def _text(text: str) -> bytes:
    content = text.encode("ascii")
    return CODE["SHORT_BINSTRING"] + bytes([len(content)]) + content
