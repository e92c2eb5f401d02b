"""Parsing of the command line into arms, usage errors, and help."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpbench import __version__
from ddpbench.cli import main
from ddpbench.cli.options import flag_options
from ddpbench.cli.parse import parse_request
from ddpbench.cli.program import program
from ddpbench.cli.train import AMP_FLAG, run
from ddpbench.record.config import Config
from ddpbench.record.request import OutputOptions, Request

README = Path(__file__).parents[3] / "README.md"
PROGRAM = [sys.executable, "-m", "ddpbench"]
ON_CPU, ON_ANY_GPU = ["--device", "cpu"], ["--share-gpu"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def parsed(words: str) -> Request:
    """The Request of ``ddpbench run`` with these arguments."""
    context = run.make_context("run", shlex.split(words), parent=program.make_context("ddpbench", ["run"]))
    return parse_request(given=context.params, argv=shlex.split(words), workload=context.params.pop("workload"))


# arguments to arms


def test_defaults_are_those_of_the_config_types() -> None:
    request = parsed("resnet18")
    assert (request.arms, request.output, request.swept) == ([Config(workload="resnet18")], OutputOptions(), [])


def test_comma_lists_define_arms_in_order_and_several_lists_their_product() -> None:
    arms = parsed("resnet18 -b 128,64 --precision fp32,tf32")
    assert [(arm.precision, arm.batch_size) for arm in arms.arms] == [("fp32", 128), ("fp32", 64), ("tf32", 128), ("tf32", 64)]
    assert arms.swept == ["precision", "batch_size"]


def test_both_forms_of_a_switch_define_two_arms() -> None:
    arms = parsed("resnet18 --no-channels-last --channels-last")
    assert [arm.channels_last for arm in arms.arms] == [False, True]
    assert arms.swept == ["channels_last"]


@pytest.mark.parametrize(
    "config",
    [
        Config(workload="resnet50", precision="amp-bf16", batch_size=64, lr=1e-4, channels_last=False, optimizer_impl="foreach"),
        Config(workload="vgg16-cifar10", loader="torch", data_dir="some where/cifar", workers=0, prefetch=4, compile="max-autotune"),
        Config(workload="vit_b_16", broadcast_buffers=False, bucket_cap_mb=12.5, static_graph=True, comm_hook="bf16", share_gpu=True),
        Config(workload="resnet18", warmup=3, steps=7, rounds=2, launches=3, time_limit=9.5, hang_timeout=20.0, profile=True, strict=True),
    ],
    ids=lambda config: config.workload,
)
def test_config_survives_a_round_trip_through_its_arguments(config: Config) -> None:
    assert parsed(shlex.join(config.to_argv())).arms == [config]


def test_data_dir_applies_to_the_loader_that_reads_files() -> None:
    arms = parsed("resnet18 --data-dir null --loader synthetic,torch").arms
    assert [(arm.loader, arm.data_dir) for arm in arms] == [("synthetic", "null"), ("torch", "null")]


def test_underscores_in_flags_work_like_hyphens() -> None:
    assert parsed("resnet18 --batch_size 4 --no_broadcast_buffers --data_dir=a_b").arms == [
        Config(workload="resnet18", batch_size=4, broadcast_buffers=False, data_dir="a_b")
    ]


def test_output_flags_do_not_define_arms() -> None:
    output = parsed("resnet18 -o a,b --json - --gpus 2 -q").output
    assert output == OutputOptions(output_dir="a,b", json="-", gpus=2, quiet=True)


@pytest.mark.parametrize(("device", "precision"), [("cpu", "amp-bf16"), ("cuda", "amp-fp16")])
def test_amp_precision_depends_on_the_device(device: str, precision: str) -> None:
    assert parsed(f"resnet18 --amp --device {device}").arms[0].precision == precision
    assert parsed(f"resnet18 --amp --precision {precision} --device {device}").arms[0].precision == precision


def test_amp_precision_of_an_automatic_device_depends_on_cuda() -> None:
    import torch

    assert parsed("resnet18 --amp").arms[0].precision == ("amp-fp16" if torch.cuda.is_available() else "amp-bf16")


@pytest.mark.slow
def test_typed_command_is_that_of_the_launcher(launch: Callable[..., Any]) -> None:
    script = "from ddpbench.cli.parse import typed_command; print(typed_command(['resnet18']))"
    rest = ["--standalone", "--nproc_per_node=1", "--no-python", sys.executable, "-c", script]
    assert launch([*TORCHRUN[:3], *rest]).stdout == f"{['torchrun', *rest]}\n"
    assert launch([sys.executable, "-c", script]).stdout == "['ddpbench', 'resnet18']\n"


# usage errors


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ("resnet5O", "unknown command or workload 'resnet5O'", "did you mean 'resnet50'"),
        ("repot", "unknown command or workload 'repot'", "did you mean 'report'"),
        ("RESNET18", "unknown command or workload 'RESNET18'", "did you mean 'resnet18'?"),
        ("hlep", "unknown command or workload 'hlep'", "did you mean 'help'?"),
        ("help rnu", "unknown command or workload 'rnu'", "did you mean 'run'?"),
        ("zzz", "unknown command or workload 'zzz'", "'ddpbench list' shows the workloads"),
        ("run resnet81", "unknown workload 'resnet81'", "did you mean 'resnet18'"),
        ("run RESNET50", "unknown workload 'RESNET50'", "did you mean 'resnet50'?"),
        ("run zzz", "unknown workload 'zzz'", "'ddpbench list' shows all workloads"),
        ("resnet18,resnet50", "unknown command or workload 'resnet18,resnet50'", "use only one: 'resnet18' or 'resnet50'"),
        ("run resnet18,vgg16", "unknown workload 'resnet18,vgg16'", "use only one: 'resnet18' or 'vgg16'"),
        ("resnet18 --gpu 2", "unknown flag '--gpu'", "did you mean '--gpus'?"),
        (
            "train.py",
            "'train.py' is a script, not a command",
            "'ddpbench diagnose train.py' finds what makes it faster, 'ddpbench watch train.py'",
        ),
        ("compare", "unknown command or workload 'compare'", "'ddpbench report A.json B.json' shows two records"),
        ("bert", "unknown command or workload 'bert'", "any other training: 'ddpbench diagnose train.py'"),
        ("resnet18 --nproc_per_node 2", "unknown flag '--nproc-per-node'", "use --gpus N, or torchrun --nproc_per_node=N -m ddpbench"),
        ("resnet18 --nnodes 2", "unknown flag '--nnodes'", "launch/slurm_multi_node.sbatch"),
        ("resnet18 --dtype bf16", "unknown flag '--dtype'", "use --precision NAME, or --amp"),
        ("resnet18 --mixed_precision bf16", "unknown flag '--mixed-precision'", "use --precision NAME, or --amp"),
        ("run", "missing argument 'WORKLOAD'", "'ddpbench run --help'"),
        ("--amp", "missing argument 'WORKLOAD'", "'ddpbench run --help'"),
        ("resnet18 resnet50", "unexpected extra argument", "'ddpbench run --help'"),
        ("nowhere.at:all", "cannot load 'nowhere.at:all'", "package.module:name"),
        ("resnet18 --btach-size 4", "unknown flag '--btach-size'", "did you mean '--batch-size'"),
        ("resnet18 --bath-size 4", "unknown flag '--bath-size'", "did you mean '--batch-size'?"),
        ("--apm resnet18", "unknown flag '--apm'", "did you mean '--amp'?"),
        ("--versoin", "unknown flag '--versoin'", "did you mean '--version'?"),
        ("report --Formt json", "unknown flag '--Formt'", "did you mean '--format'?"),
        ("resnet18 -b", "flag '-b' requires a value", "'ddpbench run --help'"),
        ("run resnet18 --amp=yes", "flag '--amp' does not take a value", "'ddpbench run --help'"),
        ("report --format", "flag '--format' requires a value", "'ddpbench report --help'"),
        ("resnet18 --qqqqq", "unknown flag '--qqqqq'", "'ddpbench run --help-all' shows all flags"),
        ("resnet18 --precision ampfp16", "unknown precision 'ampfp16'", "did you mean 'amp-fp16'"),
        ("resnet18 --precision FP32,tf32", "unknown precision 'FP32'", "did you mean 'fp32'?"),
        ("resnet18 --precision tf32,fp3", "unknown precision 'fp3'", "did you mean 'fp32'?"),
        ("resnet18 --precision O2,fp32,o2", "--precision has 'O2' and 'o2', which are the same", "a different value"),
        ("resnet18 --precision float16", "unknown precision 'float16'", "did you mean 'fp16'?"),
        ("resnet18 --precision fp32,int4", "unknown precision 'int4'", "'ddpbench list' shows all precisions"),
        ("resnet18 --device gpu", "--device cannot be 'gpu'", "did you mean 'cuda'?"),
        ("resnet18 --loader dali", "unknown loader 'dali'", "did you mean 'dali-gpu'?"),
        ("resnet18 --engine dpp", "unknown engine 'dpp'", "did you mean 'ddp'"),
        ("resnet18 -b 0", "--batch-size cannot be '0'", "an integer of at least 1"),
        ("resnet18 -b 1e3", "--batch-size cannot be '1e3'", "an integer of at least 1, in digits"),
        ("resnet18 --gpus 2.0", "--gpus cannot be '2.0'", "an integer of at least 1, in digits"),
        ("resnet18 -b 64,", "the list '64,' of --batch-size has an empty item", "both sides of every comma"),
        ("resnet18 -b 64,8,64", "the list '64,8,64' of --batch-size has a duplicate value", "a different value"),
        ("resnet18 --lr 0.1,1e-1", "the list '0.1,1e-1' of --lr has a duplicate value", "a different value"),
        ("resnet18 --data-dir ''", "--data-dir cannot be empty", "omit the flag (generated images, if"),
        ("resnet18 -j 2 --data-dir here --loader synthetic", "synthetic reads no files", "one of them"),
        ("resnet18 --seed 4294967296", "--seed cannot be '4294967296'", "of at least 0 and below 4294967296, in digits"),
        ("resnet18 -b 64,x", "--batch-size cannot be 'x'", "an integer"),
        ("resnet18 -b null", "--batch-size cannot be 'null'", "an integer"),
        ("resnet18 --image-size 4096", "--image-size cannot be '4096'", "of at least 8 and of at most 2048"),
        ("resnet18 --lr nan", "--lr cannot be 'nan'", "a number above 0"),
        ("resnet18 --lr inf", "--lr cannot be 'inf'", "a number above 0"),
        ("resnet18 --momentum 1", "--momentum cannot be '1'", "of at least 0 and below 1"),
        ("resnet18 --compile max-autotun", "--compile cannot be 'max-autotun'", "did you mean 'max-autotune'"),
        ("resnet18 --comm-hook x", "--comm-hook cannot be 'x'", "none, fp16 or bf16"),
        ("resnet18 --rounds 3,5", "--rounds takes one value, not the list '3,5'", "all arms"),
        ("resnet18 --share-gpu --no-share-gpu", "--share-gpu and --no-share-gpu contradict", "one of them"),
        ("resnet18 --quiet --no-quiet", "--quiet and --no-quiet contradict", "one of them"),
        ("resnet18 -q -v", "--quiet and --verbose contradict", "one of them"),
        ("resnet18 --device cpu --amp --precision fp32", "--amp means amp-bf16 here, but --precision is fp32", "one of them"),
        ("resnet18 --device cpu --amp --precision amp-bf16,fp32", "--precision is amp-bf16,fp32", "one of them"),
        ("resnet18 --epochs 1 --steps 4", "--epochs and --steps contradict each other", "one of them"),
        ("wrn28x21-cifar10", "no workload 'wrn28x21-cifar10': width 21 is out of range", "width 1 to 20"),
        ("seep vgg16-cifar10", "unknown command or workload 'seep'", "did you mean 'sweep'?"),
        ("reproduse", "unknown command or workload 'reproduse'", "did you mean 'reproduce'?"),
        ("crosover disc-mlp", "unknown command or workload 'crosover'", "did you mean 'crossover'?"),
        ("plott", "unknown command or workload 'plott'", "did you mean 'plot'?"),
        ("diagnos", "unknown command or workload 'diagnos'", "did you mean 'diagnose'?"),
        ("diagnose", "missing argument 'WORKLOAD'", "'ddpbench diagnose --help'"),
        ("diagnose vgg16-cifar", "unknown workload 'vgg16-cifar'", "did you mean 'vgg16-cifar10'?"),
        ("diagnose resnet18 --epochs 1", "'ddpbench diagnose' has no flag --epochs", "'ddpbench diagnose --help-all' shows all flags"),
        ("diagnose resnet18 -b 2,4", "this command measures one arm, and --batch-size gives 2", "one value per flag"),
        ("diagnose gemm-mlp", "gemm-mlp trains on generated numbers, which need no loader", "use 'ddpbench run gemm-mlp'"),
        ("sweep", "missing argument 'WORKLOAD'", "'ddpbench sweep --help'"),
        ("sweep resnet18 --fail-if-data-wait 5%", "'ddpbench sweep' has no flag --fail-if-data-wait", "'ddpbench sweep --help-all'"),
        ("sweep vgg16-cifar", "unknown workload 'vgg16-cifar'", "did you mean 'vgg16-cifar10'?"),
        ("sweep disc-mlp-13", "no workload 'disc-mlp-13': layers 13 is out of range", "layers 2 to 12"),
        ("sweep resnet18 --launches 3", "'ddpbench sweep' has no flag --launches", "'ddpbench sweep --help-all' shows all flags"),
        ("sweep resnet18 --profile", "'ddpbench sweep' has no flag --profile", "'ddpbench sweep --help-all' shows all flags"),
        ("sweep resnet18 --epoch 1", "unknown flag '--epoch'", "did you mean '--epochs'?"),
        ("sweep resnet18 --epochs 1 --steps 4", "--epochs and --steps contradict each other", "one of them"),
        ("reproduce vgg16-cifar10", "unknown published experiment 'vgg16-cifar10'", "did you mean 'vgg16-cifar10-batch-sweep'?"),
        ("reproduce zzz", "unknown published experiment 'zzz'", "'ddpbench list' shows all published experiments"),
        ("reproduce t4-tensor-cores --precision fp32", "'ddpbench reproduce' has no flag --precision", "'ddpbench reproduce --help-all'"),
        ("reproduce t4-tensor-cores --quik", "unknown flag '--quik'", "did you mean '--quick'?"),
        ("reproduce t4-tensor-cores --device cpu,cuda", "--device cannot be 'cpu,cuda'", ""),
        ("reproduce t4-tensor-cores -q -v", "--quiet and --verbose contradict", "one of them"),
        ("reproduce --quick", "--quick requires the NAME of an experiment", "'ddpbench reproduce' lists the experiments"),
        ("crossover", "missing argument 'FAMILY'", "'ddpbench crossover --help'"),
        ("crossover disc-mlp-10", "unknown family 'disc-mlp-10'", "did you mean 'disc-mlp'?"),
        ("crossover resnet18", "unknown family 'resnet18'", "choose 'disc-mlp'"),
        ("crossover disc-mlp --layers 2-13", "--layers cannot be '2-13'", "from 2 to 12 layers"),
        ("crossover disc-mlp --layers 1-3", "--layers cannot be '1-3'", "from 2 to 12 layers"),
        ("crossover disc-mlp --layers 4-4", "--layers cannot be '4-4'", "A below B"),
        ("crossover disc-mlp --layers 7", "--layers cannot be '7'", "from 2 to 12 layers"),
        ("crossover disc-mlp --layers 2-4,6-8", "--layers takes one value", ""),
        ("crossover disc-mlp --layers ''", "--layers cannot be empty", "omit the flag (all models)"),
        ("crossover disc-mlp --device cpu,gpu", "--device cannot be 'gpu'", "did you mean 'cuda'?"),
        ("crossover disc-mlp --device auto", "--device cannot be 'auto'", "cpu or cuda"),
        ("crossover disc-mlp --threads 1,1", "the list '1,1' of --threads has a duplicate value", ""),
        ("crossover disc-mlp --threads 0", "--threads cannot be '0'", "an integer of at least 1"),
        ("crossover disc-mlp --rounds 2,3", "--rounds cannot be '2,3'", "an integer of at least 1"),
        ("crossover disc-mlp --gpus 2", "'ddpbench crossover' has no flag --gpus", "'ddpbench crossover --help-all'"),
        ("plot", "missing argument 'FILE|FOLDER...'", "'ddpbench plot --help'"),
        ("plot nowhere", "cannot read 'nowhere'", "a FILE that ddpbench wrote"),
        (f"plot {shlex.quote(str(README))}", "README.md' is not a ddpbench record", "that ddpbench wrote"),
        ("report --format xml", "--format cannot be 'xml'", "use terminal, summary, json, csv or markdown"),
        ("report nowhere.json", "cannot read 'nowhere.json'", "runs are stored in results/runs"),
        (
            f"report {shlex.quote(str(README))}",
            "README.md' is not a ddpbench record: truncated or invalid JSON, near line 1",
            "that ddpbench wrote",
        ),
        ("report -o nowhere", "no record in 'nowhere'", "give a FILE"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line_with_a_hint(
    words: str, error: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(shlex.split(words))
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    first, *rest = err.splitlines()
    assert first.startswith("ddpbench: error: ")
    assert error in first
    assert len(rest) == 1
    assert rest[0].startswith("hint: ")
    assert hint in rest[0]


def test_invalid_arguments_are_reported_before_torch_is_imported(launch: Callable[..., Any]) -> None:
    script = "import sys; from ddpbench.cli import main\ntry: main()\nfinally: print('torch' in sys.modules)"
    done = launch([sys.executable, "-c", script, "resnet18", "--precision", "fp33"])
    assert (done.returncode, done.stdout) == (2, "False\n")


def test_ranks_are_launched_without_importing_torch(launch: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    commands_and_flags = [
        ("run resnet18 --amp", ON_CPU),
        ("diagnose resnet18 --amp", ON_CPU),
        ("scale resnet18 --amp", ON_CPU),
        ("sweep resnet18 --amp", ON_CPU),
        ("reproduce t4-tensor-cores", ON_CPU),
        ("run resnet18 --amp", ON_ANY_GPU),
    ]
    last = ["--gpus", "2", "-o", str(tmp_path / "file")]  # checked last by the launching process
    commands = [[*words.split(), *where, *last] for words, where in commands_and_flags]
    script = (
        "import sys; from ddpbench.cli import main\n"
        f"for words in {commands!r}:\n"
        "    try: main(words)\n"
        "    except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    done = launch([sys.executable, "-c", script])
    assert done.stdout.splitlines() == ["2 False"] * len(commands_and_flags)
    assert done.stderr.count("cannot write results") == len(commands_and_flags)


@pytest.mark.slow
def test_first_step_waits_for_nothing_that_it_does_not_need(launch: Callable[..., Any], tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from torch.optim.optimizer import register_optimizer_step_post_hook\n"
        "from ddpbench.cli import main\n"
        "from ddpbench.workloads.model_cost import workload_cost\n"
        "def report(*_):\n"
        "    print(workload_cost.cache_info().currsize, *sys.modules, flush=True)\n"
        "    os._exit(0)\n"
        "register_optimizer_step_post_hook(report)\n"
        f"main(['mnist-cnn', '--loader', 'synthetic', '--device', 'cpu', '-b', '8', '-o', {str(tmp_path)!r}])\n"
    )
    counted_models, *imported = launch([sys.executable, "-c", script], timeout=60).stdout.split()
    assert counted_models == "0"
    assert "ddpbench.training.session" in imported
    late = (
        "ddpbench.report.pages",
        "ddpbench.analysis.judge",
        "ddpbench.data.loaders.workers",
        "ddpbench.kernels",
        "matplotlib",
    )
    assert [name for name in imported if name.startswith(late)] == []


@pytest.mark.slow
def test_usage_error_is_printed_once_per_launch_and_by_torchrun(launch: Callable[..., Any]) -> None:
    done = launch([*TORCHRUN, "--nproc_per_node=2", "-m", "ddpbench", "resnet18", "--precision", "fp33"])
    assert done.returncode == 1
    assert re.findall("^ddpbench: error: .*$", done.stderr, re.MULTILINE) == ["ddpbench: error: unknown precision 'fp33'"]
    assert len(re.findall("^hint: ", done.stderr, re.MULTILINE)) == 1
    assert done.stderr.count("unknown precision 'fp33'") == 2, "once by ddpbench, once by torchrun"


@pytest.mark.slow
def test_only_rank_0_prints_a_usage_error_of_all_ranks(launch: Callable[..., Any]) -> None:
    ranks = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    done = launch([*PROGRAM, "resnet18", "--precision", "fp33"], env=ranks)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


# help


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in program.commands)], ids=" ".join)
def test_help_fits_80_columns_of_ascii(words: list[str], launch: Callable[..., Any]) -> None:
    done = launch([*PROGRAM, *words], env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "Usage: ddpbench" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_help_of_run_shows_every_flag_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help-all"]) == 0
    printed = " ".join(re.sub(r"^ {5,}", "", line) for line in capsys.readouterr().out.splitlines())
    printed = re.sub(r"\s+", " ", printed)
    for option in (*flag_options(Config), *flag_options(OutputOptions)):
        field = option.field
        assert (f"--[no-]{field.option[2:]} " if field.is_bool else f"{field.option} <") in printed
        assert f"{option.help} ({option.default})" in printed
        assert field.flag.short in printed
    assert f"--amp {AMP_FLAG.help}" in printed


def test_no_arguments_print_help(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    bare = capsys.readouterr().out
    main(["--help"])
    assert bare == capsys.readouterr().out
    assert all(f"\n  {command} " in bare for command in program.commands)


@pytest.mark.parametrize(("words", "flags"), [("help", "--help"), ("help report", "report --help"), ("help resnet18", "run --help")])
def test_help_is_also_a_command(words: str, flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 0
    printed = capsys.readouterr().out
    assert main(flags.split()) == 0
    assert printed == capsys.readouterr().out


@pytest.mark.parametrize("words", ["--version", "version", "resnet18 --version"])
def test_version_is_printed(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 0
    assert capsys.readouterr().out == f"ddpbench {__version__}\n"


def test_console_script_and_module_are_the_same_program(launch: Callable[..., Any]) -> None:
    script = launch([str(Path(sys.executable).with_name("ddpbench")), "list"])
    module = launch([*PROGRAM, "list"])
    assert (script.returncode, script.stdout) == (module.returncode, module.stdout) == (0, module.stdout)


@pytest.mark.parametrize("program", [[str(Path(sys.executable).with_name("ddpbench"))], PROGRAM], ids=["script", "module"])
def test_user_defined_names_are_imported_from_the_working_directory(program: list[str], launch: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from ddpbench.workloads.registry import WORKLOADS\nsmall = WORKLOADS['resnet18']\nloader = 3\n")
    done = launch([*program, "mine:small", "--loader", "mine:loader"], cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("ddpbench: error: 'mine:loader' is not a loader\nhint: ")
