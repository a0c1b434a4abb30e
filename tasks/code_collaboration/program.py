"""The team's program: the helper's code and main's, joined, and the stubs that stand in for aux.

Pure: nothing is run here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from orchestry import Problem, parse_code

AUX = "aux"
_FUTURE = re.compile(r"^from __future__ import .*\n?", re.MULTILINE)
_Function = ast.FunctionDef | ast.Lambda
_CONSTANTS = ("None", "0", "True", "False")
_FROZEN = """\
def _freeze(honest):
    kept, busy = [], []
    def aux({parameters}):
        if busy:
            return honest({arguments})
        if not kept:
            busy.append(True)
            try:
                kept.append(honest({arguments}))
            finally:
                busy.clear()
        return kept[0]
    return aux
aux = _freeze(aux)
del _freeze
"""
"""Gives for ever what it rightly gave to the first call; calls from inside itself are honest."""


@dataclass(frozen=True, slots=True)
class Program:
    """What each of the two wrote, '' for no code, and what the problem itself puts before it."""

    helper: str
    main: str
    preamble: str = ""

    @classmethod
    def of(cls, problem: Problem, helper: str, main: str) -> Program:
        """The program of a team on that problem."""
        return cls(helper, main, problem.data.get("preamble", ""))

    @property
    def text(self) -> str:
        """One module: the problem's own lines, the helper's code, main's code."""
        return _joined(self.preamble, self.helper, self.main)

    def stubbed(self) -> list[str]:
        """The program with other functions in place of aux; none where the helper defines none.

        They come behind the helper's code, so that all else it defines stays, and have the name
        and parameters of the function that they replace.
        """
        function = defined(self.helper, AUX)
        if function is None:
            return []
        return [_joined(self.preamble, self.helper, s, self.main) for s in _stubs(function)]


def defined(code: str, name: str) -> _Function | None:
    """The function that a code binds to a name at the top level, the last one, or None.

    A coroutine is none: who calls it gets no value.
    """
    tree = parse_code(code)
    for node in reversed(tree.body if tree else []):
        if (function := _bound(node, name)) is not None:
            return function
    return None


def _bound(node: ast.stmt, name: str) -> _Function | None:
    if isinstance(node, ast.FunctionDef) and node.name == name:
        return node
    if isinstance(node, ast.Assign) and isinstance(function := node.value, ast.Lambda):
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        return function if name in names else None
    return None


def _joined(*codes: str) -> str:
    """One module; only at its top may it import from the future."""
    futures = dict.fromkeys(line.strip() for code in codes for line in _FUTURE.findall(code))
    bodies = [_FUTURE.sub("", code).strip("\n") for code in codes]
    return "\n\n\n".join(filter(None, ["\n".join(futures), *bodies])) + "\n"


def _stubs(function: _Function) -> Iterator[str]:
    parameters = function.args
    named = [*parameters.posonlyargs, *parameters.args]
    first = [parameter.arg for parameter in named][:1]
    for value in (*_CONSTANTS, *first):
        yield f"def {AUX}({ast.unparse(parameters)}):\n    return {value}"
    yield _FROZEN.format(parameters=ast.unparse(parameters), arguments=_passed_on(parameters))


def _passed_on(parameters: ast.arguments) -> str:
    """The arguments of a call that hands on all that a function of these parameters was given."""
    named = [parameter.arg for parameter in (*parameters.posonlyargs, *parameters.args)]
    rest = [f"*{parameters.vararg.arg}"] if parameters.vararg else []
    keyed = [f"{parameter.arg}={parameter.arg}" for parameter in parameters.kwonlyargs]
    more = [f"**{parameters.kwarg.arg}"] if parameters.kwarg else []
    return ", ".join([*named, *rest, *keyed, *more])
