"""Commands that train: the flags of each, and the request that it passes on."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpbench.cli import main
from ddpbench.cli.crossover import CrossoverFlags
from ddpbench.cli.options import flag_options
from ddpbench.cli.parse import typed_command
from ddpbench.cli.program import program
from ddpbench.cli.train import diagnose, reproduce, run, sweep
from ddpbench.published.protocols import reproduction_request
from ddpbench.record.config import Config
from ddpbench.record.request import CrossoverOptions, DiagnoseOptions, OutputOptions, Request

ROOT = Path(__file__).parents[3]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Arguments that a command passes to the function that runs it; nothing is run."""
    recorded: list[tuple[Any, ...]] = []

    def record_call(*arguments: Any) -> int:
        recorded.append(arguments)
        return 0

    functions = {
        "bench.run": "run_training",
        "bench.sweep": "run_sweep",
        "bench.diagnose.command": "run_diagnosis",
        "bench.diagnose.launch": "launch_diagnosis",
        "bench.scaling.command": "run_scaling",
        "bench.launch": "run_launches",
        "published.reproduce": "run_reproduction",
        "published.crossover": "run_crossover",
    }
    for module, name in functions.items():
        monkeypatch.setitem(sys.modules, f"ddpbench.{module}", SimpleNamespace(**{name: record_call}))
    return recorded


def spellings(name: str) -> set[str]:
    return {spelling for option in program.commands[name].params for spelling in option.opts if spelling.startswith("--")}


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("sweep", {"--launches", "--profile", "--roofline", "--fail-if-data-wait"}),
        ("diagnose", {"--launches", "--profile", "--roofline", "--epochs", "--fresh", "--validate"}),
    ],
)
def test_command_has_the_flags_of_run_but_some(name: str, missing: set[str]) -> None:
    assert spellings("run") - spellings(name) == {*missing, "--version"}
    assert spellings(name) - {"--verify", "--apply", "--part"} < spellings("run")


def test_reproduce_has_the_flags_that_the_protocol_leaves_open() -> None:
    open_flags = {"--seed", "--data-dir", "--download", "--device", "--time-limit", "--hang-timeout"}
    assert spellings("reproduce") == {
        *open_flags,
        *(option.field.option for option in flag_options(OutputOptions)),
        "--quick",
        "--help",
        "--help-all",
    }


def test_sweep_has_the_request_of_a_run(calls: list[tuple[Any, ...]]) -> None:
    words = "vgg16-cifar10 --precision O0,o2 -b 64,128 --steps 3 -o there"
    assert main(["run", *words.split()]) == main(["sweep", *words.split()]) == 0
    [[run_request], [sweep_request]] = calls
    assert isinstance(sweep_request, Request)
    assert (sweep_request.arms, sweep_request.swept, sweep_request.output) == (
        run_request.arms,
        ["precision", "batch_size"],
        OutputOptions(output_dir="there"),
    )
    assert [arm.precision for arm in sweep_request.arms] == ["fp32", "fp32", "o2", "o2"]
    assert sweep_request.command == typed_command(["sweep", *words.split()])


def test_parts_of_a_sweep_cover_every_combination_once_and_share_an_id(calls: list[tuple[Any, ...]]) -> None:
    words = ["sweep", "resnet18", "--precision", "fp32,amp-bf16", "-b", "8,16,32", "--steps", "3"]
    assert [main([*words, *part]) for part in ([], ["--part", "1/4"], ["--part", "2/4"], ["--part=3/4"], ["--part", "4/4"])] == [0] * 5
    [full], *parts = calls
    assert full.sweep_shard is None
    indices = [request.sweep_shard.indices for [request] in parts]
    assert indices == [[0, 4], [1, 5], [2], [3]]
    assert [request.arms for [request] in parts] == [[full.arms[index] for index in part] for part in indices]
    assert {request.total_arms for [request] in calls} == {6}
    assert {tuple(request.swept) for [request] in calls} == {("precision", "batch_size")}
    assert len({request.sweep_shard.sweep_id for [request] in parts}) == 1
    assert main([*words, "--rounds", "2", "--part", "1/4"]) == main([*words, "--time-limit", "60", "--part", "1/4"]) == 0
    [more_rounds], [limited] = calls[-2:]
    assert more_rounds.sweep_shard != limited.sweep_shard == parts[0][0].sweep_shard, "more rounds are another sweep, a time limit is not"


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("0/4", "--part cannot be '0/4'"),
        ("5/4", "--part cannot be '5/4'"),
        ("x/4", "--part cannot be 'x/4'"),
        ("1", "--part cannot be '1'"),
        ("", "--part cannot be ''"),
        ("2/5", "--part 2/5, but the sweep has only 4 combinations"),
    ],
)
def test_invalid_part_is_reported_in_one_line(part: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["sweep", "resnet18", "--lr", "0.1,0.2", "-b", "8,16", "--part", part])
    assert end.value.code == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error == f"ddpbench: error: {message}"
    assert hint.startswith("hint: ")


