"""LeetCode's entries become problems from every shape of dump, or are left out, or named."""

from __future__ import annotations

import ast
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry import Tools
from orchestry.core.errors import ConfigError, TaskError
from orchestry.core.types import SPLITS, Limits, Problem
from orchestry.ext.datasets.leetcode import function
from orchestry.sandbox import open_sandbox
from orchestry.task.datasets import functions, split_of
from orchestry.task.functions import Function
from orchestry.task.registry import load_task

FILE = Path(__file__).parents[2] / "fixtures" / "leetcode" / "problems.json"
ROWS = json.loads(FILE.read_text(encoding="utf-8"))["questions"]
API, (DUMP, SET, HAND) = ROWS[0]["data"]["question"], ROWS[1:]
"""An answer of LeetCode's API, an entry of a dump, one of LeetCodeDataset, one by hand: ours."""
PAIRS = API["codeSnippets"][1]["code"]


def read(row: Any) -> Function:
    found = function("rows.json, row 1", row)
    assert isinstance(found, Function), found
    return found


def written(folder: Path, *rows: Any) -> Path:
    """A file of these rows, of a name of its own: what was read once is kept by its name."""
    path = folder / f"rows{len([*folder.iterdir()])}.json"
    path.write_text(json.dumps({"count": len(rows), "questions": rows}, indent=1))
    return path


def loaded(task: str, path: Path) -> list[Problem]:
    found = load_task(task, options={"bank": "leetcode", "path": str(path)})
    return [one for split in SPLITS for one in found.problems(split)]


def test_an_answer_of_the_api_is_a_function() -> None:
    for row in (API, {"question": API}, {"data": {"question": API}}):
        found = read(row)
        assert (found.id, found.name, found.grade) == ("pair-sum", "pairSum", 1)
        assert found.signature == "def pairSum(nums: List[int], target: int) -> List[int]:"
        assert found.description == (
            "Of the numbers nums two add up to target < 10^4. Where?\n\n"
            "Constraints:\nOne pair only."
        )
        assert found.calls == (([[2, 7, 11], 9], [0, 1]), ([[3, 2, 4], 6], [1, 2]))
        assert found.reference == ""


def test_examples_in_prose_are_tests_where_their_values_are_written() -> None:
    found = read(DUMP)
    assert found.calls == ((["abb"], 2), ([""], 0))
    assert (found.grade, found.reference) == (2, "")


def test_a_data_sets_tests_are_each_taken_once() -> None:
    found = read(SET)
    assert [(args[0], value) for args, value in found.calls] == [
        ([-1, -2, -3], -1),
        ([7, 0], 0),
        ([5], 1),
        ([1, 2], 1),
        ([-4], -1),
    ]
    assert found.reference.endswith(
        "\n\n\ndef signOf(nums: List[int]) -> int:\n    return Solution().signOf(nums)\n"
    )
    ast.parse(f"{found.preamble}\n{found.reference}")


def test_inputs_may_be_lists_or_objects() -> None:
    found = read(HAND)
    assert (found.id, found.grade) == ("join-words", None)
    assert found.calls == (([["a", "b"], False], "a-b"), ([["x"], True], "X"), ([[], False], ""))


@pytest.mark.parametrize(
    ("returns", "given", "value"),
    [
        ("bool", "true", True),
        ("Optional[int]", "null", None),
        ("str", '"a b"', "a b"),
        ("str", "a b", "a b"),
        ("str", "12", "12"),
        ("float", "2", 2.0),
        ("List[List[str]]", '[["Q.",null]]', [["Q.", None]]),
    ],
)
def test_an_output_has_the_type_that_the_function_says(
    returns: str, given: str, value: Any
) -> None:
    starter = f"class Solution:\n    def f(self, n: int) -> {returns}:\n        "
    tests = [{"input": "n = 1", "output": given}, {"input": "2", "output": given}]
    found = read({**SET, "starter_code": starter, "input_output": tests, "test": ""})
    assert [repr(one[1]) for one in found.calls] == [repr(value)] * 2


