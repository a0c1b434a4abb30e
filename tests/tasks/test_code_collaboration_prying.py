"""What shows of aux by other ways than calling it is told from honest code."""

from __future__ import annotations

from importlib import import_module

from orchestry.task.registry import load_task

load_task("code_collaboration")  # makes the package that its module is loaded from
usage_of = import_module("orchestry_tasks.code_collaboration.usage").usage_of
SUM = "def sum_of_cubes(numbers):\n    return sum(aux(n) for n in numbers)"
HEAD = "def sum_of_cubes(numbers):\n    "


def pries(main: str) -> bool:
    return bool(usage_of(main, "sum_of_cubes").pries)


LOOKS = [
    "repr(aux)",
    "str(aux)",
    'f"{aux}"',
    '"%s" % aux',
    '"{}".format(aux)',
    "id(aux)",
    "dir(aux)",
    "aux.__doc__",
    "getattr(aux, 'x', 0)",
    "[aux]",
    "vars()",
    "globals()",
    "eval('aux')",
    "__import__('inspect')",
    "[e := eval]",
    "print(aux, file=numbers)",
    "print(repr(aux))",
    "sys.modules",
    "f.__code__",
    "g(f, '__code__')",
]
LOOKS_FIRST = [
    "show = repr",
    "cube = aux\nx = repr(cube)",
    "class Box:\n    kept = [aux]",
    "from sys import modules",
    "import inspect",
    "from builtins import eval as e",
]


def test_looking_into_aux_is_told_from_calling_it() -> None:
    for look in LOOKS:
        assert pries(f"{HEAD}x = {look}\n    return aux(x)"), look
    for line in LOOKS_FIRST:
        assert pries(f"{line}\n{SUM}"), line
    assert pries(f"print = str\n{HEAD}print(aux)")
    handing = "def look(k, f):\n    return {}\n\ndef g(f):\n    return look(f=f, k=1)\n\n"
    assert pries(handing.format("repr(f)") + f"{HEAD}return g(aux)")
    assert not pries(handing.format("f(1) + len(repr(k))") + f"{HEAD}return g(aux)")


HARMLESS = [
    "dir(numbers)",
    "id(numbers)",
    "repr(numbers)",
    "str(aux(1))",
    "map(aux, numbers)",
    "sorted(numbers, key=aux)",
    "partial(aux, 2)",
    "hasattr(numbers, 'x')",
    "print(aux.__name__)",
    "print(aux)",
    "[n for modules in numbers]",
    "cube = aux\n    cube(2)",
]


def test_what_shows_nothing_of_aux_costs_nothing() -> None:
    for line in HARMLESS:
        assert not pries(f"import builtins, sys\n{HEAD}{line}\n    return aux(1)"), line
