"""The modules of a user's own folder, without the docstrings that they have."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from orchestry import Problem, Split, datasets, errors, parse_code

from .module import imports, read, stripped


def problems(folder: Path, max_lines: int, split: Split) -> Sequence[Problem]:
    """One split of a folder's modules, by a hash of each one's path in it.

    A module counts if it is Python, offers something public, is not too long, and imports the
    standard library only: the sandbox has nothing else. Raises TaskError if none does.
    """
    whole = _all(folder.expanduser().absolute(), max_lines)
    return tuple(problem for problem in whole if problem.split == split)


@lru_cache(maxsize=4)  # a run asks for its splits over and over
def _all(folder: Path, max_lines: int) -> tuple[Problem, ...]:
    files = sorted(folder.rglob("*.py"))
    found = [one for path in files if (one := _problem(path, folder, max_lines)) is not None]
    if not found:
        raise errors.TaskError(
            f"options.path {folder} has {len(files)} Python files and none to document: give a "
            f"folder with modules of public functions or classes, of at most {max_lines} lines "
            "(options.max_lines), that import only the standard library"
        )
    return tuple(found)


def _problem(path: Path, folder: Path, max_lines: int) -> Problem | None:
    try:
        source = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise errors.TaskError(
            f"{path} can't be read ({errors.reason(error)}): check its rights and its encoding, or "
            "take it out of options.path"
        ) from None
    tree = parse_code(source)
    if tree is None or not sys.stdlib_module_names.issuperset(imports(tree)):
        return None
    bare = stripped(source)
    if len(bare.splitlines()) > max_lines or not read(bare).names:
        return None
    name = path.relative_to(folder).as_posix()
    return Problem(id=name, prompt=bare, split=datasets.split_of(name))
