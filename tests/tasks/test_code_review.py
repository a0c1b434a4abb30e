"""The bank is right and fixed, gold is worth 1, tricks are worth little, any text is scored."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from importlib import import_module

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestry import BaseTask, Problem, Score, Tools, Transcript, compare
from orchestry.core.errors import ConfigError
from orchestry.core.types import SPLITS, Limits
from orchestry.sandbox import open_sandbox
from orchestry.task.registry import load_task
from tools.bank import BANK, rendered

TASK: BaseTask[Transcript] = load_task("code_review")
REWARD = import_module("orchestry_tasks.code_review.reward")
PROBLEMS = {problem.id: problem for split in SPLITS for problem in TASK.problems(split)}
PINNED = {
    "train": "ad97dc3ff2c2e2b8",
    "dev": "c28b346b5383b28c",
    "test": "3dc386effbcdf8bd",
}
CLASSICS = {
    "reverse_string",
    "is_palindrome",
    "fizzbuzz",
    "two_sum",
    "binary_search",
    "valid_parentheses",
}
WRONG = "```python\ndef is_palindrome(s):\n    return s[:1] == s[-1:]\n```"
RIGHT = "```python\ndef is_palindrome(s):\n    return s == s[::-1]\n```"
POINT = "The function compares only the first character of s with the last one, not all of them."


@pytest.fixture
async def tools() -> AsyncIterator[Tools]:
    async with open_sandbox(Limits(wall_s=2.0)) as sandbox:
        yield Tools(sandbox=sandbox)


def state(problem: Problem, *said: str) -> Transcript:
    current = TASK.reset(problem, seed=0)
    for text in said:
        (agent,) = TASK.to_act(current)
        current = TASK.step(current, {agent: text})
    return current


def part(score: Score, name: str) -> float:
    return next(part.value for part in score.parts if part.name == name)


def test_the_splits_are_fixed() -> None:
    for split in SPLITS:
        ids = "\n".join(problem.id for problem in TASK.problems(split))
        assert hashlib.sha256(ids.encode()).hexdigest()[:16] == PINNED[split], split


def test_harder_problems_may_be_left_out() -> None:
    for split in SPLITS:
        kept = load_task("code_review", options={"grade": "1-2"}).problems(split)
        assert [one for one in TASK.problems(split) if one.data["grade"] <= 2] == kept
    with pytest.raises(ConfigError, match="grade"):
        load_task("code_review", options={"grade": "easy"})
    none = load_task("code_review", options={"grade": 7})
    with pytest.raises(ConfigError, match="only 1, 2, 3, 4, 5"):
        none.problems("train")


def test_the_bank_is_large_graded_and_apart() -> None:
    assert len(PROBLEMS) == sum(len(TASK.problems(split)) for split in SPLITS) >= 60
    assert len(TASK.problems("dev")) + len(TASK.problems("test")) >= 40
    assert PROBLEMS.keys() >= CLASSICS
    for split in SPLITS:
        assert {problem.data["grade"] for problem in TASK.problems(split)} == {1, 2, 3, 4, 5}
    bodies = [problem.data["reference"].partition("\n")[2] for problem in PROBLEMS.values()]
    assert len(set(bodies)) == len(bodies)  # no function twice under another name


def test_the_bank_is_what_its_families_give() -> None:
    """Also runs every check of a family: hand-worked examples and the second implementation."""
    assert rendered() == BANK.read_text()


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_a_problem_is_whole(problem: Problem) -> None:
    data = problem.data
    assert data["reference"].startswith(data["signature"])
    assert data["signature"].startswith(f"def {data['entry_point']}(")
    assert len(data["tests"]) >= 8
    assert data["example"][0] not in [args for args, _ in data["tests"]]
    wanted = [expected for _, expected in data["tests"]]
    assert max(sum(compare(a, b) for b in wanted) for a in wanted) <= 0.6 * len(wanted)


async def test_gold_is_worth_one(tools: Tools) -> None:
    golds = {problem.id: TASK.gold(problem) or {} for problem in PROBLEMS.values()}
    ends = [state(PROBLEMS[name], *gold.values()) for name, gold in golds.items()]
    scores = await asyncio.gather(*(TASK.evaluate(end, tools) for end in ends))
    for name, score in zip(golds, scores, strict=True):
        assert (score.total, score.tags) == (1.0, ("solved",)), name


@pytest.mark.parametrize("name", ["is_palindrome", "fizzbuzz", "two_sum", "is_even", "average"])
@pytest.mark.parametrize(
    "body",
    [
        "pass",
        "return None",
        "return True",
        "return False",
        "return 0",
        "return ''",
        "return []",
        "print(True)",
        "import os; os._exit(0)",
        "import sys; sys.exit(0)",
        "raise SystemExit",
        "class Same:\n        __eq__ = lambda *_: True\n    return Same()",
    ],
)
@pytest.mark.slow
async def test_tricks_are_worth_nothing(tools: Tools, name: str, body: str) -> None:
    problem = PROBLEMS[name]
    trick = f"```python\n{problem.data['signature']}\n    {body}\n```"
    score = await TASK.evaluate(state(problem, trick, POINT, trick), tools)
    assert score.total <= 0.1


@pytest.mark.parametrize(
    "text", ["", "LGTM", "def", "```python", "```python\n```", "\0", "```\n(((("]
)
async def test_answers_without_code_are_worth_nothing(tools: Tools, text: str) -> None:
    score = await TASK.evaluate(state(PROBLEMS["fizzbuzz"], text, text, text), tools)
    assert score.total == 0.0


@pytest.mark.parametrize(
    "value", ["-" * 1200 + "1", "1+" * 1500 + "1", "0x" + "f" * 6000, "(" * 150 + ")" * 150]
)
@pytest.mark.parametrize("spoilt", [(True, True), (True, False), (False, True)])
@pytest.mark.slow
async def test_code_that_python_cant_write_down_is_scored(
    tools: Tools, value: str, spoilt: tuple[bool, bool]
) -> None:
    odd = f"```python\ndef is_palindrome(s):\n    return {value}\n```"
    first, last = (odd if one else RIGHT for one in spoilt)
    score = await TASK.evaluate(state(PROBLEMS["is_palindrome"], first, POINT, last), tools)
    assert part(score, "quality") == (0.0 if spoilt[1] else 1.0)


async def test_to_copy_the_prompt_is_worth_nothing(tools: Tools) -> None:
    for problem in list(PROBLEMS.values())[::10]:
        prompt = TASK.observe(state(problem), "writer")
        score = await TASK.evaluate(state(problem, prompt, prompt, prompt), tools)
        assert score.total == 0.0


async def test_every_stage_is_scored(tools: Tools) -> None:
    problem = PROBLEMS["is_palindrome"]
    nobody = await TASK.evaluate(state(problem), tools)
    draft = await TASK.evaluate(state(problem, WRONG), tools)
    reviewed = [await TASK.evaluate(state(problem, WRONG, text), tools) for text in (POINT, "LGTM")]
    assert nobody.total == 0.0
    assert 0.0 < draft.total < 0.6
    assert {score.total for score in reviewed} == {draft.total}


@pytest.mark.parametrize(
    ("said", "collaboration", "tags"),
    [
        ((WRONG, POINT, RIGHT), 0.5, ("solved", "improved")),
        ((WRONG, "LGTM", RIGHT), 0.25, ("solved", "improved")),
        ((WRONG, "It is wrong.", RIGHT), 0.375, ("solved", "improved")),
        ((WRONG, "is_palindrome s return s s", RIGHT), 0.375, ("solved", "improved")),
        ((WRONG, POINT, WRONG), 0.0, ()),
        ((WRONG, POINT, "def is_palindrome(s) return s"), 0.0, ("regressed", "syntax_error")),
        ((RIGHT, "LGTM", RIGHT), 1.0, ("solved",)),
        ((RIGHT, "LGTM", RIGHT.replace("s ==", "s  ==")), 1.0, ("solved",)),
        ((RIGHT, POINT, RIGHT), 0.5, ("solved",)),
        (
            (RIGHT, POINT, RIGHT.replace("s ==", "bool(s) in (True, False) and s ==")),
            0.75,
            ("solved",),
        ),
        ((RIGHT, "LGTM", WRONG), 0.0, ("regressed",)),
        ((RIGHT, "LGTM", ""), 0.0, ("regressed", "no_code")),
    ],
)
@pytest.mark.slow
async def test_collaboration(
    tools: Tools, said: tuple[str, ...], collaboration: float, tags: tuple[str, ...]
) -> None:
    score = await TASK.evaluate(state(PROBLEMS["is_palindrome"], *said), tools)
    assert part(score, "collaboration") == collaboration
    assert score.tags == tags


async def test_a_better_end_is_never_worth_less(tools: Tools) -> None:
    problem = PROBLEMS["fizzbuzz"]
    reference = problem.data["reference"].rstrip()
    bodies = [
        f"{problem.data['signature']}\n    return str(n)",
        f"{problem.data['signature']}\n    return 'Fizz' if n % 3 == 0 else str(n)",
        reference.replace('"FizzBuzz"', '"Fizz"'),
        reference,
    ]
    drafts = [f"```python\n{body}\n```" for body in bodies]
    for draft in drafts:
        ends = [state(problem, draft, POINT, end) for end in drafts]
        totals = [(await TASK.evaluate(end, tools)).total for end in ends]
        assert totals == sorted(totals)


async def test_to_fail_on_purpose_earns_nothing(tools: Tools) -> None:
    problem = PROBLEMS["is_palindrome"]
    for review in (POINT, "LGTM", "", "It is wrong."):
        honest = await TASK.evaluate(state(problem, RIGHT, review, RIGHT), tools)
        mended = await TASK.evaluate(state(problem, WRONG, review, RIGHT), tools)
        assert honest.total >= mended.total


CODES = st.sampled_from(["", WRONG[10:-4], RIGHT[10:-4], "def is_palindrome(s) return"]) | st.text()


@given(
    before=st.floats(0.0, 1.0, exclude_max=True),
    review=st.text() | st.sampled_from([POINT, "LGTM", f"LGTM {POINT}"]),
    honest=CODES,
    failed=CODES,
    final=CODES,
)
def test_no_review_makes_a_mended_draft_earn_more(
    before: float, review: str, honest: str, failed: str, final: str
) -> None:
    """Whatever the codes are: the draft that passes all tests against one that passes fewer."""
    kept = REWARD.collaboration(1.0, 1.0, review, honest, final)
    mended = REWARD.collaboration(before, 1.0, review, failed, final)
    assert 0.0 <= mended <= kept <= 1.0
    assert REWARD.collaboration(1.0, before, review, honest, final) == 0.0


async def test_bloat_costs_and_docstrings_do_not(tools: Tools) -> None:
    problem = PROBLEMS["is_palindrome"]
    bloat = "\n".join(f"x{i} = [{i}, {i}]" for i in range(40))
    told = RIGHT.replace("(s):", '(s):\n    """Whether s is a palindrome: read both ways."""')
    scores = [
        await TASK.evaluate(state(problem, text), tools)
        for text in (RIGHT, told, f"```python\n{bloat}\n{RIGHT[10:]}")
    ]
    assert [part(score, "efficiency") for score in scores] == [1.0, 1.0, 0.0]
    assert [part(score, "quality") for score in scores] == [1.0, 1.0, 1.0]


async def test_feedback_names_the_failing_call(tools: Tools) -> None:
    problem = PROBLEMS["is_palindrome"]
    score = await TASK.evaluate(state(problem, WRONG, POINT, WRONG), tools)
    assert "is_palindrome('" in score.feedback
    assert "returned True, expected False" in score.feedback


def test_each_agent_sees_its_part() -> None:
    current = state(PROBLEMS["two_sum"], "```python\ndef two_sum(a, b): return 1\n```", POINT)
    seen = {spec.role: TASK.observe(current, spec.role) for spec in TASK.agents}
    assert all("def two_sum(" in text and "add up to target" in text for text in seen.values())
    assert ["return 1" in text for text in seen.values()] == [False, True, True]
    assert [POINT in text for text in seen.values()] == [False, False, True]
    assert not any("seen[target - n]" in text for text in seen.values())  # the reference


ANSWERS = st.one_of(
    st.text(),
    st.text("()[]{}:=\n \t'\"`#defrtunisx_0\\", max_size=80),
    st.sampled_from([WRONG, RIGHT, POINT, "LGTM"]),
    st.text(max_size=60).map(lambda body: f"```python\ndef is_palindrome(s):\n    {body}"),
)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(said=st.lists(ANSWERS, max_size=3))
@pytest.mark.slow
async def test_any_text_is_scored(said: list[str]) -> None:
    async with open_sandbox(Limits(wall_s=2.0)) as sandbox:
        score = await TASK.evaluate(state(PROBLEMS["is_palindrome"], *said), Tools(sandbox=sandbox))
    assert 0.0 <= score.total <= 1.0
    assert all(0.0 <= part.value <= 1.0 for part in score.parts)


@pytest.mark.parametrize(
    "code", ["(" * 9999, "-" * 99999 + "1", "1" + "+1" * 99999, "[" * 99 + "]"]
)
async def test_code_that_strains_the_parser_is_scored(tools: Tools, code: str) -> None:
    text = f"```python\n{code}\n```"
    score = await TASK.evaluate(state(PROBLEMS["is_palindrome"], text, text, text), tools)
    assert score.total == 0.0
