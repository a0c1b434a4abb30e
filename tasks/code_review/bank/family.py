"""One problem of the bank: a reference function, examples worked out by hand, and drawn inputs."""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Args = tuple[Any, ...]
Draw = Callable[[random.Random], Args]
MIN_TESTS, MAX_TESTS = 8, 12
MAX_SHARE_OF_ONE_ANSWER = 0.6
_DRAWS = 80


@dataclass(frozen=True)
class Family:
    """A reference with what defines and checks it. `also` is a second, unlike implementation."""

    reference: Callable[..., Any]
    grade: int
    split: str
    prompt: str
    examples: Sequence[tuple[Args, Any]]
    draw: Draw
    edges: Sequence[Args]
    also: Callable[..., Any] | None

    def record(self) -> dict[str, Any]:
        """The line of problems.jsonl; raises AssertionError where the family contradicts itself."""
        name = self.reference.__name__
        source = inspect.getsource(self.reference)
        source = source[source.index("def ") :].rstrip() + "\n"
        for args, expected in self.examples:
            self._check(args, expected)
        shown, *rest = self.examples
        return {
            "id": name,
            "prompt": self.prompt,
            "split": self.split,
            "data": {
                "entry_point": name,
                "signature": source.splitlines()[0],
                "grade": self.grade,
                "example": [list(shown[0]), shown[1]],
                "tests": self._tests(shown[0], rest),
                "reference": source,
            },
        }

    def _check(self, args: Args, expected: Any) -> None:
        name = self.reference.__name__
        found = self.reference(*_copy(args))
        assert _same(found, expected), f"{name}{args} is {found!r}, by hand {expected!r}"
        if self.also:
            second = self.also(*_copy(args))
            assert _same(second, expected), f"{name}{args}: second way {second!r}, not {expected!r}"

    def _tests(self, shown: Args, rest: Sequence[tuple[Args, Any]]) -> list[list[Any]]:
        """Hand-worked examples, then edges, then draws that do not pile up on one answer."""
        tests = [[list(args), expected] for args, expected in rest]
        seen = {_key(shown), *(_key(args) for args, _ in rest)}
        rng = random.Random(self.reference.__name__)
        inputs = [*self.edges, *(self.draw(rng) for _ in range(_DRAWS))]
        for index, args in enumerate(inputs):
            expected = self.reference(*_copy(args))
            same = sum(_same(expected, other) for _, other in tests)
            most = MAX_TESTS // (2 if type(expected) is bool else 3)
            crowded = index >= len(self.edges) and same >= most
            if _key(args) in seen or crowded or len(tests) == MAX_TESTS:
                continue
            seen.add(_key(args))
            self._check(args, expected)
            tests.append([list(args), expected])
        self._accept(tests)
        return tests

    def _accept(self, tests: list[list[Any]]) -> None:
        name = self.reference.__name__
        assert len(tests) >= MIN_TESTS, f"{name} has only {len(tests)} tests"
        assert json.loads(json.dumps(tests)) == tests, f"{name}: its tests are no plain JSON"
        most = max(sum(_same(a[1], b[1]) for b in tests) for a in tests)
        assert most / len(tests) <= MAX_SHARE_OF_ONE_ANSWER, f"{name}: a constant passes {most}"


FAMILIES: list[Family] = []


def problem(
    grade: int,
    split: str,
    prompt: str,
    examples: Sequence[tuple[Args, Any]],
    draw: Draw,
    *,
    edges: Sequence[Args] = (),
    also: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the decorated function as the reference of a family."""

    def register(reference: Callable[..., Any]) -> Callable[..., Any]:
        family = Family(reference, grade, split, prompt, examples, draw, edges, also)
        FAMILIES.append(family)
        return reference

    return register


def ints(r: random.Random, low: int = -20, high: int = 20, least: int = 1, most: int = 8) -> Any:
    """A list of random integers."""
    return [r.randint(low, high) for _ in range(r.randint(least, most))]


def word(r: random.Random, letters: str = "abcdeiost", least: int = 1, most: int = 8) -> str:
    """A random word."""
    return "".join(r.choice(letters) for _ in range(r.randint(least, most)))


def words(r: random.Random, least: int = 1, most: int = 5) -> list[str]:
    """A list of random words."""
    return [word(r) for _ in range(r.randint(least, most))]


def _copy(args: Args) -> Any:
    return json.loads(json.dumps(args))


def _key(args: Args) -> str:
    return json.dumps(args)


def _same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    return abs(a - b) < 1e-9 if isinstance(a, float) else bool(_key((a,)) == _key((b,)))
