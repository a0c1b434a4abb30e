"""Calls in a program that is followed: of aux, of its own functions, of unknown ones."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Sequence

from .values import (
    AUX,
    FIXED,
    NOTHING,
    UNTOUCHED,
    Frame,
    Function,
    FunctionNode,
    Origin,
    Site,
    Trace,
    Value,
    join,
)

_MAX_STEPS = 20_000  # then loops are passed once, and functions are no longer entered
_MAX_CALLS = 8  # functions within functions
_INSPECTS = frozenset(
    {"bool", "callable", "getattr", "hasattr", "hash", "id", "isinstance", "len", "print"}
    | {"repr", "str", "type"}
)
"""Functions that do not call a function that they are given."""


class Calls(ABC):
    """Where the program has been reached, and what its calls give there."""

    def __init__(self, aux: str) -> None:
        self.aux = aux
        self.trace = Trace()
        self.module = self.frame = Frame()
        self.methods: dict[str, list[Function]] = {}
        self.fields: dict[str, Value] = {}
        self.stack: list[FunctionNode] = []
        self.loops = self.handlers = self.steps = 0

    @abstractmethod
    def run_function(self, function: Function, names: dict[str, Value]) -> list[Value]:
        """Follows a function with its parameters bound; all that it may return."""

    @abstractmethod
    def value(self, node: ast.expr) -> Value:
        """What is known of an expression's value."""

    @property
    def exhausted(self) -> bool:
        return self.steps > _MAX_STEPS

    def touch(self, node: ast.expr, taint: frozenset[Site]) -> None:
        """Marks the variable that an expression starts from as changed."""
        while not isinstance(node, ast.Name):
            inner = getattr(node, "func", None) or getattr(node, "value", None)
            if not isinstance(inner, ast.expr):
                return
            node = inner
        holder = self.frame.holder(node.id)
        if holder is not None:
            holder.names[node.id] = holder.names[node.id].worked(taint)

    def effect(self, node: ast.expr) -> None:
        """A call for its effect changes what it is called on and with, unless it only prints."""
        value = self.value(node)
        if not isinstance(node, ast.Call):
            return
        name = ast.unparse(node.func)
        if name in _INSPECTS or name.startswith(("log", "sys.", "warnings.")):
            return
        if isinstance(node.func, ast.Name) and AUX in self.name(node.func.id).functions:
            return  # what aux changes in place is not its result
        for part in (node.func, *node.args):
            if isinstance(part, ast.Name | ast.Attribute | ast.Subscript):
                self.touch(part, value.taint)

    def name(self, name: str) -> Value:
        holder = self.frame.holder(name)
        if holder is not None:
            return holder.names[name]
        return Value(functions=frozenset({AUX})) if name == self.aux else Value()

    def function(self, node: FunctionNode) -> Function:
        args = node.args
        named = [arg.arg for arg in (*args.posonlyargs, *args.args)]
        first = len(named) - len(args.defaults)
        defaults = dict(zip(named[first:], map(self.value, args.defaults), strict=True))
        for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
            if default is not None:
                defaults[arg.arg] = self.value(default)
        return Function(node, self.frame, defaults)

    def call(self, node: ast.Call) -> Value:
        function = self.value(node.func)
        args = [self.value(arg) for arg in node.args]
        named = {keyword.arg: self.value(keyword.value) for keyword in node.keywords}
        every = [*args, *named.values()]
        if called_name(node) == "partial" and args:
            return Value(join(every).taint, functions=args[0].functions)
        if not function.functions:
            return self._unknown(node, function, every)
        return join([self._inline(known, node, args, named) for known in function.functions])

    def call_aux(self, node: ast.Call, args: Sequence[Value]) -> Value:
        """A new site, with what flowed into its arguments; none where these are constants."""
        site = Site(ast.dump(node), self.loops > 0, frozenset(self.stack))
        self.trace.calls.append(site)
        untouched = all(arg.origins <= UNTOUCHED for arg in args)
        taint = {other for arg in args for other in arg.taint}
        origin = Origin.ECHO if untouched else Origin.RESULT
        if args and all(arg.origins <= FIXED for arg in args):
            return Value(frozenset(taint), frozenset({origin}))
        return Value(frozenset({site, *taint}), frozenset({origin}))

    def _unknown(self, node: ast.Call, function: Value, args: Sequence[Value]) -> Value:
        """A function from elsewhere; it calls each function it is given for every item."""
        taint = function.taint | {site for arg in args for site in arg.taint}
        results = [Value(taint)]
        handed = {f for arg in args for f in arg.functions}
        if called_name(node) not in _INSPECTS:
            self.loops += 1
            results += [self._inline(known, node, [Value(taint)], {}) for known in handed]
            self.loops -= 1
        return join(results).worked()

    def _inline(
        self,
        function: Function,
        node: ast.Call,
        args: Sequence[Value],
        named: dict[str | None, Value],
    ) -> Value:
        """Aux, or the program's own function, followed with these arguments."""
        callee = function.node
        if callee is None:
            return self.call_aux(node, [*args, *named.values()])
        flowing = join([Value(), *args, *named.values()]).worked()
        if callee in self.stack:
            self.trace.recursive.update(self.stack[self.stack.index(callee) :])
            return flowing
        if len(self.stack) >= _MAX_CALLS or self.exhausted:
            return flowing
        started = getattr(callee, "name", "") == "__init__"
        receiver = node.func.value if isinstance(node.func, ast.Attribute) else None
        if (receiver or started) and not _is_static(callee):
            args = [self.value(receiver) if receiver else Value(), *args]
        starred = any(isinstance(arg, ast.Starred) for arg in node.args)
        returns = self.run_function(function, _bound(function, args, named, starred))
        return flowing if started else join(returns or [NOTHING])


def _bound(
    function: Function, args: Sequence[Value], named: dict[str | None, Value], starred: bool
) -> dict[str, Value]:
    """The parameters of a function with their values."""
    assert function.node is not None
    spec = function.node.args
    positional = [arg.arg for arg in (*spec.posonlyargs, *spec.args)]
    spread = [named[None]] if None in named else []
    names = dict(function.defaults)
    for i, name in enumerate((*positional, *(arg.arg for arg in spec.kwonlyargs))):
        if starred and args:
            names[name] = join([*args, *spread])
        elif i < len(args) and i < len(positional):
            names[name] = args[i]
        elif name in named:
            names[name] = named[name]
        elif name not in names:
            names[name] = join(spread)
    if spec.vararg:
        names[spec.vararg.arg] = join(args if starred else args[len(positional) :])
    if spec.kwarg:
        known = {*positional, *(arg.arg for arg in spec.kwonlyargs)}
        names[spec.kwarg.arg] = join(v for key, v in named.items() if key not in known)
    return names


def called_name(node: ast.Call) -> str:
    """The last name of what is called."""
    func = node.func
    return func.id if isinstance(func, ast.Name) else getattr(func, "attr", "")


def _is_static(node: FunctionNode) -> bool:
    marks = getattr(node, "decorator_list", [])
    return any(isinstance(mark, ast.Name) and mark.id == "staticmethod" for mark in marks)
