"""The tried scripts as a page: the limit of each, the verdicts, and the predicted gains beside the measured ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from situations.page import verdict_cell

from scripts.limits import SCRIPTS
from scripts.tries import TIME_LIMIT_S, TRIES, Gain, Tried

SHARE_NAMED, MAX_WRONG = 3 / 4, 1
"""The targets: how many scripts are named plainly and rightly in most tries, and how many may get a wrong plain verdict."""

ABOUT = f"""# Accuracy of the diagnoses of scripts

Training scripts with a known limit (`tests/scripts/`), each diagnosed up to {TRIES} times with `--time-limit {TIME_LIMIT_S}` on two CPU
cores, several scripts at a time on a machine with more; those that need a GPU once, on one GPU. Each cell is one diagnosis, in the order
in which they ended; none is left out. The record is `scripts.json`.

- *right*: the bottleneck and its cause are named plainly (in at least 99% of the resamples).
- *probably right*, *probably wrong*: named as PROBABLY, in 70% to 99% of the resamples.
- *inconclusive*: no bottleneck is named, or the script is data-bound and no cause is named.
- ***WRONG***: another bottleneck or another cause is named plainly.

```sh
python results/watch/scripts.py            # all scripts, about an hour; a second call goes on where the first was stopped
python results/watch/scripts.py NAME...    # only these
```"""


def page(tried: Sequence[Tried]) -> str:
    ordered = [each for script in SCRIPTS for each in tried if each.title == script.title]
    return "\n\n".join([ABOUT, "\n".join(summary(ordered)), verdict_table(ordered), gain_table(ordered)]) + "\n"


def summary(tried: Sequence[Tried]) -> Iterator[str]:
    """How many scripts are named rightly in most tries, how many wrongly, and how good the predictions were."""
    complete = [each for each in tried if each.tries]
    named = [each for each in complete if 3 * _count(each, "right") >= 2 * len(each.tries)]
    likely = [each for each in complete if 3 * (_count(each, "right") + _count(each, "probably right")) >= 2 * len(each.tries)]
    wrong = [each for each in complete if _count(each, "WRONG")]
    yield (
        f"- {len(named)} of {len(complete)} scripts are named plainly and rightly in two thirds of their tries (target: "
        f"{SHARE_NAMED:.0%}), {len(likely)} with those that are named as PROBABLY; {len(wrong)} got a wrong plain verdict (target: at most "
        f"{MAX_WRONG})"
    )
    scores = Counter(each.said.score for script in complete for each in script.tries)
    yield f"- {sum(scores.values())} diagnoses: {', '.join(f'{count} {score}' for score, count in scores.most_common())}"
    compared = [gain.is_inside for script in complete for each in script.tries for gain in each.gains if not gain.failure]
    yield (
        f"- {len(compared)} predictions were tried: {compared.count(True)} measured gains lie inside the predicted interval, "
        f"{compared.count(False)} outside; {compared.count(None)} intervals are too wide to compare"
    )


def verdict_table(tried: Sequence[Tried]) -> str:
    number = max((len(each.tries) for each in tried), default=0)
    rows = [f"| script | limit | {' | '.join(f'try {each + 1}' for each in range(number))} |", "|---" * (number + 2) + "|"]
    for each in tried:
        cells = [*(verdict_cell(one.said) for one in each.tries), *[""] * (number - len(each.tries))]
        rows.append(f"| `{each.title}` | {each.right} | {' | '.join(cells)} |")
    return "\n".join(rows)


def gain_table(tried: Sequence[Tried]) -> str:
    rows = ["| script | change | predicted, then measured |", "|---|---|---|"]
    for each in tried:
        changes = dict.fromkeys(gain.change for one in each.tries for gain in one.gains)
        for change in changes:
            found = [gain for one in each.tries for gain in one.gains if gain.change == change]
            rows.append(f"| `{each.title}` | `{change}` | {'; '.join(map(_comparison, found))} |")
    return "\n".join(rows)


def _count(tried: Tried, score: str) -> int:
    return sum(each.said.score == score for each in tried.tries)


def _comparison(gain: Gain) -> str:
    predicted = _interval(gain.predicted)
    if gain.failure:
        return f"{predicted}, {gain.failure}"
    agreement = {True: "inside", False: "**outside**", None: "too wide"}[gain.is_inside]
    return f"{predicted}, {_interval(gain.measured)}: {agreement}"


def _interval(values: tuple[float, float, float] | None) -> str:
    return "-" if values is None else f"{values[0]:.2f}x ({values[1]:.2f} to {values[2]:.2f})"
