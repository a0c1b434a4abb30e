"""docs/cli.md: every command with its options, and every config key, from the code itself.

    python -m tools.reference --write

A command's part is what its `--help` prints. A key's line is the docstring under its field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

from orchestry.cli import COMMANDS, group
from tools import put
from tools.keys import Key, Section, sections

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
COMMAND = "python -m tools.reference --write"
HEAD = f"""# Command line and config keys

Written by `{COMMAND}` from the commands themselves; `orchestry COMMAND --help` says the same.
`orchestry --install-completion` lets your shell complete commands, options, tasks and runs.

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
`orchestry config show` takes the flags of `run` and prints what they come to, with the source of
each value. `orchestry config schema > schema.json` writes what an editor completes keys by.
"""


def commands(
    command: TyperCommand | TyperGroup = group, parent: Any = None, name: str = "orchestry"
) -> Iterator[tuple[TyperCommand | TyperGroup, Any]]:
    """A command and all those below it, each with the context that its help is printed in."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    found = context.command  # a command that loads later is another one here
    assert isinstance(found, TyperCommand | TyperGroup), name
    yield found, context
    if isinstance(found, TyperGroup):
        for inner, each in found.commands.items():
            assert isinstance(each, TyperCommand | TyperGroup), inner
            yield from commands(each, context, inner)


def page() -> str:
    """The whole page."""
    parts = [HEAD, *(_command(*found) for found in commands())]
    return "\n".join([*parts, KEYS, *map(_section, sections())])


def _command(command: TyperCommand | TyperGroup, context: Any) -> str:
    usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
    options = [
        f"- `{name}`: {_plain(text)}"
        for param in command.get_params(context)
        if "--help" not in param.opts
        for name, text in [param.get_help_record(context) or ("", "")]
        if text
    ]
    parts = [f"## {context.command_path}", f"```text\n{usage}\n```", command.help or ""]
    if command is group:
        listed = [f"- `{name}`: {_plain(text)}" for name, text in COMMANDS.items()]
        parts += ["\n".join(["Commands:", "", *listed]), "Options:"]
    return "\n\n".join([*parts, "\n".join(options)]).strip() + "\n"


def _plain(text: str) -> str:
    """Text in which Markdown sees no tags, emphasis or links; what is code stays as it is."""
    return re.sub(
        r"(`[^`]*`)|[<*]|(?<=\] )\[",
        lambda found: found[1] or {"<": "&lt;", "*": r"\*", "[": r"\["}[found[0]],
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
