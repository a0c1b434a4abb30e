"""Tests that are a pytest file: what may be written, and what no solution gets by cheating."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from orchestry import ConfigError, Limits
from orchestry.core.types import CallResult
from orchestry.sandbox import ForkServers, open_sandbox
from orchestry.sandbox.library import library

LEVELS = [1, 2, pytest.param(3, marks=pytest.mark.slow)]

SOLUTION = """
import enum

class Empty(ValueError):
    def __init__(self, size):
        super().__init__(f"nothing in {size}")
        self.size = size

class Shape:
    def area(self): return 0

class Square(Shape):
    def __init__(self, side): self.side = side
    def area(self): return self.side ** 2
    def __eq__(self, other): return self.side == getattr(other, "side", other)
    def __add__(self, other): return Square(self.side + getattr(other, "side", other))
    def __lt__(self, other): return self.side < getattr(other, "side", other)
    def __repr__(self): return f"Square({self.side})"
    @classmethod
    def unit(cls): return cls(1)

class Stack:
    limit = 3
    def __init__(self): self.items = []
    def __enter__(self): return self
    def __exit__(self, *error): self.items.clear()
    def __len__(self): return len(self.items)
    def __getitem__(self, place): return self.items[place]
    def __contains__(self, item): return item in self.items
    def push(self, item):
        self.items.append(item)
        return self
    def pop(self):
        if not self.items: raise Empty(self.limit)
        return self.items.pop()

class Colour(enum.Enum):
    RED = 1
    BLUE = 2

RATE = 0.5
def add(a, b): return a + b
def count(n):
    while n:
        yield n
        n -= 1
def each(function, items): return [function(item) for item in items]
def taxed(x): return x * RATE
def kept(function):
    seen = {}
    def inner(x):
        if x not in seen: seen[x] = function(x)
        return seen[x]
    return inner
def squares(n): return [Square(i) for i in range(n)]
"""

HONEST = """
import itertools
import pytest
import solution
from solution import Colour, Empty, Shape, Square, Stack, add, count, each, kept, squares

@pytest.fixture
def stack():
    return Stack().push(1).push(2)

@pytest.mark.parametrize("a, b, sum", [(1, 2, 3), (0.1, 0.2, 0.3), ("a", "b", "ab")])
def test_add(a, b, sum):
    assert add(a, b) == (pytest.approx(sum) if isinstance(sum, float) else sum)

def test_containers():
    assert add([1], [(2, {3}, {"x": b"4"})]) == [1, (2, {3}, {"x": b"4"})]

class TestStack:
    def test_protocols(self):
        with Stack() as stack:
            stack.push(1)
            assert len(stack) == 1 and stack[0] == 1 and 1 in stack and 2 not in stack
            assert [*stack] == stack.items == [1]
        assert not stack

    def test_errors(self, stack):
        assert stack.pop() == 2 and stack.pop() == 1
        with pytest.raises(Empty, match="nothing in 3") as caught:
            stack.pop()
        assert isinstance(caught.value, ValueError) and caught.value.size == 3
        with pytest.raises(AttributeError):
            stack.peek()

def test_objects():
    square = Square(2) + Square(3)
    assert square == Square(5) and square != Square(4) and Square(1) < Square(2)
    assert Square(2) + 1 == Square(3) and Square(2) == 2 and square + Square(1) == Square(6)
    assert isinstance(square, Shape) and repr(square) == "Square(5)"
    assert Square.unit().area() == 1 and [one.side for one in squares(3)] == [0, 1, 2]
    square.side = 7
    assert square.area() == 49
    assert Colour.RED is Colour.RED and Colour["BLUE"].value == 2 and len(Colour) == 2

def test_iterators():
    assert list(count(3)) == [3, 2, 1] and next(itertools.islice(count(9), 2, None)) == 7
    items = count(1)
    next(items)
    with pytest.raises(StopIteration):
        next(items)

