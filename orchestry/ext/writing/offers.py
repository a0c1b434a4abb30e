"""Problems of code that a model offers: the question, how an answer is read, and what is kept.

A problem's tests are calls with the values that they return. Values are those that JSON can hold,
because the problem is stored as JSON.
"""

from __future__ import annotations

import ast
import hashlib
import json
import keyword
import re
from collections.abc import Mapping, Sequence
from typing import Any

from orchestry.core.seeds import derive
from orchestry.core.types import Call, Completion, Message, Problem, Request, Tools
from orchestry.judge import structured
from orchestry.judge.structured import Malformed, closed
from orchestry.task import datasets
from orchestry.task.code import (
    best_constant,
    compare,
    extract_code,
    join_code,
    parse_code,
    show_call,
)

AUTHOR = "author"
LEAST = 6
"""Fewest tests of a problem."""
CONSTANT = 0.6
"""Most tests, as a share, that one answer to all of them may pass."""
ALIKE = 0.75
"""From this share of common words on, two texts are the same problem."""
TOKENS, SOLUTION_TOKENS = 2048, 800
"""Most tokens of a problem, and of a solver's answer."""
THEMES = (
    "text and its words",
    "characters and their positions",
    "lists of integers",
    "pairs of neighbours in a list",
    "intervals with start and end",
    "a grid as a list of rows",
    "counting and grouping in dictionaries",
    "digits and divisibility",
    "times of day and durations in minutes",
    "a queue or a stack that is simulated step by step",
    "prices, quantities and discounts in whole cents",
    "ranking with ties",
    "codes that are encoded or decoded",
    "moves on a line or a board",
)
_GRADES = (
    "one expression",
    "one loop or one condition more than that",
    "two steps that build on each other",
    "a rule with several special cases",
    "dynamic programming, parsing or a search",
)
_TEXTS = {"type": "string"}
_TEST = closed({"arguments": _TEXTS, "returns": _TEXTS})
_SYSTEM = (
    "You write programming problems in Python. Each is one function without input, output, imports "
    "of other packages, randomness or global state. Answer with one JSON object."
)


def question(attempt: int, grade: int, helper: bool, model: str, seed: int) -> Request:
    """Asks for the problem of that attempt; `grade` 1 (easy) to 5. With a `helper` its gold are two
    functions, aux and the one that calls it."""
    theme = THEMES[derive(seed, "theme", attempt) % len(THEMES)]
    gold = (
        "gold_aux is the code of a helper function that must be named aux, aux_goal says what it "
        "returns; gold_main is the code of the function, which calls aux and works with what it "
        "returns, and main_goal says how."
        if helper
        else "gold is the code of the function."
    )
    text = (
        f"Write problem number {attempt + 1} of a series. Its theme: {theme}. Its difficulty: "
        f"{grade} of 5 ({_GRADES[grade - 1]}). Avoid well-known textbook problems.\n\n"
        "prompt says in at most 80 words what the function returns, for every input that the tests "
        f"use, special cases too. name is its name. {gold} tests are 8 to 12 calls, each with "
        "other arguments, the first an easy example: arguments is a Python list of the call's "
        "arguments, returns the value, both written as Python literals of numbers, strings, "
        "booleans, None, lists and dicts with string keys (no tuples, no sets)."
    )
    return Request(
        agent=AUTHOR,
        model=model,
        messages=(Message(role="system", content=_SYSTEM), Message(role="user", content=text)),
        max_tokens=TOKENS,
        seed=derive(seed, "offer", attempt),
        response_schema=_schema(helper),
    )


def _schema(helper: bool) -> dict[str, Any]:
    golds = ("aux_goal", "main_goal", "gold_aux", "gold_main") if helper else ("gold",)
    tests = {"tests": {"type": "array", "items": _TEST}}
    return closed({**dict.fromkeys(("prompt", "name", *golds), _TEXTS), **tests})


# --- an answer becomes a problem ------------------------------------------------------------------


def read(answer: Completion, grade: int, helper: bool) -> Problem:
    """The problem of an answer; raises Malformed if it is not what was asked for."""
    texts, tests = structured.parsed(answer.text, lambda raw: _checked(raw, helper))
    name, prompt = texts["name"].strip(), texts["prompt"].strip()
    if not name.isidentifier() or keyword.iskeyword(name) or name == "aux":
        raise Malformed(f"name {name!r} can't name the function")
    if not prompt:
        raise Malformed("prompt is empty")
    main = _defining(texts["gold_main" if helper else "gold"], name)
    data: dict[str, Any] = {
        "entry_point": name,
        "signature": f"def {name}({ast.unparse(main.args)}):",
        "grade": grade,
        "example": tests[0],
        "tests": tests[1:],
    }
    data |= _pair(texts) if helper else {"reference": texts["gold"]}
    made = hashlib.sha256(json.dumps([prompt, data["reference"]]).encode()).hexdigest()[:10]
    problem_id = f"{name}_{made}"
    return Problem(id=problem_id, prompt=prompt, data=data, split=datasets.split_of(problem_id))


def _checked(raw: Mapping[str, Any], helper: bool) -> tuple[dict[str, str], list[list[Any]]]:
    """The texts, and the tests as arguments and value; raises Malformed."""
    wanted = set(_schema(helper)["required"])
    if set(raw) != wanted:
        raise Malformed(f"its keys must be {', '.join(sorted(wanted))} and no others")
    texts = {key: value for key, value in raw.items() if key != "tests"}
    if wrong := [key for key, value in texts.items() if not isinstance(value, str)]:
        raise Malformed(f"{wrong[0]} must be a string")
    if not isinstance(raw["tests"], list):
        raise Malformed("tests must be a list")
    found = {json.dumps(args): [args, value] for args, value in map(_test, raw["tests"])}
    if len(found) <= LEAST:
        raise Malformed(f"it has {len(found)} different tests: give at least {LEAST + 1}")
    return texts, list(found.values())


