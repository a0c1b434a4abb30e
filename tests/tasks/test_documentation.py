"""Gold is worth 1, tricks earn little, examples are run on the true module and change nothing."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestry import BaseTask, Problem, Score, Tools
from orchestry.core.errors import ConfigError, TaskError
from orchestry.core.types import SPLITS
from orchestry.task.check import check_task
from orchestry.task.registry import load_task
from tests.tasks.prying_examples import PRYING, asking

TASK: BaseTask[Any] = load_task("documentation")
CLAIMS, EXAMPLES, MODULE, REWARD, SECTION, SECTIONS = (
    import_module(f"orchestry_tasks.documentation.{name}")
    for name in ("claims", "examples", "module", "reward", "section", "sections")
)
PROBLEMS = {problem.id: problem for split in SPLITS for problem in TASK.problems(split)}
GOLDS = {name: p.data["gold"] for name, p in PROBLEMS.items() if "gold" in p.data}
CLAMP = PROBLEMS["clamp"]
TRICK, UNSHOWN = 0.15, 0.35
"""What tricks earn at most, and sentences without any true example or true examples without any
sentence."""


async def scored(problem: Problem, draft: str, tools: Tools, review: str = "LGTM") -> Score:
    state = TASK.step(TASK.reset(problem, 0), {"documenter": draft})
    assert TASK.to_act(state) == ("reviewer",)
    return await TASK.evaluate(TASK.step(state, {"reviewer": review}), tools)


def each(problem: Problem, said: Callable[[Any], str]) -> str:
    names = MODULE.read(problem.prompt).names
    return "\n\n".join(f"### {name.qualified}\n{said(name)}" for name in names)


def part(score: Score, name: str) -> float:
    return next(one.value for one in score.parts if one.name == name)


# --- the bank -----------------------------------------------------------------------------------


def test_the_splits_are_fixed() -> None:
    assert [len(TASK.problems(split)) for split in SPLITS] == [22, 7, 8]
    ids = "\n".join(problem.id for split in SPLITS for problem in TASK.problems(split))
    assert hashlib.sha256(ids.encode()).hexdigest()[:16] == "dd89d426e6b82635"
    assert all(any(p.id in GOLDS for p in TASK.problems(split)) for split in SPLITS)
    assert len(GOLDS) >= 12


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_module_offers_something_and_has_no_docstrings(name: str) -> None:
    source = PROBLEMS[name].prompt
    module = MODULE.read(source)
    assert 12 <= len(source.splitlines()) <= 70
    assert module.shown
    assert MODULE.stripped(source) == source
    compile(source, name, "exec")


def test_docstrings_go_where_python_counts_lines() -> None:
    bare = "SEPARATOR = '\u2028\x85'\n\x0c\ndef f(x):\n    return x\n"
    told = bare.replace("(x):\n", '(x):\n    """Says x."""\n')
    assert MODULE.stripped(told) == MODULE.stripped(bare) == bare


@pytest.mark.parametrize("name", GOLDS)
@pytest.mark.slow
async def test_gold_is_worth_one(name: str, tools: Tools) -> None:
    score = await scored(PROBLEMS[name], GOLDS[name], tools)
    assert score.total == pytest.approx(1.0), score.feedback
    assert {"whole", "covered"} <= set(score.tags)


@pytest.mark.slow
async def test_it_conforms(tools: Tools) -> None:
    findings = await check_task(TASK, tools.sandbox, seeds=(0,))
    assert [finding for finding in findings if not finding.ok] == []


# --- the team -----------------------------------------------------------------------------------


async def test_the_reviewer_fills_gaps_and_replaces_what_is_wrong(tools: Tools) -> None:
    sections = [f"### {text}" for text in GOLDS["clamp"].split("### ")[1:]]
    half, rest = "".join(sections[:2]), "".join(sections[2:])
    alone = await scored(CLAMP, half, tools)
    assert 0.2 < alone.total < 0.7
    together = await scored(CLAMP, half, tools, rest)
    assert together.total == pytest.approx(1.0)
    assert "revised" in together.tags
    wrong = GOLDS["clamp"].replace("clamp(7, 0, 5)\n5", "clamp(7, 0, 5)\n7")
    spoilt = await scored(CLAMP, wrong, tools)
    assert spoilt.total < 0.95
    assert "wrong_examples" in spoilt.tags
    assert "clamp(7, 0, 5)" in spoilt.feedback
    assert (await scored(CLAMP, wrong, tools, sections[0])).total == pytest.approx(1.0)


def test_the_reviewer_sees_the_draft_and_what_it_lacks() -> None:
    draft = (
        GOLDS["clamp"].replace("low: the smallest number allowed\n", "").partition("### snap")[0]
    )
    seen = TASK.observe(TASK.step(TASK.reset(CLAMP, 0), {"documenter": draft}), "reviewer")
    assert "the parameter low of clamp" in seen
    assert "a section on snap" in seen
    assert "an example of snap" in seen
    assert "lerp(10, 20, 0.25)" in seen
    assert CLAMP.prompt.strip() in seen


# --- tricks -------------------------------------------------------------------------------------


def shuffled(text: str, seed: int = 3) -> str:
    words = text.split()
    return " ".join(random.Random(seed).sample(words, len(words))).capitalize() + "."


def test_a_sentence_that_speaks_of_a_name_is_better_than_nothing() -> None:
    names = MODULE.read(CLAMP.prompt).names
    text = (
        "Of these the `snap` function rounds a number to a step.\n\n### lerp\nMove on.\n\n"
        "```python\nx = clamp(1, 2, 3)\n```\nBoth `clamp` and `rescale` take a value."
    )
    assert list(SECTIONS.sections(text, names)) == ["lerp"]
    found = SECTIONS.sections(text, names, mentions=True)
    assert list(found) == ["lerp", "snap"]
    assert found["snap"].startswith("Of these")


def salad(problem: Problem, *, examples: bool) -> str:
    kept = []
    for block in GOLDS[problem.id].split("\n\n"):
        head, _, body = block.partition("\n")
        if block.startswith("### "):
            kept.append(f"{head}\n{shuffled(body)}")
        elif examples or not block.startswith(">>>"):
            kept.append(block)
    return "\n\n".join(kept)


def entries(name: Any, said: str) -> str:
    return "\n" + "\n".join(f"{param}: {said.format(param)}" for param in name.params)


def slots(name: Any, turn: int = 0) -> str:
    """A sentence that is the same for all names but for what these are called."""
    words, params = name.short.replace("_", " "), " and ".join(name.params) or "nothing"
    errors = " or ".join(sorted(name.raises)) or "nothing"
    said = (
        f"Return the result of {words} for {params}. It raises {errors} where it has to.",
        f"This gives back the {words}ed value that {params} make, or raises {errors}.",
    )
    return said[turn % 2] + entries(name, "the {} value to be used")


def in_turns(problem: Problem) -> Callable[[Any], str]:
    turns = {name.qualified: i for i, name in enumerate(MODULE.read(problem.prompt).names)}
    return lambda name: slots(name, turns[name.qualified])


TRICKS: dict[str, Callable[[Problem], str]] = {
    "empty": lambda p: "",
    "LGTM": lambda p: "LGTM",
    "the module": lambda p: f"```python\n{p.prompt}```",
    "the prompt": lambda p: TASK.observe(TASK.reset(p, 0), "documenter"),
    "names": lambda p: each(p, lambda n: n.qualified),
    "names and parameters": lambda p: each(p, lambda n: " ".join(n.params)),
    "code as description": lambda p: each(p, lambda n: p.prompt.replace("\n", " ")),
    "keywords": lambda p: each(
        p, lambda n: "Return value list number raise ValueError result " * 2 + " ".join(n.params)
    ),
    "one sentence for all": lambda p: each(
        p, lambda n: "Do the work that is asked for and return what comes of it." + entries(n, "it")
    ),
    "one sentence with names filled in": lambda p: each(
        p,
        lambda n: (
            f"The function {n.short} takes what it is given and returns the {n.short} of it."
            + entries(n, "the {} that is used")
        ),
    ),
    "sentences with slots": lambda p: each(p, slots),
    "sentences with slots in turns": lambda p: each(p, in_turns(p)),
    "sentences with slots, and the harness": lambda p: each(
        p, lambda n: f"{slots(n)}\n\n{asking('frames through an imported sys', n.top)}"
    ),
    "the harness rewritten": lambda p: each(
        p, lambda n: f"{slots(n)}\n\n{asking('the harness rewritten', n.top)}"
    ),
    "word salad": lambda p: salad(p, examples=False),
    "over-long": lambda p: each(p, lambda n: "Return the number that is the value of it. " * 60),
    "docs of another module": lambda p: GOLDS["matrix" if p.id != "matrix" else "rle"],
    "trivial examples": lambda p: each(p, lambda n: ">>> 1\n1\n\n>>> True\nTrue"),
    "constants": lambda p: each(p, lambda n: ">>> x = 3\n>>> x\n3\n>>> print('ok')\nok"),
    "bare names": lambda p: each(p, lambda n: f">>> {n.top}\n<function {n.top}>"),
    "equal to itself": lambda p: each(p, lambda n: f">>> {n.top} == {n.top}\nTrue"),
    "callable": lambda p: each(p, lambda n: f">>> callable({n.top})\nTrue"),
    "arguments left out": lambda p: each(
        p, lambda n: f">>> {n.top}()\nTraceback (most recent call last):\nTypeError: {n.top}()"
    ),
    "objects": lambda p: each(p, lambda n: ">>> object()\n<object object at 0x7f0>"),
}


@pytest.mark.parametrize("name", TRICKS)
@pytest.mark.slow
async def test_a_trick_earns_little(name: str, tools: Tools) -> None:
    for problem in (CLAMP, PROBLEMS["roman"], PROBLEMS["intervals"]):
        assert (await scored(problem, TRICKS[name](problem), tools)).total < TRICK


POOL = (
    "Return the value that was asked for, or nothing where it can't be found.",
    "Take the numbers one after the other and give back what is left of them in the end.",
    "Check that all of it is in order before the next step is made, and return the result.",
    "Make a new list out of the old one in which every item is at its right place.",
    "Work out how much there is of it, and return this as a number.",
    "Go through the text from the start to the end and return the part that was wanted.",
    "Put two things together if they are of the same kind, and return the new one.",
)


async def test_sentences_that_fit_any_module_count_half(tools: Tools) -> None:
    for problem in (CLAMP, PROBLEMS["roman"], PROBLEMS["intervals"]):
        said = iter(POOL)
        names = MODULE.read(problem.prompt).names
        bodies = [next(said) + entries(name, "the {} to work on") for name in names]
        pairs = zip(names, bodies, strict=True)
        text = "\n\n".join(f"### {name.qualified}\n{body}" for name, body in pairs)
        assert (await scored(problem, text, tools)).total < UNSHOWN


@pytest.mark.parametrize("name", ["clamp", "roman", "intervals"])
async def test_examples_without_sentences_earn_their_part_and_no_more(
    name: str, tools: Tools
) -> None:
    blocks = [
        block.split("\n")[0] if block.startswith("### ") else block
        for block in GOLDS[name].split("\n\n")
        if block.startswith(("### ", ">>>"))
    ]
    score = await scored(PROBLEMS[name], "\n\n".join(blocks), tools)
    assert part(score, "examples") == pytest.approx(1.0)
    assert score.total == pytest.approx(0.35)
    assert (await scored(PROBLEMS[name], salad(PROBLEMS[name], examples=True), tools)).total < 0.45


# --- examples -----------------------------------------------------------------------------------


async def ran(name: str, section: str, tools: Tools, problem: Problem = CLAMP) -> list[Any]:
    found = await EXAMPLES.run(MODULE.read(problem.prompt), {name: section}, tools)
    return list(found.get(name, ()))


TRACE = "Traceback (most recent call last):"


@pytest.mark.parametrize(
    ("example", "holds", "tells"),
    [
        (">>> clamp(7, 0, 5)\n5", True, True),
        (">>> clamp(7, 0, 5)\n6", False, True),
        (">>> [clamp(n, 0, 2) for n in (1, 5)]\n[1, 2]", True, True),
        (">>> for n in (1, 5):\n...     print(clamp(n, 0, 2))\n1\n2", True, True),
        (f">>> clamp(1, 2, 0)\n{TRACE}\n  ...\nValueError: low is above high", True, True),
        (">>> clamp(1, 2, 0)\nTraceback (most recent call last):\nValueError: no", False, True),
        (">>> clamp(1)\nTraceback (most recent call last):\nTypeError: clamp() missing 2 required "
         "positional arguments: 'low' and 'high'", True, False),
        (">>> lerp(0, 1, 0.5)\n0.5", True, False),
        (">>> clamp(7, 0, 5) == clamp(7, 0, 5)\nTrue", True, False),
        (">>> isinstance(clamp(7, 0, 5), int)\nTrue", True, False),
        (">>> clamp(7, 0, 5) is None\nFalse", True, False),
        (">>> clamp(7, 0, 5)  # doctest: +ELLIPSIS\n...", False, False),
        (">>> clamp(7, 0, 5)  # doctest: +SKIP\n5", True, True),
        (">>> clamp(7, 0, 5)", False, False),
    ],
)  # fmt: skip
@pytest.mark.slow
async def test_an_example_holds_and_tells(
    example: str, holds: bool, tells: bool, tools: Tools
) -> None:
    (one,) = await ran("clamp", example, tools)
    assert (one.holds, one.tells) == (holds, tells)


@pytest.mark.parametrize(
    "statement",
    [
        "clamp = lambda *args: 5",
        "def clamp(*args): return 5",
        "class Other(str): pass",
        "import clamp",
        "import sys",
        "import operator",
        "from os import path",
        "from math import *",
        "clamp.__globals__",
        "clamp.__code__ = lerp.__code__",
        "clamp.note = 5",
        "setattr(clamp, 'note', 5)",
        "getattr(clamp, 'note')",
        "exec('clamp = 5')",
        "globals()",
        "__builtins__",
        "(n for n in ()).gi_frame",
        "[clamp for clamp in (1, 2)]",
        "del clamp",
        "(clamp := 5)",
        "print = 5",
        "open('x')",
        "1\n2",
        "x = '" + "a" * 500 + "'",
        "no python at all",
    ],
)
def test_an_example_may_not_reach_into_the_module(statement: str) -> None:
    assert not EXAMPLES.allowed(statement + "\n", MODULE.read(CLAMP.prompt))


def test_an_example_may_use_names_of_its_own_and_never_the_modules_data() -> None:
    module = MODULE.read(PROBLEMS["roman"].prompt)
    for fine in (
        "x = to_roman(4)",
        "for n in range(3): print(to_roman(n + 1))",
        "import math",
        "_ = to_roman(1)",
        "from datetime import date",
        "seen = {}",
        "seen['a'] = 1",
    ):
        assert EXAMPLES.allowed(fine, module), fine
    for touching in ("SYMBOLS", "SYMBOLS.append((1, 'J'))", "to_roman.SYMBOLS"):
        assert not EXAMPLES.allowed(touching, module), touching


@pytest.mark.parametrize("trick", PRYING)
@pytest.mark.slow
async def test_an_example_that_looks_for_the_harness_tells_nothing(
    trick: str, tools: Tools
) -> None:
    assert not any(one.tells for one in await ran("clamp", asking(trick, "clamp"), tools))


WORDS = ("clamp", "lerp", "statistics", "sys", "modules", "functools", "json", "type", "str", "dir")
CALLS = st.recursive(
    st.sampled_from(WORDS) | st.integers(0, 3).map(str),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("{0[0]}({0[1]})".format),
        st.tuples(inner, st.sampled_from(WORDS)).map("{0[0]}.{0[1]}".format),
        st.tuples(inner, inner).map("[{0[0]}, {0[1]}]".format),
    ),
    max_leaves=6,
)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(parts=st.lists(CALLS, min_size=6, max_size=6))
async def test_an_example_that_does_not_call_its_name_tells_nothing(
    tools: Tools, parts: list[str]
) -> None:
    """Whatever it reads of libraries, of types and of the name itself."""
    free = [one.replace("clamp(", "len(") for one in parts if "([" not in one]
    text = "\n".join(["import functools, json, statistics", *free])
    section = "".join(f">>> {line}\nanything\n" for line in text.split("\n"))
    assert not any(one.tells for one in await ran("clamp", section, tools))


@pytest.mark.parametrize("said", [None, [5, 5], [[("a", "b")], 3], [[(1, "")], [("", "")]], {}])
def test_what_the_child_says_is_taken_for_what_it_is(said: object) -> None:
    assert EXAMPLES._said(said, 1) == []


async def test_sections_and_evaluations_are_apart(tools: Tools) -> None:
    """What one section's examples set is not there in the next."""
    texts = {"clamp": ">>> x = 1\n>>> clamp(x, 0, 5)\n1", "lerp": ">>> lerp(x, 5, 0)\n1"}
    found = await EXAMPLES.run(MODULE.read(CLAMP.prompt), texts, tools)
    assert [one.holds for one in found["clamp"]] == [True, True]
    assert [one.holds for one in found["lerp"]] == [False]


