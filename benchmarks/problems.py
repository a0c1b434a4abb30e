"""Parts of a task's problems, and files of them that a benchmark's runs read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from orchestry import Problem
from orchestry.core.files import write_atomic


def spread(problems: Sequence[Problem], count: int) -> list[Problem]:
    """As many of them, evenly over the bank; all where `count` is 0."""
    count = min(count or len(problems), len(problems))
    return [problems[i * len(problems) // count] for i in range(count)]


def written(path: Path, problems: Iterable[Problem]) -> Path:
    """The file with these problems; one that holds them already is left as it is, since runs may
    be reading it."""
    content = "".join(f"{one.model_dump_json()}\n" for one in problems).encode()
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    return path
