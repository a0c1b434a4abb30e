"""The file .env of the working folder: names that the environment lacks.

Only names that Orchestry reads are taken, and only by the command line: Python programs decide for
themselves. Values go into this process's environment, as if they were exported, and never into a
file or a message.

Keys are sent to a vendor's own address, so a file that only has a key redirects nothing. An address
does, and the key that goes there may be one that the user exported; a .env may have come with
somebody else's folder. So an address counts like one in somebody else's config: it is taken if it
is this machine, a vendor's own, or one that the user confirmed before. Otherwise what would ask
there fails, and says how to confirm it. `ORCHESTRY_STORAGE` is not taken: it names a server and
often has a password, and no confirmation could be kept without it.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

import typer

from orchestry.core.errors import ConfigError, reason
from orchestry.core.secrets import REFUSED, bare_address

FILE = Path(".env")
_PLAIN = (
    *("ANTHROPIC_API_KEY", "ANTHROPIC_MODEL", "OPENAI_API_KEY", "OPENAI_MODEL", "WANDB_API_KEY"),
    *("ORCHESTRY_WEIGHTS", "ORCHESTRY_WASI"),
)
_ADDRESSES = ("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL")
taken = list[str]()
"""The names that this process has from the file."""


def take(environ: MutableMapping[str, str], trust: bool = False, path: Path = FILE) -> list[str]:
    """Puts what the environment lacks into it; returns the names. `trust` confirms the file's
    addresses. Raises ConfigError for a file that can't be read."""
    found = {name: value for name, value in _values(path).items() if name not in environ}
    names = list[str]()
    for name in (*_PLAIN, *_ADDRESSES):
        environ.pop(REFUSED + name, None)  # another process's verdict
        if value := found.get(name):
            if name in _ADDRESSES and (why := _doubt(name, value, path, trust)):
                environ[REFUSED + name] = why
            else:
                environ[name] = value
                names.append(name)
    return names


def _values(path: Path) -> dict[str, str]:
    """The file's names and values, as they are: nothing in a value is replaced. Lines that can't be
    read are named."""
    from dotenv.parser import parse_stream  # dotenv_values names no file

    try:
        with path.open(encoding="utf-8-sig") as file:
            found = [*parse_stream(file)]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} can't be read ({reason(error)}): correct or remove it") from None
    for text, line in (one.original for one in found if one.error):
        line += text[: -len(text.lstrip())].count("\n")  # blank lines before it
        typer.echo(f"· {path}, line {line} is left out: write NAME=VALUE, quotes closed", err=True)
    return {one.key: one.value.strip() for one in found if one.key and one.value}


def _doubt(name: str, url: str, path: Path, trust: bool) -> str:
    """Why the address is not taken; '' if it is."""
    from orchestry.engine.trust import check_server

    try:
        bare = bare_address(url)
    except ValueError:
        return f"{name} in {path} is not an address: correct it"
    shown = f"{name} {bare} (prompts, and a key where it wants one, would be sent there)"
    try:
        check_server(shown, bare, path.absolute(), trust)
    except ConfigError as error:
        return f"{error}; or export {name}"
    return ""
