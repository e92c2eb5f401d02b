"""Text of numbers: lists of ranks and rounds; masked secrets."""

from __future__ import annotations

from pathlib import Path

import pytest
import records
import secrets_in_commands as secrets
from msgspec.structs import replace

from ddpbench.machine.fingerprint import speed_variables
from ddpbench.record.errors import UsageError
from ddpbench.record.io import encode_json, load
from ddpbench.record.text import MASK, mask_command, mask_text, numbered


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([2], "rank 2"),
        ([0, 1], "ranks 0, 1"),
        ([*range(8)], "ranks 0, 1, 2, 3, 4, 5, 6, 7"),
        ([*range(1500)], "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1,492 more"),
    ],
)
def test_numbers_are_listed_up_to_eight(numbers: list[int], text: str) -> None:
    assert numbered("rank", numbers) == text


def test_noun_has_its_plural_and_separator() -> None:
    assert numbered("missing rank", [1, 3], separator=": ") == "missing ranks: 1, 3"
    assert numbered("launch", [2, 3], plural="es") == "launches 2, 3"


@pytest.mark.parametrize(("typed", "masked"), secrets.COMMANDS)
def test_secrets_of_a_command_are_masked(typed: str, masked: str) -> None:
    assert mask_command(typed.split()) == masked.split()
    assert mask_command(masked.split()) == masked.split()


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("401 for https://me:pw@host/x?token=abc&size=2", "401 for https://***@host/x?token=***&size=2"),
        ("sbatch --export=ALL,HF_TOKEN=abc", "sbatch --export=ALL,HF_TOKEN=***"),
        ("password='a b' is wrong", "password=*** is wrong"),
        ("Authorization: Bearer abc", "Authorization: Bearer ***"),
        ("rank 1 (node-01) hung at step 5: no progress for 3 s", "rank 1 (node-01) hung at step 5: no progress for 3 s"),
        ("OMP_NUM_THREADS=2, lr=0.1", "OMP_NUM_THREADS=2, lr=0.1"),
    ],
)
def test_secrets_in_a_text_are_masked(text: str, masked: str) -> None:
    assert mask_text(text) == masked
    error = UsageError(text, text, [text])
    assert (error.message, error.hint, error.text) == (masked, masked, f"{masked}\n  {masked}")


def test_command_of_a_record_is_masked_when_it_is_made_and_when_it_is_loaded(tmp_path: Path) -> None:
    secret = "hf_1234567890"
    job = replace(records.job(records.record([records.BUSY])), command=["ddpbench", "resnet50", "--token", secret])
    assert job.command == ["ddpbench", "resnet50", "--token", "***"]
    path = tmp_path / "earlier.json"
    path.write_bytes(encode_json(job).replace(b'"***"', f'"{secret}"'.encode()))
    assert load(path).command == job.command


def test_secrets_in_environment_variables_are_masked() -> None:
    assert speed_variables({"NCCL_CONF_FILE": "https://me:pw@host/nccl.conf", "HF_TOKEN": "abc"}) == {
        "NCCL_CONF_FILE": "https://***@host/nccl.conf"
    }


@pytest.mark.timeout(20)  # a minute and more, if each start of a name is followed to the end of the word
@pytest.mark.parametrize("part", ["a", "a.", "a-", "a=", 'a="', "a://", "-", "a+b.", "bearer "])
def test_long_word_is_masked_in_linear_time(part: str) -> None:
    assert mask_text(part * (100_000 // len(part)))


def test_secret_in_an_open_quote_is_masked_to_the_end() -> None:
    assert mask_text('--api-key="abc def --lr=1') == f"--api-key={MASK}"
