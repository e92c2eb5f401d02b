"""Whether to believe the figures: what the trust checks said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.text import Text

from ddpbench.analysis.trust import RULES
from ddpbench.record.record import Record
from ddpbench.record.verdict import Check, Effect
from ddpbench.report.ink import BAD, CAUTION, LABEL, inked
from ddpbench.report.layout import Page, flow, sentence

WORDS: dict[Effect, tuple[str, str]] = {"blocks": ("blocked", BAD), "warns": ("warning", CAUTION), "informs": ("note", LABEL)}


def warnings(arms: Mapping[str, Record], page: Page, verbose: bool = False) -> Iterator[Text]:
    """A line a check that spoke, with its hint; with ``verbose`` also the checks that had nothing to say.

    ``arms`` holds a record by the name of its arm. What a check says alike of several arms is said once.
    """
    said: dict[tuple[str, Effect, str, str], tuple[Check, list[str]]] = {}
    for name, record in arms.items():
        for check in record.checks:
            said.setdefault((check.name, check.effect, check.sentence, check.hint), (check, []))[1].append(name)
    width = max((len(check.name) for check, _ in said.values()), default=0)
    for check, names in said.values():
        word, style = WORDS[check.effect]
        whose = "" if len(names) == len(arms) else f"{', '.join(names)}: "
        yield from inked(sentence(f"{word:7}  {check.name:{width}}  ", whose + check.sentence, page), style, len(word))
        if check.hint:
            yield from inked(sentence(" " * (width + 11), f"hint: {check.hint}", page))
    for health in dict.fromkeys(record.environment.health for record in arms.values() if record.environment.health):
        yield from inked(sentence("note     health  ", f"unavailable: {health}", page), LABEL, len("note"))
    if verbose and all(record.status in ("ok", "invalid") for record in arms.values()):
        spoke = {check.name for check, _ in said.values()}
        silent = [name for name in (rule.__name__.replace("_", "-") for rule in RULES) if name not in spoke]
        yield from inked(flow("passed   ", silent, page), LABEL, len("passed"))
