"""One generated problem: a part and a use put together, with tests that tell an answer's worth.

The gold code of a problem is our own text, so it is run here, to know what the tests expect.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import zip_longest
from string import Template
from textwrap import indent
from types import CodeType
from typing import Any

from orchestry.core.seeds import derive, shuffled
from orchestry.core.types import Problem, Split
from orchestry.task.code import compare
from orchestry.task.generated.families import Gives, Item, Part, Scheme, Use, families

SCHEMES: tuple[Scheme, ...] = ("coordinator", "decorator", "strategy_filter", "fallback")
ALL: tuple[Scheme, ...] = ("alone", *SCHEMES)
TESTS = 12
LEAST_TESTS = 8
_DRAWS = 80
_GRADES = 4
_FURTHER = 3
"""Problems for several helpers that are made of one composition."""
_ITEMS: tuple[Item, ...] = ("int", "word")
_ALL_GIVE: tuple[Gives, ...] = ("bool", "int", "word")
_FAILED = object()
_ASKED = 60
"""Answers by which two compositions are compared."""
MORE = ("aux2", "aux3")
"""The functions of a second and a third helper."""


@dataclass(frozen=True, slots=True)
class Step:
    """What main does with a further helper before all else."""

    says: str
    how: str
    code: str


STEPS = (
    (
        Step(
            "If this does not hold, return $x unchanged: $says.",
            "return $x unchanged if it is False",
            "if not aux2($x):\n    return $x",
        ),
        Step(
            "First leave out all $items that do not fulfil this: $says.",
            "keep only the $items for which it is True",
            "$items = [$x for $x in $items if aux2($x)]",
        ),
    ),
    (
        Step(
            "Then replace $x by this: $says.",
            "go on with its result in place of $x",
            "$x = aux3($x)",
        ),
        Step(
            "Then replace each of the $items that are left by this: $says.",
            "put its result in place of each that is left",
            "$items = [aux3($x) for $x in $items]",
        ),
    ),
)
"""With aux2, then with aux3: where main has one item, and where it has a list."""


@dataclass(frozen=True, slots=True)
class Composition:
    """A part with its number, and a use with its number: what a problem is.

    `before` has the parts of a second and a third helper, which main applies first: a condition
    (aux2) that chooses items, and a value (aux3) that replaces each.
    """

    part: Part
    k: Any
    use: Use
    c: Any
    before: tuple[tuple[Part, Any], ...] = ()

    @property
    def grade(self) -> int:
        """For two functions: 1 (two expressions) to 4 (loops in both). For one: 1 (one expression)
        to 3, where a part is the whole problem."""
        return min(_GRADES, self.part.grade + self.use.grade - 1 + len(self.before))

    @property
    def name(self) -> str:
        """The main function's name, the same for no other composition."""
        own = "" if "$c" in self.use.name or not self.c else "_$c"
        more = (one.filled("$part") for one in self.further)
        joined = (f"_{word}_{name}" for word, name in zip(("if", "with"), more, strict=False))
        return self.filled(self.use.name + own) + "".join(joined)

    @property
    def further(self) -> tuple[Composition, ...]:
        """The same use with the part of each further helper."""
        return tuple(replace(self, part=part, k=k, before=()) for part, k in self.before)

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

    def aux(self, name: str = "aux") -> str:
        """The gold helper."""
        return f"def {name}({self.x}):\n{indent(self.filled(self.part.code), '    ')}\n"

    def helpers(self) -> dict[str, str]:
        """The gold code of each helper, by the name of its function."""
        more = {name: one.aux(name) for name, one in zip(MORE, self.further, strict=False)}
        return {"aux": self.aux(), **more}

    def main(self) -> str:
        """The gold main function."""
        steps = [text.code for text in self._steps()]
        body = indent("\n".join(map(self.filled, [*steps, self.use.code])), "    ")
        return f"def {self.name}({self.arguments}):\n{body}\n"

    def aux_goal(self) -> str:
        """What the helper is told."""
        says, when = self.filled("$says"), self.filled("$when")
        return {
            "bool": f"Return True if {says}, else False.",
            "maybe": f"If {when}, return {says}, else return None.",
            "error": f"If {when}, return {says}, else raise ValueError.",
        }.get(self.part.gives, f"Return {says}.")

    def says(self) -> str:
        """What main is to return."""
        texts = [step.says for step in self._steps()]
        filled = [one.filled(text) for one, text in zip(self.further, texts, strict=True)]
        return " ".join([*filled, *(["Then:"] if filled else []), self.filled(self.use.says)])

    def _steps(self) -> list[Step]:
        return [steps[self.use.takes == "items"] for steps in STEPS[: len(self.before)]]

    def main_goal(self) -> str:
        """What main is told of all helpers."""
        steps = zip(MORE, self.further, self._steps(), strict=False)
        first = (f"{one._called(name)}; {one.filled(step.how)}." for name, one, step in steps)
        return " ".join([*first, f"{self._called('aux')}; {self.filled(self.use.how)}."])

    def _called(self, name: str) -> str:
        """What main is told of one helper."""
        says = self.filled("$says")
        returned = {
            "bool": f"tells whether {says}",
            "maybe": f"returns {says}, or None",
            "error": f"returns {says}, or raises ValueError",
        }.get(self.part.gives, f"returns {says}")
        return f"Use {name}({self.x}), which {returned}"


