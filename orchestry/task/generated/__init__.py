"""Code problems made by a program: graded, with tests, a helper's part and gold code.

A problem is a part (what aux computes of one item) in a use (how the main function works with it),
so that its gold shows one of the four schemes of cooperation. The test split has parts and uses of
its own, and no problem of another split does what one of test does. What a problem is depends on
its parts alone; the seed decides which are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from orchestry.core.distribution import install
from orchestry.core.errors import ConfigError
from orchestry.core.types import Frozen, Problem, Split
from orchestry.task import datasets
from orchestry.task.generated.compose import (
    ALL,
    SCHEMES,
    Composition,
    does,
    drawn,
    in_test,
    problem,
)

_OWN = ("own", "generated")
"""The banks of every task with problems of code."""
_PER_DEV = 5
"""One in so many of the problems that are not for test is for dev."""
_HELD_OUT = 4
"""Dev and test have one problem for so many of train."""


@lru_cache(maxsize=8)  # a run asks for its splits repeatedly
def problems(
    split: Split,
    size: int = 400,
    seed: int = 0,
    grades: tuple[int, ...] = (),
    helpers: int = 1,
) -> tuple[Problem, ...]:
    """The problems of one split: `size` of train, a quarter as many of dev, and of test.

    With one of the `helpers` there are grades 1 to 4, each a part in a use; with 2 or 3, main needs
    as many parts. Without, a fifth are parts alone, and grades are 1 (an expression) to 5.
    `grades`: only these; (): all. A larger size adds problems and moves none. Raises ConfigError if
    there are not so many.
    """
    wanted = size if split == "train" else -(-size // _HELD_OUT)
    found = list[Problem]()
    for made in _of(split, seed, helpers):
        if len(found) == wanted:
            break
        harder = not helpers and made.use.scheme != "alone"
        grade = made.grade + harder
        if grades and grade not in grades:
            continue
        if split != "test" and does(made) in in_test(helpers):
            continue  # the same problem in other words
        if (one := problem(made, split, grade)) is not None:
            found.append(one)
    if len(found) < wanted:
        graded = f" of grade {', '.join(map(str, grades))}" if grades else ""
        raise ConfigError(
            f"options.size={size} asks for {wanted} generated problems{graded} for {split}, and "
            f"there are {len(found)}: {'lower it, or take more' if found else 'take other'} grades"
        )
    return tuple(found)


def _of(split: Split, seed: int, helpers: int) -> list[Composition]:
    """All compositions that may be in a split, in the order in which they are taken."""
    whole = drawn(seed, split == "test", SCHEMES if helpers else ALL, helpers)
    if split == "test":
        return whole
    dev, shift = split == "dev", not helpers
    # schemes come in turn, and without helpers they are as many as _PER_DEV: each row of them
    # gives dev the next one
    places = (i + shift * (i // _PER_DEV) for i in range(len(whole)))
    last = _PER_DEV - 1
    return [made for i, made in zip(places, whole, strict=True) if (i % _PER_DEV == last) == dev]


def _numbers(value: Any) -> Any:
    """`2`, `1-3`, `1,3` or a list, as a tuple."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    if not isinstance(value, str):
        return value
    found = list[int]()
    for part in value.split(","):
        low, _, high = part.partition("-")
        if not (low.strip().isdecimal() and (high or low).strip().isdecimal()):
            raise ValueError(f"found '{value}': write a grade such as 2, a range 1-3, or 1,3")
        found += range(int(low), int(high or low) + 1)
    return tuple(found)


Grades = Annotated[tuple[int, ...], BeforeValidator(_numbers)]


