"""tasks/repair/problems.jsonl, from generated problems whose code gets a slip.

    python -m tools.repair_bank [--check]

Writes the file, or with `--check` says whether it is what its source gives. Each slip was run: some
hidden tests fail with it, some tests that agents see fail, and nothing takes long.
"""

from __future__ import annotations

import ast
import asyncio
import difflib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from orchestry import (
    Limits,
    Problem,
    Split,
    Tools,
    generated,
    show_call,
    show_value,
    tools,
)
from orchestry.core.types import SPLITS, Sandbox
from orchestry.sandbox import open_sandbox
from orchestry.task.registry import load_task

BANK = Path(__file__).resolve().parent.parent / "tasks" / "repair" / "problems.jsonl"
PER_GRADE: Mapping[Split, int] = {"train": 12, "dev": 4, "test": 6}
GRADES = (1, 2, 3, 4)
SEEN = 3
"""Tests that agents see; all others are hidden."""
LEAST_FAILED = 0.25
"""Share of the hidden tests that a slip makes fail, at least."""
MOST_LAZY = 0.6
"""Share of the hidden tests that may pass where a function returns a constant, at most."""
PART_TESTS = 6
Files = dict[str, str]

_home = type(load_task("repair")).__module__.rpartition(".")[0]
TREE = import_module(f"{_home}.tree")
_review = type(load_task("code_review")).__module__.rpartition(".")[0]
FLAWS = import_module(f"{_review}.flaws")


async def rendered() -> str:
    """The file as its source gives it."""
    async with open_sandbox(Limits(wall_s=3.0)) as sandbox:
        records = [
            record
            for split in SPLITS
            for grade in GRADES
            for record in await _of(sandbox, split, grade)
        ]
    return "".join(json.dumps(record) + "\n" for record in records)


async def _of(sandbox: Sandbox, split: Split, grade: int) -> list[dict[str, Any]]:
    """The problems of one grade; each of another family than those before it."""
    found, families = list[dict[str, Any]](), set[str]()
    for problem in generated.problems(split, size=400, helpers=1):
        family = problem.data["gold_main"].partition("\n")[2]
        if len(found) == PER_GRADE[split]:
            break
        if family in families or _hash(problem.id) % len(GRADES) != grade - 1:
            continue
        record = await _record(sandbox, problem, grade)
        if record is not None:
            families.add(family)
            found.append(record)
    return found


def _hash(text: str) -> int:
    """The same in every process."""
    return sum(place * ord(letter) for place, letter in enumerate(text, start=1))


def _layout(problem: Problem, grade: int) -> tuple[Files, list[str]]:
    """The sound files, and in which of them slips are made. Grade 1 is one function, 2 a file of
    two, 3 two files with a slip in the helper's, 4 a slip in each."""
    data = problem.data
    main = _documented(data["gold_main"], problem.prompt)
    part = _documented(data["gold_aux"], data["aux_goal"])
    if grade == 1:
        whole = _documented(data["reference"], problem.prompt)
        return {"work.py": whole}, ["work.py"]
    if grade == 2:
        return {"work.py": _laid_out(f"{part}{main}")}, ["work.py"]
    files = {"parts.py": part, "work.py": _laid_out(f"from parts import aux\n{main}")}
    return files, ["parts.py"] if grade == 3 else ["parts.py", "work.py"]


def _documented(code: str, says: str) -> str:
    """The function with a docstring, in the layout of its syntax tree."""
    tree = ast.parse(code)
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    function.body.insert(0, ast.Expr(ast.Constant(says)))
    return ast.unparse(tree) + "\n"


def _laid_out(code: str) -> str:
    """As a slipped file is, so that nothing but the slip tells them apart."""
    return ast.unparse(ast.parse(code)) + "\n"


async def _record(sandbox: Sandbox, problem: Problem, grade: int) -> dict[str, Any] | None:
    """The problem with slips; None if no slip is fit."""
    sound, places = _layout(problem, grade)
    name = problem.data["entry_point"]
    tests = [["work", name, *one] for one in problem.data["tests"]]
    tests += _tests_of_part(problem, "work" if grade == 2 else "parts") if grade > 1 else []
    for broken in _broken(sound, places, problem.id):
        alone = [{**sound, path: broken[path]} for path in places] if len(places) > 1 else [broken]
        wrong = [await _failing(sandbox, files, tests) for files in alone]
        seen = _seen([[place for place in one if tests[place][1] == name] for one in wrong], tests)
        if seen is None or (edits := _edits(broken, sound)) is None:
            continue
        hidden = [one for place, one in enumerate(tests) if place not in seen]
        least = min(len({*one} - seen) for one in wrong)
        fails = await _failing(sandbox, broken, tests)
        known = len(hidden) - len({*fails} - seen)
        floor = max(known, await _lazy(sandbox, broken, hidden))
        if (
            least < LEAST_FAILED * len(hidden)
            or not seen & {*fails}
            or floor > MOST_LAZY * len(hidden)
        ):
            continue
        visible = [tests[place] for place in sorted(seen)]
        files = {**broken, TREE.TESTS: _tests_file(visible)}
        gold = TREE.edited(files, [_call(one) for one in edits])
        assert {path: gold[path] for path in sound} == sound
        shown = min(seen & {*fails})
        return {
            "id": f"{problem.id}_{grade}",
            "prompt": await _prompt(sandbox, broken, tests[shown]),
            "split": problem.split,
            "data": {
                "grade": grade,
                "files": files,
                "tests": hidden,
                "passed": known,
                "floor": floor,
                "gold": edits,
                "changed": TREE.changed(files, gold),
            },
        }
    return None


