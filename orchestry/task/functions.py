"""A function to write, with its tests, as data sets of code have them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orchestry.core.types import Split

Case = tuple[list[Any], Any]
"""A call's arguments, and the value that it returns."""


@dataclass(frozen=True, slots=True)
class Function:
    """One row: a function to write."""

    id: str
    """Its row's task_id, in letters that a file name may have; else made from bank and prompt."""
    name: str
    description: str
    """The docstring."""
    parameters: str
    """As they are written between the brackets."""
    signature: str
    """The line `def name(parameters):`."""
    preamble: str
    """What the prompt defines for the function: imports, constants, helpers; may be ''."""
    reference: str
    """The whole function; '' if the row has no solution."""
    tests: tuple[ast.stmt, ...]
    """The row's test module without METADATA; it defines `check(candidate)`. (): see `calls`."""
    calls: tuple[Case, ...] = ()
    """The tests, where all are calls with written values; the first is shown to the agents."""
    grade: int | None = None
    """How hard it is, from 1; None if the row does not say."""
    split: Split | None = None
    """The split that the row names; None: by a hash of the id."""


@dataclass(frozen=True, slots=True)
class FunctionSet:
    """A data set of functions."""

    hub: str
    """Where it is fetched."""
    function: Callable[[str, Any], Function | str]
    """A row as a function, or why it can't be one here, which leaves it out; the first argument is
    the row's place, for messages. Raises TaskError for a row of another form."""
