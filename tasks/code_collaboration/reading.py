"""Which names of main's code may stand for aux or hold what aux returned, read without running it.

The order of statements is ignored: a name may hold, anywhere in its function, any value that the
function binds to it. So the reading may see a use of aux where there is none. That does no harm,
since the runs with other helpers then tell whether main needs aux.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import cast

from .program import AUX

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Names = Set[str]
_Test = Callable[[ast.AST, _Names], bool]
_FIXED = (ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp, ast.Starred)
_MARKS = (ast.expr_context, ast.unaryop, ast.operator)
_WRAPPERS = ("partial", "lru_cache", "cache", "update_wrapper", "staticmethod", "classmethod")
"""Functions whose result does what their first argument does."""
_PASSES = 9
"""How often arguments are followed into functions that calls hand over."""
_Arguments = tuple[list[ast.expr], list[ast.keyword]]
"""Those by position and those by name."""


class Reading:
    """The values that a code binds to its names and attributes, and what follows from them.

    aliases: the names that stand for aux.
    askers: the aliases, and the names of functions that call aux or pass it on.
    entries: the functions that run when the entry point is called.
    visited: the entries, and the functions that they mention, directly or through others.
    reached: the syntax nodes of all functions in `visited`.
    """

    def __init__(self, tree: ast.Module, entry_point: str) -> None:
        _tell_apart(tree, {})
        self.bound: dict[str, list[ast.AST]] = defaultdict(list)
        self._functions: dict[str, list[Function]] = {}
        self._handed: set[tuple[int, int, bool]] = set()
        self._bind_all([*ast.walk(tree)], entry_point)
        self.entries = self.functions(entry_point)
        arguments = self._given_at_start(_load(entry_point))
        for name in arguments & self.bound.keys():
            self.bound[name].append(_worked())
        self._users = self._used_by()
        self._constants = self._grown(set(), _constant, all)
        self._given = self._grown(arguments - self.bound.keys(), _given, all)
        self.aliases = self._grown({AUX}, _renames, any)
        self.askers = self._grown(self.aliases, self._is_asker, any)
        self._results = self._grown(set(), self._carries, any)
        self._raws = self._grown(set(), self._raw, all)
        self.visited, self.reached = self._reached()

    def carries(self, node: ast.AST | None) -> bool:
        """Whether a value may depend on what aux returned for more than constants."""
        return node is not None and self._carries(node, self._results)

    def raw(self, node: ast.AST) -> bool:
        """Whether a value can only be what aux returned, unchanged."""
        return self._raw(node, self._raws)

    def own(self, node: ast.AST) -> bool:
        """Whether main computed a value without aux, and it is no constant."""
        return not self.carries(node) and not _constant(node, self._constants)

    def asks(self, node: ast.AST) -> bool:
        """Whether a part of the code calls aux, itself or through one of main's functions."""
        return self._asks(node, self.askers)

    def asker(self, node: ast.AST) -> bool:
        """Whether a value is aux, or a function that calls it."""
        return self._is_asker(node, self.askers)

    def functions(self, name: str) -> list[Function]:
        """The functions of main's code that run when this name is called.

        Followed are other names, decorators, `partial`, functions that return a function, and bound
        methods. Of a class, all methods count.
        """
        if name not in self._functions:
            self._functions[name] = []  # for a name that is bound to itself
            self._functions[name] = self._made(*self.bound.get(name, ()))
        return self._functions[name]

    def _made(self, *values: ast.AST) -> list[Function]:
        """The functions that these values are."""
        found: dict[Function, None] = {}
        waiting, seen = [*values], set[int]()
        for one in waiting:  # which grows meanwhile
            value = _unwrapped(one)
            if id(value) in seen:
                continue
            seen.add(id(value))
            match value:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                    found[value] = None
                case ast.ClassDef(body=body):
                    waiting += [child for child in body if isinstance(child, Function)]
                case ast.IfExp(body=then, orelse=other):
                    waiting += [then, other]
                case ast.Call(func=func):
                    waiting += [of for maker in self._called(value) for of in returned(maker)]
                    own = self.bound.get(_name(func), ())
                    waiting += [made for made in own if isinstance(made, ast.ClassDef)]
                case _:
                    waiting += self.bound.get(_name(value), ())
        return [*found]

    def _grown(self, names: Set[str], test: _Test, over: Callable[..., bool]) -> Set[str]:
        """The names given, and each further one of whose values all (or any) pass the test.

        The test is given a value and the names found so far.
        """
        found, waiting = {*names}, dict.fromkeys(self.bound)
        while waiting:
            name, _ = waiting.popitem()
            if name not in found and over(test(value, found) for value in self.bound[name]):
                found.add(name)
                waiting.update(dict.fromkeys(self._users[name] - found))
        return found

    def _used_by(self) -> dict[str, set[str]]:
        """By name, the names whose values mention it."""
        users: dict[str, set[str]] = defaultdict(set)
        for name, values in self.bound.items():
            for part in (part for value in values for part in ast.walk(value)):
                users[_name(part)].add(name)
        return users

    def _given_at_start(self, entry_point: ast.Name) -> set[str]:
        """The parameters of the entries, but for those that `partial` bound."""
        args, keywords = self._preset(entry_point)
        bound = {keyword.arg for keyword in keywords}
        return {
            name
            for entry in self.entries
            for i, name in enumerate(_taking(entry))
            if i >= len(args) and name.partition("@")[0] not in bound
        }

    def _called(self, call: ast.Call) -> list[Function]:
        """The functions of main's own that a call runs."""
        name = called(call)
        return self.functions(name) if name else self._made(call.func)

    def _bind_all(self, nodes: Sequence[ast.AST], entry_point: str) -> None:
        for node in nodes:
            for target, value in bindings(node):
                self._bind(target, value)
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        calls += [call for node in nodes for call in self._decorated(node)]
        calls += self._started(entry_point)
        for _ in range(_PASSES):  # a function handed over may be called where it arrives
            self._functions.clear()
            handed = len(self._handed)
            for call in calls:
                self._hand_over(call)
            if len(self._handed) == handed:
                break
        self._functions.clear()

    def _decorated(self, node: ast.AST) -> Iterator[ast.Call]:
        """The calls of main's own decorators; what they return takes the function's name."""
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        name, inner = node.name, cast(ast.AST, node)
        for decorator in reversed(node.decorator_list):
            maker = decorator.func if isinstance(decorator, ast.Call) else decorator
            if _name(maker) in self.bound:
                hidden = f"{name}@undecorated.{decorator.lineno}"
                self.bound[hidden].append(inner)
                call = _call(decorator, _load(hidden))
                self.bound[name] = [call if one is inner else one for one in self.bound[name]]
                inner = call
                yield call

    def _started(self, entry_point: str) -> list[ast.Call]:
        """The call of the entry point, which has only the arguments that `partial` bound to it.

        If it is bound to no function of main's own (`f = partial(max, key=aux)`), it becomes one
        that calls what it is bound to.
        """
        values = self.bound.get(entry_point, [])
        self._functions.clear()
        made = [] if self.functions(entry_point) else [v for v in values if not _renames(v, {AUX})]
        inner = [_call(value, ast.Starred(_load("given@entry"))) for value in made]
        spec = ast.arguments([], [], ast.arg("given@entry"), [], [], None, [])
        values += [ast.Lambda(spec, call) for call in inner]
        return [_call(_load(entry_point)), *inner]

    def _preset(self, function: ast.AST) -> _Arguments:
        """The arguments that `partial` bound to a function."""
        waiting = [function]
        args, keywords = list[ast.expr](), list[ast.keyword]()
        for value in waiting:  # which grows meanwhile
            if isinstance(value, ast.Call) and value.args and _name(value.func) == "partial":
                args, keywords = [*value.args[1:], *args], [*value.keywords, *keywords]
            inner = _inner(value)
            more = [inner] if inner else self.bound.get(_name(value), ())
            waiting += [one for one in more if one not in waiting]
        return args, keywords

    def _arguments(self, call: ast.Call) -> _Arguments:
        """The arguments of a call, those that `partial` bound among them."""
        args, keywords = self._preset(call.func)
        return [*args, *call.args], [*keywords, *call.keywords]

    def _values(self, call: ast.Call) -> list[ast.expr]:
        args, keywords = self._arguments(call)
        return [*args, *(keyword.value for keyword in keywords)]

    def _bind(self, target: ast.AST, value: ast.AST) -> None:
        """Binds a value to its target, and what it changes: all that the target is a part of."""
        self._bind_alone(target, value)
        changed = _worked(value, target)  # one for all: each its own would hold the one before
        while base := getattr(target, "value", None) or getattr(target, "func", None):
            self._bind_alone(base, changed)
            target = base

    def _bind_alone(self, target: ast.AST, value: ast.AST) -> None:
        if isinstance(target, ast.Name | ast.Attribute):
            values = self.bound[_name(target)]
            if values[-1:] != [value]:  # once per chain, whose parts often share a name
                values.append(value)
        elif isinstance(target, ast.Tuple | ast.List):
            parts = value.elts if isinstance(value, ast.Tuple) else []
            whole = len(parts) == len(target.elts)
            for i, part in enumerate(target.elts):
                self._bind(part, parts[i] if whole else _worked(value))

    def _hand_over(self, call: ast.Call) -> None:
        """Binds the arguments of a call to the parameters of main's own functions."""
        for function in self._called(call):
            if self._new(call, function, handed=False):
                self._hand_to(function, *self._arguments(call))
        handed = [] if inspects(call) else self._made(*call.args)
        for function in handed:
            if self._new(call, function, handed=True):
                for name in _parameters(function):
                    self.bound[name].append(_worked(*call.args))

    def _new(self, call: ast.Call, function: Function, *, handed: bool) -> bool:
        """Whether it is the first time that this call calls this function, or hands it over."""
        key = (id(call), id(function), handed)
        new = key not in self._handed
        self._handed.add(key)
        return new

    def _hand_to(self, function: Function, args: list[ast.expr], keys: list[ast.keyword]) -> None:
        named = {keyword.arg: [keyword.value] for keyword in keys}
        starred = [arg for arg in args if isinstance(arg, ast.Starred)]
        for i, name in enumerate(_taking(function)):
            taken = [*(starred or args[i : i + 1]), *named.get(name.partition("@")[0], [])]
            if taken:
                self.bound[name] += taken
        for rest in filter(None, (function.args.vararg, function.args.kwarg)):
            if args or keys:
                self.bound[rest.arg].append(_worked(*args, *keys))

    def _carries(self, node: ast.AST, names: _Names) -> bool:
        return any(
            _name(part) in names or (isinstance(part, ast.Call) and self._answers(part))
            for part in ast.walk(node)
        )

    def _answers(self, call: ast.Call) -> bool:
        """Whether a call asks aux about more than constants, or hands aux to another function."""
        args = self._values(call)
        if called(call) == "partial" and _renames(call, self.aliases):
            return not all(_constant(arg, self._constants) for arg in args[1:])
        if called(call) in self.aliases:
            return not args or not all(_constant(arg, self._constants) for arg in args)
        handed = [arg for arg in args if not isinstance(arg, ast.Lambda)]
        return not inspects(call) and any(map(self.asker, handed))

    def _is_asker(self, node: ast.AST, names: _Names) -> bool:
        if isinstance(node, ast.Call) and called(node) == "partial":
            return any(self._is_asker(arg, names) for arg in self._values(node))
        made = self._made(node) if isinstance(node, Function | ast.Call) else ()
        return _renames(node, names) or any(self._asks(function, names) for function in made)

    def _asks(self, node: ast.AST, names: _Names) -> bool:
        return any(
            called(call) in names
            or (not inspects(call) and any(self._is_asker(arg, names) for arg in call.args))
            for call in ast.walk(node)
            if isinstance(call, ast.Call)
        )

    def _raw(self, node: ast.AST, names: _Names) -> bool:
        node = _unwrapped(node)
        if isinstance(node, ast.Call):
            name = called(node)
            return name in self.aliases or (name in names and bool(self.functions(name)))
        if isinstance(node, Function):
            return all(self._raw(value, names) for value in returned(node))
        return _name(node) in names

    def untouched(self, call: ast.Call) -> bool:
        """Whether a call passes on only main's own arguments, unchanged, and constants."""
        return all(_given(arg, self._given) for arg in self._values(call))

    def _reached(self) -> tuple[list[Function], list[ast.AST]]:
        found, functions = list[ast.AST](), [*self.entries]
        for function in functions:  # which grows meanwhile
            inside = [*within(function)]
            found += inside
            uses = (_name(n) for n in inside if isinstance(getattr(n, "ctx", None), ast.Load))
            more = (f for name in uses for f in self.functions(name))
            functions += [f for f in dict.fromkeys(more) if f not in functions]
        return functions, found