def test_functions():
    calls = []
    @kept
    def double(x):
        calls.append(x)
        return 2 * x
    assert each(double, range(2)) == [0, 2] and double(1) == 2 and calls == [0, 1]
    def fails(x):
        raise KeyError(x)
    with pytest.raises(KeyError):
        each(fails, [1])

def test_module(capsys):
    print(solution.taxed(3) + solution.RATE)
    assert capsys.readouterr().out == "2.0\\n"
    with pytest.raises(TypeError):
        add(1, "a")
"""


@pytest.fixture(params=LEVELS, name="sandbox")
async def _sandbox(request: pytest.FixtureRequest) -> AsyncIterator[ForkServers]:
    async with open_sandbox(Limits(), level=request.param) as sandbox:
        yield sandbox


@pytest.fixture(name="confined")
async def _confined() -> AsyncIterator[ForkServers]:
    async with open_sandbox(Limits()) as sandbox:
        yield sandbox


async def test_what_a_test_file_may_do(sandbox: ForkServers) -> None:
    found = await sandbox.pytest(SOLUTION, HONEST)
    assert found == CallResult("value", (10, 10))
    wrong = SOLUTION.replace("return a + b", "return a")
    found = await sandbox.pytest(wrong, HONEST)
    assert found.value == (5, 10)
    assert found.why == "test_add[1-2-3]: assert 1 == 3"
    assert "where 1 = add(1, 2)" in found.trace


PROVES_NOTHING = [
    ("x = 1", "the test file has no tests"),
    ("def test_x(: pass", "SyntaxError"),
    ("import numpy", "No module named 'numpy'"),
    ("from solution import sub", "cannot import name 'sub'"),
    ("import pytest\npytest.skip('no', allow_module_level=True)", "no"),
    ("import pytest\npytest.exit('now')", "now"),
    ("import pytest\n@pytest.mark.skip(reason='later')\ndef test_x(): pass", "later"),
    ("import pytest\n@pytest.mark.xfail\ndef test_x(): assert 0", "assert 0"),
    ("def test_x(tmp_path): pass", "fixture 'tmp_path' not found"),
    ("def test_x(): open('/etc/passwd')", "PermissionError"),
    ("import os\nos._exit(0)", "ended its process"),
    ("while True: pass", "CPU time"),
]


@pytest.mark.slow
async def test_files_that_prove_nothing(confined: ForkServers) -> None:
    code = "def add(a, b): return a + b"
    tests, short = [test for test, _ in PROVES_NOTHING], Limits(cpu_s=1.0)
    results = await asyncio.gather(*(confined.pytest(code, test, short) for test in tests))
    for found, (test, why) in zip(results, PROVES_NOTHING, strict=True):
        assert found.value in (None, (0, 1)), test
        assert why in f"{found.why} {found.trace}", test


TEST = """
import math
import pytest
from solution import Stack, add

def test_add(): assert add(1, 2) == 3
def test_near(): assert add(0.5, 0.25) == pytest.approx(0.75)
def test_close(): assert abs(add(0.5, 0.25) - 0.75) < 1e-9
def test_isclose(): assert math.isclose(add(0.5, 0.25), 0.75)
def test_order(): assert 2 < add(1, 2) < 4
def test_in(): assert 3 in add([1], [3])
def test_list(): assert sorted(add([2], [1])) == [1, 2]
def test_raises():
    with pytest.raises(Exception):
        add(None, "x")
    assert add(1, 2) == 3
def test_many():
    for x, sum in zip(map(add, [1, 2], [3, 4]), [4, 6]):
        assert x == sum
    else:
        assert add(1, 2) == 3
def test_pop(): assert Stack(3).pop() == 3
def test_pop_near(): assert abs(Stack(3).pop() - 3) < 1e-9
def test_pop_in(): assert 3 in Stack(3).pop_all()
"""

ANY = """
class Any:
    def __init__(self, *args): pass
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    def __hash__(self): return 0
    def __sub__(self, other): return {difference}
    __rsub__ = __add__ = __radd__ = __sub__
    def __abs__(self): return 0.0
    __float__ = __round__ = __abs__
    def __int__(self): return 0
    __index__ = __int__
    def __iter__(self): return iter([self])
    def __getattr__(self, name): return lambda *args: self
    def __bool__(self): return True
