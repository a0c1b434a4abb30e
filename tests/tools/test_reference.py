"""docs/cli.md says what the commands and the config say today."""

from __future__ import annotations

import re

import pytest

from orchestry.cli import COMMANDS, main
from orchestry.core.errors import OrchestryError
from tools.keys import sections
from tools.reference import COMMAND, PAGE, commands, page

PATHS = [context.command_path.split()[1:] for _, context in commands()]


def test_the_page_is_what_the_commands_say_now() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        f"docs/cli.md is not what the commands and config keys say now: run `{COMMAND}` and commit "
        "the file"
    )


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_every_option_of_the_help_is_in_its_section(
    path: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        main([*path, "--help"])
    assert exited.value.code == 0
    printed = capsys.readouterr().out
    shown = set(re.findall(r"^│ \*? *(--[a-z][\w-]*)", printed, flags=re.MULTILINE)) - {"--help"}
    section = _section(" ".join(["orchestry", *path]))
    listed = set(re.findall(r"^- `(?:-\w, )?(--[a-z][\w-]*)", section, flags=re.MULTILINE))
    assert listed <= shown
    assert all(option in section for option in shown)
    assert bool(listed) == bool(shown)


def test_every_command_of_the_help_has_a_section(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    names = re.findall(r"^│ (\w+) ", capsys.readouterr().out, flags=re.MULTILINE)
    assert len(names) == len(COMMANDS)
    assert all(_section(f"orchestry {name}") for name in names)


def test_every_exit_code_stands_in_the_table() -> None:
    errors: list[type[OrchestryError]] = [OrchestryError, *OrchestryError.__subclasses__()]
    codes = {error.exit_code for error in errors}
    table = re.findall(r"^\| (\d+) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert {str(code) for code in {0, *codes}} == set(table)


def test_every_config_key_is_explained() -> None:
    keys = [(section.name, key) for section in sections() for key in section.keys]
    assert len(keys) > 100
    bare = [f"{name}.{key.name}" for name, key in keys if not key.line]
    assert not bare, f"write a docstring under the field of: {', '.join(bare)}"


def test_a_key_has_its_kind_limits_and_default() -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = {f"{section.name}.{key.name}": key for section in sections() for key in section.keys}
    assert found["search.k_samples"].kind == "whole number from 1 to 64"
    assert found["search.k_samples"].default == "4"
    assert found["behaviors.from"].kind == "path or null"
    assert found["prices.MODEL.input"].default == ""
    assert found["provider.fake.faults"].kind == "list of: 429, 529, 500, timeout or drop"
    assert "### agents.ROLE\n" in text


def _section(path: str) -> str:
    """A command's part of the page; "" where it has none."""
    parts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return next((part for part in parts if part.startswith(f"{path}\n")), "")
