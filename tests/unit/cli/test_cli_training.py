"""Commands that train: their flags, and the requests they pass on."""

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
from ddpbench.published.protocols import reproduction_request as asked_for
from ddpbench.record.config import Config
from ddpbench.record.request import CrossoverOptions, DiagnoseOptions, OutputOptions, Request

ROOT = Path(__file__).parents[3]


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Arguments that a command passes to its benchmark function, which is replaced."""
    calls: list[tuple[Any, ...]] = []

    def take(*arguments: Any) -> int:
        calls.append(arguments)
        return 0

    places = {
        "bench.run": "run_training",
        "bench.sweep": "run_sweep",
        "bench.diagnose.command": "run_diagnosis",
        "bench.diagnose.launch": "launch_diagnosis",
        "bench.scaling.command": "run_scaling",
        "bench.launch": "run_launches",
        "published.reproduce": "run_reproduction",
        "published.crossover": "run_crossover",
    }
    for place, name in places.items():
        monkeypatch.setitem(sys.modules, f"ddpbench.{place}", SimpleNamespace(**{name: take}))
    return calls


def spellings(name: str) -> set[str]:
    return {spelling for option in program.commands[name].params for spelling in option.opts if spelling.startswith("--")}


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("sweep", {"--launches", "--profile", "--fail-if-data-wait"}),
        ("diagnose", {"--launches", "--profile", "--epochs", "--fresh", "--validate"}),
    ],
)
def test_training_commands_take_the_flags_of_run_except_some(name: str, lacks: set[str]) -> None:
    assert spellings("run") - spellings(name) == {*lacks, "--version"}
    assert spellings(name) - {"--verify", "--apply", "--part"} < spellings("run")


def test_reproduce_takes_only_flags_left_open_by_its_protocol() -> None:
    held = {"--seed", "--data-dir", "--download", "--device", "--time-limit", "--hang-timeout"}
    assert spellings("reproduce") == {*held, *(option.field.option for option in flag_options(OutputOptions)), "--quick", "--help"}


def test_sweep_request_equals_run_request(handed: list[tuple[Any, ...]]) -> None:
    words = "vgg16-cifar10 --precision O0,o2 -b 64,128 --steps 3 -o there"
    assert main(["run", *words.split()]) == main(["sweep", *words.split()]) == 0
    [[ran], [swept]] = handed
    assert isinstance(swept, Request)
    assert (swept.arms, swept.swept, swept.output) == (ran.arms, ["precision", "batch_size"], OutputOptions(output_dir="there"))
    assert [arm.precision for arm in swept.arms] == ["fp32", "fp32", "o2", "o2"]
    assert swept.command == typed_command(["sweep", *words.split()])


def test_sweep_shards_cover_every_point_once_and_share_an_id(handed: list[tuple[Any, ...]]) -> None:
    words = ["sweep", "resnet18", "--precision", "fp32,amp-bf16", "-b", "8,16,32", "--steps", "3"]
    assert [main([*words, *part]) for part in ([], ["--part", "1/4"], ["--part", "2/4"], ["--part=3/4"], ["--part", "4/4"])] == [0] * 5
    [whole], *parts = handed
    assert whole.sweep_shard is None
    places = [request.sweep_shard.indices for [request] in parts]
    assert places == [[0, 4], [1, 5], [2], [3]]
    assert [request.arms for [request] in parts] == [[whole.arms[place] for place in each] for each in places]
    assert {request.total_arms for [request] in handed} == {6}
    assert {tuple(request.swept) for [request] in handed} == {("precision", "batch_size")}
    assert len({request.sweep_shard.sweep_id for [request] in parts}) == 1
    assert main([*words, "--rounds", "2", "--part", "1/4"]) == main([*words, "--time-limit", "60", "--part", "1/4"]) == 0
    [more], [limited] = handed[-2:]
    assert more.sweep_shard != limited.sweep_shard == parts[0][0].sweep_shard, "rounds define the sweep, a time limit does not"


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ("0/4", "--part cannot be '0/4'"),
        ("5/4", "--part cannot be '5/4'"),
        ("x/4", "--part cannot be 'x/4'"),
        ("1", "--part cannot be '1'"),
        ("", "--part cannot be ''"),
        ("2/5", "--part 2/5, and the sweep has 4 combinations"),
    ],
)
def test_invalid_shard_is_rejected_in_one_line(part: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["sweep", "resnet18", "--lr", "0.1,0.2", "-b", "8,16", "--part", part])
    assert end.value.code == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error == f"ddpbench: error: {told}"
    assert hint.startswith("hint: ")


def test_diagnose_request_equals_run_request(handed: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    words = "resnet50 --data-dir there -j 4 --fail-if-data-wait 5% --time-limit 60 --gpus 4"
    assert main(["run", *words.split()]) == main(["diagnose", *words.split()]) == 0
    [[ran], [diagnosed, proving]] = handed
    assert proving == DiagnoseOptions(verify=True, apply=False)
    assert (diagnosed.arms, diagnosed.swept, diagnosed.output) == (ran.arms, [], OutputOptions(gpus=4))
    assert diagnosed.arms[0].fail_if_data_wait == 5.0
    assert diagnosed.command == typed_command(["diagnose", *words.split()])
    with pytest.raises(SystemExit) as end:
        main(["diagnose", "resnet50", "--loader", "torch,dali-cpu", "-j", "2,4"])
    assert end.value.code == 2
    told = "ddpbench: error: one training is looked at, and --loader and --workers ask for 4\nhint: one value for each flag\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    ("flags", "says"),
    [("--apply", "--apply starts a second run"), ("--apply --gpus 2 --no-verify", "--apply and --no-verify contradict each other")],
)
def test_apply_requires_launching_ranks_and_verification(flags: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["diagnose", "resnet18", "--device", "cpu", *flags.split()])
    assert end.value.code == 2
    assert says in capsys.readouterr().err


def test_reproduce_passes_on_only_given_flags(handed: list[tuple[Any, ...]]) -> None:
    alone = "t4-tensor-cores"
    flagged = "vgg16-cifar10-batch-sweep --quick --data_dir 'a,b' --download --seed 7 --time-limit 60 --device cpu --json - -q"
    assert main(["reproduce", alone]) == main(["reproduce", *shlex.split(flagged)]) == 0
    given = {"seed": 7, "data_dir": "a,b", "download": True, "device": "cpu", "time_limit": 60.0}
    assert handed == [
        (alone, False, asked_for(alone, False, {}, OutputOptions(), typed_command(["reproduce", alone]))),
        (
            "vgg16-cifar10-batch-sweep",
            True,
            asked_for(
                "vgg16-cifar10-batch-sweep",
                True,
                given,
                OutputOptions(json="-", quiet=True),
                typed_command(["reproduce", *shlex.split(flagged)]),
            ),
        ),
    ]
    [_, (_, _, request)] = handed
    assert {(arm.seed, arm.data_dir, arm.download, arm.device, arm.time_limit) for arm in request.arms} == {tuple(given.values())}


def test_reproduce_with_gpus_launches_ranks(handed: list[tuple[Any, ...]]) -> None:
    words = ["t4-tensor-cores", "--gpus", "2", "--device", "cpu"]
    assert main(["reproduce", *words]) == 0
    assert handed == [(asked_for(words[0], False, {"device": "cpu"}, OutputOptions(gpus=2), typed_command(["reproduce", *words])),)]


def test_crossover_passes_on_sides_and_models(handed: list[tuple[Any, ...]]) -> None:
    flagged = "disc-mlp --device cuda,cpu --threads 8 --layers 6-12 --rounds 2 --hang-timeout 30 -o there --force -v"
    threads = "disc-mlp --device cpu --threads 1,2"
    assert main(["crossover", "disc-mlp"]) == main(["crossover", *flagged.split()]) == main(["crossover", *threads.split()]) == 0
    assert handed == [
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


def test_help_of_crossover_states_its_default_rounds() -> None:
    from ddpbench.published.crossover_sides import CROSSOVER_ROUNDS

    [told] = (option.default for option in flag_options(CrossoverFlags) if option.field.name == "rounds")
    assert told == str(CROSSOVER_ROUNDS)


@pytest.mark.parametrize("command", [run, diagnose, sweep, reproduce], ids=lambda command: command.name)
def test_every_flag_of_training_commands_is_a_field(command: Any) -> None:
    fields = {option.field.option for struct in (Config, OutputOptions, DiagnoseOptions) for option in flag_options(struct)}
    assert spellings(command.name) - fields <= {"--amp", "--quick", "--part", "--help", "--version"}


def ranks_flags(*words: str) -> str:
    """Flags that ``launch/local.sh`` adds."""
    script = f'. "{ROOT / "launch" / "local.sh"}"; ranks_flags "$@"'
    return subprocess.run(["bash", "-c", script, "bash", *words], check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize("name", program.commands)
def test_launch_script_adds_gpus_flag_if_the_command_takes_it(name: str) -> None:
    assert ranks_flags(name, "x").startswith("--gpus ") == ("--gpus" in spellings(name))


@pytest.mark.parametrize("words", ["", "reproduce", "help run", "version", "--help"])
def test_launch_script_adds_no_flag_for_printing_commands(words: str) -> None:
    assert ranks_flags(*words.split()) == ""


def test_scale_request_equals_run_request_with_optional_strong(handed: list[tuple[Any, ...]]) -> None:
    assert main(["scale", "resnet18", "-b", "8", "--strong"]) == main(["scale", "resnet18"]) == 0
    (request, strong), (_, weak) = handed
    assert (request.arms[0].batch_size, strong, weak) == (8, True, False)
    with pytest.raises(SystemExit, match="2"):
        main(["scale", "resnet18", "-b", "8,16"])
    lacks = {"--launches", "--profile", "--epochs", "--fresh", "--validate", "--fail-if-data-wait", "--version"}
    assert spellings("run") - spellings("scale") == lacks
    assert spellings("scale") - spellings("run") == {"--strong"}