@pytest.mark.parametrize(
    "text", ["[2,7]\n9", "nums = [2,7],\ntarget = 9", "nums = [\n  2,\n  7\n],\ntarget = 9"]
)
def test_an_input_may_take_several_lines(text: str) -> None:
    one = {"input": text, "output": "[0, 1]"}
    assert read({**API, "examples": [one]}).calls[0] == ([[2, 7], 9], [0, 1])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"codeSnippets": [{"langSlug": "mysql", "code": "# x"}]}, "no starter code for Python"),
        ({"codeSnippets": None}, "no starter code for Python"),
        ({"starter_code": "class LRU:\n    def __init__(self):\n        "}, "several methods"),
        ({"starter_code": f"# class TreeNode:\n{PAIRS}"}, "objects such as ListNode"),
        ({"starter_code": PAIRS.replace("int)", "Node)")}, "objects such as ListNode"),
        ({"starter_code": PAIRS.replace("-> List[int]", "-> None")}, "change an argument"),
        ({"content": "Where are two?"}, "fewer than two tests of written values"),
    ],
)
def test_what_calls_cannot_test_is_left_out(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    bad = {**API, "titleSlug": "other", **change}
    assert reason in str(function("row", bad))
    both = loaded("code_collaboration", written(tmp_path, bad, API))
    assert [one.id for one in both] == ["pair-sum"]
    with pytest.raises(TaskError, match=rf"\.json has no entry .*: 1 .*{reason}.*; give entries"):
        functions("leetcode", written(tmp_path, bad))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (7, r"^row is no object but 7: give one with a title"),
        ({}, r"^row is empty: give it a title"),
        ({**API, "titleSlug": "", "title": None}, r"^row has no name, only questionId, .*: give"),
        ({**API, "content": " "}, r"^row, 'pair-sum' has no description, only .*: give it a text"),
        ({**API, "difficulty": "tough"}, r"difficulty 'tough': write Easy, Medium or Hard"),
        ({**API, "starter_code": "class Solution:\n  def f("}, r"starter code is no Python .*mend"),
        ({**API, "examples": "{"}, r"'pair-sum', examples is not JSON"),
        ({**API, "examples": {"a": 1}}, r"examples is a dict: give a list of tests"),
        ({**API, "examples": [{"input": "nums = [1]"}]}, r"examples 1 is .* with input and output"),
        (
            {**API, "examples": [{"input": "nums = [1]", "output": "[]"}]},
            r"examples 1 is .*pairSum\(nums: List\[int\], target: int\) -> List\[int\] can't be "
            r"called with it \(its parameters are nums, target\): write inputs such as",
        ),
        (
            {**API, "examples": [{"input": "nums = x, target = 1", "output": "[]"}]},
            r"\(x is no written value\)",
        ),
        ({**API, "examples": [[[[1]], []]]}, r"its parameters are nums, target"),
    ],
)
def test_what_is_wrong_is_named(row: Any, message: str) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        function("row", row)
    assert "\n" not in str(caught.value)


TEXTS = st.text("[]{}(),:=\"'\\\nInputOutput 1x_.<>/*`", max_size=30) | st.sampled_from(
    ["class Solution:", "def f(a):", "    def g(self, *b) -> int:", "Input: a = 1\nOutput: 2"]
)
VALUES = TEXTS | st.none() | st.integers() | st.lists(st.lists(TEXTS, max_size=2), max_size=2)
KEYS = ["title", "content", "starter_code", "code_snippets", "examples", "test", "difficulty"]


@settings(max_examples=300)
@given(change=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3))
def test_any_entry_is_a_function_left_out_or_a_task_error(change: dict[str, Any]) -> None:
    found: Function | str = ""
    with suppress(TaskError):  # no other error leaves it
        found = function("row", {**HAND, **change})
    if isinstance(found, Function):
        assert all(len(args) == found.parameters.count(",") + 1 for args, _ in found.calls)


def test_a_file_may_name_splits(tmp_path: Path) -> None:
    task = load_task("code_collaboration", options={"bank": "leetcode", "path": str(FILE)})
    found = {one.id: split for split in SPLITS for one in task.problems(split)}
    assert found == {
        "pair-sum": split_of("pair-sum"),
        "longest-run": "dev",
        "sign-of-product": "train",
        "join-words": "test",
    }
    with pytest.raises(TaskError, match="has the split 'val': write train, dev or test"):
        function("row", {**HAND, "split": "val"})


def test_the_team_sees_one_example_and_no_other_test(tmp_path: Path) -> None:
    task = load_task("code_collaboration")
    (pair,) = loaded("code_collaboration", written(tmp_path, API))
    assert pair.data["example"] == ([[2, 7, 11], 9], [0, 1])
    assert pair.data["tests"] == [([[3, 2, 4], 6], [1, 2])]
    for agent in ("helper", "main"):
        seen = task.observe(task.reset(pair, 0), agent)
        assert "[3, 2, 4]" not in seen
        assert "[3,2,4]" not in seen
    assert "pairSum([2, 7, 11], 9) returns [0, 1]" in seen


def test_difficulties_are_grades(tmp_path: Path) -> None:
    rows = [{**one, "task_id": one["title"], "split": "train"} for one in (API, DUMP, HAND)]
    bank = {"bank": "leetcode", "path": str(written(tmp_path, *rows))}
    found = load_task("code_collaboration", options={**bank, "grade": "2"}).problems("train")
    assert {one.data["grade"] for one in found} == {2}
    with pytest.raises(ConfigError, match="has such a grade, only 1, 2, none"):
        load_task("code_collaboration", options={**bank, "grade": "3"}).problems("train")


async def test_code_review_takes_those_with_a_solution(tmp_path: Path) -> None:
    (found,) = loaded("code_review", written(tmp_path, API, SET))
    assert (found.id, len(found.data["tests"]), found.data["grade"]) == ("sign-of-product", 4, 3)
    task = load_task("code_review")
    state = task.reset(found, 0)
    async with open_sandbox(Limits()) as sandbox:
        for role, text in (task.gold(found) or {}).items():
            state = task.step(state, {role: text})
        assert (await task.evaluate(state, Tools(sandbox))).total == pytest.approx(1.0)
    with pytest.raises(TaskError, match="no problem with a solution in Python and more than 3"):
        loaded("code_review", written(tmp_path, API))


async def test_a_team_is_scored_by_calls(tmp_path: Path) -> None:
    task = load_task("code_collaboration")
    (found,) = loaded("code_collaboration", written(tmp_path, SET))
    texts = {
        "helper": "def aux(nums):\n    return [(n > 0) - (n < 0) for n in nums]",
        "main": "def signOf(nums):\n    return reduce(lambda a, b: a * b, aux(nums), 1)",
    }
    async with open_sandbox(Limits()) as sandbox:
        score = await task.evaluate(task.step(task.reset(found, 0), texts), Tools(sandbox))
    assert (score.total, "solved" in score.tags) == (1.0, True)