def _test(raw: Any) -> tuple[list[Any], Any]:
    if not isinstance(raw, Mapping) or set(raw) != {"arguments", "returns"}:
        raise Malformed("each of its tests must have arguments and returns, and nothing else")
    args, value = (_literal(raw[key]) for key in ("arguments", "returns"))
    if not isinstance(args, list):
        raise Malformed(f"arguments {raw['arguments']!r:.80} must be a Python list")
    return args, value


def _literal(text: Any) -> Any:
    """A written value that JSON gives back as it is."""
    try:
        value = ast.literal_eval(text)
        alike = compare(value, json.loads(json.dumps(value, allow_nan=False)))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        alike = False
    if not alike:
        raise Malformed(f"{text!r:.80} must be a Python literal without tuples and sets")
    return value


def _defining(code: str, name: str) -> ast.FunctionDef:
    tree = parse_code(code)
    for node in tree.body if tree else ():
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    raise Malformed(f"its code defines no function {name}")


def _pair(texts: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a problem for a helper and main."""
    aux, main = texts["gold_aux"], texts["gold_main"]
    tree = parse_code(main)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} if tree else set()
    if "aux" not in names:
        raise Malformed("gold_main does not call aux")
    return {
        "aux_signature": f"def aux({ast.unparse(_defining(aux, 'aux').args)}):",
        "aux_goal": texts["aux_goal"],
        "main_goal": texts["main_goal"],
        "cooperation": True,
        "gold_aux": aux,
        "gold_main": main,
        "reference": join_code([aux, main]),
    }


# --- what is kept ---------------------------------------------------------------------------------


def solver(place: int) -> str:
    """Who is asked."""
    return f"solver {place + 1}"


def solving(problem: Problem, place: int, model: str, seed: int) -> Request:
    """Asks a solver for the whole function; it sees what an agent alone would."""
    shown = ""
    if example := problem.data.get("example"):
        call = show_call(problem.data["entry_point"], example[0])
        shown = f"\nExample: {call} returns {example[1]!r}."
    text = f"{problem.prompt}{shown}\n\n```python\n{problem.data['signature']}\n```"
    system = "You are a Python programmer. Answer with one Python code block that defines the "
    return Request(
        agent=solver(place),
        model=model,
        messages=(
            Message(role="system", content=f"{system}function, and nothing else."),
            Message(role="user", content=text),
        ),
        max_tokens=SOLUTION_TOKENS,
        sample_index=place,
        seed=derive(seed, "solver", problem.id, place),
    )


async def passed(
    tools: Tools, problem: Problem, code: str, of: Problem | None = None
) -> tuple[bool, ...]:
    """Whether a code for the problem passes each test, its own or those `of` another problem."""
    tests = (of or problem).data["tests"]
    calls = [Call(args=tuple(args)) for args, _ in tests]
    results = await tools.sandbox.run(code, problem.data["entry_point"], calls)
    return tuple(
        result.verdict == "value" and compare(value, result.value)
        for (_, value), result in zip(tests, results, strict=True)
    )


async def flawed(tools: Tools, problem: Problem) -> str:
    """Why the gold or the tests are no good; '' if they are."""
    tests, gold = problem.data["tests"], problem.data["reference"]
    shown = [problem.data["example"], *tests]  # agents see the example, so it must be right too
    whole = problem.model_copy(update={"data": {**problem.data, "tests": shown}})
    first, second = [await passed(tools, whole, gold) for _ in range(2)]
    if first != second:
        return "the gold's results differ between two runs"
    if not all(first):
        return "the gold fails its tests"
    if best_constant([value for _, value in tests]) > CONSTANT * len(tests):
        return "one answer to all tests passes most of them"
    return ""


def agreement(one: Sequence[bool], other: Sequence[bool]) -> str:
    """Why two solvers' results tell nothing about the problem; '' if they pass different tests."""
    if one != other:
        return ""
    return "both solvers pass all tests" if all(one) else "both solvers pass the same tests"


async def repeats(tools: Tools, problem: Problem, others: Sequence[Problem]) -> bool:
    """Whether the problem is one of the others: most words in common, or its gold passes all tests
    of one that takes arguments of the same kinds."""
    if any(_alike(problem.prompt, other.prompt) for other in others):
        return True
    gold, kinds = problem.data["reference"], _kinds(problem)
    near = [other for other in others if other.data.get("tests") and _kinds(other) == kinds]
    for other in near:
        if all(await passed(tools, problem, gold, of=other)):
            return True
    return False


def _alike(one: str, other: str) -> bool:
    a, b = (set(re.findall(r"\w+", text.lower())) for text in (one, other))
    return len(a & b) >= ALIKE * len(a | b)


def _kinds(problem: Problem) -> tuple[str, ...]:
    """Types of the arguments, of a list with that of its first element."""
    args = problem.data["example"][0] if "example" in problem.data else ()
    return tuple(type(a).__name__ + (type(a[0]).__name__ if _full(a) else "") for a in args)


def _full(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def code_of(problem: Problem, answer: Completion) -> str:
    """A solver's code."""
    return extract_code(answer.text, problem.data["entry_point"])
