"""Checks of documents. Each yields its faults as ``file:line: problem``."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from functools import cache
from math import inf

import rich_click as click
from documents import ROOT, Block, Document, Text

from ddpbench.cli.crossover import parse_crossover
from ddpbench.cli.parse import parse_request, require_single_arm, select_shard
from ddpbench.cli.program import program
from ddpbench.cli.train import crossover, diagnose, reproduce, scale, sweep
from ddpbench.published.publications import published_names
from ddpbench.record.errors import BenchError

LAUNCHER = re.compile(
    r"^(?:\w+=\S* )*(?:ddpbench|(?:python|torchrun .*|accelerate launch .*) -m ddpbench"
    r"|bash launch/local\.sh|sbatch (?:.* )?launch/\w+\.sbatch|docker run .* ddpbench)(?: (?! )(.*))?$"
)
"""What starts ddpbench; the group has its arguments. A report starts with the name and two spaces."""

PLACEHOLDERS = {"WORKLOAD": "resnet50", "FAMILY": "disc-mlp", "NAME": "t4-tensor-cores", "N": "2", "S": "60", "P%": "5%", "K/N": "1/2"}
"""Words of examples that stand for a name or a number. Files and folders may have any name."""

END_OF_COMMAND = {"|", ">", "2>", "&&", ";", "&"}
TOP_FOLDER_PATH = re.compile(r"(?<![\w/.~$-])((?:launch|tests|results|docs)/[\w./*-]*[\w*])")
FILE_PATH = re.compile(r"[\w.-]+(?:/[\w.*-]+)+\.(?:json|py|md|sh|sbatch|png|svg|txt)")
NO_PROSE = re.compile(r"[-*+|>#!]|\d+\.")
NOT_IN_THE_REPOSITORY = re.compile(r"results/runs\b|launch/site\.sh")
KEPT_REPORT = re.compile(r"^ddpbench (?:report|whatif)(?: .*)? results/\S+\.json\b")
RECORD_LINE = re.compile(r"^(?:more     ddpbench report -v )?results/\S+\.json$")


def command_faults(document: Document) -> Iterator[str]:
    """Commands that ddpbench would reject."""
    for line, command in document.commands:
        try:
            if match := LAUNCHER.match(command):
                parse_arguments(shlex.split(match[1] or "", comments=True))
        except (click.ClickException, BenchError, ValueError) as problem:
            reason = problem.format_message() if isinstance(problem, click.ClickException) else problem
            yield f"{document.name}:{line}: cannot parse '{command}': {reason}"


def parse_arguments(words: list[str]) -> None:
    """Parse the arguments of ddpbench. Raises an error if it would reject them."""
    words = [PLACEHOLDERS.get(word, word) for word in words]
    words = words[: next((index for index, word in enumerate(words) if word in END_OF_COMMAND), len(words))]
    if not words or {"--help", "-h", "--version", "...", "[FLAGS]"} & set(words):
        return
    name, rest = (words[0], words[1:]) if words[0] in program.commands else ("run", words)
    _, command, rest = program.resolve_command(click.Context(program), [name, *rest])
    assert command is not None, "a command of the program"
    params = command.make_context(name, rest).params
    if name == reproduce.name and params["name"] not in (None, *published_names()):
        raise BenchError(f"unknown experiment '{params['name']}'")
    if name == crossover.name:
        parse_crossover(params["family"], params)
    if "workload" in params:
        request = parse_request(params.pop("workload"), params, words)
        if name in (diagnose.name, scale.name):
            require_single_arm(request)
        if name == sweep.name and params["part"]:
            select_shard(request, params["part"])


def link_faults(document: Document) -> Iterator[str]:
    """Relative links to missing files, and to missing headings."""
    for line, link in document.links:
        if re.match(r"\w+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = document.path.parent / file if file else document.path
        if not target.exists():
            yield f"{document.name}:{line}: no file '{file}'"
        elif anchor and (target.suffix != ".md" or anchor not in Document(target).anchors):
            yield f"{document.name}:{line}: no heading '#{anchor}' in '{file or document.name}'"


def path_faults(document: Document) -> Iterator[str]:
    """Missing files named in commands and code spans."""
    for line, text in [*document.shell_commands, *document.code_spans]:
        paths = {text} if FILE_PATH.fullmatch(text) else set(TOP_FOLDER_PATH.findall(text))
        for path in sorted(paths):
            bases = (ROOT, document.path.parent, ROOT / "ddpbench")
            if not NOT_IN_THE_REPOSITORY.match(path) and not any(any(base.glob(path)) for base in bases):
                yield f"{document.name}:{line}: no file '{path}'"


def block_faults(document: Document) -> Iterator[str]:
    """Fenced blocks without a language, which no check would read."""
    for block in document.blocks:
        if not block.language:
            yield f"{document.name}:{block.line}: a block without a language: sh for commands, text for output"


def guide_faults(document: Document) -> Iterator[str]:
    """A guide that does not open with prose and a command."""
    opening = next((line for line in document.prose if line.text.strip() and not line.text.startswith("# ")), Text(1, "# "))
    if NO_PROSE.match(opening.text) or any(block.line < opening.line for block in document.blocks):
        yield f"{document.name}:{opening.line}: a guide opens with prose"
    first_section = next((line for line, level, _ in document.headings if level == 2), inf)
    if not any(LAUNCHER.match(command) and line < first_section for line, command in document.shell_commands):
        yield f"{document.name}:{opening.line}: no ddpbench command before the first section"


def report_faults(document: Document) -> Iterator[str]:
    """Lines of a printed report that ddpbench does not print for its record, or not in this order."""
    for block, command in reports(document):
        try:
            rest = iter(printed(command))
        except BenchError as problem:
            yield f"{document.name}:{block.line}: '{command}': {problem}"
            continue
        for line, text in block.lines:
            if text.strip() and text.rstrip() not in rest:
                yield f"{document.name}:{line}: '{command}' does not print this line here: {text}"
                break


def reports(document: Document) -> Iterator[tuple[Block, str]]:
    """Blocks with the printed report of a kept record, and the command that prints it.

    It is the last command before the block in its section, or that of the record whose name the block shows.
    """
    starts = {line: None for line, _, _ in document.headings}
    shell = {command.line: command.text for command in document.shell_commands}
    spans = {line: text for line, text in document.code_spans if KEPT_REPORT.match(text)}
    ends = {block.lines[-1].line + 1: None for block in document.blocks if block.language == "text" and block.lines}
    events = sorted({**starts, **ends, **spans, **shell}.items())
    for block in document.blocks:
        if block.language != "text":
            continue
        command = next((text for line, text in reversed(events) if line < block.line), None)
        shown = [text for _, text in block.lines if RECORD_LINE.match(text)]
        if shown:
            path = shown[-1].split()[-1]  # a page that is not verbose ends with the command that prints all of it
            command = command if command and path in command else f"ddpbench report {'-v ' if shown[-1] == path else ''}{path}"
        if command and KEPT_REPORT.match(command):
            yield block, command


@cache
def printed(command: str) -> tuple[str, ...]:
    """The lines that a ddpbench command prints in the root of the repository, piped."""
    out = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(out):
        program.main(shlex.split(command)[1:], prog_name="ddpbench", standalone_mode=False)
    return tuple(line.rstrip() for line in out.getvalue().splitlines())
