"""Each half of a team apart: main with other helpers, aux with the questions of the gold main.

What a main should return with another helper is what the gold main returns with it. A main that
can do without its helper, or works with its own one only, fails there, and an aux that does not do
what its problem asks answers wrongly. Only for problems that have a gold pair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from orchestry import (
    Call,
    Limits,
    Problem,
    Tools,
    best_constant,
    beyond_chance,
    compare,
    errors,
    join_code,
)

from .outcome import run_tests
from .program import HELPERS, Program

BRISK = Limits(wall_s=3.0, cpu_s=0.3)
"""For the runs with stubs, which loop without end more often than not. They stand in the place of
the run's own limits: a program that needs more of anything is run under those."""
KINDS = range(3)
"""Other helpers: always wrong, at random, and wrong half of the time."""
MAX_ASKED = 40
TRIES = 3
"""Of what must not fail: a machine may be busy for a moment."""
_STUBS = (0, -2)
"""Of a program's stubs, the one that gives nothing and the one that gives back its argument: a
main that falls back on its own is found by these."""
_RECORDED = """\
_asked = {{}}

def _recorder(own):
    import copy
    def aux(*args):
        given = copy.deepcopy(args)
        value = own(*args)
        _asked.setdefault(repr(given), (given, copy.deepcopy(value)))
        return value
    return aux

{aux} = _recorder({aux})

def recorded(tests):
    for args in tests:
        {name}(*args)
    whole = list(_asked.values())
    return whole[:: -(-len(whole) // {most})]
"""
"""Behind the gold aux: what the gold main asks over all tests and is answered, each once."""
_OTHER = """\
def _partner(own, answers, kind):
    import copy, functools, inspect, zlib
    asked = inspect.signature(own)
    def plain(value):
        return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
    @functools.wraps(own)
    def aux(*args, **named):
        bound = asked.bind(*args, **named)
        bound.apply_defaults()
        given = repr([kind, *map(plain, bound.arguments.values())])
        salt = zlib.crc32(given.encode()) >> 4
        value = own(*args, **named)
        if kind == 2 and salt % 2:
            return value
        others = [one for one in answers if kind == 1 or one != value] or answers
        return copy.deepcopy(others[salt // 2 % len(others)])
    return aux

{aux} = _partner({aux}, {answers}, {kind})
"""
"""Behind the gold aux: a helper that gives to each question an answer of the gold aux to another
one, always the same."""


Asked = tuple[tuple[Any, ...], Any]
"""Arguments of a call of aux, and its right answer."""
Values = tuple[tuple[Any] | None, ...]
"""What came of each test; None if that is no value."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What the gold pair of a problem says of others."""

    others: tuple[str, ...]
    """Other helpers, as code."""
    wanted: tuple[tuple[Values, ...], ...]
    """What each right main returned on every test with each of them; the gold one is the first."""
    expected: tuple[Any, ...]
    asked: tuple[Asked, ...]
    """What the gold main asks of the gold aux over all tests."""

    def agreement(self, found: Sequence[Values]) -> float:
        """With the right main that is the likest."""
        return max(self._agreement(wanted, found) for wanted in self.wanted)

    def _agreement(self, wanted: Sequence[Values], found: Sequence[Values]) -> float:
        """Youden's J of a main's values: the share of those that another helper should change and
        that are the right main's, plus the same of those that it should not change, less 1.

        1 for that main, and where nothing can be told; 0 for one that needs no helper, answers a
        constant, or only notices that its helper is another.
        """
        right: dict[bool, list[bool]] = {True: [], False: []}
        for wants, gots in zip(wanted, found, strict=True):
            for want, expected, got in zip(wants, self.expected, gots, strict=True):
                if want is not None:
                    same = got is not None and compare(want[0], got[0])
                    right[compare(want[0], expected)].append(same)
        changed, kept = (fmean(right[one]) if right[one] else 1.0 for one in (False, True))
        return max(0.0, changed + kept - 1.0)


_KNOWN: dict[str, Reference] = {}
"""References by what their problem holds: they are asked for with every answer."""


def known(problem: Problem) -> bool:
    """Whether a problem has what its partners are made of."""
    return {"gold_aux", "gold_main", "tests"} <= problem.data.keys()


def _gold(problem: Problem, program: Program) -> Program:
    """The gold program, seen as that of the same helper."""
    codes = [problem.data[f"gold_{name}"] for name in HELPERS[: len(program.others) + 1]]
    views = Program.views(problem, codes, problem.data["gold_main"])
    return next(view for view in views if view.name == program.name)