def bindings(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """The targets that one statement binds, each with its value.

    A call whose result is dropped may change the object that it is called on and its arguments.
    """
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield ast.Name(name), node
        case ast.Assign(targets=targets, value=value):
            yield from ((target, value) for target in targets)
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target, value):
            yield target, value
        case ast.AugAssign(target=target):
            yield target, node
        case ast.For(target=target, iter=of) | ast.comprehension(target=target, iter=of):
            yield target, _worked(of)
        case ast.withitem(context_expr=of, optional_vars=ast.expr() as target):
            yield target, _worked(of)
        case ast.Match(subject=of, cases=cases):
            for inner in (part for case in cases for part in ast.walk(case.pattern)):
                if isinstance(inner, ast.MatchAs | ast.MatchStar) and inner.name:
                    yield ast.Name(inner.name), of
        case ast.Expr(ast.Call(func, args) as call) if called(call) not in (AUX, "print"):
            yield from ((part, _worked(call)) for part in (func, *args))
    if isinstance(node, Function):
        spec = node.args
        last = [*spec.posonlyargs, *spec.args][::-1]
        yield from ((ast.Name(a.arg), d) for a, d in zip(last, spec.defaults[::-1], strict=False))


def _tell_apart(node: ast.AST, names: Mapping[str, str]) -> None:
    """Adds to each local name the position of its function, so that no two functions share one."""
    if isinstance(node, Function):
        inside = [*within(node)]
        shared = {n for node in inside for n in getattr(node, "names", ()) if isinstance(n, str)}
        own = {*_parameters(node), *filter(None, map(named_by, inside))} - shared
        names = {**names, **{name: f"{name}@{node.lineno}.{node.col_offset}" for name in own}}
    for child in ast.iter_child_nodes(node):
        for field in ("id", "name", "arg"):
            name = getattr(child, field, None)
            if isinstance(name, str) and not isinstance(child, ast.keyword):
                setattr(child, field, names.get(name, name))
        _tell_apart(child, names)


