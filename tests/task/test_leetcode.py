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
from orchestry.sandbox import open_sandbox
from orchestry.task.datasets import functions
from orchestry.task.humaneval import Function
from orchestry.task.leetcode import function
from orchestry.task.registry import load_task

PAIRS = (
    "class Solution:\n    def pairSum(self, nums: List[int], target: int) -> List[int]:\n        "
)
API = {
    "questionId": "1",
    "title": "Pair Sum",
    "titleSlug": "pair-sum",
    "difficulty": "Easy",
    "content": "<p>Of the numbers <code>nums</code>&nbsp;two add up to <em>target</em> &lt; "
    "10<sup>4</sup>. Where?</p>\n<p><strong>Example 1:</strong></p>\n<pre>\n"
    "<strong>Input:</strong> nums = [2,7,11], target = 9\n<strong>Output:</strong> [0,1]\n"
    "<strong>Explanation:</strong> 2 + 7 is 9.\n</pre>\n<p><strong>Example 2:</strong></p>\n"
    "<div><p><b>Input:</b> <span>nums = "
    "[3,2,4], target = 6</span></p><p><b>Output:</b> <span>[1,2]</span></p></div>\n"
    "<p><strong>Constraints:</strong></p><ul><li>One pair only.</li></ul>",
    "codeSnippets": [
        {"lang": "C++", "langSlug": "cpp", "code": "class Solution {};"},
        {"lang": "Python3", "langSlug": "python3", "code": PAIRS},
    ],
}
DUMP = {
    "title": "Longest Run",
    "problem_slug": "longest-run",
    "difficulty": "Medium",
    "description": "How long is the longest run of one letter in s?",
    "examples": [
        {"example_num": 1, "example_text": 'Input: s = "abb"\nOutput: 2\nExplanation: bb.'},
        {"example_num": 2, "example_text": '**Input:** `s = ""`\n**Output:** `0`'},
        {"example_num": 3, "example_text": "Input: see the picture\nOutput: 3"},
    ],
    "code_snippets": {
        "python3": "class Solution:\n    def longestRun(self, s: str) -> int:\n        "
    },
    "solution": "# Approach\n\nGo through the letters once.",
}
SET = {
    "task_id": "sign-of-product",
    "difficulty": "Hard",
    "problem_description": "Is the product of the numbers above (1), at (0) or below (-1) zero?",
    "starter_code": "class Solution:\n    def signOf(self, nums: List[int]) -> int:\n        ",
    "input_output": [
        {"input": "nums = [-1, -2, -3]", "output": "-1"},
        {"input": "nums = [7, 0]", "output": "0"},
        {"input": "nums = [5]", "output": "1"},
        {"input": "nums = [5]", "output": "1"},
    ],
    "test": "def check(candidate):\n    assert candidate(nums = [1, 2]) == 1\n"
    "    assert candidate(nums = [-4]) == -1\n    assert sorted(candidate([1])) == x\n",
    "completion": "class Solution:\n    def signOf(self, nums: List[int]) -> int:\n"
    "        return reduce(lambda s, x: s * ((x > 0) - (x < 0)), nums, 1)\n",
}
HAND = {
    "title": "Join Words!",
    "description": "Join the words by a dash.",
    "starter_code": "def join_words(words, upper):\n",
    "test_cases": [
        {"input": [["a", "b"], False], "expected": "a-b"},
        {"input": {"upper": True, "words": ["x"]}, "output": "X"},
        [[[], False], ""],
    ],
}


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
    rows = [
        {**one, "task_id": f"{n} {one['title']}"} for n in range(9) for one in (API, DUMP, HAND)
    ]
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
