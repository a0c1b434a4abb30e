"""What makes the documentation: commands for maintainers, run from the repository root."""

from __future__ import annotations

import sys
from pathlib import Path

import typer


def put(text: str, place: Path) -> None:
    """Prints a file's new text, or with the argument --write puts it into its place."""
    if sys.argv[1:] == ["--write"]:
        place.write_text(text, encoding="utf-8")
    else:
        typer.echo(text, nl=False)
