"""Generated problems: right, graded, apart, and worth nothing without cooperation."""

from __future__ import annotations

import ast
import builtins
import json
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry.core.config import RunConfig
from orchestry.core.errors import ConfigError
from orchestry.core.types import Call, Limits, Problem, Split, Tools
from orchestry.sandbox import open_sandbox
from orchestry.task import generated
from orchestry.task.base import BaseTask
from orchestry.task.code import best_constant, compare
from orchestry.task.generated import compose
from orchestry.task.generated.compose import ALL, SCHEMES, Composition, compositions, problem
from orchestry.task.generated.families import Item, Part, Use, families
from orchestry.task.registry import load_task

SPLITS: tuple[Split, ...] = ("train", "dev", "test")


@pytest.fixture
async def tools() -> AsyncIterator[Tools]:
    async with open_sandbox(RunConfig().sandbox) as sandbox:
        yield Tools(sandbox)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(4, 60))
@pytest.mark.slow
def test_splits_are_apart_and_of_their_size(seed: int, size: int) -> None:
    found = {split: generated.problems(split, size, seed) for split in SPLITS}
    assert [len(found[split]) for split in SPLITS] == [size, -(-size // 4), -(-size // 4)]
    ids = [one.id for split in SPLITS for one in found[split]]
    assert len(set(ids)) == len(ids)
    prompts = [one.prompt for split in SPLITS for one in found[split]]
    assert len(set(prompts)) == len(prompts)
    assert all(one.split == split for split in SPLITS for one in found[split])


def test_a_larger_bank_moves_no_problem_and_another_seed_takes_others() -> None:
    assert generated.problems("train", 120)[:30] == generated.problems("train", 30)
    assert generated.problems("train", 30, 1) != generated.problems("train", 30)


def test_families_of_the_test_split_are_in_no_other() -> None:
    test, other = compositions(True), compositions(False)
    assert not {one.part.name for one in test} & {one.part.name for one in other}
    assert not {one.use.name for one in test} & {one.use.name for one in other}


@pytest.mark.parametrize("alike", ["parts", "uses"])
@pytest.mark.slow
def test_no_family_does_what_one_of_the_test_split_does(alike: str) -> None:
    """By what the code returns: uses with parts of either split."""
    inside, outside = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for made in _alone() if alike == "parts" else _together():
        test = made.part.test if alike == "parts" else made.use.test
        family = made.part.name if alike == "parts" else made.use.name
        answer = compose._run(made, name="aux" if alike == "parts" else None)
        rng, given = random.Random(0), replace(made.use, takes="item")
        shape = replace(made, use=given) if alike == "parts" else made
        draw = compose._drawing(made, rng)
        said = [answer(compose._arguments(shape, draw, rng)) for _ in range(400)]
        (inside if test else outside)[repr((made.part.item, said))].add(family)
    assert not {key: (inside[key], outside[key]) for key in inside.keys() & outside.keys()}


def _alone() -> Iterator[Composition]:
    """Every part with each of its numbers, in some use."""
    for part in families().parts:
        use = next(use for use in families().uses if use.gives == part.gives)
        yield from (Composition(part, k, use, use.numbers[0]) for k in part.numbers)


def _together() -> Iterator[Composition]:
    """Every use with each of its numbers, with one and the same part of its kind."""
    items: tuple[Item, Item] = ("int", "word")
    for item in items:
        kinds = {part.gives: part for part in families().parts if part.item == item}
        for use in families().uses:
            if use.item in (None, item) and use.gives in kinds and use.scheme != "alone":
                part = kinds[use.gives]
                yield from (Composition(part, part.numbers[0], use, c) for c in use.numbers)


def test_each_construct_that_test_needs_is_in_several_families_of_train() -> None:
    """Names, methods and kinds of syntax."""
    found: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    every: list[Part | Use] = [*families().parts, *families().uses]
    for family in every:
        if isinstance(family, Use) and family.scheme == "alone":
            continue
        code = Template(family.code).safe_substitute(x="x", items="items", k=1, c=1)
        found[family.test].update({*_constructs(code)})
    rare = {name: found[False][name] for name in found[True] if found[False][name] < 2}
    assert not rare


def _constructs(code: str) -> Iterator[str]:
    known = {*dir(builtins), "aux"}
    for node in ast.walk(ast.parse(code)):
        yield type(node).__name__
        if isinstance(node, ast.Attribute):
            yield f".{node.attr}"
        if isinstance(node, ast.Name) and node.id in known:
            yield node.id


@pytest.mark.slow
def test_no_train_problem_answers_the_tests_of_a_test_problem() -> None:
    """Two families may differ, and a part of one in a use of the other come to the same."""
    answers = defaultdict[str, dict[str, Callable[..., Any]]](dict)
    for one in generated.problems("train", 600, grades=(1, 2)):
        names: dict[str, Any] = {}
        exec(one.data["reference"], names)
        answers[_arguments(one)][one.id] = names[one.data["entry_point"]]

    def passes(answer: Callable[..., Any], test: Problem) -> bool:
        try:
            return all(compare(value, answer(*args)) for args, value in test.data["tests"])
        except (TypeError, ValueError, AttributeError, KeyError, IndexError):
            return False

    for test in generated.problems("test", 600, grades=(1, 2)):
        asked = answers[_arguments(test)]
        assert not [name for name, answer in asked.items() if passes(answer, test)], test.id


def _arguments(one: Problem) -> str:
    signature: str = one.data["signature"]
    return signature.partition("(")[2]


@pytest.mark.slow
def test_every_grade_and_scheme_is_in_train_and_in_test() -> None:
    for split in ("train", "test"):
        found = generated.problems(split)
        schemes = Counter(one.data["scheme"] for one in found)
        assert set(schemes) == set(SCHEMES)
        assert min(schemes.values()) > len(found) / 8
        assert {1, 2, 3, 4} == {one.data["grade"] for one in found}


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
def test_every_grade_and_scheme_of_functions_alone_is_in_every_split(split: Split) -> None:
    found = generated.problems(split, helpers=0)
    assert {1, 2, 3, 4, 5} == {one.data["grade"] for one in found}
    schemes = Counter(one.data["scheme"] for one in found)
    assert set(schemes) == set(ALL)
    assert min(schemes.values()) > len(found) / 10
    assert {one.data["scheme"] for one in found if one.data["grade"] == 1} == {"alone"}


@pytest.mark.slow
def test_tests_tell_an_answer_from_a_constant() -> None:
    for test in (False, True):
        for made in compositions(test)[::7]:
            if (one := problem(made, "train")) is None:
                continue
            tests = one.data["tests"]
            assert json.loads(json.dumps(tests)) == tests
            assert 8 <= len(tests) <= 12
            assert best_constant([value for _, value in tests]) <= 6
            assert one.data["example"] not in tests
            assert len({repr(args) for args, _ in tests}) == len(tests)


def _played(task: BaseTask[Any], one: Problem, answers: dict[str, str]) -> object:
    state = task.reset(one, 0)
    while roles := task.to_act(state):
        state = task.step(state, {role: answers[role] for role in roles})
    return state


@pytest.mark.parametrize("name", ["code_collaboration", "code_review"])
@pytest.mark.slow
async def test_gold_earns_all_and_shows_its_scheme(name: str, tools: Tools) -> None:
    task = load_task(name, options={"bank": "generated", "size": 40})
    for split in ("train", "test"):
        for one in task.problems(split):
            gold = task.gold(one)
            assert gold is not None
            score = await task.evaluate(_played(task, one, dict(gold)), tools)
            assert score.total == pytest.approx(1.0), one.id
            if name == "code_collaboration":
                assert f"scheme_{one.data['scheme']}" in score.tags, one.id


async def test_main_alone_and_aux_alone_earn_no_cooperation(tools: Tools) -> None:
    task = load_task("code_collaboration", options={"bank": "generated", "size": 24})
    for one in task.problems("train"):
        data = one.data
        whole = f"```python\n{data['reference']}```"
        tricks = (
            {"helper": f"```python\n{data['gold_aux']}```", "main": whole},
            {"helper": f"```python\n{data['aux_signature']}\n    return None\n```",
             "main": f"```python\n{data['gold_main']}```"},
        )  # fmt: skip
        for answers in tricks:
            score = await task.evaluate(_played(task, one, answers), tools)
            assert score.total <= 0.5, (one.id, score)


async def test_a_reference_runs_on_the_tests_it_was_made_from(tools: Tools) -> None:
    task = load_task("code_review", options={"bank": "generated", "size": 12})
    for one in task.problems("train"):
        for args, value in one.data["tests"][:2]:
            call = Call(args=tuple(args))
            (result,) = await tools.sandbox.run(
                one.data["reference"], one.data["entry_point"], [call], Limits()
            )
            assert compare(value, result.value)


def test_grades_are_read_in_any_form_and_refused_with_what_there_is() -> None:
    for written, grades in ((2, {2}), ("1-2", {1, 2}), ("1,3", {1, 3}), ([1], {1})):
        task = load_task("code_review", options={"bank": "generated", "grade": written, "size": 20})
        assert {one.data["grade"] for one in task.problems("train")} == grades
    task = load_task("code_review", options={"bank": "generated", "grade": 5, "size": 1000})
    with pytest.raises(ConfigError, match=r"options\.size=1000 asks for 1000 .* of grade 5"):
        task.problems("train")


def test_a_bank_is_named_or_a_file(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"found 'nope', which is no file or folder: name own, generated"
    ):
        load_task("code_review", options={"bank": "nope"})
    own = tmp_path / "mine.jsonl"
    lines = [one.model_dump_json() for one in generated.problems("train", 4)]
    own.write_text("\n".join(lines), encoding="utf-8")
    other = tmp_path / "tldr.jsonl"
    other.write_text(load_task("tldr").problems("train")[0].model_dump_json() + "\n")
    for name in ("code_review", "code_collaboration"):
        with pytest.raises(ConfigError, match=r"problem .* has no entry_point, signature.*: give"):
            load_task(name, options={"bank": str(other)}).problems("train")
    with pytest.raises(ConfigError, match=r"size: .* equal to 10000, found 99999"):
        load_task("code_review", options={"bank": "generated", "size": 99999})
    for name in ("code_review", "code_collaboration"):
        found = load_task(name, options={"bank": str(own)}).problems("train")
        assert tuple(found) == generated.problems("train", 4)