@lru_cache(maxsize=4)
def composed(test: bool, helpers: int) -> tuple[Composition, ...]:
    """The compositions for so many helpers: with one, all; with more, some for each of those that
    work on one item or on a list."""
    whole = compositions(test)
    if helpers < 2:
        return whole
    of = {(kind, item): [*_with(test, kind, item)] for kind in _ALL_GIVE for item in _ITEMS}
    return tuple(
        replace(made, before=before)
        for made in whole
        if made.use.takes != "pair" and made.use.scheme != "alone"
        for before in _further(made, of, helpers)
    )


def _with(test: bool, gives: Gives, item: Item) -> Iterator[tuple[Part, Any]]:
    for part in families().parts:
        if (part.test, part.gives, part.item) == (test, gives, item):
            yield from ((part, k) for k in part.numbers)


def _further(
    made: Composition, of: Mapping[tuple[Gives, Item], Sequence[tuple[Part, Any]]], helpers: int
) -> Iterator[tuple[tuple[Part, Any], ...]]:
    """A few parts for the other helpers, drawn by the composition's own name, and of other families
    than its own."""
    rng, item = random.Random(derive("further", made.name)), made.part.item
    found = dict[str, tuple[tuple[Part, Any], ...]]()
    for _ in range(_FURTHER):
        drawn = list[tuple[Part, Any]]()
        kinds: tuple[Gives, ...] = ("bool", item)
        for gives in kinds[: helpers - 1]:
            taken = {made.part.name, *(part.name for part, _ in drawn)}
            drawn.append(rng.choice([o for o in of[gives, item] if o[0].name not in taken]))
        found[repr(drawn)] = tuple(drawn)
    yield from found.values()


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
        **{f"{name}_signature": f"def {name}({made.x}):" for name in MORE[: len(made.before)]},
        **{f"{name}_goal": o.aux_goal() for name, o in zip(MORE, made.further, strict=False)},
        "main_goal": made.main_goal(),
        "grade": grade or made.grade,
        "scheme": made.use.scheme,
        "cooperation": True,
        "example": example,
        "tests": tests,
        **{f"gold_{name}": code for name, code in made.helpers().items()},
        "gold_main": made.main(),
        "reference": _whole(made),
    }
    return Problem(id=made.name, prompt=f"{_givens(made)} {made.says()}", data=data, split=split)


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
    return "\n".join([head, *(indent(code, "    ") for code in made.helpers().values()), body])


def _tests(made: Composition, rng: random.Random) -> list[list[Any]]:
    """Arguments and expected values, the example first; [] if inputs don't tell enough.

    One answer is right in half of them at most; main with a helper that returns nothing or its
    argument, or the helper in the place of main, in 60 % (with further helpers: half): from there
    on the reward would not count all of the cooperation.
    """
    gold, lazy = _run(made, failed=_FAILED), _lazy(made)
    draw = _drawing(made, rng)
    drawn_args = (_arguments(made, draw, rng) for _ in range(_DRAWS))
    inputs = {repr(args): args for args in drawn_args}
    found_all = [(args, gold(args)) for args in inputs.values()]
    wanted = [(args, value) for args, value in found_all if value is not _FAILED]
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
    best_lazy = TESTS // 2 - min(left)
    often_lazy = (
        2 * best_lazy >= len(found) if made.before else 5 * best_lazy > 3 * (len(found) - 1)
    )
    return [] if len(found) <= LEAST_TESTS or often_lazy else found


def _drawing(made: Composition, rng: random.Random) -> Callable[[], Any]:
    """What draws one item."""
    return _often_chosen(made, rng) if made.before else _plainly(made.part.item, rng)


def _plainly(item: str, rng: random.Random) -> Callable[[], Any]:
    if item == "int":  # as _INTEGERS, but published problems were drawn so
        return lambda: rng.choice(
            (rng.randint(0, 30), rng.randint(0, 9) ** 2, 10 * rng.randint(0, 9))
        )
    return lambda: rng.choice(families().words)


def _arguments(made: Composition, draw: Callable[[], Any], rng: random.Random) -> list[Any]:
    return _taken(made.use.takes, 10 if made.before else 6, draw, rng)