async def halves(
    problem: Problem, program: Program, passed: float, floor: int, tools: Tools
) -> tuple[float, float, list[float]]:
    """How far main works with other helpers, and aux answers rightly; then how far each comes
    without the other: aux in the place of main, and main with stubs. All in [0, 1].

    A constant passes `floor` tests. Where one alone comes as far as the team, which `passed` so
    much, or aux answers nothing rightly, main is not tried.
    """
    reference = await _reference(problem, _gold(problem, program), tools)
    stubbed = program.stubbed()
    aux, without = await asyncio.gather(
        _right(problem, program, reference.asked, tools),
        asyncio.gather(
            run_tests(problem, program.text, tools, None, program.name),
            *(run_tests(problem, stubbed[one], tools, BRISK) for one in _STUBS if stubbed),
        ),
    )
    alone = [beyond_chance(one.passed, one.total, floor) for one in without]
    if not aux or max(alone) >= passed:
        return 0.0, aux, alone
    runs = (_tried(problem, other, program.main, tools) for other in reference.others)
    return reference.agreement(await asyncio.gather(*runs)), aux, alone


async def _right(problem: Problem, program: Program, asked: Sequence[Asked], tools: Tools) -> float:
    """The share of what the gold main asks that the helper's aux answers rightly by itself, beyond
    what a constant answers, or who gives back the question."""
    helper = join_code((program.preamble, *program.others, program.helper))
    calls = [Call(args=args) for args, _ in asked]
    results = await tools.sandbox.run(helper, program.name, calls)
    wanted = [_plain(want) for _, want in asked]
    judged = all(isinstance(want, bool) for want in wanted)  # then only the truth of it is used
    found = [
        result.verdict == "value"
        and compare(want, bool(result.value) if judged else _plain(result.value))
        for want, result in zip(wanted, results, strict=True)
    ]
    given = (_plain(args[0]) if args else None for args, _ in asked)
    echoed = sum(map(compare, wanted, given))
    return beyond_chance(sum(found), len(found), max(echoed, best_constant(wanted)))


def _plain(value: Any) -> Any:
    """Lists in the place of tuples: a main that unpacks either knows no difference."""
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


async def _tried(problem: Problem, aux: str, main: str, tools: Tools) -> Values:
    """A main's values with another helper; under the run's own limits where short ones cost any."""
    values = await _values(problem, aux, main, tools, BRISK)
    return values if None not in values else await _values(problem, aux, main, tools, None)


async def _reference(problem: Problem, gold: Program, tools: Tools) -> Reference:
    key = repr((gold.name, problem.data))
    if key not in _KNOWN:
        tests = problem.data["tests"]
        asked = await _recorded(problem, gold, tools)
        told = [*{repr(answer): answer for _, answer in asked}.values()]
        others = tuple(
            join_code((gold.preamble, *gold.others, gold.helper, _other(gold.name, told, kind)))
            for kind in KINDS
        )
        mains = (gold.main, *problem.data.get("other_mains", ()))
        runs = (_tried(problem, one, main, tools) for main in mains for one in others)
        values, size = await asyncio.gather(*runs), len(others)
        wanted = tuple(tuple(values[i : i + size]) for i in range(0, len(values), size))
        _KNOWN[key] = Reference(others, wanted, tuple(value for _, value in tests), asked)
    return _KNOWN[key]


def _other(aux: str, answers: Sequence[Any], kind: int) -> str:
    return _OTHER.format(aux=aux, answers=answers, kind=kind)


async def _recorded(problem: Problem, gold: Program, tools: Tools) -> tuple[Asked, ...]:
    """What the gold main asks of the gold aux, and is answered, over all tests.

    Raises TaskError if that gives nothing however often it is run: what is kept for all answers
    to come must not be the fault of a busy moment.
    """
    recorder = _RECORDED.format(aux=gold.name, name=problem.data["entry_point"], most=MAX_ASKED)
    code = join_code((gold.preamble, *gold.others, gold.helper, recorder, gold.main))
    call = Call(args=([args for args, _ in problem.data["tests"]],))
    for _ in range(TRIES):
        (given,) = await tools.sandbox.run(code, "recorded", [call])
        if given.verdict == "value":
            return tuple(given.value)
    raise errors.TaskError(f"the gold pair of problem {problem.id} fails here: {given.why}")


async def _values(
    problem: Problem, aux: str, main: str, tools: Tools, limits: Limits | None
) -> Values:
    calls = [Call(args=tuple(args)) for args, _ in problem.data["tests"]]
    code = join_code((aux, main))
    results = await tools.sandbox.run(code, problem.data["entry_point"], calls, limits)
    return tuple((result.value,) if result.verdict == "value" else None for result in results)
