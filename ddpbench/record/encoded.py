"""JSON of what a record holds, names that a file system gave among it."""

from __future__ import annotations

import msgspec


def encode_json(value: object) -> bytes:
    """``value`` as JSON. Of names whose bytes are no UTF-8, which Linux allows, those bytes are escaped: ``z\\udcfc.jpg``."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_escape_surrogates(msgspec.to_builtins(value)))


def _escape_surrogates(value: object) -> object:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {name: _escape_surrogates(each) for name, each in value.items()}
    return [_escape_surrogates(each) for each in value] if isinstance(value, list | tuple) else value
