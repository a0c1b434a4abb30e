"""One generated problem: a part and a use put together, with tests that tell an answer's worth.

The gold code of a problem is our own text, so it is run here, to know what the tests expect.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from string import Template
from textwrap import indent
from typing import Any

from orchestry.core.seeds import derive, shuffled
from orchestry.core.types import Problem, Split
from orchestry.task.code import compare
from orchestry.task.generated.families import Part, Scheme, Use, families

SCHEMES: tuple[Scheme, ...] = ("coordinator", "decorator", "strategy_filter", "fallback")
ALL: tuple[Scheme, ...] = ("alone", *SCHEMES)
TESTS = 12
LEAST_TESTS = 8
_DRAWS = 80
_GRADES = 4


@dataclass(frozen=True, slots=True)
class Composition:
    """A part with its number, and a use with its number: what a problem is."""

    part: Part
    k: Any
    use: Use
    c: Any

    @property
    def grade(self) -> int:
        """For two functions: 1 (two expressions) to 4 (loops in both). For one: 1 (one expression)
        to 3, where a part is the whole problem."""
        return min(_GRADES, self.part.grade + self.use.grade - 1)

    @property
    def name(self) -> str:
        """The main function's name, the same for no other composition."""
        own = "" if "$c" in self.use.name or not self.c else "_$c"
        return self.filled(self.use.name + own)

    @property
    def x(self) -> str:
        """The name of an item."""
        return "n" if self.part.item == "int" else "word"

    @property
    def items(self) -> str:
        """The name of a list of items."""
        return "numbers" if self.part.item == "int" else "words"

    @property
    def arguments(self) -> str:
        """The main function's parameters."""
        return {"items": self.items, "item": self.x, "pair": "a, b"}[self.use.takes]

    def filled(self, text: str) -> str:
        """A template with the names and numbers of this problem."""
        own = {"x": self.x, "k": self.k}
        phrases = {
            key: Template(part).substitute(own)
            for key, part in (
                ("says", self.part.says),
                ("when", self.part.when),
                ("part", self.part.name.replace("$k", "${k}")),
            )
        }
        braced = text.replace("$part", "${part}").replace("$c", "${c}").replace("$x", "${x}")
        return Template(braced).substitute(own, c=self.c, items=self.items, **phrases)

    def aux(self) -> str:
        """The gold helper."""
        return f"def aux({self.x}):\n{indent(self.filled(self.part.code), '    ')}\n"

    def main(self) -> str:
        """The gold main function."""
        body = indent(self.filled(self.use.code), "    ")
        return f"def {self.name}({self.arguments}):\n{body}\n"

    def aux_goal(self) -> str:
        """What the helper is told."""
        says, when = self.filled("$says"), self.filled("$when")
        return {
            "bool": f"Return True if {says}, else False.",
            "maybe": f"If {when}, return {says}, else return None.",
            "error": f"If {when}, return {says}, else raise ValueError.",
        }.get(self.part.gives, f"Return {says}.")

    def main_goal(self) -> str:
        """What main is told."""
        says = self.filled("$says")
        returned = {
            "bool": f"tells whether {says}",
            "maybe": f"returns {says}, or None",
            "error": f"returns {says}, or raises ValueError",
        }.get(self.part.gives, f"returns {says}")
        return f"Use aux({self.x}), which {returned}; {self.filled(self.use.how)}."


@lru_cache(maxsize=2)
def compositions(test: bool) -> tuple[Composition, ...]:
    """All of the test split's families, or all of the others'."""
    return tuple(
        Composition(part, k, use, c)
        for part in families().parts
        for use in families().uses
        if part.test is test is use.test
        and part.gives == use.gives
        and use.item in (None, part.item)
        for k in part.numbers
        for c in use.numbers
    )


def problem(made: Composition, split: Split, grade: int | None = None) -> Problem | None:
    """The problem, the same for the same composition; None if inputs don't tell enough. `grade`
    replaces the composition's own."""
    rng = random.Random(derive("generated", made.name))
    tests = _tests(made, rng)
    if not tests:
        return None
    example, *tests = tests
    data = {
        "entry_point": made.name,
        "signature": f"def {made.name}({made.arguments}):",
        "aux_signature": f"def aux({made.x}):",
        "aux_goal": made.aux_goal(),
        "main_goal": made.main_goal(),
        "grade": grade or made.grade,
        "scheme": made.use.scheme,
        "cooperation": True,
        "example": example,
        "tests": tests,
        "gold_aux": made.aux(),
        "gold_main": made.main(),
        "reference": _whole(made),
    }
    asked = made.filled(made.use.says)
    return Problem(id=made.name, prompt=f"{_givens(made)} {asked}", data=data, split=split)


