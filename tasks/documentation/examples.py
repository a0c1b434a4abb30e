"""Doctests of a section: which may be run, running them on the true module, what they came to.

The child is sent the module and the statements; it sends back what each printed, evaluated to or
raised. What a document says that should be stays here. Every section is played on fresh copies of
the module, as it is and with the documented name spoilt, in each of two processes: in one the other
way round, so that what the statements keep from play to play, or an address, tells nothing. An
example whose outcome is the same either way shows nothing of what it documents (`>>> 1`,
`>>> f(2) == f(2)`).
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import doctest
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestry import Call, Limits, Tools, parse_code

from .module import Module

HARNESS = Path(__file__).with_name("harness.py").read_text(encoding="utf-8")
BRISK = Limits(wall_s=6.0, cpu_s=0.5)
"""For one section in one process; documents are no place for long computations."""
ORDERS = ((False, True), (True, False))
"""Whether the documented name is spoilt in the first play of a process and in the second."""
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
_CLOCKS = {"now", "today", "utcnow"}
_FORMATS = {"format", "format_map"}
"""Methods that look attributes up by their names in a text."""
_LOOKING_UP = re.compile(r"\{[^{}:!]*[.\[]")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_FLAGS = doctest.DONT_ACCEPT_TRUE_FOR_1
_PARSER, _CHECKER = doctest.DocTestParser(), doctest.OutputChecker()
Said = tuple[str, str]
"""What a statement printed or evaluated to, and what it raised; one of them is empty."""
Plays = tuple[list[Said], list[Said]]
"""The results of a section's statements in one process: on the right module, and spoilt."""


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
        reached = node.attr.startswith(_FRAMES) or node.attr in (module.data | _CLOCKS)
        return isinstance(node.ctx, ast.Load) and not reached and _formats(node)
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return _library(node, taken)
    return not isinstance(node, (ast.NamedExpr, ast.Await, ast.Global))


def _formats(node: ast.Attribute) -> bool:
    """Whether it is no method that looks attributes up, or that of a text that names none."""
    if node.attr not in _FORMATS:
        return True
    text = node.value.value if isinstance(node.value, ast.Constant) else None
    return isinstance(text, str) and _LOOKING_UP.search(text) is None


def _library(node: ast.Import | ast.ImportFrom, taken: set[str]) -> bool:
    names = [alias.asname or alias.name for alias in node.names]
    sources = [alias.name for alias in node.names]
    homes = [node.module or ""] if isinstance(node, ast.ImportFrom) else sources
    return LIBRARY.issuperset(homes) and not taken.intersection(names) and "*" not in names


async def run(
    module: Module, documents: Mapping[str, str], tools: Tools
) -> dict[str, tuple[Example, ...]]:
    """The examples of every section, by qualified name; each section in processes of its own."""
    wanted = {name: parsed(said) for name, said in documents.items()}
    wanted = {name: found for name, found in wanted.items() if found}
    sources = {name: _playable(found, module) for name, found in wanted.items()}
    plays = await asyncio.gather(
        *(_played(module, name, played, tools) for name, played in sources.items())
    )
    return {
        name: tuple(_judged(module, found, sources[name], said))
        for (name, found), said in zip(wanted.items(), plays, strict=True)
    }


async def _played(module: Module, name: str, sources: Sequence[str], tools: Tools) -> list[Plays]:
    """The results of a section's statements in each process; [] if there is none to run."""
    if not any(sources):
        return []
    calls = [
        Call(args=(module.source, name, [*order], sorted(LIBRARY), [*sources])) for order in ORDERS
    ]
    runs = (tools.sandbox.run(HARNESS, "play", [call], BRISK) for call in calls)
    found = [_said(result.value, len(sources)) for (result,) in await asyncio.gather(*runs)]
    return [
        (plays[order.index(False)], plays[order.index(True)])
        for order, plays in zip(ORDERS, found, strict=True)
        if plays
    ]


def _playable(examples: Sequence[doctest.Example], module: Module) -> list[str]:
    """The statements; '' in the place of those that are not to be run."""
    sources = [example.source for example in examples]
    return [source if allowed(source, module) else "" for source in sources[:MAX_EXAMPLES]]


def _said(value: object, count: int) -> list[list[Said]]:
    """What the child said of both plays, [] for anything else: it may say what it likes. An
    object's address, which is never the same twice, is left out."""
    if not isinstance(value, list) or len(value) != 2:
        return []
    plays = [_play(one) for one in value]
    return plays if all(len(one) == count for one in plays) else []


def _play(value: object) -> list[Said]:
    pairs = value if isinstance(value, list) else []
    whole = [pair for pair in pairs if isinstance(pair, tuple) and len(pair) == 2]
    texts = [pair for pair in whole if all(isinstance(one, str) for one in pair)]
    return [(_ADDRESS.sub("", printed), raised) for printed, raised in texts]


def _judged(
    module: Module, wanted: Sequence[doctest.Example], sources: Sequence[str], plays: list[Plays]
) -> Iterator[Example]:
    for place, example in enumerate(wanted):
        shows = bool(example.want)
        if len(plays) < len(ORDERS) or place >= len(sources) or not sources[place]:
            yield Example(example.source, shows=shows)
            continue
        said = [true[place] for true, _ in plays]
        raised = said[0][1].partition(":")[0]
        steady = said[0] == said[1]
        differs = all(true[place] != spoilt[place] for true, spoilt in plays)
        tells = shows and steady and differs and (not raised or raised in module.raised)
        holds = steady and _holds(example, said[0])
        yield Example(example.source, holds, tells, shows, raised)


def _holds(example: doctest.Example, said: Said) -> bool:
    """Whether it came to what the document says, as doctest compares, without option flags."""
    got, raised = said
    if example.exc_msg is not None or raised:
        return bool(raised) and raised == (example.exc_msg or "").rstrip("\n")
    return _CHECKER.check_output(example.want.replace("\t", "    "), got, _FLAGS)
