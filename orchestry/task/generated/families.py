"""What generated problems are made of: parts for a helper, and main functions that use a part.

They are listed in families.toml. `$x` stands for the item (`n` or `word`), `$k` for a part's number
or letter, `$c` for a function's. Families of the test split, parts and functions, are in no other
split.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

Item = Literal["int", "word"]
Gives = Literal["bool", "int", "word", "maybe", "error"]
"""What a part returns. `maybe`: an int, or None where it does not apply. `error`: an int, or a
ValueError."""
Scheme = Literal["coordinator", "decorator", "strategy_filter", "fallback", "alone"]
"""How main works with aux. `alone`: it does not; the part is the whole problem."""


@dataclass(frozen=True, slots=True)
class Part:
    """What aux computes of one item."""

    name: str
    """For the name of the function, such as `divisible_by_$k`."""
    item: Item
    gives: Gives
    grade: int
    says: str
    """A condition on `$x` (bool), or a noun phrase for the value."""
    code: str
    """The body of aux."""
    numbers: tuple[Any, ...] = ("",)
    """What `$k` may be."""
    when: str = ""
    """Where it applies (maybe, error)."""
    test: bool = False
    """Whether it belongs to the test split."""


@dataclass(frozen=True, slots=True)
class Use:
    """How the main function uses aux."""

    name: str
    """`$part` is the part's name."""
    scheme: Scheme
    gives: Gives
    """What the part must return."""
    grade: int
    takes: Literal["items", "item", "pair"]
    """The arguments: a list of items, one item, or two."""
    says: str
    """The problem; `$says` is the part's phrase of the item, `$says_b` of the second."""
    how: str
    """What main does with aux, for its prompt."""
    code: str
    item: Item | None = None
    """The items that it can work on; None: both."""
    numbers: tuple[Any, ...] = ("",)
    """What `$c` may be."""
    test: bool = False


@dataclass(frozen=True, slots=True)
class Families:
    """All that problems are made of."""

    parts: tuple[Part, ...]
    uses: tuple[Use, ...]
    words: tuple[str, ...]
    """The words that a test's arguments are taken from."""


@lru_cache(maxsize=1)  # one file, read once
def families() -> Families:
    """What families.toml lists."""
    with (Path(__file__).parent / "families.toml").open("rb") as file:
        rows: dict[str, list[Any]] = tomllib.load(file)
    return Families(
        tuple(Part(**one) for row in rows["part"] for one in _each(row, Part)),
        tuple(Use(**one) for row in rows["use"] for one in _each(row, Use)),
        tuple(rows["words"]),
    )


def _each(row: dict[str, Any], kind: type[Part | Use]) -> Iterator[dict[str, Any]]:
    """A row's families: itself, or one for each entry of `each`. What an entry names that is no
    field stands for its `$name` in the texts."""
    names = {field.name for field in fields(kind)}
    for own in row.get("each", [{}]):
        whole = {key: value for key, value in {**row, **own}.items() if key != "each"}
        words = {f"${key}": whole.pop(key) for key in [*whole] if key not in names}
        if unused := [name for name in words if name not in str(row).replace("{", "")]:
            raise ValueError(f"{whole.get('name')}: {unused} is no field and stands in no text")
        words |= {f"${{{key[1:]}}}": value for key, value in words.items()}
        yield {key: _filled(value, words) for key, value in whole.items()}


def _filled(value: Any, words: dict[str, str]) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, str):
        for name, word in words.items():
            value = value.replace(name, word)
    return value
