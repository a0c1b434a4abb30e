"""Code in answers: finds, parses and joins it; compares values, scores tests, and shows calls.

Code may be in a fence, in a fence that was cut off, or bare between prose.
"""

from __future__ import annotations

import ast
import builtins
import math
import re
import symtable
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_FENCE = re.compile(r"\s*(```+|~~~+)")
_OPENING = re.compile(r"(?:def|class|import|from|async def)\s|@\w|[A-Za-z_]\w*\s*=\s*lambda\b")
_CODE = re.compile(
    r"(?:def|class|import|from|async def|if|for|while|try|with|return)\b.*|@\w.*|#.*"
)
_PROMPT = ">>> "
_SETTING = re.compile(r"[A-Za-z_]\w*(?:\[.*\])?\s*=[^=]")
_FUTURE = re.compile(r"^from __future__ import .*\n?", re.MULTILINE)
_UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
_GIVEN = frozenset({*dir(builtins), "__file__"})
_ANY = "*"  # what `from module import *` may bind: any name
_SIZED = frozenset((list, tuple, dict, set, frozenset))
MAX_SHOWN = 120
"""Characters of a value in a prompt or in feedback."""


def extract_code(text: str, entry_point: str) -> str:
    """The code of an answer, or '' if there is none.

    If there are several pieces, one that defines `entry_point` wins, then one that parses, then the
    last. Other pieces are added, in the answer's order, if they define names that this piece needs.
    A fence that the token limit cut off ends with the text; code before a stray closing fence
    counts as bare.
    """
    pieces = [
        _fenced_code(lines) if fenced else _bare_code(_unprompted(lines))
        for fenced, lines in _stretches(text)
    ]
    name = re.escape(entry_point)
    defines = re.compile(
        rf"^\s*(?:async\s+)?def\s+{name}\b|^{name}\s*=\s*(?:lambda\b|[\w.]*\bpartial\()",
        re.MULTILINE,
    )
    ranked = [
        (bool(defines.search(piece)), parse_code(piece) is not None, i)
        for i, piece in enumerate(pieces)
        if piece.strip()
    ]
    if not ranked:
        return ""
    defined, _, best = max(ranked)
    return _completed(pieces, best, entry_point) if defined else pieces[best]


def parse_code(code: str) -> ast.Module | None:
    """The syntax tree, or None if Python can't parse the text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except _UNPARSABLE:
        return None


def dump_code(tree: ast.AST) -> str | None:
    """`ast.dump`, or None if it fails: the tree is too deep, or an integer has too many digits."""
    try:
        return ast.dump(tree)
    except _UNPARSABLE:
        return None


def unparse_code(tree: ast.AST) -> str | None:
    """`ast.unparse`, or None if it fails, as in `dump_code`."""
    try:
        return ast.unparse(tree)
    except _UNPARSABLE:
        return None


def join_code(pieces: Iterable[str]) -> str:
    """The pieces in order as one module, separated by blank lines; '' if all are empty.

    `from __future__` imports are moved to the top, once each, because Python requires it.
    """
    codes = list(pieces)
    futures = dict.fromkeys(line.strip() for code in codes for line in _FUTURE.findall(code))
    bodies = (_FUTURE.sub("", code).strip("\n") for code in codes)
    return "\n\n".join(part for part in ("\n".join(futures), *bodies) if part)


def _completed(pieces: Sequence[str], best: int, entry_point: str) -> str:
    """The piece at `best`, with the pieces that define names it needs, directly or indirectly.

    If several pieces define a name, the last one is used, as when all run in order.
    """
    kept = {i: p if i == best else _supply(p, entry_point) for i, p in enumerate(pieces)}
    names = {i: _names(code) for i, code in kept.items()}
    taken = {best}
    while True:
        lacking = {name for i in taken for name in names[i][1]}
        lacking -= {name for i in taken for name in names[i][0]}
        more = {i for name in lacking for i in _suppliers(name, names)} - taken
        if not more:
            break
        taken |= more
    return pieces[best] if taken == {best} else join_code(kept[i] for i in sorted(taken))


def _suppliers(name: str, names: dict[int, tuple[set[str], set[str]]]) -> list[int]:
    """The last piece that binds the name, else all pieces with `import *`."""
    binding = [i for i, (bound, _) in names.items() if name in bound]
    return binding[-1:] or [i for i, (bound, _) in names.items() if _ANY in bound]


def _supply(code: str, entry_point: str) -> str:
    """A piece without other versions of `entry_point` and without statements that call it.

    Such calls are examples and assertions; they would fail before the right version is defined.
    """
    tree = parse_code(code)
    kept = [node for node in tree.body if not _concerns(node, entry_point)] if tree else []
    if tree is None or len(kept) == len(tree.body):
        return code
    return "\n".join(_source(node, code) for node in kept)


def _concerns(statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return statement.name == name  # another function may call it, later
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(statement))


def _source(statement: ast.stmt, code: str) -> str:
    """The text of a statement of a module, its decorators included."""
    decorators = getattr(statement, "decorator_list", [])
    if decorators:
        return "\n".join(code.split("\n")[decorators[0].lineno - 1 : statement.end_lineno])
    return ast.get_source_segment(code, statement) or ""


def _names(code: str) -> tuple[set[str], set[str]]:
    """The names that a module binds, and the names that it uses without binding them."""
    tree = parse_code(code)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = symtable.symtable(code, "answer", "exec")
    except _UNPARSABLE:
        return set(), set()
    bound, used = set(), set()
    for table in _tables(module):
        for symbol in table.get_symbols():
            if table is module or symbol.is_global():
                if symbol.is_assigned() or symbol.is_imported():
                    bound.add(symbol.get_name())
                if symbol.is_referenced():
                    used.add(symbol.get_name())
    if tree and any(_is_star(node) for node in tree.body):
        bound.add(_ANY)
    return bound, used - bound - _GIVEN


def _is_star(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*"


def _tables(module: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    """A scope and everything inside it."""
    waiting = [module]
    while waiting:
        table = waiting.pop()
        yield table
        waiting.extend(table.get_children())


def _fenced_code(lines: Sequence[str]) -> str:
    return "\n".join(_unprompted(textwrap.dedent("\n".join(lines)).split("\n"))).strip("\n")


def _unprompted(lines: Sequence[str]) -> Sequence[str]:
    """The lines typed at Python's prompt, without the prompts; other lines unchanged."""
    if any(line.startswith(_PROMPT) and _OPENING.match(line[4:]) for line in lines):
        return [line[4:] for line in lines if f"{line} ".startswith((_PROMPT, "... "))]
    return lines


