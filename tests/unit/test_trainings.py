"""The list of trainings on which no rule was tuned."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [path for path in [str(TESTS)] if path not in sys.path]

from trainings import data  # noqa: E402
from trainings.kept import AS_IS, REPEATED  # noqa: E402
from trainings.listing import FOLDER, TRAININGS, Training  # noqa: E402
from trainings.truths import command, planned  # noqa: E402

SUBJECTS = {
    *("detection", "segmentation", "audio", "text fine-tuning", "graphs", "tabular data", "volumes", "streaming"),
    *("self-supervision", "GAN", "Lightning", "transformers Trainer"),
}

SCRIPTS = sorted({training.words.split()[0] for training in TRAININGS if not training.is_public or training.is_package} - {"-m"})


def test_list_is_long_enough_and_half_of_it_is_public() -> None:
    assert len(TRAININGS) >= 24
    assert sum(training.is_public for training in TRAININGS) * 2 >= len(TRAININGS)


def test_names_and_repositories_are_unique() -> None:
    assert max(Counter(training.name for training in TRAININGS).values()) == 1
    assert max(Counter(training.folder_name for training in TRAININGS if training.is_public).values()) == 1


def test_all_subjects_are_covered() -> None:
    assert not SUBJECTS - {subject for training in TRAININGS for subject in training.subjects}


@pytest.mark.parametrize("script", SCRIPTS)
def test_own_script_exists_and_stands_alone(script: str) -> None:
    source = (FOLDER / script).read_text()
    assert ast.parse(source).body
    assert "ddpbench" not in source
    assert "trainings" not in source


@pytest.mark.parametrize("training", TRAININGS, ids=lambda training: training.name)
def test_row_is_complete(training: Training) -> None:
    assert training.is_public != bool(training.report)
    assert training.version if training.is_public else not training.version
    if training.is_public and not training.is_package:
        assert re.fullmatch(r"[0-9a-f]{40}", training.version)
    assert callable(getattr(data, training.prepare))
    assert training.truth.endswith(".")
    assert all(change.words or change.loader for change in training.changes)
    assert training.causes or training.kind != "data-bound" or "starts" in training.outside or "spawned" in training.outside


def test_runs_alternate(tmp_path: Path) -> None:
    training = next(training for training in TRAININGS if training.name == "keyword_spotting")
    titles = [title for title, _ in planned(training, 2)]
    assert titles == [AS_IS, "--workers 1", "--workers 2", REPEATED, AS_IS, "--workers 1", "--workers 2"]
    words = command(training, REPEATED, None, tmp_path, 12.0)
    assert words[words.index("--repeat-batches") + 1 :][0] == "8"
    assert words[-1] == "keyword_spotting.py"
