"""LeetCode's problems: an entry of a public dump as a function to write, its tests as calls.

Known are the shapes of LeetCode's own API (`titleSlug`, `content` as HTML, `codeSnippets`), of
dumps in its manner (`problem_slug`, `description`, `code_snippets`, `examples` as prose), of
LeetCodeDataset (Xia et al. 2025, arXiv:2504.14655: `problem_description`, `starter_code`,
`input_output`, `test`, `completion`), and files by hand with such fields. Loading parses code and
never runs it.
"""

from __future__ import annotations

import ast
import html
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestry.core import errors
from orchestry.core.types import SPLITS, Split
from orchestry.task.functions import Case, Function, FunctionSet

IDS = ("task_id", "titleSlug", "title_slug", "problem_slug", "slug", "title", "name", "id")
TEXTS = ("problem_description", "description", "content", "question", "prompt")
STARTERS = ("starter_code", "code_snippets", "codeSnippets", "code_definition", "signature")
PAIRS = ("examples", "input_output", "test_cases", "testcases", "tests")
SOLUTIONS = ("completion", "canonical_solution", "python_solution", "solution", "python")
GRADES = {"easy": 1, "medium": 2, "hard": 3}
PREAMBLE = """\
import bisect, collections, functools, heapq, itertools, math, re, string
from collections import Counter, OrderedDict, defaultdict, deque
from functools import cache, lru_cache, reduce
from heapq import heapify, heappop, heappush
from itertools import accumulate, combinations, permutations, product
from math import ceil, comb, floor, gcd, inf, sqrt
from typing import *"""
"""What answers on LeetCode may use without importing it."""
_PLAIN = {"Any", "Dict", "List", "Optional", "Set", "Tuple", "Union"} | {
    one.__name__ for one in (bool, dict, float, int, list, set, str, tuple)
}
"""Types whose values can be written down; all others are objects of the problem's own."""
_WRITTEN = {"true": True, "false": False, "null": None}
_BROKEN = (ValueError, TypeError, SyntaxError, RecursionError, MemoryError)
_SHOWN = re.compile(
    r"Input:?\s*(?P<input>.+?)\s*\bOutput:?\s*(?P<output>.+?)\s*"
    r"(?=\bExplanation\b|\bExample\b|\bConstraints\b|\bInput\b|\n\s*\n|\Z)",
    re.DOTALL,
)
_EXAMPLES = re.compile(
    r"^\W*Examples?\b[^\n]{0,12}$.*?(?=^\W*(?:Constraints|Note)\b|\Z)", re.M | re.S
)
_BREAKS = re.compile(r"</(?:p|li|pre|div|h\d)>|<br\s*/?>", re.IGNORECASE)


def function(where: str, row: Any) -> Function | str:
    """One entry as a function, or why it can't be one here; `where` is its place, for messages.

    Left out are entries without code for Python, with objects such as ListNode, of classes with
    several methods, that change an argument in place, and without two tests of written values.
    Raises TaskError for an entry of another form, and for a test that can't be read.
    """
    row = _bare(where, row)
    where = f"{where}, '{_id(where, row)}'"
    starter = _starter(row)
    if starter is None:
        return "have no starter code for Python"
    found = _node(where, starter)
    if isinstance(found, str):
        return found
    description = _description(where, row)
    calls = tuple(_calls(where, row, found))
    if len(calls) < 2:
        return "have fewer than two tests of written values"
    return Function(
        id=_id(where, row),
        name=found.name,
        description=description,
        parameters=ast.unparse(found.args),
        signature=_signature(found),
        preamble=PREAMBLE,
        reference=_reference(row, found),
        tests=(),
        calls=calls,
        grade=_grade(where, row),
        split=_split(where, row),
    )


def _bare(where: str, row: Any) -> Mapping[str, Any]:
    """The entry without what LeetCode's API wraps around it."""
    for key in ("data", "question"):
        if isinstance(row, Mapping) and isinstance(row.get(key), Mapping):
            row = row[key]
    if not isinstance(row, Mapping):
        raise errors.TaskError(
            f"{where} is no object but {json.dumps(row)[:40]}: give one with a title, a "
            "description, starter code and examples"
        )
    if not row:
        raise errors.TaskError(
            f"{where} is empty: give it a title, a description, starter code and examples, or "
            "leave it out"
        )
    return row


