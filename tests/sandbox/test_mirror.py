"""Tests in HumanEval's form have the verdict that one process would give, and can't be forged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestry.core.types import Limits
from orchestry.sandbox import open_sandbox
from orchestry.sandbox.inside.mirror import Mirror
from orchestry.sandbox.inside.tagged import Untaggable, parsed
from orchestry.sandbox.pool import ForkServers

LIMITS = Limits(wall_s=20, cpu_s=4)


@pytest.fixture
async def sandbox() -> AsyncIterator[ForkServers]:
    async with open_sandbox(LIMITS) as found:
        yield found


def in_one_process(code: str, test: str) -> bool:
    """What HumanEval's own harness says."""
    names: dict[str, Any] = {"__name__": __name__}
    try:
        exec(f"{code}\n{test}\ncheck(f)", names)
    except Exception:
        return False
    return True


def check(*lines: str, before: str = "") -> str:
    return f"{before}\ndef check(candidate):\n" + "".join(f"    {line}\n" for line in lines)


SORTED = check("x = [3, 1]", "candidate(x)", "assert x == [1, 3]")
KEPT = check("x = [[3, 1], {'a': 1}]", "candidate(x)", "assert x == [[3, 1], {'a': 1}]")
POINT = "class Point:\n    def __init__(self, x): self.x = x\n"
EQUAL = f"{POINT}    def __eq__(self, other): return self.x == other.x\n"
MINE = "class Mine(ValueError):\n    def __init__(self, n):\n        self.n = n\n"
COLOUR = "import enum\nclass Colour(enum.Enum):\n    red = 1\n    blue = 2\n"
FLAGS = "import enum\nclass Flags(enum.Flag):\n    a = 1\n    b = 2\n"
FROZEN = "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass Dot:\n    x: int\n"
SLOTS = "class Slots:\n    __slots__ = ('x',)\n    def __init__(self): self.x = 1\n"
PAIR = "from collections import namedtuple\nPair = namedtuple('Pair', 'a b')\n"
RAISED = check(
    "try:",
    "    candidate(3)",
    "    assert False",
    "except Mine as error:",
    "    assert error.n == 3",
    before=MINE,
)
CASES = {
    "in place": ("def f(a): a.sort()", SORTED),
    "does nothing": ("def f(a): pass", SORTED),
    "another list": ("def f(a): return sorted(a)", SORTED),
    "leaves alone": ("def f(a): return 1", KEPT),
    "spoils a list": ("def f(a): a.append(1)", KEPT),
    "spoils an inner list": ("def f(a): a[0].sort()", KEPT),
    "spoils a dict": ("def f(a): a[1]['b'] = 2", KEPT),
    "spoils, then raises": (
        "def f(a):\n    a.clear()\n    raise ValueError",
        check(
            "x = [1]",
            "try:",
            "    candidate(x)",
            "except ValueError:",
            "    pass",
            "assert x == []",
        ),
    ),
    "set": ("def f(a): a.add(2)", check("x = {1}", "candidate(x)", "assert x == {1, 2}")),
    "named": (
        "def f(*, a): a.reverse()",
        check("x = [1, 2]", "candidate(a=x)", "assert x == [2, 1]"),
    ),
    "same list": ("def f(a): return a", check("x = [1]", "assert candidate(x) is x")),
    "aliased rows": (
        "def f(a): a[0][0] = 1",
        check("x = [[0]] * 2", "candidate(x)", "assert x[1] == [1]"),
    ),
    "deque": (
        "def f(a): a.append(3)",
        check(
            "from collections import deque",
            "x = deque([1, 2], maxlen=2)",
            "candidate(x)",
            "assert x == deque([2, 3], maxlen=2)",
        ),
    ),
    "bytearray": (
        "def f(a): a += b'x'",
        check("x = bytearray()", "candidate(x)", "assert x == b'x'"),
    ),
    "counter": (
        "from collections import Counter\ndef f(a): return Counter(a)",
        check("assert candidate('aab')['z'] == 0", "assert candidate('aab') == {'a': 2, 'b': 1}"),
    ),
    "default factory": (
        "def f(a): a['x'].append(1)",
        check(
            "from collections import defaultdict",
            "x = defaultdict(list)",
            "candidate(x)",
            "assert x == {'x': [1]}",
        ),
    ),
    "default factory returned": (
        "from collections import defaultdict\ndef f(): return defaultdict(lambda: 3)",
        check("assert candidate()['x'] == 3"),
    ),
    "keys": ("def f(a): return a.keys()", check("assert candidate({1: 2}) == {1}")),
    "keys are no list": ("def f(a): return a.keys()", check("assert candidate({1: 2}) == [1]")),
    "values": ("def f(a): return a.values()", check("assert [*candidate({1: 2, 3: 2})] == [2, 2]")),
    "items": (
        "from collections import OrderedDict\ndef f(a): return OrderedDict(a).items()",
        check("assert candidate({1: [2]}) == {1: [2]}.items()"),
    ),
    "slice": ("def f(a): return slice(a, None)", check("assert candidate(1) == slice(1, None)")),
    "time zone": (
        "import datetime\ndef f(a): return datetime.timezone(datetime.timedelta(hours=a))",
        check("import datetime", "assert candidate(0) == datetime.timezone.utc"),
    ),
    "complex": ("def f(a): return a * 1j", check("assert candidate(2j) == -2")),
    "wrong complex": ("def f(a): return a * 2j", check("assert candidate(2j) == -2")),
    "decimal": (
        "from decimal import Decimal\ndef f(a): return Decimal(a) / 10",
        check("from decimal import Decimal", "assert candidate(1) == Decimal('0.1')"),
    ),
    "fraction": (
        "from fractions import Fraction\ndef f(a): return Fraction(a, 6)",
        check("from fractions import Fraction", "assert candidate(Fraction(2)) * 3 == 1"),
    ),
    "dates": (
        "from datetime import timedelta\ndef f(a): return a + timedelta(days=1)",
        check("import datetime", "d = datetime.date", "assert candidate(d(2024, 2, 28)).day == 29"),
    ),
    "range": ("def f(a): return a[::-1]", check("assert candidate(range(3)) == range(2, -1, -1)")),
    "generator": (
        "def f(n):\n    for i in range(n):\n        yield [i]",
        check(
            "import types",
            "g = candidate(2)",
            "assert isinstance(g, types.GeneratorType)",
            "assert list(g) == [[0], [1]]",
        ),
    ),
    "endless": (
        "import itertools\ndef f(): return itertools.count()",
        check("assert [n for n, _ in zip(candidate(), 'abc')] == [0, 1, 2]"),
    ),
    "raises while it yields": (
        "def f():\n    yield 1\n    raise KeyError('x')",
        check(
            "g = candidate()",
            "assert next(g) == 1",
            "try:",
            "    next(g)",
            "    assert False",
            "except KeyError as e:",
            "    assert e.args == ('x',)",
        ),
    ),
    "iterator given": ("def f(a): return sum(a)", check("assert candidate(iter([1, 2])) == 3")),
    "function given": (
        "def f(g, a): return [g(x) for x in a]",
        check("assert candidate(lambda x: x + 1, [1, 2]) == [2, 3]"),
    ),
    "given function changes": (
        "def f(g, a):\n    g(a)\n    return len(a)",
        check("x = []", "assert candidate(lambda a: a.append(1), x) == 1", "assert x == [1]"),
    ),
    "given function raises": (
        "def f(g):\n    try:\n        g()\n    except ZeroDivisionError:\n        return 1",
        check("assert candidate(lambda: 1 / 0) == 1"),
    ),
    "function returned": (
        "def f(n):\n    return lambda x: x + n",
        check("add = candidate(2)", "assert add(3) == 5", "assert callable(add)"),
    ),
    "decorator": (
        "def f(g):\n    seen = {}\n    def h(x):\n        if x not in seen:\n"
        "            seen[x] = g(x)\n        return seen[x]\n    return h",
        check(
            "n = []", "g = candidate(lambda x: n.append(x) or x)", "g(1)", "g(1)", "assert n == [1]"
        ),
    ),
    "type given": (
        "def f(a, kind): return [x for x in a if isinstance(x, kind)]",
        check("assert candidate([1, 'a'], int) == [1]"),
    ),
    "message": (
        "def f(a): raise ValueError('negative')",
        check(
            "try:",
            "    candidate(1)",
            "    assert False",
            "except ValueError as e:",
            "    assert str(e) == 'negative'",
        ),
    ),
    "own exception": (f"{MINE}def f(a): raise Mine(a)", RAISED),
    "wrong own exception": (f"{MINE}def f(a): raise Mine(a + 1)", RAISED),
    "another exception": (f"{MINE}def f(a): raise ValueError(a)", RAISED),
    "own object": (
        f"{EQUAL}def f(p):\n    return Point(p.x + 1)",
        check("assert candidate(Point(1)) == Point(2)", before=EQUAL),
    ),
    "own object in place": (
        f"{POINT}def f(p): p.x = [1]",
        check("p = Point(1)", "candidate(p)", "assert p.x == [1]", before=POINT),
    ),
    "linked": (
        f"{POINT}def f(p):\n    p.x.x = p\n    return p.x",
        check("p = Point(Point(0))", "assert candidate(p).x is p", before=POINT),
    ),
    "frozen objects": (
        f"{FROZEN}def f(a): return {{Dot(x) for x in a}}",
        check("assert candidate([1, 2, 1]) == {Dot(1), Dot(2)}", before=FROZEN),
    ),
    "slots": (
        f"{SLOTS}def f(a):\n    a.x += 1",
        check("a = Slots()", "candidate(a)", "assert a.x == 2", before=SLOTS),
    ),
    "enum": (
        f"{COLOUR}def f(c): return Colour.blue if c is Colour.red else c",
        check("assert candidate(Colour.red) is Colour.blue", before=COLOUR),
    ),
    "flags": (
        f"{FLAGS}def f(): return Flags.a | Flags.b",
        check("assert candidate() == Flags.a | Flags.b", before=FLAGS),
    ),
    "text enum": (
        "import enum\nclass A(str, enum.Enum):\n    two = '2'\ndef f(): return A.two",
        check("assert candidate() == '2'"),
    ),
    "the test's exception, let through": (
        "def f(a): return a()",
        check(
            "def fail(): raise Mine(3)",
            "try:",
            "    candidate(fail)",
            "    assert False",
            "except Mine as error:",
            "    assert error.args == (3,)",
            before=MINE,
        ),
    ),
    "what a given function raises": (
        "def f(a):\n    try: a()\n    except KeyError as error: return error.args",
        check("def fail(): return {}[7]", "assert candidate(fail) == (7,)"),
    ),
    "int enum": (
        "import enum\nclass A(enum.IntEnum):\n    two = 2\ndef f(): return A.two",
        check("assert candidate() == 2"),
    ),
    "named tuple": (
        f"{PAIR}def f(p): return Pair(p.b, p.a)",
        check(
            "assert candidate(Pair(1, 2)).a == 2",
            "assert candidate(Pair(1, 2)) == (2, 1)",
            before=PAIR,
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_the_verdict_is_that_of_one_process(sandbox: ForkServers, name: str) -> None:
    code, test = CASES[name]
    result = await sandbox.check(code, "f", test)
    assert result.verdict == "value"
    passed, total = result.value
    assert (passed == total) == in_one_process(code, test), result


EVIL = "class Evil({}):\n    def __eq__(self, other): return True\n    __hash__ = {}.__hash__\n"
HOSTILE = {
    "equals everything": "def f(x): return Evil()",
    "in a list": "def f(x): return [Evil()]",
    "by its argument": "def f(x):\n    x[0] = Evil()\n    return 0",
    "patched": "import builtins\nbuiltins.isinstance = lambda *a: True\ndef f(x): return Evil()",
    "ends": "import os\ndef f(x): os._exit(0)",
    "leaves": "def f(x): raise SystemExit(0)",
    "runner": "import sys\ndef f(x):\n    m = sys._getframe(1).f_locals['self']._mirror\n"
    "    m._tag = lambda *a: ['own', 0]\n    return 1",
    "forged number": "import sys\ndef f(x):\n    m = sys._getframe(1).f_locals['self']._mirror\n"
    "    m._tag = lambda *a: ['r', 10 ** 9]\n    return 1",
    "forged record": "import os\ndef f(x):\n    os.write(4, b'\\0\\0\\0\\x02{}')\n    return 1",
    "raises the test's own": "class CandidateError(Exception): pass\n"
    "def f(x): raise CandidateError('held')",
    "assertion": "def f(x): raise AssertionError",
    "method": f"{EQUAL}def f(x):\n    p = Point(1)\n    p.__dict__['__eq__'] = lambda o: True\n"
    "    return p",
}
WANTS = check("x = [7]", "assert candidate(x) == [8]", "assert candidate([7]) == 3", before=EQUAL)


@pytest.mark.parametrize("base", ["object", "int", "list", "dict"])
@pytest.mark.parametrize("name", HOSTILE)
async def test_no_verdict_is_forged(sandbox: ForkServers, name: str, base: str) -> None:
    code = EVIL.format(base, "int" if base in ("list", "dict") else base) + HOSTILE[name]
    result = await sandbox.check(code, "f", WANTS)
    assert result.verdict != "value" or result.value[0] == 0, result


def sides() -> tuple[Mirror, Mirror]:
    def none(*_: Any) -> None:
        return None

    names = {"__name__": "side"}
    return Mirror(names, 0, none), Mirror(names, 1, none)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False) | st.decimals(allow_nan=False) | st.fractions()
    | st.dates() | st.datetimes().map(lambda at: at.replace(fold=0)) | st.timedeltas(),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner)
    | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
    | st.sets(st.integers(), max_size=1),  # of more, the order may differ
)  # fmt: skip


@given(PLAIN, PLAIN)
def test_what_is_sent_arrives_and_changes_come_back(value: Any, other: Any) -> None:
    mine, theirs = sides()
    box = [value, {"a": value}]
    found = theirs.loads(mine.pack(box))
    assert repr(found) == repr(box)
    found.append(other)
    found[1]["b"] = other
    mine.loads(theirs.pack(None))
    assert repr(box) == repr(found)


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.sampled_from([*"lsqydCODortzibkefgn"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
)


@given(JSON)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_said_is_a_value_or_refused(raw: Any) -> None:
    mine, _ = sides()
    try:
        mine.unpack(raw)
        mine.unpack([1, [raw]])
    except Untaggable:
        pass


def test_what_was_not_given_cannot_be_reached() -> None:
    mine, _ = sides()
    for text in (b'[["own",0],[]]', b'[["r",0],[]]', b'[["own",-1],[]]', b'[["f",-1],[]]'):
        with pytest.raises(Untaggable):
            mine.unpack(parsed(text))
