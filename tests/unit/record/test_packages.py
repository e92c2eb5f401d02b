"""A missing package is named, with the command that installs it."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from ddpbench.record.errors import UsageError
from ddpbench.record.names import import_object
from ddpbench.record.packages import INSTALL_COMMANDS, install_command, is_installed, require_modules

EXTRAS = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize(("module", "found"), [("json", True), ("json.decoder", True), ("json.nothing", False), ("nothing.at_all", False)])
def test_module_is_installed_if_it_can_be_found(module: str, found: bool) -> None:
    assert is_installed(module) == found


def test_first_missing_module_is_reported() -> None:
    require_modules("a report", "json", "rich")
    with pytest.raises(UsageError) as refused:
        require_modules("a report", "json", "nothing", "nowhere")
    assert refused.value.message == "a report needs nothing, which is not installed"
    assert refused.value.hint == install_command("nothing") == "pip install nothing"


def test_install_commands_name_extras_of_the_package() -> None:
    named = {extra for command in INSTALL_COMMANDS.values() for extra in re.findall(r"ddpbench\[(.+?)\]", command)}
    assert named == {"train", "dali-cuda13"} <= EXTRAS.keys()
    assert "dali-cuda12" in EXTRAS


def test_user_module_without_an_optional_package_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_that_needs_torchvision.py").write_text("import torchvision\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(UsageError) as refused:
        import_object("module_that_needs_torchvision:load")
    assert refused.value.message == "'module_that_needs_torchvision:load' needs torchvision, which is not installed"
    assert refused.value.hint == "pip install 'ddpbench[train]'"