def test_diagnose_has_the_request_of_a_run_with_one_arm(calls: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    words = "resnet50 --data-dir there -j 4 --fail-if-data-wait 5% --time-limit 60 --gpus 4"
    assert main(["run", *words.split()]) == main(["diagnose", *words.split()]) == 0
    [[run_request], [diagnosed, options]] = calls
    assert options == DiagnoseOptions(verify=True, apply=False)
    assert (diagnosed.arms, diagnosed.swept, diagnosed.output) == (run_request.arms, [], OutputOptions(gpus=4))
    assert diagnosed.arms[0].fail_if_data_wait == 5.0
    assert diagnosed.command == typed_command(["diagnose", *words.split()])
    with pytest.raises(SystemExit) as end:
        main(["diagnose", "resnet50", "--loader", "torch,dali-cpu", "-j", "2,4"])
    assert end.value.code == 2
    error = "ddpbench: error: this command measures one arm, and --loader and --workers give 4\nhint: give one value per flag\n"
    assert capsys.readouterr().err == error


@pytest.mark.parametrize(
    ("flags", "message"),
    [("--apply", "--apply starts a second run"), ("--apply --gpus 2 --no-verify", "--apply and --no-verify contradict each other")],
)
def test_apply_requires_gpus_and_verify(flags: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["diagnose", "resnet18", "--device", "cpu", *flags.split()])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_reproduce_passes_on_only_the_given_flags(calls: list[tuple[Any, ...]]) -> None:
    name = "t4-tensor-cores"
    flagged = "vgg16-cifar10-batch-sweep --quick --data_dir 'a,b' --download --seed 7 --time-limit 60 --device cpu --json - -q"
    assert main(["reproduce", name]) == main(["reproduce", *shlex.split(flagged)]) == 0
    given = {"seed": 7, "data_dir": "a,b", "download": True, "device": "cpu", "time_limit": 60.0}
    assert calls == [
        (name, False, reproduction_request(name, False, {}, OutputOptions(), typed_command(["reproduce", name]))),
        (
            "vgg16-cifar10-batch-sweep",
            True,
            reproduction_request(
                "vgg16-cifar10-batch-sweep",
                True,
                given,
                OutputOptions(json="-", quiet=True),
                typed_command(["reproduce", *shlex.split(flagged)]),
            ),
        ),
    ]
    [_, (_, _, request)] = calls
    assert {(arm.seed, arm.data_dir, arm.download, arm.device, arm.time_limit) for arm in request.arms} == {tuple(given.values())}


def test_reproduce_with_gpus_launches_ranks(calls: list[tuple[Any, ...]]) -> None:
    words = ["t4-tensor-cores", "--gpus", "2", "--device", "cpu"]
    assert main(["reproduce", *words]) == 0
    assert calls == [
        (reproduction_request(words[0], False, {"device": "cpu"}, OutputOptions(gpus=2), typed_command(["reproduce", *words])),)
    ]


def test_crossover_passes_on_its_sides_and_models(calls: list[tuple[Any, ...]]) -> None:
    flagged = "disc-mlp --device cuda,cpu --threads 8 --layers 6-12 --rounds 2 --hang-timeout 30 -o there --force -v"
    threads = "disc-mlp --device cpu --threads 1,2"
    assert main(["crossover", "disc-mlp"]) == main(["crossover", *flagged.split()]) == main(["crossover", *threads.split()]) == 0
    assert calls == [
        (CrossoverOptions(family="disc-mlp", layers=range(2, 13)), {}, OutputOptions(), typed_command(["crossover", "disc-mlp"])),
        (
            CrossoverOptions(family="disc-mlp", layers=range(6, 13), devices=["cuda", "cpu"], threads=[8]),
            {"rounds": 2, "hang_timeout": 30.0},
            OutputOptions(output_dir="there", force=True, verbose=True),
            typed_command(["crossover", *flagged.split()]),
        ),
        (
            CrossoverOptions(family="disc-mlp", layers=range(2, 13), devices=["cpu"], threads=[1, 2]),
            {},
            OutputOptions(),
            typed_command(["crossover", *threads.split()]),
        ),
    ]


def test_default_rounds_in_help_of_crossover_are_the_actual_default() -> None:
    from ddpbench.published.crossover_sides import CROSSOVER_ROUNDS

    [shown] = (option.default for option in flag_options(CrossoverFlags) if option.field.name == "rounds")
    assert shown == str(CROSSOVER_ROUNDS)


@pytest.mark.parametrize("command", [run, diagnose, sweep, reproduce], ids=lambda command: command.name)
def test_every_flag_of_a_training_command_is_a_struct_field(command: Any) -> None:
    fields = {option.field.option for struct in (Config, OutputOptions, DiagnoseOptions) for option in flag_options(struct)}
    assert spellings(command.name) - fields <= {"--amp", "--quick", "--part", "--help", "--help-all", "--version"}


def ranks_flags(*words: str) -> str:
    """The flags that ``launch/local.sh`` adds to the arguments."""
    script = f'. "{ROOT / "launch" / "local.sh"}"; ranks_flags "$@"'
    return subprocess.run(["bash", "-c", script, "bash", *words], check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize("name", program.commands)
def test_local_sh_adds_gpus_if_the_command_has_the_flag(name: str) -> None:
    starts_ranks = "--gpus" in spellings(name) and name != "whatif"  # whose --gpus is a question
    assert ranks_flags(name, "x").startswith("--gpus ") == starts_ranks


@pytest.mark.parametrize("words", ["", "reproduce", "help run", "version", "--help"])
def test_local_sh_adds_no_gpus_to_commands_that_only_print(words: str) -> None:
    assert ranks_flags(*words.split()) == ""


def test_scale_has_the_flags_of_run_but_some_and_strong(calls: list[tuple[Any, ...]]) -> None:
    assert main(["scale", "resnet18", "-b", "8", "--strong"]) == main(["scale", "resnet18"]) == 0
    (request, strong), (_, weak) = calls
    assert (request.arms[0].batch_size, strong, weak) == (8, True, False)
    with pytest.raises(SystemExit, match="2"):
        main(["scale", "resnet18", "-b", "8,16"])
    missing = {"--launches", "--profile", "--roofline", "--epochs", "--fresh", "--validate", "--fail-if-data-wait", "--version"}
    assert spellings("run") - spellings("scale") == missing
    assert spellings("scale") - spellings("run") == {"--strong"}