class Bank(Frozen):
    """The options of a task with problems of code: where they come from, and how hard they are."""

    hubs: ClassVar[Sequence[str]] = ()
    """The data sets that the task takes problems from."""
    named: ClassVar[Sequence[str]] = ()
    """Further files of problems beside the task: `x` for `x.jsonl`."""
    helper: ClassVar[bool] = True
    """Whether generated problems are for two, a helper and main."""
    needs: ClassVar[Sequence[str]] = ()
    """The keys of `data` that every problem of a file must have."""
    pytests: ClassVar[bool] = False
    """Whether a problem may have a pytest file (`pytest` in its data) in place of these."""
    bank: str = "own"
    """The problems: `own` (beside the task), `generated` (by a program), another file beside the
    task by its name (code_collaboration has `named`), the name of a data set that the task reads,
    or a file of problems in the task's own format; code_review also takes a folder of problems
    whose tests are a pytest file."""
    path: Path | None = None
    """For `own`: a file of problems in the task's own format. For a data set: a local copy of it,
    file or folder; None: it is fetched by the extra `datasets`."""
    grade: Grades = ()
    """Only problems of these grades: `1`, `1-2`, `1,3`; 1 is the easiest. (): all."""
    size: int = Field(400, ge=4, le=10_000)
    """Generated problems for train; dev and test have a quarter as many each."""
    bank_seed: int = Field(0, ge=0)
    """Which problems are generated."""

    @field_validator("bank")
    @classmethod
    def _known(cls, bank: str) -> str:
        named = (*_OWN, *cls.named, *cls.hubs)
        if bank in named or Path(bank).expanduser().exists():
            return bank
        raise ValueError(
            f"found '{bank}', which is no file or folder: name {', '.join(named)}, or a file of "
            "problems"
        )

    @model_validator(mode="after")
    def _path_is_used(self) -> Self:
        if self.path is not None and self.bank not in ("own", *self.hubs):
            raise ValueError(
                f"options.path={self.path} is not read with options.bank={self.bank}: leave out "
                "one of the two"
            )
        return self

    def problems(
        self,
        split: Split,
        beside: Path,
        of_hub: Callable[..., Sequence[Problem]],
        helpers: int | None = None,
    ) -> Sequence[Problem]:
        """The problems of one split, of the grades asked for.

        `beside` is the task's own file; `of_hub(bank, path, split)` gives those of a data set.
        Generated ones are for so many `helpers` beside main; None: as `helper` says.
        Raises ConfigError if none has such a grade, and as `datasets.own` does.
        """
        if self.bank == "generated":
            several = self.helper if helpers is None else helpers
            return problems(split, self.size, self.bank_seed, self.grade, int(several))
        if self.bank in self.hubs:
            return self.graded(of_hub(self.bank, self.path, split))
        path = (self.path or beside) if self.bank == "own" else Path(self.bank)
        if self.bank in self.named:
            path = beside.with_name(f"{self.bank}.jsonl")
        found = datasets.own(path, split, self.hubs)
        for one in found:
            if self.pytests and "pytest" in one.data:
                if find_spec("pytest") is None:  # said before anything is paid
                    raise ConfigError(
                        f"pytest is not installed, and runs the tests of {path}: "
                        f"{install('pytest')}"
                    )
                continue
            if lacking := [key for key in self.needs if key not in one.data]:
                raise ConfigError(
                    f"{path}: problem {one.id} has no {', '.join(lacking)} in its data: give "
                    "problems of this task, such as `orchestry tasks generate` writes"
                )
        return self.graded(found)

    def graded(self, found: Sequence[Problem]) -> Sequence[Problem]:
        """Those of the grades asked for."""
        if not self.grade or not found:
            return found
        kept = [one for one in found if one.data.get("grade") in self.grade]
        if not any("grade" in one.data for one in found):
            raise ConfigError(
                f"options.grade={','.join(map(str, self.grade))}: the problems of bank {self.bank} "
                "have no grades: leave out options.grade, or take another bank"
            )
        if not kept:
            there = sorted({str(one.data.get("grade", "none")) for one in found})
            raise ConfigError(
                f"options.grade={','.join(map(str, self.grade))}: no {found[0].split} problem of "
                f"bank {self.bank} has such a grade, only {', '.join(there)}"
            )
        return kept
