"""`orchestry config`: a run's config before it is run, and the schema of its keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Unpack

import typer

from orchestry.cli.groups import App
from orchestry.cli.options import (
    FLAG_OF,
    OUTPUT,
    Json,
    Layers,
    RunFlags,
    flag,
    layers,
    resolved,
    spread,
)
from orchestry.cli.screen import console

COLUMN = 40
"""Where the source of a value stands."""
app = App("Show what a run's config comes to, and the schema of its keys.")


@app.command("show")
@spread
def _show(
    given: Annotated[
        bool, flag(OUTPUT, "Only keys that a file or the command line sets.", "--given")
    ] = False,
    as_json: Json = False,
    **flags: Unpack[RunFlags],
) -> None:
    """Show the config that these flags come to, and where each value comes from.

    It takes the flags of `orchestry run`. What it prints is a file for `--config`. `null` leaves
    the choice to the run; docs/cli.md says what it is then. Nothing is loaded or asked.
    """
    found = layers(flags)
    plain = resolved(found, flags).model_dump(mode="json", by_alias=True)
    origins = _origins(plain, found)
    if given:
        plain = _only(plain, origins)
    if as_json:
        typer.echo(json.dumps({"config": plain, "origins": origins}))
    else:
        _print(plain, origins)


@app.command("schema")
def _schema() -> None:
    """Print the JSON Schema of a config, with which an editor completes and checks keys.

    A config file names it in its first line: `# yaml-language-server: $schema=schema.json`.
    """
    from orchestry.task.registry import bundled

    typer.echo((bundled("configs") / "schema.json").read_text(encoding="utf-8"), nl=False)


def _origins(plain: Mapping[str, Any], found: Layers) -> dict[str, str]:
    """By dotted key: the file or flag that gave its value. Defaults are left out."""
    from orchestry.core.resolve import by_role, leaves, read_config_file, settings_of

    files, sets, flags = found
    named = [(str(path), by_role(read_config_file(path))) for path in files]
    named.append(("--set", by_role(settings_of(sets))))
    given = {key: name for name, layer in named for key, _ in leaves(layer)}
    given |= {key: FLAG_OF[key] for key in flags}
    origins = dict[str, str]()
    for key, value in leaves(plain):
        name = _of(key, given)
        if name is None and value is not None and key.endswith("provider.team"):
            name = _beside(key, given)  # `local:RUN` as a name
        if name is not None:
            origins[key] = name
    return origins


def _of(key: str, given: Mapping[str, str]) -> str | None:
    """The source of a key, or of the section that was given as a whole."""
    while key not in given and "." in key:
        key = key.rpartition(".")[0]
    return given.get(key)


def _beside(key: str, given: Mapping[str, str]) -> str | None:
    """The source of a key of the same section."""
    section = key.rpartition(".")[0]
    return next((name for one, name in given.items() if one.rpartition(".")[0] == section), None)


def _only(plain: Mapping[str, Any], origins: Mapping[str, str], above: str = "") -> dict[str, Any]:
    """The keys with an origin."""
    found = dict[str, Any]()
    for name, value in plain.items():
        if isinstance(value, Mapping) and value:
            if inner := _only(value, origins, f"{above}{name}."):
                found[name] = inner
        elif f"{above}{name}" in origins:
            found[name] = value
    return found


def _print(plain: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """As YAML, each source in a comment."""
    from rich.text import Text

    where = console()
    for line, origin in _lines(plain, origins, "", 0):
        text = Text(line, "bold" if origin else "")
        if origin:
            text.append(" " * max(2, COLUMN - len(line))).append(f"# {origin}", "cyan")
        where.print(text, soft_wrap=True)


def _lines(
    data: Mapping[str, Any], origins: Mapping[str, str], above: str, depth: int
) -> Iterator[tuple[str, str]]:
    """Lines of YAML with their sources."""
    for name, value in data.items():
        key, indent = f"{above}{name}", "  " * depth
        if isinstance(value, Mapping) and value:
            yield f"{indent}{_yaml(name)}:", ""
            yield from _lines(value, origins, f"{key}.", depth + 1)
        else:
            yield f"{indent}{_yaml(name)}: {_yaml(value)}", origins.get(key, "")


def _yaml(value: Any) -> str:
    """A value in one line; in JSON's form, which YAML reads too, where a text has characters that
    can't be seen."""
    import yaml

    if isinstance(value, str) and not value.isprintable():
        return json.dumps(value)
    text = yaml.safe_dump(value, default_flow_style=True, width=1_000_000, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