def _taken(takes: str, most: int, draw: Callable[[], Any], rng: random.Random) -> list[Any]:
    if takes == "items":
        return [[draw() for _ in range(rng.randint(most // 5, most))]]
    return [draw() for _ in range(2 if takes == "pair" else 1)]


_INTEGERS = (*range(31),) * 10 + (*(n * n for n in range(10)), *range(0, 100, 10)) * 31
"""A third each: small ones, squares and tens."""


def _often_chosen(made: Composition, rng: random.Random) -> Callable[[], Any]:
    """Draws items of which at least half fulfil the condition of aux2, where that is possible."""
    names: dict[str, Any] = {}
    exec(made.helpers()["aux2"], names)  # noqa: S102  our own templates
    items: Sequence[Any] = _INTEGERS if made.part.item == "int" else families().words
    fit = [*filter(names["aux2"], items)] or items
    return lambda: rng.choice(fit if rng.random() < 0.5 else items)


_Answer = Callable[[Sequence[Any]], Any]


@lru_cache(maxsize=1)  # run with one stub after the other
def _gold(made: Composition) -> tuple[str, str, str]:
    """The code of the helpers, that of main, and main's name."""
    return "\n\n".join(made.helpers().values()), made.main(), made.name


@lru_cache(maxsize=64)  # main and the same few stubs, time and again
def _compiled(code: str) -> CodeType:
    return compile(code, "<composed>", "exec")


def _run(
    made: Composition, stub: str = "", name: str | None = None, failed: object = None
) -> _Answer:
    """What the code returns for arguments, `failed` where it fails. A stub takes the place of the
    helper of its name."""
    names: dict[str, Any] = {}
    helpers, main, own = _gold(made)
    for part in (helpers, stub, main):
        exec(_compiled(part), names)  # noqa: S102  our own templates
    function = names[name or own]

    def answer(args: Sequence[Any]) -> Any:
        try:
            return function(*[[*arg] if isinstance(arg, list) else arg for arg in args])
        except (TypeError, ValueError, AttributeError, KeyError, IndexError):
            return failed

    return answer


@lru_cache(maxsize=4)
def in_test(helpers: int) -> frozenset[int]:
    """What the compositions of the test split do."""
    return frozenset(does(made) for made in composed(True, helpers))


def does(made: Composition) -> int:
    """Equal for compositions that return the same for the same arguments, whatever their code: a
    number made of some answers."""
    asked, answer = (made.use.takes, made.part.item), _run(made)
    return derive(*asked, repr([answer(args) for args in _questions(*asked)]))


@cache
def _questions(takes: str, item: str) -> list[list[Any]]:
    """The arguments by which compositions are compared: drawn once, since there are thousands of
    compositions."""
    rng = random.Random(derive("does", takes, item))
    draw = _plainly(item, rng)
    return [_taken(takes, 6, draw, rng) for _ in range(_ASKED)]


def _lazy(made: Composition) -> list[_Answer]:
    """Answers without cooperation."""
    bodies = ("return None", f"return {made.x}", "return 0", "return True", "raise ValueError")
    own = [*made.helpers()]
    stubs = [_run(made, f"def {name}({made.x}):\n    {body}\n") for name in own for body in bodies]
    alone = made.use.scheme == "alone"
    return stubs if alone else [*stubs, *(_run(made, name=name) for name in own)]


def drawn(
    seed: int, test: bool, schemes: Sequence[Scheme] = SCHEMES, helpers: int = 1
) -> list[Composition]:
    """The compositions in seeded order: the schemes in turn, in each scheme the grades, and in each
    grade one family after the other, so that no family is common because it has many numbers, and
    no grade because it has many families."""
    kinds: dict[tuple[str, int, str, str], list[Composition]] = {}
    for made in composed(test, helpers):
        key = made.use.scheme, made.grade, made.part.name, made.use.name
        kinds.setdefault(key, []).append(made)
    for family, members in kinds.items():
        random.Random(derive(seed, *family)).shuffle(members)
    keys = [*kinds]
    order = [keys[place] for place in shuffled(len(keys), seed, "families", test)]
    decks = {
        (scheme, grade): _in_turn([kinds[key] for key in order if key[:2] == (scheme, grade)])
        for scheme in schemes
        for grade in range(1, _GRADES + 1)
    }
    return _in_turn(
        [
            _in_turn([deck for (one, _), deck in decks.items() if one == scheme])
            for scheme in schemes
        ]
    )


def _in_turn(decks: Sequence[Sequence[Composition]]) -> list[Composition]:
    """The first of each, then the second of each, and so on, until all are empty."""
    return [one for row in zip_longest(*decks) for one in row if one is not None]
