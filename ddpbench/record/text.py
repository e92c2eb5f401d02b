"""Formatting of numbers in sentences, and of untrusted text; masking of secrets."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

MAX_NUMBERED = 8


def format_3sig(value: float) -> str:
    """``value`` with three significant digits, without trailing zeros: ``3``, not ``3.00`` as in tables."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"


def format_validation_error(problem: msgspec.ValidationError) -> str:
    """``problem``, which ends with a field path, as ``records[0].status: expected ...``."""
    reason, _, field = str(problem).partition(" - at `$")
    reason = reason[:1].lower() + reason[1:]
    return f"{field[:-1].removeprefix('.')}: {reason}" if field else reason


def pluralize(number: float, noun: str, plural: str = "s") -> str:
    """Number and noun: ``1 round``, ``1,024 rounds``, ``2.5 cores``."""
    digits = f"{number:,}" if isinstance(number, int) else format_3sig(number)
    return f"{digits} {noun}{'' if digits == '1' else plural}"


def numbered(noun: str, numbers: Sequence[int], separator: str = " ", plural: str = "s") -> str:
    """Noun and numbers, of many only the first ones: ``rank 1``, ``rounds 2, 3``, ``ranks 0, 1, 2, 3, 4, 5, 6, 7 and 24 more``."""
    named = ", ".join(map(str, numbers[:MAX_NUMBERED]))
    more = f" and {len(numbers) - MAX_NUMBERED:,} more" if len(numbers) > MAX_NUMBERED else ""
    return f"{noun}{'' if len(numbers) == 1 else plural}{separator}{named}{more}"


def printable(text: str) -> str:
    """``text`` on one line, with spaces for non-printable characters such as line breaks, controls and bidi overrides.

    Bytes of a file name that are not UTF-8 are escaped: ``\\udcfc``.
    """
    decodable = text.encode(errors="backslashreplace").decode()
    return "".join(character if character.isprintable() else " " for character in decodable)


MASK = "***"
"""Replaces a secret."""

SECRET_WORDS = frozenset({"secret", "password", "passwd", "passphrase", "credential", "credentials"})
"""Words that make the name of a flag or variable secret."""

SECRET_LAST_WORDS = frozenset({"token", "key", "auth", "pass", "apikey", "authtoken", "accesstoken"})
"""Words that do so at the end of the name only: ``--api-key`` is secret, ``--key-frames`` is not."""

NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
USERINFO = re.compile(r"(\b[A-Za-z][\w+.-]{0,63}://)[^\s/]+@")
ASSIGNMENT = re.compile(r"""(?<![\w-])(-{0,2}[A-Za-z][\w.-]{0,255})=("[^"]*(?:"|\Z)|'[^']*(?:'|\Z)|[^\s&,;'"]+)""")
"""Bounded, and an open quote ends with the text: else a long word would take a time that grows with the square of its length."""

TOKEN = re.compile(
    r"(?<![\w-])(?:"
    r"(?:hf|gh[opsur]|github_pat|glpat|sk|sk_live|pk_live|xox[abprs]|npm|pypi|dckr_pat|dop_v1|lsv2_pt)[_-][\w-]{16,255}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{35}|eyJ[\w-]{8,2048}\.[\w-]{8,2048}\.[\w-]{0,2048}"
    r")(?![\w-])"
)
"""Tokens whose shape shows what they are, as their issuers document it: Hugging Face, GitHub, GitLab, OpenAI, Anthropic, Stripe, Slack,
npm, PyPI, Docker, DigitalOcean, LangSmith, AWS, Google, and JSON web tokens (RFC 7519)."""

BEARER = re.compile(r"\b(bearer )\S+", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Whether a flag or variable of that name looks like it holds a token, a key or a password."""
    words = [word.lower() for word in NAME_WORD.findall(name)]
    return bool(words) and (words[-1] in SECRET_LAST_WORDS or not SECRET_WORDS.isdisjoint(words))


def mask_text(text: str) -> str:
    """``text`` with ``***`` for secrets: tokens, the user and password of a URL, and the value in ``NAME=VALUE`` if the name is secret."""
    text = TOKEN.sub(MASK, text)
    text = BEARER.sub(rf"\g<1>{MASK}", USERINFO.sub(rf"\g<1>{MASK}@", text))
    return ASSIGNMENT.sub(lambda match: f"{match[1]}={MASK}" if is_secret_name(match[1]) else match[0], text)


def mask_command(words: Sequence[str]) -> list[str]:
    """The words of a command with secrets masked, also a word that follows a flag with a secret name."""
    masked: list[str] = []
    follows_secret_flag = False
    for word in words:
        name, separator, _ = word.partition("=")
        is_secret = re.fullmatch(r"-{0,2}[A-Za-z][\w.-]*", name) is not None and is_secret_name(name)
        if follows_secret_flag and not word.startswith("--"):
            masked.append(MASK)
        else:
            masked.append(f"{name}={MASK}" if is_secret and separator else mask_text(word))
        follows_secret_flag = is_secret and not separator and word.startswith("-")
    return masked