def _bare_code(lines: Sequence[str]) -> str:
    """The lines from the first definition or import up to the next line of prose."""
    start = next((i for i, line in enumerate(lines) if _OPENING.match(line)), len(lines))
    code = []
    for line in lines[start:]:
        inside = not line.strip() or line[0] in " \t)]}"
        if not inside and not _CODE.match(line) and not _SETTING.match(line):
            break
        code.append(line)
    return "\n".join(code).rstrip()


def _stretches(text: str) -> list[tuple[bool, list[str]]]:
    """The lines of a text in order, as stretches inside and outside of fences."""
    stretches: list[tuple[bool, list[str]]] = [(False, [])]
    fence = ""
    for line in re.split(r"\r\n?|\n", text):  # others, such as U+2028, may stand in a string
        mark = _FENCE.match(line)
        if not fence and mark:
            fence = mark[1]
            stretches.append((True, []))
        elif fence and line.strip() == fence:
            fence = ""
            stretches.append((False, []))
        else:
            stretches[-1][1].append(line)
    return stretches


def compare(expected: Any, value: Any, tolerance: float = 1e-9) -> bool:
    """Equality of plain values with exact built-in types, recursively.

    Floats agree within `tolerance`, relative or absolute, and NaN equals NaN. An int equals an
    expected float of the same value. A float never equals an expected int, a bool never a number, a
    tuple never a list. Inside sets and keys floats must be exact.
    """
    kind = type(expected)
    if kind is float:
        return type(value) in (float, int) and _close(expected, value, tolerance)
    if type(value) is not kind:
        return False
    if kind in _SIZED and len(expected) != len(value):  # before iterating over a candidate's values
        return False
    if kind in (list, tuple):
        pairs = zip(expected, value, strict=False)
        return all(compare(a, b, tolerance) for a, b in pairs)
    if kind is dict:
        wanted = {_typed(key): item for key, item in expected.items()}
        found = {_typed(key): item for key, item in value.items()}
        same_keys = wanted.keys() == found.keys()
        return same_keys and all(compare(wanted[k], found[k], tolerance) for k in wanted)
    if kind in (set, frozenset):
        return {_typed(item) for item in expected} == {_typed(item) for item in value}
    return bool(expected == value)


def _close(expected: float, value: float, tolerance: float) -> bool:
    if math.isnan(expected):
        return math.isnan(value)
    try:
        return math.isclose(expected, value, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:  # an int beyond every float
        return False


def _typed(item: Any) -> Any:
    """A hashable value with its types, so that 1, 1.0 and True are different."""
    if type(item) is tuple:
        return (tuple, tuple(_typed(inner) for inner in item))
    if type(item) is frozenset:
        return (frozenset, frozenset(_typed(inner) for inner in item))
    return (type(item), "nan" if item != item else item)


def beyond_chance(passed: int, total: int, chance: int) -> float:
    """The share of tests passed, corrected for the `chance` tests that a constant passes; in [0,
    1].

    As in Cohen's kappa: (passed - chance) / (total - chance), at least 0. If a constant passes all
    tests, the score is 1 for all of them, else 0.
    """
    if chance >= total:
        return float(0 < total == passed)
    return max(0.0, (passed - chance) / (total - chance))


def best_constant(wanted: Sequence[Any]) -> int:
    """How many expected values the best constant answer equals; 0 if there are none."""
    return max((sum(compare(value, answer) for value in wanted) for answer in wanted), default=0)


def show_call(name: str, args: Sequence[Any]) -> str:
    """A call as source text, with long arguments cut."""
    return f"{name}({', '.join(map(show_value, args))})"


def show_value(value: Any, most: int = MAX_SHOWN) -> str:
    """A value's repr, cut after `most` characters."""
    try:
        return shorten(repr(value), most)
    except ValueError:  # an int of too many digits, alone or in a container
        return "a value with an integer too long to print"


def shorten(text: str, most: int = MAX_SHOWN) -> str:
    """The first characters of a text, with a mark if it was longer."""
    return text if len(text) <= most else f"{text[:most]}..."
