"""What a run may set about this task: `--set options.path=src/mypackage`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from orchestry import Frozen


class Options(Frozen):
    """The settings of the documentation task."""

    path: Path | None = None
    """A folder of Python modules of your own, or a .jsonl file of problems; None: the bank."""
    max_lines: int = Field(150, ge=1)
    """Lines of a module from a folder; longer ones are left out."""