async def test_an_endless_example_fails_and_ends(tools: Tools) -> None:
    endless = ">>> [clamp(n, 0, 1) for n in iter(int, 1)]\n[]"
    texts = {"clamp": endless, "lerp": ">>> lerp(1, 5, 0)\n1"}
    found = await EXAMPLES.run(MODULE.read(CLAMP.prompt), texts, tools)
    assert [one.holds for one in found["clamp"]] == [False]
    assert [one.holds for one in found["lerp"]] == [True]


async def test_methods_effects_and_objects_can_be_shown(tools: Tools) -> None:
    lru, intervals = PROBLEMS["lru"], PROBLEMS["intervals"]
    put = ">>> cache = Cache(2)\n>>> cache.put('a', 1)\n>>> cache.keys()\n['a']"
    shown = await ran("Cache.put", put, tools, lru)
    assert [one.tells for one in shown] == [False, False, True]
    assert all(one.holds for one in shown)
    for name, example, tells in (
        ("Interval", ">>> Interval(1, 3).start\n1", True),
        ("Interval", ">>> isinstance(Interval(1, 3), Interval)\nTrue", False),
        ("Interval.shift", ">>> isinstance(Interval(1, 3).shift(1), Interval)\nTrue", False),
        ("Interval.shift", ">>> Interval(1, 3).shift(1).end\n4", True),
        ("Interval.length", ">>> Interval(1, 3).length\n2", True),
        ("merge", ">>> len(merge([Interval(1, 3)])) > 0\nTrue", False),
    ):
        (one,) = await ran(name, example, tools, intervals)
        assert (one.holds, one.tells) == (True, tells), example


