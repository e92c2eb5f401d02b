"""The scripts with known limits, and the page of their diagnoses; results/watch/scripts.py makes them."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import msgspec
import pytest
from scripts.limits import SCRIPTS
from scripts.page import page
from scripts.tries import Gain, Tried, Try, scripts_of
from situations.trial import Said, Score

from ddpbench.record.bottleneck import Bottleneck
from ddpbench.record.root_cause import Cause

RESULTS = Path(__file__).parents[2] / "results" / "watch"


def test_expected_kinds_and_causes_are_valid_and_titles_unique() -> None:
    assert len({script.title for script in SCRIPTS}) == len(SCRIPTS)
    assert {script.kind for script in SCRIPTS} <= {*get_args(Bottleneck)}
    assert {cause for script in SCRIPTS for cause in script.causes} <= {*get_args(Cause)}
    assert {script.title for script in (*scripts_of(has_gpu=True), *scripts_of(has_gpu=False))} == {
        script.title for script in SCRIPTS if script.is_diagnosed
    }


def test_stored_page_is_that_of_the_stored_tries() -> None:
    tried = msgspec.json.decode((RESULTS / "scripts.json").read_bytes(), type=dict[str, Tried])
    assert (RESULTS / "README.md").read_text() == page(list(tried.values()))
    assert {*tried} <= {script.title for script in SCRIPTS if script.is_diagnosed}


def tried(title: str, *scores: Score, gains: tuple[Gain, ...] = ()) -> Tried:
    said = [Said(command="ddpbench diagnose", score=score, kind="data-bound", cause="storage", repeatability=0.9) for score in scores]
    return Tried(title=title, right="storage", tries=[Try(said=each, gains=[*gains], elapsed_s=60.0, load_before=0.1) for each in said])


@pytest.mark.parametrize(
    ("scores", "named", "wrong"),
    [
        (("right", "right", "inconclusive"), 1, 0),
        (("right", "probably right", "inconclusive"), 0, 0),
        (("right", "right", "WRONG"), 1, 1),
        (("right",), 1, 0),
    ],
)
def test_script_is_named_if_two_of_three_tries_are_plainly_right(scores: tuple[Score, ...], named: int, wrong: int) -> None:
    shown = page([tried("plain", *scores)])
    assert f"- {named} of 1 scripts are named plainly and rightly in two thirds of their tries" in shown
    assert f"; {wrong} got a wrong plain verdict" in shown


def test_page_shows_predictions_beside_what_was_measured() -> None:
    inside = Gain(change="--workers 4", predicted=(3.0, 2.5, 3.5), measured=(3.2, 3.0, 3.4), is_inside=True)
    outside = Gain(change="--workers 4", predicted=(3.0, 2.5, 3.5), measured=(2.0, 1.9, 2.1), is_inside=False)
    shown = page([tried("plain", "right", gains=(inside, outside))])
    assert "2 predictions were tried: 1 measured gains lie inside the predicted interval, 1 outside; 0 intervals" in shown
    assert "3.00x (2.50 to 3.50), 3.20x (3.00 to 3.40): inside; 3.00x (2.50 to 3.50), 2.00x (1.90 to 2.10): **outside**" in shown