def named_by(node: ast.AST) -> str | None:
    """The name that one node binds or unbinds."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return node.name
        case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar():
            return node.name
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
            return name
        case ast.alias(name=name, asname=other):
            return other or name.split(".")[0]
        case ast.MatchMapping(rest=rest):
            return rest
    return None


def within(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function, without the bodies of functions and classes defined in it."""
    body = function.body
    waiting: list[ast.AST] = [*body] if isinstance(body, list) else [ast.Return(body)]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)


def returned(function: Function) -> list[ast.expr]:
    """The expressions of a function's return statements."""
    return [n.value for n in within(function) if isinstance(n, ast.Return) and n.value]


def called(call: ast.Call) -> str:
    """The name of the function that a call runs: of a method its own, '' if it has none."""
    return _name(_unwrapped(call.func))


def inspects(call: ast.Call) -> bool:
    """Whether a call does not run the functions among its arguments."""
    return _inner(call) is not None or called(call) in (
        "bool",
        "callable",
        "isinstance",
        "len",
        "partial",
        "print",
        "type",
    )


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr if node.attr != AUX else f".{AUX}"  # another's, not the helper's
    return node.id if isinstance(node, ast.Name) else ""


def _parameters(function: Function) -> list[str]:
    spec = function.args
    more = [spec.vararg, spec.kwarg]
    named = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, *(arg for arg in more if arg)]
    return [arg.arg for arg in named]