# --- claims and sections ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "share"),
    [
        ("Return the nearest number in it. It raises ValueError for none.", 1.0),
        ("Return the nearest number in it.", 0.5),
        ("The nearest number in it.", 0.0),
        ("Return the nearest number. It raises ValueError or KeyError.", 2 / 3),
        ("Return a list of numbers. It raises ValueError.", 2 / 3),
        ("Return a float. It raises ValueError.\n\nArgs:\n    speed: how fast", 2 / 3),
        ("Return a float. It raises ValueError.\n\nArgs:\n    low (str): the least", 2 / 3),
    ],
)
def test_claims_are_checked_against_the_syntax_tree(said: str, share: float) -> None:
    name = MODULE.read(CLAMP.prompt).names[0]
    section = SECTION.read(said, name)
    assert CLAIMS.check(section, name, frozenset()).share == pytest.approx(share)


def test_a_function_without_a_value_must_not_be_said_to_return_one() -> None:
    put = MODULE.read(PROBLEMS["lru"].prompt).names[2]
    assert put.qualified == "Cache.put"
    for said, false in (("Keep a value.", 0), ("Returns the value.", 1), ("Returns None.", 0)):
        found = CLAIMS.check(SECTION.read(said, put), put, frozenset())
        assert len(found.false) == false


