"""HumanEval's rows as problems of code review: written asserts become calls with their values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestry import Problem, Tools
from orchestry.core.errors import ConfigError, TaskError
from orchestry.core.types import SPLITS, Limits
from orchestry.sandbox import open_sandbox
from orchestry.task.datasets import split_of
from orchestry.task.registry import load_task

COPY = Path(__file__).parent.parent / "fixtures" / "humaneval" / "humaneval.jsonl"
ASSERTS: dict[str, tuple[list[Any], Any] | None] = {
    "candidate([1], b=2) == 3": None,
    "candidate(2 * 3, 'a' + 'b') == (1, 0.5)": ([6, "ab"], (1, 0.5)),
    "candidate(-1)": ([-1], True),
    "not candidate(2)": ([2], False),
    "candidate(3) is None": ([3], None),
    "abs(candidate(4) - 5 / 2) < 1e-6": ([4], 2.5),
    "candidate(5) != 6": None,
    "candidate(x) == 7": None,
    "candidate(8 / 0) == 1": None,
    "other(9) == 1": None,
}


def row(*asserts: str, **fields: Any) -> dict[str, Any]:
    body = "\n".join(f"    assert {each}" for each in asserts)
    return {
        "task_id": "Made/0",
        "prompt": 'import math\n\n\ndef roots(x):\n    """The root of x, rounded down."""\n',
        "entry_point": "roots",
        "canonical_solution": "    return math.isqrt(x)\n",
        "test": f"def check(candidate):\n    x = 7\n{body}\n",
        **fields,
    }


def problems(folder: Path, *rows: dict[str, Any]) -> list[Problem]:
    path = folder / f"{abs(hash(json.dumps(rows)))}.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in rows), encoding="utf-8")
    task = load_task("code_review", options={"bank": "humaneval", "path": str(path)})
    return [one for split in SPLITS for one in task.problems(split)]


@pytest.mark.parametrize("text", ASSERTS)
def test_an_assert_of_written_values_is_a_test(text: str, tmp_path: Path) -> None:
    others = [f"candidate({number}) == 1" for number in range(40, 44)]
    (found,) = problems(tmp_path, row(*others, text))
    assert found.data["example"] == ([40], 1)
    assert [args for args, _ in found.data["tests"][:3]] == [[41], [42], [43]]
    more, wanted = found.data["tests"][3:], ASSERTS[text]
    assert more == ([] if wanted is None else [wanted])
    assert wanted is None or type(more[0][1]) is type(wanted[1])


def test_rows_with_few_tests_or_no_solution_are_left_out(tmp_path: Path) -> None:
    four = [f"candidate({number}) == 1" for number in range(1, 5)]
    assert len(problems(tmp_path, row(*four))) == 1
    for lacking in (row(*four[:3], four[0]), row(*four, canonical_solution="")):
        assert len(problems(tmp_path, row(*four), {**lacking, "task_id": "Made/1"})) == 1
        with pytest.raises(TaskError, match="no problem with a solution in Python and more than 3"):
            problems(tmp_path, lacking)


async def test_the_solution_is_worth_one_and_sees_what_the_prompt_defines(tmp_path: Path) -> None:
    task = load_task("code_review")
    (found,) = problems(tmp_path, row(*(f"candidate({n * n}) == {n}" for n in range(5))))
    state = task.reset(found, 0)
    assert "```python\nimport math\n\ndef roots(x):\n```" in task.observe(state, "writer")
    async with open_sandbox(Limits()) as sandbox:
        for role, text in (task.gold(found) or {}).items():
            state = task.step(state, {role: text})
        assert (await task.evaluate(state, Tools(sandbox))).total == pytest.approx(1.0)


def test_splits_are_by_id_and_disjoint() -> None:
    task = load_task("code_review", options={"bank": "humaneval", "path": str(COPY)})
    found = [one for split in SPLITS for one in task.problems(split)]
    assert [one.id for one in found] == ["Garden_0"] or len({one.id for one in found}) > 1
    assert all(one.split == split_of(one.id) for one in found)


@pytest.mark.parametrize("name", ["code_review", "code_collaboration"])
def test_a_bank_without_grades_refuses_a_grade(name: str) -> None:
    own = {"bank": "humaneval", "path": str(COPY), "grade": "1-2"}
    plain = load_task(name, options={key: own[key] for key in ("bank", "path")})
    split = next(split for split in SPLITS if plain.problems(split))
    with pytest.raises(ConfigError, match=r"humaneval have no grades: leave out options\.grade"):
        load_task(name, options=own).problems(split)


def test_a_path_that_would_not_be_read_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"not read with options\.bank=generated"):
        load_task("code_review", options={"bank": "generated", "path": str(COPY)})
    with pytest.raises(
        TaskError, match=r"a copy of a data set needs options\.bank: humaneval, leetcode"
    ):
        load_task("code_review", options={"path": str(COPY)}).problems("train")
