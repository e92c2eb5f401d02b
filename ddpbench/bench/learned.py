"""What a journal learns beside rounds, by the fields that it goes into: a misspelt one is found before anything runs.

A value of None is not known yet, and changes nothing.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from ddpbench.record.diagnosis import Alone, Candidate, Copies, Storage, Surroundings
from ddpbench.record.prediction import Prediction
from ddpbench.record.record import Attestation, Ceilings, Data, LaunchGap, Preparation
from ddpbench.record.scaling import Overlap

Finding = Literal["surroundings", "alone", "alone_single", "stages", "storage", "copies", "candidates"]
"""The fields of a Diagnosis that an experiment fills in."""


class OfArm(TypedDict, total=False):
    """Of a Record."""

    data: Data | None
    attestation: Attestation | None
    preparation: Preparation | None
    ceilings: Ceilings | None
    alone: list[Alone]
    launch_gap: LaunchGap


class OfDiagnosis(TypedDict, total=False):
    """Of a Diagnosis."""

    surroundings: list[Surroundings]
    alone: list[Alone]
    alone_single: Alone | None
    stages: dict[str, float] | None
    storage: Storage | None
    copies: Copies | None
    candidates: list[Candidate]
    predictions: list[Prediction]
    left_out: dict[str, str]


class OfScaling(TypedDict, total=False):
    """Of a Scaling."""

    bucket_bytes: list[int]
    bus: dict[int, float]
    waiting_cores: float | None
    overlap: Overlap | None
    left_out: dict[str, str]