def _taking(function: Function) -> list[str]:
    """The parameters that the arguments of a call go to."""
    return [name for name in _parameters(function) if not name.startswith("self@")]


def _worked(*values: ast.AST) -> ast.AST:
    """Some value made of these, not equal to any of them."""
    return ast.JoinedStr([*values])  # type: ignore[list-item]


def _constant(node: ast.AST, names: _Names) -> bool:
    """Whether a value can be told without running the code."""
    return all(
        _name(part) in names if isinstance(part, ast.Name) else isinstance(part, _FIXED + _MARKS)
        for part in ast.walk(node)
    )


def _given(node: ast.AST, names: _Names) -> bool:
    """Whether a value is one of main's arguments, unchanged, or a constant."""
    inner = node.value if isinstance(node, ast.Starred) else node
    return isinstance(inner, ast.Constant) or _name(inner) in names


def _renames(node: ast.AST, names: _Names) -> bool:
    """Whether a value does what one of these names does."""
    return _name(_unwrapped(node)) in names


def _unwrapped(node: ast.AST) -> ast.AST:
    """The function within `partial`, `lru_cache` and the like."""
    while inner := _inner(node):
        node = inner
    return node


def _inner(node: ast.AST) -> ast.expr | None:
    match node:
        case ast.Call(ast.Call(func=maker, args=given), args=[inner, *_]):
            cached = _name(maker) == "lru_cache" and all(isinstance(g, ast.Constant) for g in given)
            return inner if cached or _name(maker) == "wraps" else None
        case ast.Call(func=maker, args=[inner, *_]) if not isinstance(inner, ast.Constant):
            return inner if _name(maker) in _WRAPPERS else None
    return None


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _call(function: ast.AST, *args: ast.expr) -> ast.Call:
    return ast.Call(function, [*args], [])  # type: ignore[arg-type]
