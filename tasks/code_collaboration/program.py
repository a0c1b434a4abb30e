"""The team's program: the helper's code and main's, joined, and the stubs that stand in for aux.

Pure: nothing is run here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestry import Problem, dump_code, join_code, parse_code, unparse_code

AUX = "aux"
HELPERS = (AUX, "aux2", "aux3")
"""The functions of up to three helpers."""
_ANY = ast.arguments([], [], ast.arg("args"), [], [], ast.arg("named"), [])
"""The parameters of what may be called in any way."""
_CONSTANTS = ("None", "0", "True", "False")
_FROZEN = """\
def _freeze(honest):
    kept, busy = [], []
    def {name}({parameters}):
        if busy:
            return honest({arguments})
        if not kept:
            busy.append(True)
            try:
                kept.append(honest({arguments}))
            finally:
                busy.clear()
        return kept[0]
    {name}.__qualname__ = {name}.__name__
    return {name}
{name} = _freeze({name})
del _freeze
"""
"""Gives for ever what it rightly gave to the first call; calls from inside itself are honest."""


@dataclass(frozen=True, slots=True)
class Program:
    """What a helper and main wrote, '' for no code, and what the problem itself puts before it.

    `name` is the helper's function, and `others` are the codes of further helpers.
    """

    helper: str
    main: str
    preamble: str = ""
    name: str = AUX
    others: tuple[str, ...] = ()

    @classmethod
    def of(cls, problem: Problem, helper: str, main: str) -> Program:
        """The program of a team on that problem."""
        return cls(helper, main, problem.data.get("preamble", ""))

    @classmethod
    def views(cls, problem: Problem, helpers: Sequence[str], main: str) -> tuple[Program, ...]:
        """The program as each helper's; the last has all codes in the helpers' order."""
        before = problem.data.get("preamble", "")
        return tuple(
            cls(code, main, before, name, tuple(o for j, o in enumerate(helpers) if j != i))
            for i, (name, code) in enumerate(zip(HELPERS, helpers, strict=False))
        )

    @property
    def text(self) -> str:
        """One module: the problem's own lines, the helpers' code, main's code."""
        return join_code((self.preamble, *self.others, self.helper, self.main))

    def stubbed(self) -> list[str]:
        """The program with other functions in place of aux; none where the helper defines none.

        They come behind the helper's code, so that all else it defines stays, and have the name
        and parameters of the function that they replace.
        """
        parameters = defined(self.helper, self.name)
        written = unparse_code(parameters) if parameters else None
        if parameters is None or written is None:
            return []
        return [
            join_code((self.preamble, *self.others, self.helper, stub, self.main))
            for stub in _stubs(self.name, parameters, written)
        ]


def defined(code: str, name: str) -> ast.arguments | None:
    """The parameters of what a code binds to a name of the module, the last binding, or None.

    Of what is no plain function (a `partial`, an object that can be called, an import) they are
    any. A coroutine is none: who calls it gets no value. Nor are parameters that can't be written
    down again, whose defaults nest too deep or have too many digits.
    """
    tree = parse_code(code)
    bound = (_bound(node, name) for node in _statements(tree or ast.Module([], [])))
    found = next((parameters for parameters in bound if parameters), None)
    return found if found and unparse_code(found) is not None else None


def without_promise(code: str, shown: str = "", aux: str = AUX) -> str:
    """Main's code without the helper function `aux` that its prompt showed it.

    That is one without a body, or `shown`'s own where main saw the helper's code. Main repeats it
    as often as not, and it would stand in the place of the real one.
    """
    tree, real = parse_code(code), _function(parse_code(shown), aux)
    lines = code.split("\n")
    for node in reversed(tree.body if tree else []):
        if isinstance(node, ast.FunctionDef) and node.name == aux:
            same = real is not None and dump_code(node) == (dump_code(real) or "")
            if same or all(map(_says_nothing, node.body)):
                del lines[node.lineno - 1 : node.end_lineno]
    return "\n".join(lines).strip("\n")


def _function(tree: ast.Module | None, aux: str) -> ast.FunctionDef | None:
    found = (node for node in reversed(tree.body if tree else []))
    return next((n for n in found if isinstance(n, ast.FunctionDef) and n.name == aux), None)


def _says_nothing(node: ast.stmt) -> bool:
    match node:
        case ast.Pass() | ast.Expr(ast.Constant()):
            return True
        case ast.Raise(ast.Name("NotImplementedError") | ast.Call(ast.Name("NotImplementedError"))):
            return True
    return False


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Those that run with the module, in blocks too; the last one first."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            children = ast.iter_child_nodes(node)
            waiting += (c for c in children if isinstance(c, ast.stmt | ast.ExceptHandler))


def _bound(node: ast.stmt, name: str) -> ast.arguments | None:
    """The parameters of what a statement binds to the name."""
    targets: list[ast.expr] = []
    match node:
        case ast.FunctionDef(name=defined_name, args=parameters) if defined_name == name:
            return parameters
        case ast.ImportFrom(names=aliases) if name in [a.asname or a.name for a in aliases]:
            return _ANY
        case ast.Assign():
            targets = node.targets
        case ast.AnnAssign():
            targets = [node.target]
    value = getattr(node, "value", None)
    if not any(isinstance(target, ast.Name) and target.id == name for target in targets):
        return None
    if isinstance(value, ast.Lambda):
        return value.args
    return _ANY if isinstance(value, ast.Call | ast.Name | ast.Attribute) else None


def _stubs(name: str, parameters: ast.arguments, written: str) -> Iterator[str]:
    named = [*parameters.posonlyargs, *parameters.args]
    first = [parameter.arg for parameter in named][:1]
    if not named and parameters.vararg:
        first = [f"{parameters.vararg.arg}[0]"]
    for value in (*_CONSTANTS, *first):
        yield f"def {name}({written}):\n    return {value}"
    yield _FROZEN.format(name=name, parameters=written, arguments=_passed_on(parameters))


def _passed_on(parameters: ast.arguments) -> str:
    """The arguments of a call that hands on all that a function of these parameters was given."""
    named = [parameter.arg for parameter in (*parameters.posonlyargs, *parameters.args)]
    rest = [f"*{parameters.vararg.arg}"] if parameters.vararg else []
    keyed = [f"{parameter.arg}={parameter.arg}" for parameter in parameters.kwonlyargs]
    more = [f"**{parameters.kwarg.arg}"] if parameters.kwarg else []
    return ", ".join([*named, *rest, *keyed, *more])