def _seen(wrong: Sequence[Sequence[int]], tests: Sequence[Any]) -> set[int] | None:
    """The tests that agents see: one that each slip makes fail, and others of the same function.
    None if a slip makes none fail."""
    if not all(wrong):
        return None
    found = {one[0] for one in wrong}
    name = tests[wrong[0][0]][1]
    others = [place for place, one in enumerate(tests) if one[1] == name and place not in found]
    return found | {*others[: SEEN - len(found)]}


async def _lazy(sandbox: Sandbox, files: Files, hidden: Sequence[Any]) -> int:
    """The most hidden tests that pass if one function is replaced by a constant."""
    most = 0
    for module, name in dict.fromkeys((one[0], one[1]) for one in hidden):
        values = [True, False, None, *(one[3] for one in hidden if one[1] == name)]
        for value in dict.fromkeys(map(repr, values)):
            path = f"{module}.py"
            lazy = {**files, path: f"{files[path]}\n{name} = lambda *a: {value}\n"}
            most = max(most, len(hidden) - len(await _failing(sandbox, lazy, hidden)))
    return most


def _call(edit: Sequence[str]) -> Any:
    given = dict(zip(("path", "old", "new"), edit, strict=True))
    return tools.ToolCall(id="", name=TREE.EDIT, arguments=json.dumps(given))


def _tests_of_part(problem: Problem, module: str) -> list[list[Any]]:
    """What the helper's gold gives for items of the main function's tests."""
    scope: dict[str, Any] = {}
    exec(problem.data["gold_aux"], scope)  # our own text
    found = dict[str, list[Any]]()
    for args, _ in problem.data["tests"]:
        for item in args[0] if isinstance(args[0], list) else [args[0]]:
            with suppress(Exception):  # some parts know no answer for some items
                found[repr(item)] = [module, "aux", [item], scope["aux"](item)]
    return list(found.values())[:PART_TESTS]


def _broken(sound: Files, places: Sequence[str], seed: str) -> Iterator[Files]:
    """The files with one slip in each of the places."""
    slips = {path: FLAWS.flaws(_bare(sound[path]), seed, 12) for path in places}
    for turn in range(min(map(len, slips.values()))):
        yield {
            path: _with_docs(sound[path], slips[path][turn]) if path in slips else text
            for path, text in sound.items()
        }


def _bare(code: str) -> str:
    """Without docstrings, in which a slip would be none."""
    tree = ast.parse(code)
    for function in tree.body:
        if isinstance(function, ast.FunctionDef):
            function.body = function.body[1:]
    return ast.unparse(tree)


def _with_docs(sound: str, slipped: str) -> str:
    """The slipped code with the sound one's docstrings."""
    docs = [one.body[0] for one in ast.parse(sound).body if isinstance(one, ast.FunctionDef)]
    tree = ast.parse(slipped)
    functions = [one for one in tree.body if isinstance(one, ast.FunctionDef)]
    for function, doc in zip(functions, docs, strict=True):
        function.body.insert(0, doc)
    return ast.unparse(tree) + "\n"


async def _failing(sandbox: Sandbox, files: Files, tests: Sequence[Any]) -> list[int]:
    """The places of the tests that fail; none where one takes long, which is no fit problem."""
    found = await TREE.failing(files, tests, Tools(sandbox))
    slow = any(one.verdict not in ("value", "error") for one in found)
    return [] if slow else [one.place for one in found]


def _edits(broken: Files, sound: Files) -> list[list[str]] | None:
    """The least pieces of whole lines that turn one into the other; None if a piece is not alone in
    its file."""
    found = list[list[str]]()
    for path, text in broken.items():
        old, new = text.splitlines(keepends=True), sound[path].splitlines(keepends=True)
        for kind, a, b, c, d in difflib.SequenceMatcher(
            None, old, new, autojunk=False
        ).get_opcodes():
            if kind == "equal":
                continue
            while text.count("".join(old[a:b])) != 1 and a > 0:
                a, c = a - 1, c - 1
            if text.count("".join(old[a:b])) != 1:
                return None
            found.append([path, "".join(old[a:b]), "".join(new[c:d])])
    return found


def _tests_file(tests: Sequence[Any]) -> str:
    """The tests that agents see."""
    name = tests[0][1]
    shown = [
        f"def test_{number}():\n    assert {show_call(name, args)} == {expected!r}\n"
        for number, (_, _, args, expected) in enumerate(tests, start=1)
    ]
    return "\n\n".join([f"from work import {name}\n", *shown])


async def _prompt(sandbox: Sandbox, files: Files, test: Any) -> str:
    """The report of one failure, as a user would write it."""
    (found,) = await TREE.failing(files, [test], Tools(sandbox))
    _, name, args, expected = test
    return f"{show_call(name, args)} {found.gave}, and should return {show_value(expected)}."


if __name__ == "__main__":
    text = asyncio.run(rendered())
    if "--check" in sys.argv:
        sys.exit(0 if BANK.read_text() == text else f"{BANK.name} is stale: write it again")
    print(f"{BANK.write_text(text)} characters in {BANK.name}")
