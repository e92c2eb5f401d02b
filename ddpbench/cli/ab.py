"""The command ``ab``: its flags, then a script with arguments that are the script's own."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import rich_click as click

from ddpbench.cli.options import flag_options, parse_given
from ddpbench.cli.watch import parse_script, script_command
from ddpbench.machine.variables import EnvVar
from ddpbench.record.errors import UsageError
from ddpbench.record.packages import require_torch
from ddpbench.record.request import AbOptions, OutputOptions


@script_command(flag_options(AbOptions), flag_options(OutputOptions))
def ab(context: click.RichContext, /, words: tuple[str, ...], is_module: bool, **given: Any) -> int:
    """Prove by fresh launches whether a change of your own training script makes it faster.

    Examples:
        git diff > faster.diff; git stash
        ddpbench ab --diff faster.diff train.py --epochs 3
        ddpbench ab --diff faster.diff --gpus 4 --steps 500 --compute-only train.py

    The script is launched as it is and with the diff, in turn, and ended early. Your sources and files are not changed: sources with
    the diff are compiled in place of yours, and what the script writes is thrown away.

    Flags of ddpbench come before the script; everything after it belongs to the script. The report goes to stderr.
    """
    options = AbOptions(**parse_given(AbOptions, given))
    if options.diff is None:
        raise UsageError("ab needs the change to try: --diff FILE", "git diff > FILE writes one")
    program, request = parse_script(words, is_module, given, context.obj)
    require_torch("ab")
    from ddpbench.script.ab.follow_up import after_diagnosis
    from ddpbench.script.ab.launches import prove

    measure = partial(prove, program, request, options, options.diff)
    limit_s = os.environ.pop(EnvVar.DDPBENCH_FOLLOWS, "")
    return after_diagnosis(measure, float(limit_s)) if limit_s else measure()
