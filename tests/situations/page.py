"""The situations as a page: expected and reported bottlenecks, and a confusion matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from situations.trial import LIMITS_S, Said, Trial

COMMANDS = tuple(LIMITS_S)
ABOUT = """# Accuracy of the verdicts

Trainings with a known bottleneck, caused on purpose (`tests/situations/`), measured with the real commands: two ranks on two cores,
several situations at a time on a machine with more, or one rank per GPU with all cores of the machine if the situation needs a GPU. The
record is `situations.json`. The table quotes the inconclusive verdicts, in the words that ddpbench uses now.

- *right*: the bottleneck and its cause are named plainly (in at least 99% of the resamples).
- *probably right*, *probably wrong*: named as PROBABLY, in 70% to 99% of the resamples.
- *inconclusive*: no bottleneck is named, or the run is data-bound and no cause is named.
- ***WRONG***: another bottleneck or another cause is named plainly.

```sh
python results/diagnosis/situations.py          # all situations, about half an hour
python results/diagnosis/situations.py NAME...  # only these; the others keep their results
```

`situations-earlier.json` contains the trials of an earlier version, in which noise suppressed verdicts (`run`: 17 right, 5 inconclusive;
`diagnose`: 18 right, 4 inconclusive). Since then, `compute-bound` and `well-fed` compute more per step: the earlier `compute-bound`
gained 26% (15% to 39%) without gradient sync, so its label was wrong."""


def page(trials: Sequence[Trial]) -> str:
    tried = [trial for trial in trials if not trial.skipped]
    parts = [ABOUT.rstrip(), counts(tried), table(trials), *(confusion(tried, command) for command in COMMANDS)]
    return "\n\n".join(parts) + "\n"


def counts(trials: Sequence[Trial]) -> str:
    lines = []
    for command in COMMANDS:
        scores = Counter(trial.said[command].score for trial in trials if command in trial.said)
        totals = ", ".join(f"{number} {score}" for score, number in scores.most_common())
        lines.append(f"- `{command}`: {sum(scores.values())} situations, {totals}")
    return "\n".join(lines)


def table(trials: Sequence[Trial]) -> str:
    rows = ["| situation | injected fault | expected | " + " | ".join(f"`{command}`" for command in COMMANDS) + " |", "|---" * 5 + "|"]
    for trial in trials:
        said = [_cell(trial, command) for command in COMMANDS]
        rows.append(f"| {trial.name} | {trial.done} | {trial.right} | {' | '.join(said)} |")
    return "\n".join(rows)


def _cell(trial: Trial, command: str) -> str:
    if trial.skipped:
        return f"skipped: {trial.skipped}"
    said = trial.said.get(command)
    return verdict_cell(said) if said else "-"


def verdict_cell(said: Said) -> str:
    """The score of a verdict, with what else it named unless it is right."""
    shares = [share for share in (said.repeatability, said.cause_repeatability) if share is not None]
    match said.score:
        case "right":
            return "right"
        case "WRONG":
            return f"**WRONG**: {said.verdict}"
        case "probably right" | "probably wrong":
            return f"{said.score}: {said.verdict} in {min(shares):.0%} of resamples, else {said.runner_up or 'open'}"
        case _:
            return f"{said.score}: {said.problem or _quoted(said)}"


def _quoted(said: Said) -> str:
    return f'"{"; ".join([said.says, said.why])}"'


def confusion(trials: Sequence[Trial], command: str) -> str:
    """Confusion matrix: expected in rows, reported in columns."""
    seen = Counter((trial.right, _said(trial, command)) for trial in trials if command in trial.said)
    rights = list(dict.fromkeys(trial.right for trial in trials))
    named = {said for _, said in seen}
    columns = [name for name in dict.fromkeys([*rights, *sorted(named)]) if name in named]
    head = f"| `{command}`: expected, then reported | " + " | ".join(columns) + " |"
    rows = [f"| {right} | " + " | ".join(str(seen[right, said] or "") for said in columns) + " |" for right in rights]
    return "\n".join([head, "|---" * (len(columns) + 1) + "|", *rows])


def _said(trial: Trial, command: str) -> str:
    said = trial.said[command]
    return trial.right if "right" in said.score else "open" if said.score == "inconclusive" else said.verdict
