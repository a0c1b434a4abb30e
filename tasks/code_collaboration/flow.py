"""Follows aux's results through a program by reading it: abstract interpretation of its statements.

Statements are followed in order, both ways of a condition, loops until nothing new is learned,
the program's own functions and methods where they are called. Attributes are told apart by name
alone, and a call for its effect is taken to change its arguments.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from .conditions import checks_validity, is_idle, truth
from .expressions import Expressions
from .values import (
    GIVEN,
    NOTHING,
    Frame,
    Function,
    FunctionNode,
    Site,
    Trace,
    Value,
    Way,
    join,
    join_names,
    rescues,
)

_PASSES = 3  # over a loop's body: what flows on from item to item

_UNMET = "return"  # no name of Python's: what some ways have returned, and others not yet

_Body = Sequence[ast.stmt]


def follow(tree: ast.Module, entry_point: str, aux: str) -> Trace | None:
    """What happens in `entry_point`, or None if the module defines no such function.

    Raises RecursionError for code nested too deep, ValueError for integers of too many digits.
    """
    flow = _Flow(aux)
    flow.block(tree.body)
    flow.trace = Trace()  # what a module does on import is not what the entry point does
    entry = flow.frame.names.get(entry_point, Value())
    flow.frame.live = True
    if not entry.functions:
        return None
    for function in entry.functions:
        flow.enter(function)
    flow.trace.used.update(site for value in flow.trace.returns for site in value.taint)
    return flow.trace


class _Flow(Expressions):
    """The statements."""

    def enter(self, function: Function) -> None:
        """Calls the entry point with untouched arguments."""
        if function.node is None:  # the entry point is another name for aux
            call = ast.Call(ast.Name(self.aux, ast.Load()), [], [])
            self.trace.returns.append(self.call_aux(call, []))
            return
        args = function.node.args
        names = [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
        names += [arg.arg for arg in (args.vararg, args.kwarg) if arg]
        given = {
            name: replace(GIVEN, functions=function.defaults.get(name, GIVEN).functions)
            for name in names
        }
        self.trace.returns += self.run_function(function, given)

    def run_function(self, function: Function, names: dict[str, Value]) -> list[Value]:
        node = function.node
        assert node is not None
        caller, self.frame = self.frame, Frame(function.home, names)
        self.stack.append(node)
        if isinstance(node, ast.Lambda):
            self.frame.returns.append(self.value(node.body))
        else:
            self.block(node.body)
            if self.frame.live:
                self.frame.returns.append(NOTHING)
        self.stack.pop()
        returns, self.frame = self.frame.returns, caller
        return returns

    def block(self, body: _Body) -> None:
        for i, statement in enumerate(body):
            if not self.frame.live or self.statement(statement, body[i + 1 :]):
                return

    def statement(self, node: ast.stmt, rest: _Body) -> bool:
        """Follows one statement; True where it took the rest of the block along."""
        self.steps += 1
        match node:
            case ast.If():
                return self._if(node, rest)
            case ast.Match():
                return self._match(node, rest)
            case ast.Try() | ast.TryStar():
                return self._try(node, rest)
            case ast.With() | ast.AsyncWith():
                return self._with(node, rest)
            case ast.For() | ast.AsyncFor() | ast.While():
                self._loop(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._define(node)
            case ast.Return() | ast.Raise() | ast.Break() | ast.Continue():
                self._leave(node)
            case _:
                self._simple(node)
        return False

    def _simple(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(value=value):
                self.effect(value)
            case ast.Assign(targets=targets, value=source):
                assigned = self.value(source)
                for target in targets:
                    self.assign(target, assigned, source)
            case ast.AnnAssign(target=target, value=ast.expr() as source):
                self.assign(target, self.value(source), source)
            case ast.AugAssign(target=target, value=added):
                both = join([self.value(target), self.value(added)])
                self.assign(target, both.worked())
            case ast.Assert(test=test):
                decided = self.test(test)
                self.trace.filtered |= bool(decided.taint) and not self.loops
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                for alias in aliases:
                    self.frame.names[(alias.asname or alias.name).split(".")[0]] = Value()
            case ast.Delete(targets=targets):
                for target in targets:
                    self.touch(target, frozenset())
            case ast.Global(names=names):
                self.frame.outer.update(dict.fromkeys(names, self.module))
            case ast.Nonlocal(names=names):
                parent = self.frame.parent or self.module
                self.frame.outer.update({name: parent.holder(name) or parent for name in names})

    def _leave(self, node: ast.stmt) -> None:
        match node:
            case ast.Return(value=value):
                given = self.value(value) if value else NOTHING
                self.trace.fallback |= given.own and _UNMET in self.frame.names
                self.frame.returns.append(given)
            case ast.Raise(exc=error):
                self.trace.used |= self.value(error).taint if error else frozenset()
                self.trace.raised |= not self.handlers
            case ast.Break():
                self.frame.breaks.append(dict(self.frame.names))
            case ast.Continue():
                self.frame.nexts.append(dict(self.frame.names))
        self.frame.live = False

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        if not isinstance(node, ast.ClassDef):
            self.frame.names[node.name] = Value(functions=frozenset({self.function(node)}))
            return
        around = self.frame
        self.frame = Frame(around)
        self.block([child for child in node.body if not isinstance(child, FunctionNode)])
        self.fields.update(self.frame.names)
        self.frame = around
        for child in node.body:
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                self.methods.setdefault(child.name, []).append(self.function(child))
        started = [c for c in self.methods.get("__init__", []) if c.node in node.body]
        around.names[node.name] = Value(functions=frozenset(started))

    def fork(self, bodies: Sequence[Callable[[], None]]) -> list[Way]:
        """Follows each way from here, and goes on from all that reach their end."""
        start, ways = self.frame.names, []
        for body in bodies:
            self.frame.names, self.frame.live = dict(start), True
            before = len(self.frame.returns)
            body()
            ways.append(Way(self.frame.names, self.frame.live, self.frame.returns[before:]))
        alive = [way.names for way in ways if way.live]
        self.frame.live = bool(alive)
        self.frame.names = join_names(alive or [way.names for way in ways])
        return ways

    def take_along(self, ways: list[Way], rest: _Body) -> bool:
        """Where only some ways have ended, the rest of the block belongs to the others."""
        if all(way.live for way in ways) or not self.frame.live:
            return False
        before = len(self.frame.returns)
        self.block(rest)
        for way in ways:
            if way.live:
                way.returns += self.frame.returns[before:]
        return True

    def leave_unmet(self, ways: list[Way], sites: frozenset[Site], raw: bool) -> None:
        """Where some ways returned the result and others go on, beyond this block, notes that."""
        given = [value for way in ways if not way.live for value in way.returns]
        if self.frame.live and any(v.taint & sites and (v.raw or not raw) for v in given):
            self.frame.names[_UNMET] = Value(sites)

    def _if(self, node: ast.If, rest: _Body) -> bool:
        idle, known = is_idle(node), truth(node.test)
        decided = self.test(node.test, sink=not idle)
        if known is not None:
            self.block(node.body if known else node.orelse)
            return False
        self.trace.branched |= not decided.taint
        ways = self.fork([lambda: self.block(node.body), lambda: self.block(node.orelse)])
        return not idle and self._chosen(ways, decided.taint, checks_validity(node.test), rest)

    def _chosen(self, ways: list[Way], sites: frozenset[Site], validity: bool, rest: _Body) -> bool:
        """Goes on after a choice, judged if aux's result makes it; True if it took `rest` along."""
        if not sites:
            return False
        taken = self.take_along(ways, rest)
        self.decide(ways, sites, validity)
        self.leave_unmet(ways, sites, raw=not validity)
        return taken

    def _match(self, node: ast.Match, rest: _Body) -> bool:
        decided = self.test(node.subject)
        self.trace.branched |= not decided.taint

        def case_body(case: ast.match_case) -> None:
            for inner in ast.walk(case.pattern):
                name = getattr(inner, "name", None) or getattr(inner, "rest", None)
                if isinstance(name, str):
                    whole = inner is case.pattern
                    self.frame.names[name] = decided if whole else decided.worked()
            if case.guard:
                self.test(case.guard)
            self.block(case.body)

        bodies = [partial(case_body, case) for case in node.cases]
        last = node.cases[-1]
        if last.guard or not isinstance(last.pattern, ast.MatchAs) or last.pattern.pattern:
            bodies.append(partial(self.block, []))
        return self._chosen(self.fork(bodies), decided.taint, True, rest)

    def _try(self, node: ast.Try | ast.TryStar, rest: _Body) -> bool:
        before = len(self.trace.calls)
        sites: set[Site] = set()

        def tried() -> None:
            self.block(node.body)
            sites.update(self.trace.calls[before:])
            if self.frame.live:
                self.block(node.orelse)

        def handled(handler: ast.ExceptHandler) -> None:
            if handler.name:
                self.frame.names[handler.name] = Value()
            self.handlers += 1
            self.block(handler.body)
            self.handlers -= 1

        ways = self.fork([tried, *(partial(handled, handler) for handler in node.handlers)])
        taken = False
        if sites and node.handlers:
            taken = self.take_along(ways, [*node.finalbody, *rest])
            self.trace.fallback |= any(
                rescues(ways[0], way, frozenset(sites), raw=False) for way in ways[1:]
            )
            self.leave_unmet(ways[:1], frozenset(sites), raw=False)
        if node.finalbody and not taken:
            live, self.frame.live = self.frame.live, True
            self.block(node.finalbody)
            self.frame.live &= live
        return taken

    def _with(self, node: ast.With | ast.AsyncWith, rest: _Body) -> bool:
        silent = False
        for item in node.items:
            value = self.value(item.context_expr)
            if item.optional_vars:
                self.assign(item.optional_vars, value.worked())
            if isinstance(item.context_expr, ast.Call):
                silent |= ast.unparse(item.context_expr.func).endswith("suppress")
        if silent:
            handler = ast.ExceptHandler(None, None, [ast.Pass()])
            return self._try(ast.Try(node.body, [handler], [], []), rest)
        self.block(node.body)
        return False

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        """Any number of passes over the body; calls in it, and in a `while` test, are repeated."""
        frame, repeats = self.frame, isinstance(node, ast.While)
        source = node.test if isinstance(node, ast.While) else node.iter
        items = Value() if repeats else self.value(source)
        self.trace.used |= items.taint
        known = truth(source)
        if known is False:
            return self.block(node.orelse)
        endless = repeats and known is True
        self.trace.branched |= not items.taint and _depends(source)
        outer = frame.breaks, frame.nexts
        frame.breaks, frame.nexts = [], []
        self.loops += 1
        for _ in range(1 if self.exhausted else _PASSES):
            before = dict(frame.names)
            if isinstance(node, ast.While):
                self.test(node.test)
            else:
                self.assign(node.target, items.worked())
            self.block(node.body)
            ends = [*frame.nexts, *([frame.names] if frame.live else [])]
            frame.names, frame.live = join_names([before, *ends]), True
            if frame.names == before or not ends:
                break
        self.loops -= 1
        frame.live = not endless
        if not endless:
            self.block(node.orelse)
        states = [*frame.breaks, *([frame.names] if frame.live else [])]
        frame.live = bool(states)
        frame.names = join_names(states) if states else frame.names
        frame.breaks, frame.nexts = outer
        return None


def _depends(node: ast.expr) -> bool:
    """Whether a loop's length is more than what its text says, as of `range(1)`."""
    return any(isinstance(n, ast.Name) and n.id != "range" for n in ast.walk(node))