def _givens(made: Composition) -> str:
    """What the arguments are."""
    one = "n is an integer of at least 0." if made.part.item == "int" else "word is a word."
    two = "integers of at least 0" if made.part.item == "int" else "words"
    return {
        "item": one,
        "items": f"{made.items} is a list of {two}; {made.x} stands for one of them.",
        "pair": f"a and b are two {two}; {made.x} stands for one of them.",
    }[made.use.takes]


def _whole(made: Composition) -> str:
    """Both functions as one, for a task without a helper."""
    head, _, body = made.main().partition("\n")
    if made.use.scheme == "alone":
        return f"{head}\n{made.aux().partition(chr(10))[2]}"
    return f"{head}\n{indent(made.aux(), '    ')}\n{body}"


def _tests(made: Composition, rng: random.Random) -> list[list[Any]]:
    """Arguments and expected values, the example first; [] if inputs don't tell enough.

    Neither one answer, nor main with a helper that returns nothing or its argument, nor the helper
    in the place of main, is right in more than half of them: else the problem would pay for no
    cooperation.
    """
    gold, lazy = _run(made), _lazy(made)
    inputs = {repr(args): args for args in (_arguments(made, rng) for _ in range(_DRAWS))}
    wanted = [(args, gold(args)) for args in inputs.values()]
    shares = 2 if len({repr(value) for _, value in wanted}) == 2 else 3
    found, left, often = list[list[Any]](), [TESTS // 2] * len(lazy), Counter[str]()
    for args, value in wanted:
        if len(found) > TESTS or often[repr(value)] >= TESTS // shares:
            continue
        after = [n - compare(one(args), value) for n, one in zip(left, lazy, strict=True)]
        if min(after) >= 0:
            found.append([args, value])
            often[repr(value)] += 1
            left = after
    return found if len(found) > LEAST_TESTS else []


def _arguments(made: Composition, rng: random.Random) -> list[Any]:
    draw: Callable[[], Any] = (
        (lambda: rng.choice((rng.randint(0, 30), rng.randint(0, 9) ** 2, 10 * rng.randint(0, 9))))
        if made.part.item == "int"
        else (lambda: rng.choice(families().words))
    )
    if made.use.takes == "items":
        return [[draw() for _ in range(rng.randint(1, 6))]]
    return [draw() for _ in range(2 if made.use.takes == "pair" else 1)]


_Answer = Callable[[Sequence[Any]], Any]


def _run(made: Composition, aux: str | None = None, name: str | None = None) -> _Answer:
    """What the code returns for arguments; None where it fails."""
    names: dict[str, Any] = {}
    exec(f"{aux or made.aux()}\n\n{made.main()}", names)  # noqa: S102  our own templates

    def answer(args: Sequence[Any]) -> Any:
        try:
            return names[name or made.name](
                *[[*arg] if isinstance(arg, list) else arg for arg in args]
            )
        except (TypeError, ValueError, AttributeError, KeyError, IndexError):
            return None

    return answer


def _lazy(made: Composition) -> list[_Answer]:
    """Answers without cooperation."""
    bodies = ("return None", f"return {made.x}", "return 0", "return True", "raise ValueError")
    stubs = [_run(made, f"def aux({made.x}):\n    {body}\n") for body in bodies]
    return stubs if made.use.scheme == "alone" else [*stubs, _run(made, name="aux")]


def drawn(seed: int, test: bool, schemes: Sequence[Scheme] = SCHEMES) -> list[Composition]:
    """The compositions in seeded order: the schemes in turn, and in each scheme one family after
    the other, so that a family with many numbers is not the most common."""
    kinds: dict[tuple[str, str, str], list[Composition]] = {}
    for made in compositions(test):
        key = made.use.scheme, made.part.name, made.use.name
        kinds.setdefault(key, []).append(made)
    for family, members in kinds.items():
        random.Random(derive(seed, *family)).shuffle(members)
    keys = [*kinds]
    order = [keys[place] for place in shuffled(len(keys), seed, "families", test)]
    decks = [_in_turn([kinds[key] for key in order if key[0] == one]) for one in schemes]
    return _in_turn(decks)


def _in_turn(decks: Sequence[Sequence[Composition]]) -> list[Composition]:
    """The first of each, then the second of each, and so on, until all are empty."""
    return [one for row in zip_longest(*decks) for one in row if one is not None]