FORMS = (
    "### clamp\nMove it.\n\nlow: the least",
    "**clamp**: Move it.\n- `low` (float): the least",
    "1. `clamp(value, low, high)` - Move it.\n   - low: the least",
    "Here you are:\n\nclamp\n-----\nMove it.\n\nParameters:\n  low: the least",
    "```python\ndef clamp(value, low):\n    \"\"\"Move it.\n\n    Args:\n        low: the least",
    "def clamp(value: float) -> float:\n    '''Move it.\n\n    :param low: the least\n    '''",
)  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_sections_are_found_in_many_forms(form: str) -> None:
    names = MODULE.read(CLAMP.prompt).names
    found = SECTIONS.sections(form, names)
    assert list(found) == ["clamp"]
    section = SECTION.read(found["clamp"], names[0])
    assert (section.description, section.entries) == ("Move it.", {"low": "the least"})


PIECES = st.sampled_from(
    ["### clamp", "lerp:", ">>> clamp(1, 2, 3)", "2", "...", "```", "def snap(x):", '"""', "low: a",
     "Args:", "Return it.", "", "    >>> x", "\u2028", "Traceback (most recent call last):"]
)  # fmt: skip


@settings(max_examples=150)
@given(text=st.lists(PIECES, max_size=25).map("\n".join) | st.text(max_size=60))
def test_any_text_can_be_taken_apart_and_scored(text: str) -> None:
    module = MODULE.read(CLAMP.prompt)
    document = REWARD.Document.of(module, SECTIONS.sections(text, module.names), {})
    assert all(0.0 <= value <= 1.0 for value in REWARD.parts(document).values())


