"""The command ``diagnose`` on the user's own script: its flags, then the script with arguments that are the script's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from ddpbench.cli.options import flag_options, flags_named, parse_given
from ddpbench.cli.train import diagnose
from ddpbench.cli.watch import launch_script, parse_script, script_command
from ddpbench.machine.variables import EnvVar
from ddpbench.record.config import Config
from ddpbench.record.errors import ExitCode
from ddpbench.record.flags import flag_fields, to_argv
from ddpbench.record.request import OutputOptions, ScriptDiagnoseOptions
from ddpbench.script.run_script import LAUNCHER_HINTS

if TYPE_CHECKING:
    from ddpbench.distributed.exit_status import ExitStatus
    from ddpbench.script.run_script import Program


@script_command(
    flags_named(ScriptDiagnoseOptions, "verify", "start_limit", "allow_numerics"),
    flags_named(Config, "time_limit", "fail_if_data_wait"),
    flag_options(OutputOptions),
    name="diagnose",
)
def diagnose_script(context: click.RichContext, /, words: tuple[str, ...], is_module: bool, **given: Any) -> int:
    """Find the bottleneck of your own training script, and the DataLoader arguments and settings that make it faster.

    Examples:
        torchrun --nproc_per_node=4 -m ddpbench diagnose train.py --epochs 3
        ddpbench diagnose --gpus 4 --time-limit 180 train.py --epochs 3
        accelerate launch -m ddpbench diagnose -m my_package.train --config x.yaml

    The script trains in windows on batches of its own loader, on repeated ones, and on those of a DataLoader with other
    arguments, then with settings such as channels-last. At last it is ended: what it has trained is of no use, and nothing
    that it saves reaches your files.

    Flags of ddpbench come before the script; everything after it belongs to the script. The report goes to stderr.
    """
    program, request = parse_script(words, is_module, given, context.obj)
    options = ScriptDiagnoseOptions(**parse_given(ScriptDiagnoseOptions, given))
    if request.output.gpus:
        flags = [*to_argv(options, flag_fields(ScriptDiagnoseOptions)), *to_argv(request.arms[0], flags_of_config())]
        from ddpbench.script.protect.scratch import new_scratch_folder

        os.environ[EnvVar.DDPBENCH_SCRATCH] = str(new_scratch_folder())
        status = launch_script(program, request, ["diagnose", *flags])
        has_record = status.exit_code == ExitCode.OK and status.record_path
        return prove_diagnosed(status, program, request.output) if has_record else status.exit_code
    from ddpbench.script.diagnose.session import diagnose as run_diagnosis

    run_diagnosis(program, request, options)


def prove_diagnosed(status: ExitStatus, program: Program, output: OutputOptions) -> int:
    """Become the proof of what was diagnosed in ``program``, if one is to follow; returns the exit code if not."""
    from ddpbench.record.io import load
    from ddpbench.script.ab.follow_up import proof_command, proof_environment, proof_line, to_prove

    found = to_prove(load(Path(status.record_path)))
    if found is None:
        return status.exit_code
    diff, plan = found
    if not output.quiet:
        print(proof_line(plan), file=sys.stderr, flush=True)
    command = proof_command(diff, plan, program.argv, output, output.gpus)
    os.execve(command[0], command, proof_environment(os.environ, plan))


def flags_of_config() -> list[Any]:
    """The fields of Config that have a flag here."""
    return [field for field in flag_fields(Config) if field.name in ("time_limit", "fail_if_data_wait")]


def names_script(words: Sequence[str]) -> bool:
    """Whether the first word after the flags of ``diagnose`` is a script, as python runs one.

    A path that ends in ``.py`` or ``.pyz``, a folder with a ``__main__.py``, or a module after ``-m``. A launcher in its place is one by
    mistake.
    """
    options = {spelling: option for command in (diagnose, diagnose_script) for option in command.params for spelling in option.opts}
    remaining = iter(words)
    for word in remaining:
        flag, has_value, _ = word.partition("=")
        if not word.startswith("-"):
            is_launcher = os.path.basename(word).rstrip(".0123456789") in LAUNCHER_HINTS
            return is_launcher or word.endswith((".py", ".pyz")) or os.path.isfile(os.path.join(word, "__main__.py"))
        if flag in ("-m", "--module"):
            return True
        option = options.get(flag.replace("_", "-"))
        if isinstance(option, click.Option) and not option.is_flag and not has_value:
            next(remaining, None)
    return False