def _first(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The text of the first of these keys that has one; ''."""
    texts = (row.get(key) for key in keys)
    return next((text for text in texts if isinstance(text, str) and text.strip()), "")


def _id(where: str, row: Mapping[str, Any]) -> str:
    """Its name, in letters that a file name may have."""
    name = re.sub(r"[^\w.-]+", "-", _first(row, IDS).strip().lower(), flags=re.ASCII).strip("-")
    if not name:
        raise errors.TaskError(
            f"{where} has no name, only {', '.join(row)}: give it a text in one of {', '.join(IDS)}"
        )
    return name


def _description(where: str, row: Mapping[str, Any]) -> str:
    """Its text without examples: one is shown beside it, the others are tests."""
    text = _EXAMPLES.sub("", _text(_first(row, TEXTS))).strip()
    if not text:
        raise errors.TaskError(
            f"{where} has no description, only {', '.join(row)}: give it a text in one of "
            f"{', '.join(TEXTS)}"
        )
    return re.sub(r"\n\s*\n+", "\n\n", text)


def _text(text: str) -> str:
    """Without HTML, if it is that."""
    if "</" in text:
        text = re.sub(r"<sup>(.*?)</sup>", r"^\1", text, flags=re.DOTALL)
        text = html.unescape(re.sub(r"<[^<>]+>", "", _BREAKS.sub("\n", text)))
    return text.replace("\xa0", " ").replace("\r\n", "\n").replace("\u200b", "")


def _grade(where: str, row: Mapping[str, Any]) -> int | None:
    """1 to 3, from easy to hard; None where it is not said."""
    given = row.get("difficulty")
    if isinstance(given, Mapping):  # as in lists of LeetCode's problems: {"level": 1}
        given = given.get("level")
    if given is None or given in GRADES.values():
        return given
    if str(given).lower() not in GRADES:
        raise errors.TaskError(
            f"{where} has the difficulty {given!r}: write Easy, Medium or Hard, or leave it out"
        )
    return GRADES[str(given).lower()]


def _split(where: str, row: Mapping[str, Any]) -> Split | None:
    """The split that a file by hand may name."""
    if (given := row.get("split")) not in (None, *SPLITS):
        raise errors.TaskError(
            f"{where} has the split {given!r}: write train, dev or test, or leave it out"
        )
    return given


# --- the function ---------------------------------------------------------------------------------


def _starter(row: Mapping[str, Any]) -> str | None:
    """Its starter code for Python, the newer where there are two."""
    for given in (row.get(key) for key in STARTERS):
        if isinstance(given, str) and given.strip():
            return given
        if isinstance(given, Sequence) and not isinstance(given, str):
            given = {
                str(one.get("langSlug") or one.get("value") or one.get("lang")).lower(): one.get(
                    "code", one.get("defaultCode")
                )
                for one in given
                if isinstance(one, Mapping)
            }
        if isinstance(given, Mapping) and (code := _first(given, ("python3", "python"))):
            return code
    return None


def _node(where: str, starter: str) -> ast.FunctionDef | str:
    """The function of the starter code, without `self`; or why there is none to write."""
    if (named := re.search(r"^class\s+(\w+)", starter, re.MULTILINE)) and named[1] != "Solution":
        return "are classes of several methods"
    if re.search(r"^#\s*class\s+\w+", starter, re.MULTILINE):
        return "have objects such as ListNode"
    body = _parsed(f"{where}, starter code", _filled(starter)).body
    inside = [one.body for one in body if isinstance(one, ast.ClassDef)]
    functions = [one for one in (inside[0] if inside else body) if isinstance(one, ast.FunctionDef)]
    if len(functions) != 1:
        return "are classes of several methods"
    (found,) = functions
    if inside:
        found.args.args = found.args.args[1:]
    return _unfit(found, starter) or found


def _unfit(node: ast.FunctionDef, starter: str) -> str:
    """Why calls with written values can't test it; '' if they can."""
    notes = [one.annotation for one in node.args.args] + [node.returns]
    named = {n.id for note in notes if note for n in ast.walk(note) if isinstance(n, ast.Name)}
    if named - _PLAIN:
        return "have objects such as ListNode"
    nothing = isinstance(node.returns, ast.Constant) and node.returns.value is None
    if nothing or "in-place instead" in starter:
        return "change an argument in place"
    return ""


def _filled(starter: str) -> str:
    """With `pass` where the body is to be written."""
    code = starter.replace("\r\n", "\n").rstrip()
    last = code.rpartition("\n")[2]
    indent = len(last) - len(last.lstrip()) + 4
    return f"{code}\n{' ' * indent}pass\n" if code.endswith(":") else code


def _parsed(where: str, code: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings
            return ast.parse(code)
    except _BROKEN as error:
        raise errors.TaskError(
            f"{where} is no Python ({errors.reason(error)}): mend it, or leave the entry out"
        ) from None


def _signature(node: ast.FunctionDef) -> str:
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"def {node.name}({ast.unparse(node.args)}){returns}:"


def _reference(row: Mapping[str, Any], node: ast.FunctionDef) -> str:
    """The entry's solution as the function; '' where none of its fields is one in Python."""
    for code in filter(None, (_first(row, (key,)) for key in SOLUTIONS)):
        try:
            body = _parsed("", code).body
        except errors.TaskError:  # dumps also have editorials in these fields
            continue
        if any(isinstance(one, ast.FunctionDef) and one.name == node.name for one in body):
            return f"{code.strip()}\n"
        if any(isinstance(one, ast.ClassDef) and one.name == "Solution" for one in body):
            passed = ", ".join(one.arg for one in node.args.args)
            call = f"    return Solution().{node.name}({passed})"
            return f"{code.strip()}\n\n\n{_signature(node)}\n{call}\n"
    return ""


# --- its tests ------------------------------------------------------------------------------------


def _calls(where: str, row: Mapping[str, Any], node: ast.FunctionDef) -> Iterator[Case]:
    """Each call once, the examples first."""
    found = dict[str, Case]()
    for one in (*_given(where, row, node), *_described(row, node), *_asserted(row, node)):
        found.setdefault(repr(one[0]), one)
    return iter(found.values())


def _given(where: str, row: Mapping[str, Any], node: ast.FunctionDef) -> Iterator[Case]:
    """Tests that the entry has as fields of their own."""
    for key in PAIRS:
        listed: Any = row.get(key) or []
        if isinstance(listed, str):
            listed = _json(f"{where}, {key}", listed)
        if not isinstance(listed, Sequence):
            raise errors.TaskError(
                f"{where}, {key} is a {type(listed).__name__}: give a list of tests, each with "
                "input and output"
            )
        for number, one in enumerate(listed, start=1):
            yield from _pair(f"{where}, {key} {number}", one, node)


def _pair(where: str, one: Any, node: ast.FunctionDef) -> Iterator[Case]:
    """One of the listed tests; none if it is prose without a written input and output. The output
    is written like the input: as text, or as JSON."""
    if isinstance(one, Mapping) and (text := _first(one, ("example_text", "text"))):
        one = text
    if isinstance(one, str):
        yield from _shown(one, node)
        return
    if isinstance(one, Mapping):
        inputs = next((one[key] for key in ("input", "inputs", "args") if key in one), None)
        keys = ("output", "expected", "expected_output", "answer")
        outputs = [one[key] for key in keys if key in one]
    else:
        inputs, *outputs = one if isinstance(one, Sequence) and len(one) == 2 else (None,)
    if inputs is None or not outputs:
        raise errors.TaskError(
            f"{where} is {json.dumps(one, default=str)[:60]}: give a test with input and output"
        )
    try:
        value = outputs[0] if not isinstance(inputs, str) else _value(outputs[0], node.returns)
        yield _arguments(inputs, node), value
    except _BROKEN as error:
        raise errors.TaskError(
            f"{where} is {json.dumps(one, default=str)[:90]}, and {_signature(node)[4:-1]} can't "
            f"be called with it ({errors.reason(error)}): write inputs such as 'nums = [2, 7], "
            "target = 9' and outputs such as '[0, 1]'"
        ) from None


def _described(row: Mapping[str, Any], node: ast.FunctionDef) -> Iterator[Case]:
    """The examples in the description."""
    return _shown(_text(_first(row, TEXTS)), node)


def _shown(text: str, node: ast.FunctionDef) -> Iterator[Case]:
    """Examples in prose, of which those are tests whose values are written out."""
    for found in _SHOWN.finditer(_text(text).replace("*", "").replace("`", "")):
        try:
            yield _arguments(found["input"], node), _value(found["output"], node.returns)
        except _BROKEN:
            continue


def _asserted(row: Mapping[str, Any], node: ast.FunctionDef) -> Iterator[Case]:
    """Calls with written values in asserts, as in `assert candidate(nums=[1]) == 2`."""
    try:
        module = _parsed("", _first(row, ("test", "test_code")))
    except errors.TaskError:
        return
    for one in ast.walk(module):
        match one:
            case ast.Assert(ast.Compare(ast.Call() as call, [ast.Eq() | ast.Is()], [wanted])):
                name = ast.unparse(call.func).rpartition(".")[2]
                if name not in ("candidate", node.name):
                    continue
                try:
                    yield _bound(call, node), _literal(wanted)
                except _BROKEN:
                    continue


def _arguments(given: Any, node: ast.FunctionDef) -> list[Any]:
    """The arguments in the function's order: of a text such as 'nums = [1], k = 2', of an object
    by parameter, or of a list with a value per parameter."""
    if isinstance(given, str):
        call = ast.parse(f"f({_one_line(given)})", mode="eval").body
        if not isinstance(call, ast.Call):
            raise ValueError("no list of values")
        return _bound(call, node)
    names = [one.arg for one in node.args.args]
    if isinstance(given, Mapping) and set(given) == set(names):
        return [given[name] for name in names]
    if isinstance(given, Sequence) and len(given) == len(names):
        return list(given)
    raise ValueError(f"its parameters are {', '.join(names)}")


def _one_line(text: str) -> str:
    """A value per line, or one value over several, as arguments."""
    lines = [line.strip().rstrip(",") for line in text.strip().split("\n")]
    if len(lines) == 1:
        return lines[0]
    joined = re.sub(r"([(\[{]),", r"\1", ", ".join(filter(None, lines)))
    return re.sub(r",\s*([)\]}])", r"\1", joined)


def _bound(call: ast.Call, node: ast.FunctionDef) -> list[Any]:
    """The arguments of a call, all written out."""
    names = [one.arg for one in node.args.args]
    found = dict(zip(names, map(_literal, call.args), strict=False))
    found |= {one.arg: _literal(one.value) for one in call.keywords if one.arg}
    if set(found) != set(names) or len(call.args) + len(call.keywords) != len(names):
        raise ValueError(f"its parameters are {', '.join(names)}")
    return [found[name] for name in names]


def _value(given: Any, returns: ast.expr | None) -> Any:
    """What the function should return, of the type that it says."""
    kind = ast.unparse(returns) if returns else ""
    if isinstance(given, str):
        try:
            value = _literal(ast.parse(given.strip(), mode="eval").body)
        except _BROKEN:
            if kind != "str":
                raise
            return given.strip()
        given = given.strip() if kind == "str" and not isinstance(value, str) else value
    return float(given) if kind == "float" and type(given) is int else given


def _literal(node: ast.expr) -> Any:
    """A value as JSON or Python writes it."""
    try:
        return ast.literal_eval(_Json().visit(node))
    except _BROKEN:
        raise ValueError(f"{ast.unparse(node)} is no written value") from None


class _Json(ast.NodeTransformer):
    """Takes true, false and null for what they are in JSON."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_WRITTEN[node.id]) if node.id in _WRITTEN else node


def _json(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise errors.TaskError(
            f"{where} is not JSON ({errors.reason(error)}): give a list of tests, each with input "
            "and output"
        ) from None


LEETCODE = FunctionSet("newfacade/LeetCodeDataset", function)
