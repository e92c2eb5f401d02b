"""Shell completion, as the shells ask for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpbench.cli.program import program
from ddpbench.published.publications import published_names
from ddpbench.record.loaders import LOADERS
from ddpbench.record.registry import ENGINES, PRECISIONS
from ddpbench.workloads.registry import WORKLOADS

PROGRAM = [sys.executable, "-m", "ddpbench"]
SCRIPT = Path(sys.executable).with_name("ddpbench")
VARIABLE = "_DDPBENCH_COMPLETE"

PRINTED_MODULES = """
import sys
from ddpbench.cli import main
try:
    main()
finally:
    print({"torch", "numpy", "matplotlib"} & set(sys.modules))
"""


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], list[str]]:
    """``complete(line)`` returns the completions of the last word of ``line``, as bash asks for them, with their type."""
    from ddpbench.cli import main

    def go(line: str) -> list[str]:
        words = line.split(" ")
        monkeypatch.setenv(VARIABLE, "bash_complete")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        with pytest.raises(SystemExit) as end:
            main([])
        assert end.value.code == 0
        return [item for item in capsys.readouterr().out.splitlines() if item]

    return go


def plain(names: Any) -> list[str]:
    return [f"plain,{name}" for name in names]


def test_first_word_is_a_command_or_a_workload(complete: Callable[[str], list[str]]) -> None:
    assert complete("ddpbench ") == plain([*program.commands, *WORKLOADS])
    assert complete("ddpbench di") == plain(["diagnose", "disc-mlp-10"])
    assert complete("ddpbench vgg16-") == plain(["vgg16-cifar10"])


@pytest.mark.parametrize("command", ["run", "diagnose", "scale", "sweep"])
def test_workload_of_a_command_is_completed(command: str, complete: Callable[[str], list[str]]) -> None:
    assert complete(f"ddpbench {command} ") == plain(WORKLOADS)


@pytest.mark.parametrize("start", ["ddpbench resnet50", "ddpbench run resnet50", "ddpbench mine:workload", "ddpbench sweep resnet50"])
def test_names_after_a_flag_are_completed(start: str, complete: Callable[[str], list[str]]) -> None:
    assert complete(f"{start} --loader ") == plain(LOADERS)
    assert complete(f"{start} --precision ") == plain(PRECISIONS)
    assert complete(f"{start} --engine ") == plain(ENGINES)
    assert complete(f"{start} --optimizer a") == plain(["adam", "adamw"])


def test_last_item_of_a_comma_list_is_completed(complete: Callable[[str], list[str]]) -> None:
    assert complete("ddpbench resnet50 --precision fp32,amp") == plain(["fp32,amp-fp16", "fp32,amp-bf16"])


def test_flags_are_completed_for_a_workload_and_a_command(complete: Callable[[str], list[str]]) -> None:
    assert complete("ddpbench resnet50 --load") == complete("ddpbench whatif RECORD --load") == plain(["--loader"])
    assert complete("ddpbench resnet50 --no-pin") == plain(["--no-pin-memory"])


def test_arguments_of_other_commands_are_completed(complete: Callable[[str], list[str]]) -> None:
    assert complete("ddpbench reproduce ") == plain(published_names())
    assert complete("ddpbench crossover ") == plain(["disc-mlp"])
    assert complete("ddpbench make-data ") == plain(["imagenet", "cifar10", "mnist"])


def test_paths_are_left_to_the_shell(complete: Callable[[str], list[str]]) -> None:
    assert complete("ddpbench resnet50 --data-dir da") == ["dir,da"]
    assert complete("ddpbench resnet50 --json re") == complete("ddpbench report re") == ["file,re"]


def test_zsh_gets_the_same_completions(launch: Callable[..., Any]) -> None:
    done = launch(PROGRAM, env={VARIABLE: "zsh_complete", "COMP_WORDS": "ddpbench resnet50 --engine no", "COMP_CWORD": "3"})
    assert (done.returncode, done.stdout.split("\n")[:6]) == (0, ["plain", "no-sync", "_", "plain", "none", "_"])


@pytest.mark.parametrize(("shell", "line"), [("bash", "complete -o nosort -F _ddpbench_completion ddpbench"), ("zsh", "#compdef ddpbench")])
def test_source_for_the_shell_is_printed(shell: str, line: str, launch: Callable[..., Any]) -> None:
    done = launch(PROGRAM, env={VARIABLE: f"{shell}_source"})
    assert done.returncode == 0
    assert line in map(str.strip, done.stdout.splitlines())
    assert f"{VARIABLE}={shell}_complete" in done.stdout
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=done.stdout, text=True, check=True, timeout=60)


def test_bash_completes(launch: Callable[..., Any]) -> None:
    """bash itself, with the line of docs/reference.md."""
    session = f"""
        PATH={SCRIPT.parent}:$PATH
        eval "$({VARIABLE}=bash_source ddpbench)"
        COMP_WORDS=(ddpbench resnet50 --loader dali) COMP_CWORD=3
        _ddpbench_completion ddpbench
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = launch(["bash", "-c", session])
    assert (done.returncode, done.stdout.split()) == (0, ["dali-cpu", "dali-gpu"])


def test_completion_does_not_import_torch(launch: Callable[..., Any]) -> None:
    settings = {VARIABLE: "bash_complete", "COMP_WORDS": "ddpbench resnet50 --loader ", "COMP_CWORD": "3"}
    done = launch([sys.executable, "-c", PRINTED_MODULES], env=settings)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [*plain(LOADERS), "set()"]
