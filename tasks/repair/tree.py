"""Files in memory: read, edited by exact replacement, and run as modules in the sandbox."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestry import Call, Tools, compare, shorten, show_value, tools

Files = Mapping[str, str]
"""Texts by path; a module lies at the top, as NAME.py."""
EDIT = "edit_file"
_LINE = re.compile(r" \(line \d+\)$")
"""Of the program around the files, which says nothing."""
_ARGUMENTS = ("path", "old", "new")
TESTS = "tests.py"
_CALLED = {"exec", "eval", "globals", "setattr", "delattr", "import_module", "__import__"}
_NAMES = _CALLED | {"compile", "locals", "vars"}
_ATTRIBUTES = _CALLED | {"__code__", "__defaults__", "__kwdefaults__", "__closure__", "__globals__"}
_ATTRIBUTES |= {"__dict__", "__builtins__", "modules", "meta_path", "_getframe"}
"""By what a module replaces functions while it is imported or runs. (`re.compile` is harmless.)"""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
MOST_CHARS = 20_000
"""Of one file; an edit that would make it longer changes nothing."""

_PROGRAM = """\
import sys
import traceback
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

FILES = {files!r}


class Files(MetaPathFinder, Loader):
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name + ".py" in FILES else None

    def exec_module(self, module):
        path = module.__name__ + ".py"
        exec(compile(FILES[path], path, "exec"), module.__dict__)


sys.meta_path.insert(0, Files())


def run(module, name, args):
    return getattr(import_module(module), name)(*args)


def tried(name):
    try:
        run("tests", name, ())
    except Exception as error:
        places = [shown(one) for one in traceback.extract_tb(error.__traceback__)]
        said = traceback.format_exception_only(error)[-1].strip()
        return "failed: " + "; ".join([said, *filter(None, places)])
    return "passed"


def shown(frame):
    if frame.filename not in FILES:
        return ""
    line = FILES[frame.filename].split("\\n")[frame.lineno - 1].strip()
    return f"{{frame.filename}}, line {{frame.lineno}}: {{line}}"
"""


def program(files: Files) -> str:
    """Code whose `run(module, name, args)` calls a function of the files, and whose `tried(name)`
    says how one of its tests ended."""
    return _PROGRAM.format(files=dict(files))


@dataclass(frozen=True, slots=True)
class Failure:
    """A test that failed: its place among the tests, how its call ended, and that in words."""

    place: int
    verdict: str
    gave: str


async def failing(files: Files, tests: Sequence[Any], sandbox: Tools) -> list[Failure]:
    """The tests that fail, in order. What is expected stays on this side."""
    calls = [Call((module, name, args)) for module, name, args, _ in tests]
    results = await sandbox.sandbox.run(program(files), "run", calls)
    found = list[Failure]()
    for place, one in enumerate(results):
        if one.verdict != "value":
            why = _LINE.sub("", one.why)
            found.append(Failure(place, one.verdict, f"raises {shorten(why)}"))
        elif not compare(tests[place][3], one.value):
            found.append(Failure(place, one.verdict, f"returns {show_value(one.value)}"))
    return found


def mutating(files: Files) -> str:
    """Where a module replaces functions in place of defining them; '' if none does. What it then
    runs stands nowhere to be read."""
    for path, text in files.items():
        try:
            module = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # it can't be imported
        if path != TESTS and (lines := _mutations(module)):
            return f"{path}, line {min(lines)}"
    return ""


def _mutations(module: ast.Module) -> list[int]:
    defined = {one.name for one in module.body if isinstance(one, _FUNCTIONS[:2])}
    found = list[int]()
    for node in ast.walk(module):
        match node:
            case ast.Name(id=name) if name in _NAMES:
                found.append(node.lineno)
            case ast.Attribute(attr=name) if name in _ATTRIBUTES:
                found.append(node.lineno)
            case ast.alias(name=name) if not _ATTRIBUTES.isdisjoint(name.split(".")):
                found.append(node.lineno)
    for node in _at_import(module):
        match node:
            case ast.Attribute(ctx=ast.Store()):
                found.append(node.lineno)
            case ast.Name(id=name, ctx=ast.Store()) if name in defined:
                found.append(node.lineno)
    return found


def _at_import(node: ast.AST) -> Iterator[ast.AST]:
    """What is executed when a module is imported: all but the bodies of functions."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _FUNCTIONS):
            yield from _at_import(child)


def edit(files: Files, path: str, old: str, new: str) -> tuple[Files, str]:
    """The files after one replacement, and what became of it. `old` must occur exactly once;
    '' does so in an empty file."""
    if path not in files:
        return files, f"error: there is no file '{path}', only {', '.join(files)}"
    count = files[path].count(old) if old else not files[path]
    if count != 1:
        return files, f"error: the old text occurs {count:d} times in {path}, and must occur once"
    text = files[path].replace(old, new)
    if len(text) > MOST_CHARS:
        return files, f"error: {path} would have more than {MOST_CHARS:,} characters"
    line = files[path][: files[path].index(old)].count("\n") + 1
    return {**files, path: text}, f"replaced at line {line} of {path}"


def edited(files: Files, calls: Sequence[tools.ToolCall]) -> Files:
    """The files after the edits among these calls; all others are left out."""
    for call in calls:
        given = call.given
        texts = [text for name in _ARGUMENTS if isinstance(text := given.get(name), str)]
        if call.name == EDIT and len(texts) == len(given) == len(_ARGUMENTS):
            files, _ = edit(files, *texts)
    return files


def diff(before: Files, after: Files) -> str:
    """The change as a unified diff; '' for none."""
    found = list[str]()
    for path, text in before.items():
        lines = text.split("\n"), after[path].split("\n")
        found += difflib.unified_diff(*lines, path, path, lineterm="", n=2)
    return "\n".join(found)


def changed(before: Files, after: Files) -> int:
    """The characters of the lines that were taken out or put in, line ends included."""
    size = 0
    for path, text in before.items():
        old, new = text.split("\n"), after[path].split("\n")
        for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, False).get_opcodes():
            size += 0 if kind == "equal" else sum(len(line) + 1 for line in (*old[a:b], *new[c:d]))
    return size


def test_names(files: Files) -> list[str]:
    """The test functions of tests.py, in order. Raises SyntaxError if it is no Python."""
    found = (one for one in ast.parse(files[TESTS]).body if isinstance(one, ast.FunctionDef))
    return [one.name for one in found if one.name.startswith("test")]
