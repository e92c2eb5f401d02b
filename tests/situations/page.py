"""The situations as a page: what was right, what was said, and how often one limit was taken for another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from situations.trial import LIMITS_S, Trial

COMMANDS = tuple(LIMITS_S)
ABOUT = """# Is the verdict right?

Trainings whose limit is known, because it was made on purpose (`tests/situations/`), given to the real commands: two ranks on two
cores, and where a GPU is needed a rank on each of at most two, with all cores. `situations.json` holds every sentence that was said. A
verdict that is inconclusive, or a data-bound one that names no cause, is *inconclusive*: it was not told. One that names another limit
or another cause with confidence is *WRONG*.

```
python results/diagnosis/situations.py          # all of them, about half an hour
python results/diagnosis/situations.py NAME...  # these, and the others stay as they are
```
"""


def page(trials: Sequence[Trial]) -> str:
    tried = [trial for trial in trials if not trial.skipped]
    parts = [ABOUT.rstrip(), counts(tried), table(trials), *(confusion(tried, command) for command in COMMANDS)]
    return "\n\n".join(parts) + "\n"


def counts(trials: Sequence[Trial]) -> str:
    lines = []
    for command in COMMANDS:
        scores = Counter(trial.said[command].score for trial in trials if command in trial.said)
        told = ", ".join(f"{number} {score}" for score, number in scores.most_common())
        lines.append(f"- `{command}`: {sum(scores.values())} situations, {told}")
    return "\n".join(lines)


def table(trials: Sequence[Trial]) -> str:
    rows = ["| situation | what is done | right | " + " | ".join(f"`{command}` said" for command in COMMANDS) + " |", "|---" * 5 + "|"]
    for trial in trials:
        said = [_cell(trial, command) for command in COMMANDS]
        rows.append(f"| {trial.name} | {trial.done} | {trial.right} | {' | '.join(said)} |")
    return "\n".join(rows)


def _cell(trial: Trial, command: str) -> str:
    if trial.skipped:
        return f"skipped: {trial.skipped}"
    said = trial.said.get(command)
    if said is None:
        return "-"
    match said.score:
        case "right":
            return "right"
        case "WRONG":
            return f"**WRONG**: {said.told}"
        case _:
            return f"{said.score}: {said.problem or '; '.join([said.says, said.why])}"


def confusion(trials: Sequence[Trial], command: str) -> str:
    """Rows are what is right, columns what was said."""
    seen = Counter((trial.right, _said(trial, command)) for trial in trials if command in trial.said)
    rights = list(dict.fromkeys(trial.right for trial in trials))
    told = {said for _, said in seen}
    columns = [name for name in dict.fromkeys([*rights, *sorted(told)]) if name in told]
    head = f"| `{command}`: right, below what was said | " + " | ".join(columns) + " |"
    rows = [f"| {right} | " + " | ".join(str(seen[right, said] or "") for said in columns) + " |" for right in rights]
    return "\n".join([head, "|---" * (len(columns) + 1) + "|", *rows])


def _said(trial: Trial, command: str) -> str:
    said = trial.said[command]
    return trial.right if said.score == "right" else "not told" if said.score == "inconclusive" else said.told
