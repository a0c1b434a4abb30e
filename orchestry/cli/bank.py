"""A file of problems that a user has, as the problems.jsonl of a new task."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from orchestry.cli.options import option
from orchestry.core.errors import ConfigError, TaskError

if TYPE_CHECKING:
    from orchestry.core.types import Problem, Split

ColumnsOf = Annotated[
    str | None,
    option(
        "The program",
        "Which columns of FILE are prompt, id and split, as in prompt=question,id=key. The others "
        "are data, under their own names or that of gold=answer.",
        "--columns",
        metavar="NAME=COLUMN,...",
    ),
]
_PROMPTS = ("prompt", "question", "problem", "instruction", "input", "text")
_GOLDS = ("gold", "answer", "solution", "output", "response", "target", "label")
"""Columns that data sets have, the likeliest first."""
_OURS: dict[str, Split] = {"train": "train", "dev": "dev", "validation": "dev", "test": "test"}


def taken(path: Path, columns: str | None) -> tuple[list[Problem], str]:
    """All problems of a file in their order, with a split each, and what is to be said of these.

    Without `columns` its lines are problems as a task's are, or rows of CSV. Raises ConfigError,
    also if there is nothing to train on.
    """
    from orchestry.task.base import every_problem
    from orchestry.task.datasets import is_csv

    if columns is None and is_csv(path):
        columns = guessed(path)
    try:
        found = [*(every_problem(path) if columns is None else _rows(path, _named(columns)))]
    except TaskError as error:  # what the user gave, not a task that failed
        fits = columns is not None or "is not a problem" not in str(error)
        hint = "" if fits else "; or name its columns, as in --columns prompt=question"
        raise ConfigError(f"{error}{hint}") from None
    found, said = _divided(path, found)
    if not any(one.split == "train" for one in found):
        raise ConfigError(f"{path} has no problems of split train, on which a team learns")
    return found, said


def written(problems: Sequence[Problem]) -> bytes:
    """The file of a task."""
    dumps = partial(json.dumps, ensure_ascii=False, default=str)  # of a date in a table
    lines = (dumps(one.model_dump()) for one in problems)
    return "".join(f"{line}\n" for line in lines).encode()


def guessed(path: Path) -> str:
    """For --columns: the first row's column that has the usual name of a prompt. Raises
    ConfigError."""
    from orchestry.task.datasets import rows

    try:
        _, row = next(rows("", path), ("", {}))
    except TaskError as error:
        raise ConfigError(str(error)) from None
    return f"prompt={next((name for name in _PROMPTS if name in row), 'prompt')}"


def gold_of(path: Path, problems: Sequence[Problem]) -> str:
    """The name in every problem's data that is likely the right answer. Raises ConfigError."""
    known = [name for name in problems[0].data if all(name in one.data for one in problems)]
    likely = [name for name in _GOLDS if name in known] or (known if len(known) == 1 else [])
    if not likely:
        raise ConfigError(
            f"{path} has no column whose name says that it is the right answer, only "
            f"{', '.join(known) or 'prompts'}: name it, as in --columns prompt=question,gold=answer"
        )
    return likely[0]


def _named(text: str) -> dict[str, str]:
    """The columns by what they are."""
    pairs = [one.partition("=") for one in text.split(",")]
    named = {ours.strip(): theirs.strip() for ours, _, theirs in pairs}
    if len(named) < len(pairs) or not all(named) or not all(named.values()):
        raise ConfigError(
            f"--columns is '{text}': say once what each is, as in prompt=question,gold=answer"
        )
    return named


def _rows(path: Path, named: Mapping[str, str]) -> Iterator[Problem]:
    from orchestry.task.datasets import rows

    if path.is_dir():
        raise ConfigError(f"{path} is a folder: name one file of problems")
    found: dict[str, Problem] = {}
    for where, row in rows("", path):
        one = _problem(where, row, named)
        if (before := found.setdefault(one.id, one)) != one:
            raise TaskError(f"{where}: a second row of the id '{one.id}': drop one")
        if before is one:  # a repeated row is one problem
            yield one


def _problem(where: str, row: Any, named: Mapping[str, str]) -> Problem:
    """One row; `data` is an object of data, as in a task's own files."""
    from orchestry.core.types import Problem
    from orchestry.task.datasets import Columns

    there = [name for name in row if row[name] is not None] if isinstance(row, Mapping) else []
    own = {name: name for name in ("id", "split") if name in there}
    ours = {"prompt": "prompt", **own, **named}
    data = {name: name for name in there if name not in ours.values()}
    data |= {name: column for name, column in ours.items() if name not in ("prompt", "id")}
    one = Columns(prompt=ours["prompt"], id=ours.get("id", ""), data=data).problem(where, row)
    rest = dict(one.data)
    split = rest.pop("split", None)
    if split is not None and str(split) not in _OURS:
        raise TaskError(f"{where} has the split '{split}': write one of {', '.join(_OURS)}")
    if isinstance(inner := rest.get("data"), Mapping):
        rest = {**rest, **inner}
        del rest["data"]
    kept = {} if split is None else {"split": _OURS[str(split)]}
    return Problem.model_validate({"id": one.id, "prompt": one.prompt, "data": rest, **kept})


def _divided(path: Path, given: list[Problem]) -> tuple[list[Problem], str]:
    """With splits, if none of them has one."""
    if any("split" in one.model_fields_set for one in given):
        return given, ""
    if len(given) < 3:
        return given, (
            f"No line of {path} has a split, and {len(given)} problems are too few to divide: all "
            "are train, so prompts can't be tested on dev."
        )
    parts = [
        one.model_copy(update={"split": split})
        for one, split in zip(given, _splits(len(given)), strict=True)
    ]
    counts = Counter(one.split for one in parts)
    shares = ", ".join(f"{counts[split]} {split}" for split in ("train", "dev", "test"))
    return parts, f"No line of {path} has a split, so of its {len(parts)} problems are {shares}."


def _splits(count: int) -> Iterator[Split]:
    """Of each five problems the last but one is dev, and the last is test; of fewer likewise."""
    size = min(5, count)
    last: dict[int, Split] = {size - 2: "dev", size - 1: "test"}
    return (last.get(place % size, "train") for place in range(count))