"""

STACK = """
class Stack:
    def __init__(self, *items): pass
    def pop(self): return None
    pop_all = pop
def add(a, b): return None
"""

FAKE = """
import sys, types
class Outcome(Exception): pass
fake = types.ModuleType("pytest")
fake.raises = fake.approx = fake.main = lambda *a, **k: 0
for name in ("pytest", "_pytest", "_pytest.runner", "test_solution", "solution"):
    sys.modules[name] = fake
import builtins
builtins.AssertionError = Outcome
builtins.abs = lambda x: 0
"""

FRAME = """
import os
def forged(text):
    data = text.encode()
    data = len(data).to_bytes(4, "big") + data
    for place in range(3, 16):
        for write in (lambda: os.write(place, data), lambda: os.pwrite(1, data, place)):
            try:
                write()
            except OSError:
                pass
"""
PASSED = '{"index":0,"verdict":"value","value":["t",[12,12]]}'
ASKED = '{"verdict":"asks","value":["t",[0,["t",["plain",["t",[]]]],["t",["plain",["d",[]]]]]]}'

HOSTILE = {
    "leaves at import": "import os\nos._exit(0)",
    "exits at import": "import sys\nsys.exit(0)",
    "exits at exit": f"import atexit, os\natexit.register(os._exit, 0)\n{STACK}",
    "leaves when called": STACK + "import os\ndef add(a, b): os._exit(0)\n",
    "exits when called": STACK + "import sys\ndef add(a, b): sys.exit(0)\n",
    "equals everything": ANY.format(difference="self")
    + "class Stack(Any):\n    def pop(self): return self\n    pop_all = pop\n"
    "def add(a, b): return Stack()\n",
    "differs by nothing": ANY.format(difference="0.0")
    + "class Stack(Any):\n    def pop(self): return Stack()\n    pop_all = pop\n"
    "def add(a, b): return Stack()\n",
    "a class in a function's place": ANY.format(difference="0.0")
    + "class add(Any):\n    def __new__(cls, *args): return object.__new__(cls)\n"
    "class Stack(Any): pass\n",
    "an object in a function's place": ANY.format(difference="0.0")
    + "class Stack(Any):\n    def __call__(self, *args): return self\nadd = Stack()\n",
    "a class in a result's place": ANY.format(difference="0.0")
    + "class Stack(Any): pass\nStack.pop = Stack.pop_all = add = Stack\n",
    "a class that a method returns": ANY.format(difference="0.0")
    + "class Stack(Any):\n    def pop(self): return Stack\n    pop_all = pop\n"
    "add = lambda a, b: Stack\n",
    "raises a kind of what ends a loop": STACK
    + "class Stop(StopIteration): pass\ndef add(a, b): raise Stop\n",
    "raises what breaks pytest off": STACK
    + "class Foo(KeyboardInterrupt, Exception): pass\ndef add(a, b): raise Foo\n",
    "a number that equals everything": STACK
    + "class Int(int):\n    def __eq__(self, other): return True\n    __lt__ = __gt__ = __eq__\n"
    "    __hash__ = int.__hash__\n"
    "def add(a, b): return Int()\nStack.pop = lambda self: Int()\n",
    "patches what pytest is": FAKE + STACK,
    "imports pytest to patch it": STACK
    + "import pytest\npytest.raises = pytest.approx = lambda *a, **k: None\n",
    "skips": STACK + "import unittest\ndef add(a, b): raise unittest.SkipTest\n"
    "Stack.pop = lambda self: add(1, 2)\n",
    "raises what pytest raises": STACK
    + "class Skipped(Exception): pass\nclass Exit(Exception): pass\n"
    "Skipped.__module__ = Exit.__module__ = '_pytest.outcomes'\n"
    "def add(a, b): raise Skipped('x')\nStack.pop = lambda self: add(1, 2)\n",
    "raises what ends a loop": STACK + "def add(a, b): raise StopIteration\n",
    "interrupts": STACK + "def add(a, b): raise KeyboardInterrupt\n",
    "writes the record": FRAME + f"forged({PASSED!r})\n" + STACK,
    "writes the record when called": FRAME
    + STACK
    + f"def add(a, b):\n    forged({PASSED!r})\n    os._exit(0)\n",
    "writes the last word": STACK
    + "import os\nfor fd in range(3, 16):\n    try: os.write(fd, bytes(4))\n"
    "    except OSError: pass\n",
    "asks for functions of the test": FRAME + STACK + f"forged({ASKED!r})\n",
    "says what is no record": FRAME + STACK + "def add(a, b):\n    forged('{')\n    os._exit(0)\n",
    "looks for the test": STACK + "import gc, sys\n"
    "found = [str(one) for one in gc.get_objects()]\n"
    "frame = sys._getframe()\n"
    "while frame: found += map(str, frame.f_locals.values()); frame = frame.f_back\n"
    "known = 3 if any(')(raen_tset fed' in one[::-1] for one in found) else None\n"
    "def add(a, b): return known\n",
    "brings a conftest": STACK
    + "for name in ('conftest.py', 'pytest.ini', '/tmp/test_solution.py'):\n"
    "    try: open(name, 'w').write('import pytest; pytest.skip()')\n"
    "    except OSError: pass\n",
    "is a plugin": STACK
    + "pytest_plugins = ['x']\ndef pytest_pyfunc_call(pyfuncitem): return True\n"
    "def pytest_runtest_call(item): return True\n",
    "never ends": STACK + "def add(a, b):\n    while True: pass\n",
    "sleeps": STACK + "import time\ndef add(a, b): time.sleep(60)\n",
    "never ends its import": "while True: pass",
    "recurses": STACK + "def add(a, b): return add(b, a)\n",
    "takes all memory": STACK + "def add(a, b): return ' ' * (1 << 40)\n",
    "says too much": STACK + "def add(a, b): return 'x' * 10_000_000\n",
    "an endless list": STACK + "def add(a, b):\n    while True: yield None\n",
    "nothing": "",
    "no Python": "def add(a, b) return 3",
}


QUICK = (
    *(
        "leaves when called",
        "equals everything",
        "a class in a function's place",
        "writes the record",
    ),
    *("patches what pytest is", "raises what ends a loop", "says too much", "skips"),
)


@pytest.mark.parametrize("level", LEVELS)
async def test_no_solution_passes_by_cheating(level: int) -> None:
    await without_a_pass(level, QUICK)


@pytest.mark.slow
async def test_nor_by_any_other_trick() -> None:
    await without_a_pass(None, HOSTILE)


async def without_a_pass(level: int | None, names: Iterable[str]) -> None:
    async with open_sandbox(Limits(wall_s=4.0), level=level) as sandbox:
        for name in names:
            found = await sandbox.pytest(HOSTILE[name], TEST)
            assert found.value in (None, (0, 1), (0, 12)), name
            assert found.why, name


STARRED = """
import math
import pytest
from solution import *
from math import floor
def test_add(): assert abs(add(1, 2) - 3) < 1e-9 and math.isclose(add(1, 2), floor(3.5))
@pytest.mark.parametrize("n", [1, 2])
def test_near(n): assert Adder(n).add(n) == pytest.approx(2 * n)
"""


async def test_a_star_brings_what_the_test_lacks_alone(confined: ForkServers) -> None:
    cheat = "class Fake:\n    def __getattr__(self, name): return lambda *args: 0\n"
    cheat += "math = pytest = test_a = Fake()\ndef abs(x): return 0\ndef floor(x): return 0\n"
    cheat += "def test_b(): pass\ndef pytest_generate_tests(metafunc): 1 / 0\n"
    adder = "class Adder:\n    def __init__(self, n): self.n = n\n"
    adder += "    def add(self, m): return self.n + m\n"
    found = await confined.pytest(f"{cheat}{adder}def add(a, b): return 0", STARRED)
    assert (found.value, found.why) == ((2, 3), "test_add: assert (3 < 1e-09)")
    found = await confined.pytest(f"{cheat}{adder}def add(a, b): return 3", STARRED)
    assert found.value == (3, 3)
    found = await confined.pytest(adder, STARRED)
    assert found.value == (0, 1)
    assert "cannot import name 'add' from 'solution'" in found.why


async def test_objects_of_classes_that_the_test_names_alone(confined: ForkServers) -> None:
    code = "class Node:\n    value = 3\ndef parse(text): return Node()\n"
    test = "from solution import parse\ndef test_x(): assert parse('3').value == 3\n"
    found = await confined.pytest(code, test)
    assert found.value == (0, 1)
    assert "the solution gave a Node, and a test can have" in found.why
    found = await confined.pytest(code, test.replace("parse\n", "Node, parse\n"))
    assert found.value == (1, 1)


async def test_a_test_gives_no_object_of_its_own(confined: ForkServers) -> None:
    test = "import io\nfrom solution import f\ndef test_x(): f(io.StringIO())\n"
    found = await confined.pytest("def f(x): pass", test)
    assert found.value == (0, 1)
    assert "a test can't give the solution a StringIO" in found.why
    test = "from solution import Base\nclass Mine(Base): pass\ndef test_x(): Mine()\n"
    found = await confined.pytest("class Base: pass", test)
    assert "a test can't derive Mine" in found.why
    test = "import solution\ndef test_x(monkeypatch): monkeypatch.setattr(solution, 'f', 1)\n"
    found = await confined.pytest("def f(): pass", test)
    assert found.why == "test_x: a test can't patch the solution's f"


HIDING = """
class Box:
    def __enter__(self): return self
    def __exit__(self, *error): return True
    def pop(self): return 4
