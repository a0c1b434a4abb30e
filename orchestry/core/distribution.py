"""This package's name in pip, and other projects installed under its import name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import Distribution

NAME = "orchestry-marl"
"""On the package index. `orchestry` there is another project, a tool for containers."""
_AUTHOR = "The Orchestry maintainers"
"""In the metadata of all our versions, also under the old name."""


def install(extra: str) -> str:
    """The command that installs one of our extras."""
    return f'pip install "{NAME}[{extra}]"'


def namesakes() -> Iterator[tuple[Distribution, bool]]:
    """Installed distributions called `orchestry`; True for an old one of ours, False for others."""
    from importlib import metadata

    for found in metadata.distributions(name="orchestry"):
        yield found, found.metadata["Author"] == _AUTHOR