# --- one's own modules --------------------------------------------------------------------------


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for number in range(20):
        text = f'"""Doc."""\n\n\ndef f{number}(x):\n    """Return x."""\n    return x  # as it is\n'
        (tmp_path / "deep" / f"m{number}.py").write_text(text)
    (tmp_path / "far.py").write_text("import numpy\n\ndef f(x):\n    return x\n")
    (tmp_path / "long.py").write_text("def f(x):\n    return x\n" + "X = 1\n" * 200)
    (tmp_path / "private.py").write_text("def _f(x):\n    return x\n")
    (tmp_path / "broken.py").write_text("def f(\n")
    task = load_task("documentation", options={"path": str(tmp_path)})
    found = {p.id: p for split in SPLITS for p in task.problems(split)}
    assert len(found) == 20
    assert found["deep/m3.py"].prompt == "def f3(x):\n    return x  # as it is\n"
    assert {problem.split for problem in found.values()} == set(SPLITS)


@pytest.mark.parametrize("files", [{}, {"a.py": "import torch\ndef f(): ..."}, {"a.py": "X = 1"}])
def test_a_folder_without_modules_is_refused(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(TaskError, match="none to document"):
        load_task("documentation", options={"path": str(tmp_path)}).problems("train")


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_task("documentation", options={"path": str(tmp_path / "no")}).problems("train")
