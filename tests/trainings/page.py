"""The page of the trainings, their truths, and what their diagnoses said."""

from __future__ import annotations

from collections.abc import Mapping

from trainings.diagnosed_page import diagnosed_parts
from trainings.kept import AS_IS, REPEATED, Truth
from trainings.listing import TRAININGS, Training
from trainings.truths import BATCHES

HEADER = """# Trainings on which no rule was tuned, and the limit of each

{count} trainings: {public} public repositories or packages, unmodified, and {own} scripts written after public reports
(`tests/trainings/`, where `listing.py` has the commands). Their limits were measured before any of them was diagnosed, in plain runs
that alternate, each on two CPU cores with one thread per process, eight trainings at a time. Times are medians, in ms per step, with the
starts of epochs and with what the column *outside of steps* names; *compute* repeats the first {batches} batches from memory. Most were
run once or twice, and two runs of the same command differ by up to 40%: a gain below that is not shown by them. `NAME=VALUE` is an
argument that every DataLoader of the script gets. The record is `trainings.json`.

```sh
python results/watch/trainings.py truth --repositories FOLDER            # all trainings; a second call goes on where the first stopped
python results/watch/trainings.py truth --repositories FOLDER NAME...    # only these
python results/watch/trainings.py diagnose --repositories FOLDER         # one diagnosis per version of ddpbench
python results/watch/trainings.py prove --repositories FOLDER            # the changes that they advise, in plain runs
```
"""


def page(truths: Mapping[str, Truth]) -> str:
    public = sum(training.is_public for training in TRAININGS)
    parts = [HEADER.format(count=len(TRAININGS), public=public, own=len(TRAININGS) - public, batches=BATCHES)]
    parts += [
        "| training | source | subjects | limit | as it is | best change | with it | compute | gain |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    parts += [_row(training, truths.get(training.name) or Truth(name=training.name)) for training in TRAININGS]
    parts += ["", "| training | truth | outside of steps | all changes that were measured |", "|---|---|---|---|"]
    parts += [_truth(training, truths.get(training.name) or Truth(name=training.name)) for training in TRAININGS]
    parts += ["", *diagnosed_parts(truths)]
    parts += ["", "| training | command | packages |", "|---|---|---|"]
    parts += [_command(training) for training in TRAININGS]
    machines = sorted({truth.machine for truth in truths.values() if truth.machine})
    parts += ["", "| measured on | trainings |", "|---|---|"]
    parts += [
        f"| {machine} | {', '.join(f'`{name}`' for name, truth in truths.items() if truth.machine == machine)} |" for machine in machines
    ]
    return "\n".join(parts) + "\n"


def _row(training: Training, truth: Truth) -> str:
    as_is, best = truth.ms(AS_IS), truth.best_change
    changed = truth.ms(best) if best else None
    gain = f"{as_is / changed:.2f}x" if as_is and changed else ""
    if training.is_public:
        source = f"[{training.folder_name}]({training.repository}) {training.version[:8]}"
    else:
        source = f"own, after [a report]({training.report})"
    cells = [f"`{training.name}`", source, ", ".join(training.subjects), training.right, _ms(as_is), f"`{best}`" if best else ""]
    return f"| {' | '.join([*cells, _ms(changed), _ms(truth.ms(REPEATED)), gain])} |"


def _truth(training: Training, truth: Truth) -> str:
    changes = [f"`{title}` {_ms(truth.ms(title))}" for title in truth.runs if title not in (AS_IS, REPEATED)]
    return f"| `{training.name}` | {training.truth} | {training.outside} | {', '.join(changes)} |"


def _command(training: Training) -> str:
    started = "torchrun --standalone --nproc_per_node=2" if training.ranks > 1 else "python"
    return f"| `{training.name}` | `{started} {training.words}` | {', '.join(training.packages)} |"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"
