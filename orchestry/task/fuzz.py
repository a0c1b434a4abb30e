"""Plays unexpected answers as a run would, to find those that a task raises on.

Seeded, and few enough to take seconds. In a run, such an answer scores 0, so a fault found here
costs trajectories that teach nothing. It is a bug in the task.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from orchestry.core.errors import TaskError, TaskFault
from orchestry.core.types import Problem, Tools
from orchestry.task.base import BaseTask
from orchestry.task.guard import Play, evaluated, said, task_boundary, tells

LONG = 200_000
"""Characters of a long answer."""
_AT_ONCE = 4
"""Games played at the same time."""
ODD = {
    "control characters": "\0\x07\x08\x1b[31m\x1b]0;x\x07\x7f\x85",
    "invisible characters": "\u202e\u2066\ufeff\u2028\u2029\ufffe\U0010ffff",
    "stacked accents": "e\u0301\u0327" + "\u0301" * 50,
    "odd letters and digits": "\u0130\u0131\u00df\u0149\ufb03\u01c5\u00b2\u00bd\u096b\u2167",
}
"""What stands twenty times over in a good answer, by name: letters that change length with their
case, and digits that `int` does not read, among them."""
FRAGMENTS = {
    "a deep sign": "-" * 1200 + "1",
    "a deep sum": "1+" * 1500 + "1",
    "deep brackets": "[" * 150 + "]" * 150,
    "deeper brackets": "(" * 5000 + ")" * 5000,
    "a chain of calls": "x" + ".f()" * 1200,
    "a huge hexadecimal number": "0x" + "f" * 6000,
    "a huge decimal number": "9" * 6000,
    "an endless number": "1e999",
    "no number": "nan",
    "half a surrogate pair": r"'\ud800'",
}
"""What stands somewhere in a good answer, by name."""

Say = Callable[[str, str, random.Random], str]
"""Makes an odd answer from a role's gold answer ('' if there is none) and its prompt."""

_Answer = Callable[[str, str], str]
"""From a role and its prompt to its text."""


@dataclass(frozen=True, slots=True)
class Raised:
    """A fault, and the answer that caused it."""

    role: str
    kind: str
    fault: TaskFault

    def __str__(self) -> str:
        return f"{self.role} answers with {self.kind}: {said(self.fault)}"


async def fuzz(
    task: BaseTask[Any], tools: Tools, problems: Sequence[Problem], seed: int
) -> list[Raised]:
    """Plays every kind of odd answer of every role, while the others give their gold (or nothing,
    if there is none); one game per problem in turn. Raises errors that are not the task's fault."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int, role: str, kind: str, say: Say) -> Raised | None:
        problem, rng = problems[number % len(problems)], random.Random(seed + number)
        async with slots:
            gold = task.gold(problem) or {}

            def answer(who: str, prompt: str) -> str:
                good = gold.get(who, "")
                return say(good, prompt, rng) if who == role else good

            fault = await played(task, tools, problem, seed, answer)
        return Raised(role, kind, fault) if fault else None

    roles = [agent.role for agent in task.agents]
    asked = [(role, kind, say) for role in roles for kind, say in kinds(task, problems, role)]
    games = [one(number, *each) for number, each in enumerate(asked)]
    return [found for found in await asyncio.gather(*games) if found is not None]


async def played(
    task: BaseTask[Any], tools: Tools, problem: Problem, seed: int, answer: _Answer
) -> TaskFault | None:
    """The task's error in one game, in which every state is scored and, where allowed, told to the
    agents."""

    def text(role: str) -> str:
        return answer(role, task.observe(play.state, role))

    try:
        with task_boundary(task, "reset", problem):
            play = Play(task, problem, task.reset(problem, seed), text)
        for _ in play:
            score = await evaluated(task, problem, play.state, tools)
            with task_boundary(task, "told", problem):
                if tells(task) and task.to_act(play.state):
                    play.state = task.told(play.state, score)
    except TaskFault as fault:
        return fault
    except TaskError:  # an unknown role, or no end: other rules report these
        pass
    return None


def kinds(task: BaseTask[Any], problems: Sequence[Problem], role: str) -> Iterator[tuple[str, Say]]:
    """The kinds of odd answers of a role, by name."""
    yield from _PLAIN.items()
    for name, text in ODD.items():
        yield name, partial(in_place_of_a_word, text * 20)
    for name, text in FRAGMENTS.items():
        yield name, partial(_alone, text)
        yield f"{name} in place of a word", partial(in_place_of_a_word, text)
        yield f"{name} returned", partial(_returned, text)
        yield f"{name} by default", partial(_default, text)
    others: Mapping[str, str] = task.gold(problems[-1]) or {}
    for other, text in others.items():
        whose = "another problem's gold" if other == role else f"the gold of {other}"
        yield whose, partial(_alone, text)


_PLAIN: Mapping[str, Say] = {
    "nothing": lambda *_: "",
    "white space": lambda *_: " \t\r\n\f\v\u00a0\u3000" * 50,
    "many words": lambda *_: ("word " * LONG)[:LONG],
    "one long line": lambda *_: "x" * LONG,
    "many lines": lambda *_: "a\n" * (LONG // 20),
    "many digits": lambda *_: "7" * (LONG // 10),
    "bytes that are no UTF-8": lambda _gold, _prompt, rng: rng.randbytes(2000).decode(
        "utf-8", "replace"
    ),
    "its prompt": lambda _gold, prompt, _rng: prompt,
    "its prompt, many times": lambda _gold, prompt, _rng: (f"{prompt}\n" * 50)[:LONG],
    "its gold, many times": lambda gold, _prompt, _rng: (f"{gold}\n\n" * 50)[:LONG],
    "half its gold": lambda gold, _prompt, _rng: gold[: len(gold) // 2],
    "its gold reversed": lambda gold, _prompt, _rng: gold[::-1],
    "its gold's words shuffled": lambda gold, _prompt, rng: " ".join(
        rng.sample(gold.split(), len(gold.split()))
    ),
    "an unclosed fence": lambda gold, _prompt, _rng: f"```python\n{gold.strip('`')}",
    "fences": lambda *_: "```\n~~~\n" * 500,
    "brackets": lambda *_: "([{<" * 2000,
    "unclosed quotes": lambda gold, _prompt, _rng: f"\"'''{gold}\"",
    "odd JSON": lambda *_: '{"score": 1e999, "a": [NaN, -Infinity, {"a": ' * 500,
    "deep markup": lambda *_: "> " * 500 + "- " * 500 + "#" * 500 + "[" * 500 + "**_" * 500,
}


def _alone(text: str, _gold: str, _prompt: str, _rng: random.Random) -> str:
    return text


def in_place_of_a_word(text: str, gold: str, _prompt: str, rng: random.Random) -> str:
    """The gold answer with one word replaced by a text."""
    words = [*re.finditer(r"\w+", gold)]
    if not words:
        return f"{gold} {text}"
    word = rng.choice(words)
    return gold[: word.start()] + text + gold[word.end() :]


def _returned(text: str, gold: str, _prompt: str, _rng: random.Random) -> str:
    """Gold code whose every `return` returns a text."""
    return re.sub(r"\breturn\b[^\n]*", lambda _: f"return {text}", gold)


def _default(text: str, gold: str, _prompt: str, _rng: random.Random) -> str:
    """Gold code whose functions have one more parameter, with a text as its default."""
    return re.sub(r"(\bdef \w+\([^()\n]*)\)", lambda found: f"{found[1]}, odd={text})", gold)