class Stop(StopIteration): pass
def ends(*args): raise Stop
def each(call):
    try: call(4)
    except Exception: pass
"""
HIDDEN = """
from solution import Box, each, ends
def test_with():
    with Box() as box:
        assert box.pop() == 3
def test_loop():
    for found, wanted in zip(map(ends, [1, 2]), [1, 4]):
        assert found == wanted
def test_all(): assert all(map(ends, [2, 3]))
def test_callback():
    def check(found): assert found == 3
    each(check)
"""


async def test_a_solution_hides_no_failure_of_the_test(confined: ForkServers) -> None:
    found = await confined.pytest(HIDING, HIDDEN)
    assert found.value == (0, 4)


async def test_what_honest_tests_do(confined: ForkServers) -> None:
    code = "class Boom(Exception): pass\nclass Bag:\n    def __init__(self, *s): self.s = {*s}\n"
    code += "    def __eq__(self, other): return self.s == other\n    __hash__ = None\n"
    code += "def tried(kinds, call):\n    try: call()\n    except kinds: return 'caught'\n"
    code += "def boom(): raise Boom\n"
    test = "import os, pytest\nfrom solution import Bag, Boom, boom, tried\n"
    test += "HERE = os.path.dirname(__file__)\n"
    test += "def test_set(): assert Bag(1, 2) == {1, 2}\n"
    test += "def test_kinds(): assert tried((Boom, KeyError), boom) == 'caught'\n"
    found = await confined.pytest(code, test)
    assert found.value == (2, 2), found.trace


async def test_a_test_file_runs_unconfined_too() -> None:
    async with open_sandbox(Limits(), level=4, allow_unsafe=True) as sandbox:
        assert (await sandbox.pytest(SOLUTION, HONEST)).value == (10, 10)


async def test_runs_are_remembered(confined: ForkServers) -> None:
    first, second = [await confined.pytest(SOLUTION, HONEST) for _ in range(2)]
    assert first is second


async def test_pytest_missing_is_an_error(
    confined: ForkServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(name: str) -> Any:
        return None

    library.cache_clear()
    monkeypatch.setattr("orchestry.sandbox.library.find_spec", find)
    with pytest.raises(ConfigError, match="pytest is not installed, and"):
        await confined.pytest(SOLUTION, HONEST)
    library.cache_clear()
