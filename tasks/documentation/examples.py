"""Doctests of a section: which may be run, running them on the true module, what they came to.

The child is sent the module and the statements; it sends back what each printed, evaluated to or
raised. What a document says that should be stays here. Every section is run twice, each time on a
fresh copy of the module: as it is, and with the documented name spoilt. An example whose outcome is
the same both times shows nothing of what it documents (`>>> 1`, `>>> f(2) == f(2)`).
"""

from __future__ import annotations

import ast
import builtins
import doctest
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestry import Call, Limits, Tools, parse_code

from .module import Module

HARNESS = Path(__file__).with_name("harness.py").read_text(encoding="utf-8")
BRISK = Limits(wall_s=6.0, cpu_s=1.0)
"""All sections of a document together; documents are no place for long computations."""
MAX_EXAMPLES = 8
"""Examples of a section that are run; the rest fail."""
MAX_SOURCE = 400
LIBRARY = {
    *("bisect", "collections", "datetime", "decimal", "fractions", "functools", "heapq"),
    *("itertools", "json", "math", "re", "statistics"),
}
"""Modules that an example may import."""
_REACHING = {
    *("breakpoint", "compile", "delattr", "eval", "exec", "exit", "getattr", "globals", "hash"),
    *("help", "id", "input", "locals", "memoryview", "open", "quit", "setattr", "vars"),
}
_STATEMENTS = (ast.Expr, ast.Assign, ast.AugAssign, ast.For, ast.With, ast.Import, ast.ImportFrom)
_FRAMES = ("_", "f_", "gi_", "cr_", "ag_", "tb_")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_FLAGS = doctest.DONT_ACCEPT_TRUE_FOR_1
_PARSER, _CHECKER = doctest.DocTestParser(), doctest.OutputChecker()
Said = tuple[str, str]
"""What a statement printed or evaluated to, and what it raised; one of them is empty."""


@dataclass(frozen=True, slots=True)
class Example:
    """One example: whether it holds, and whether it shows something of the documented name."""

    source: str
    holds: bool = False
    tells: bool = False
    shows: bool = False
    """Whether it says that something comes out: an assignment does not."""
    raised: str = ""
    """The kind of what it raised."""


def parsed(section: str) -> list[doctest.Example]:
    """The examples of a section; none where doctest itself could not read it."""
    try:
        return _PARSER.get_examples(section)
    except ValueError:
        return []


def allowed(source: str, module: Module) -> bool:
    """Whether a statement may be run: it uses the module and changes nothing of it.

    It may bind names of its own, never the module's, and touch no attribute but by reading.
    """
    tree = parse_code(source)
    if tree is None or len(tree.body) != 1 or len(source) > MAX_SOURCE:
        return False
    taken = {*module.tops, *dict(module.imported), *dir(builtins)}
    return all(_harmless(node, module, taken) for node in ast.walk(tree))


def _harmless(node: ast.AST, module: Module, taken: set[str]) -> bool:
    if isinstance(node, ast.stmt) and not isinstance(node, _STATEMENTS):
        return False
    if isinstance(node, ast.Name):
        hidden = node.id.startswith("_") and node.id != "_"
        bound = node.id in taken and not isinstance(node.ctx, ast.Load)
        far = dict(module.imported).get(node.id, "math") not in LIBRARY
        return not (hidden or bound or far or node.id in module.data or node.id in _REACHING)
    if isinstance(node, ast.Attribute):
        reached = node.attr.startswith(_FRAMES) or node.attr in module.data
        return isinstance(node.ctx, ast.Load) and not reached
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return _library(node, taken)
    return not isinstance(node, (ast.NamedExpr, ast.Await, ast.Global))


def _library(node: ast.Import | ast.ImportFrom, taken: set[str]) -> bool:
    names = [alias.asname or alias.name for alias in node.names]
    sources = [alias.name for alias in node.names]
    homes = [node.module or ""] if isinstance(node, ast.ImportFrom) else sources
    return LIBRARY.issuperset(homes) and not taken.intersection(names) and "*" not in names


async def run(
    module: Module, documents: Mapping[str, str], tools: Tools
) -> dict[str, tuple[Example, ...]]:
    """The examples of every section, by qualified name; all in one run of the sandbox."""
    wanted = {name: parsed(said) for name, said in documents.items()}
    wanted = {name: found for name, found in wanted.items() if found}
    sources = {name: _playable(found, module) for name, found in wanted.items()}
    calls = [
        Call(args=(module.source, name if spoilt else "", played))
        for spoilt in (False, True)  # the true runs first, should the time run out
        for name, played in sources.items()
    ]
    if not calls:
        return {}
    results = await tools.sandbox.run(HARNESS, "play", calls, BRISK)
    said = [_said(result.value) if result.verdict == "value" else [] for result in results]
    pairs = zip(wanted.items(), said[: len(wanted)], said[len(wanted) :], strict=True)
    return {
        name: tuple(_judged(module, found, sources[name], true, spoilt))
        for (name, found), true, spoilt in pairs
    }


def _playable(examples: Sequence[doctest.Example], module: Module) -> list[str]:
    """The statements; '' in the place of those that are not to be run."""
    sources = [example.source for example in examples]
    return [source if allowed(source, module) else "" for source in sources[:MAX_EXAMPLES]]


def _said(value: object) -> list[Said]:
    """What the child said; an object's address, which is never the same twice, is left out."""
    if not isinstance(value, list):
        return []
    return [(_ADDRESS.sub("", one[0]), one[1]) for one in value]


def _judged(
    module: Module,
    wanted: Sequence[doctest.Example],
    sources: Sequence[str],
    true: Sequence[Said],
    spoilt: Sequence[Said],
) -> Iterator[Example]:
    for place, example in enumerate(wanted):
        shows = bool(example.want)
        if place >= len(true) or not sources[place]:
            yield Example(example.source, shows=shows)
            continue
        raised = true[place][1].partition(":")[0]
        differs = place < len(spoilt) and true[place] != spoilt[place]
        tells = shows and differs and (not raised or raised in module.raised)
        yield Example(example.source, _holds(example, true[place]), tells, shows, raised)


def _holds(example: doctest.Example, said: Said) -> bool:
    """Whether it came to what the document says, as doctest compares, without option flags."""
    got, raised = said
    if example.exc_msg is not None or raised:
        return bool(raised) and raised == (example.exc_msg or "").rstrip("\n")
    return _CHECKER.check_output(example.want.replace("\t", "    "), got, _FLAGS)
