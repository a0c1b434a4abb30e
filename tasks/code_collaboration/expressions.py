"""The expressions of a program whose values are followed, and the calls in them."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from .calls import Calls
from .conditions import checks_validity, truth
from .values import CONSTANT, FIXED, NOTHING, Site, Value, Way, join, rescues, transforms

_Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


class Expressions(Calls):
    """Values of expressions in the frame that has been reached."""

    def value(self, node: ast.expr) -> Value:
        self.steps += 1
        match node:
            case ast.Constant(value=constant):
                return NOTHING if constant is None else CONSTANT
            case ast.Name(id=name):
                return self.name(name)
            case ast.Call():
                return self.call(node)
            case ast.BoolOp():
                return self._bool(node)
            case ast.IfExp():
                return self._choice(node)
            case ast.NamedExpr(target=target, value=source):
                value = self.value(source)
                self.assign(target, value, source)
                return value
            case ast.Lambda():
                return Value(functions=frozenset({self.function(node)}))
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node)
            case ast.Attribute(value=base, attr=attr):
                methods = frozenset(self.methods.get(attr, []))
                kept = [self.fields[attr]] if attr in self.fields else []
                whole = join([self.value(base), *kept])
                return Value(whole.taint, functions=methods | join(kept).functions)
            case ast.Await(value=inner):
                return self.value(inner)
            case ast.Yield() | ast.YieldFrom():
                given = self.value(node.value).worked() if node.value else NOTHING
                self.frame.returns.append(given)
                return Value()
            case _:
                return self._parts(node)

    def _parts(self, node: ast.expr) -> Value:
        """What all parts of a display or an operation amount to."""
        children = ast.iter_child_nodes(node)
        parts = [self.value(child) for child in children if isinstance(child, ast.expr)]
        whole = join(parts)
        if isinstance(node, ast.Starred):
            return whole
        plain = isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict | ast.UnaryOp)
        if not parts or (plain and whole.origins <= FIXED):
            return CONSTANT
        return whole.worked()

    def _bool(self, node: ast.BoolOp) -> Value:
        values: list[Value] = []
        for operand in node.values:
            values.append(self.value(operand))
            if truth(operand) is isinstance(node.op, ast.Or):
                break
        first, others = values[0], values[1:]
        self.trace.branched |= not first.taint
        if isinstance(node.op, ast.Or) and first.taint and first.raw:
            self.trace.fallback |= any(value.own for value in others)
        return join(values) if isinstance(node.op, ast.Or) else join(values).worked()

    def _choice(self, node: ast.IfExp) -> Value:
        decided, known = self.test(node.test), truth(node.test)
        if known is not None:
            return self.value(node.body if known else node.orelse)
        values = [self.value(node.body), self.value(node.orelse)]
        self.trace.branched |= not decided.taint
        if decided.taint:
            ways = [Way({}, False, [value]) for value in values]
            self.decide(ways, decided.taint, checks_validity(node.test))
        return join(values)

    def _comprehension(self, node: _Comprehension) -> Value:
        targets = (part for generator in node.generators for part in ast.walk(generator.target))
        names = [part.id for part in targets if isinstance(part, ast.Name)]
        hidden = {name: self.frame.names.get(name) for name in names}
        flowing: list[Value] = []
        for i, generator in enumerate(node.generators):
            items = self.value(generator.iter)
            self.loops += i == 0
            if truth(generator.iter) is False:
                break
            self.assign(generator.target, items.worked())
            flowing += [items, *(self.test(test) for test in generator.ifs)]
        else:
            parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            flowing += map(self.value, parts)
        self.loops -= 1
        for name, value in hidden.items():
            if value is None:
                self.frame.names.pop(name, None)
            else:
                self.frame.names[name] = value
        return join(flowing).worked()

    def test(self, node: ast.expr, sink: bool = True) -> Value:
        """The value of a condition; with `sink`, it decides something."""
        match node:
            case ast.BoolOp(values=operands):
                value = join(self.test(operand, sink=False) for operand in operands).worked()
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                value = self.test(operand, sink=False)
            case _:
                value = self.value(node)
        if sink and truth(node) is None:
            self.trace.used |= value.taint
        return value

    def decide(self, ways: list[Way], taint: frozenset[Site], validity: bool) -> None:
        """Judges a choice that aux's result makes: main's rescue, a filter, or more work on it."""
        pairs = [(a, b) for a in ways for b in ways if a is not b]
        if any(rescues(a, b, taint, raw=not validity) for a, b in pairs):
            self.trace.fallback = True
        elif not self.loops and not transforms(ways, taint):
            self.trace.filtered = True

    def assign(self, target: ast.expr, value: Value, source: ast.expr | None = None) -> None:
        match target:
            case ast.Name(id=name):
                frame = self.frame.outer.get(name)
                if frame is None:
                    self.frame.names[name] = value
                else:
                    frame.names[name] = join([frame.names.get(name, value), value])
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                pairs = self._unpacked(targets, value, source)
                for part, item in pairs:
                    self.assign(part, item)
            case ast.Starred(value=inner):
                self.assign(inner, value)
            case ast.Attribute(attr=attr):
                self.fields[attr] = join([self.fields.get(attr, value), value])
                self.touch(target, value.taint)
            case ast.Subscript(slice=index):
                self.touch(target, value.taint | self.value(index).taint)

    def _unpacked(
        self, targets: Sequence[ast.expr], value: Value, source: ast.expr | None
    ) -> list[tuple[ast.expr, Value]]:
        parts = source.elts if isinstance(source, ast.Tuple | ast.List) else []
        starred = any(isinstance(part, ast.Starred) for part in (*targets, *parts))
        if parts and len(parts) == len(targets) and not starred:
            # read once more, part by part, before any of them is bound
            return list(zip(targets, map(self.value, parts), strict=True))
        return [(target, value.worked()) for target in targets]
