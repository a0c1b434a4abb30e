"""docs/cli.md: every command with its options, and every config key, from the code itself.

    python -m tools.reference --write

A command's part is what its `--help` prints. A key's line is the docstring under its field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import click

from orchestry.cli import COMMANDS, group
from tools import put
from tools.keys import Key, Section, sections

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
COMMAND = "python -m tools.reference --write"
AS_IT_IS = "\b"
"""Begins a paragraph that click is not to wrap."""
HEAD = f"""# Command line and config keys

Written by `{COMMAND}` from the commands themselves; `orchestry COMMAND --help` says the same.

## Exit codes

| code | what it means |
|---|---|
| 0 | done |
| 1 | failed: one line on stderr names the cause and the fix |
| 2 | bad usage or config: nothing was started, nothing was spent |
| 3 | stopped at the budget: results are kept, `orchestry resume RUN --budget USD` goes on |
| 4 | stopped because the server stayed away: results are kept, `orchestry resume RUN` goes on |
| 130 | interrupted: `orchestry resume RUN` goes on |
"""
KEYS = """## Config keys

A run's config is merged in this order, the later word counting: the defaults below,
`configs/<backend>.yaml`, `--config`, `--set`, flags. Every key can stand in a YAML file or be set
by `--set`, as in `--set search.k_samples=8`; `configs/default.yaml` has them all. In a heading,
capitals stand for a name of yours: an agent's role, a model. None is `null` in YAML.
"""


def commands(
    command: click.Command = group, parent: click.Context | None = None, name: str = "orchestry"
) -> Iterator[tuple[click.Command, click.Context]]:
    """A command and all those below it, each with the context that its help is printed in."""
    context = click.Context(command, parent=parent, info_name=name, **command.context_settings)
    yield command, context
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None, inner
            yield from commands(found, context, inner)


def page() -> str:
    """The whole page."""
    parts = [HEAD, *(_command(*found) for found in commands())]
    return "\n".join([*parts, KEYS, *map(_section, sections())])


def _command(command: click.Command, context: click.Context) -> str:
    usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
    options = [
        f"- `{name}`: {_plain(text)}"
        for param in command.get_params(context)
        if "--help" not in param.opts
        for name, text in [param.get_help_record(context) or ("", "")]
        if text
    ]
    parts = [f"## {context.command_path}", f"```text\n{usage}\n```", _prose(command.help or "")]
    if command is group:
        listed = [f"- `{name}`: {_plain(text)}" for name, text in COMMANDS.items()]
        parts += ["\n".join(["Commands:", "", *listed]), "Options:"]
    return "\n\n".join([*parts, "\n".join(options)]).strip() + "\n"


def _prose(text: str) -> str:
    """A docstring as Markdown; a paragraph that click is told to leave alone becomes code."""
    return "\n\n".join(
        f"```text\n{part.removeprefix(AS_IT_IS).strip()}\n```"
        if part.startswith(AS_IT_IS)
        else _plain(part)
        for part in cleandoc(text).split("\n\n")
    )


def _plain(text: str) -> str:
    """Text in which Markdown sees no tags and no emphasis; what is code stays as it is."""
    return re.sub(
        r"(`[^`]*`)|[<*]",
        lambda found: found[1] or {"<": "&lt;", "*": r"\*"}[found[0]],
        " ".join(text.split()),
    )


def _section(section: Section) -> str:
    title = f"### {section.name or 'top level'}"
    keys = [f"- `{key.name}`: {_plain(key.line)} *{_facts(key)}*" for key in section.keys]
    return "\n\n".join([title, _plain(section.line), "\n".join(keys)]) + "\n"


def _facts(key: Key) -> str:
    default = f"default {key.default}" if key.default else "no default"
    return f"({_plain(key.kind)}; {_plain(default)})"


if __name__ == "__main__":
    put(page(), PAGE)
