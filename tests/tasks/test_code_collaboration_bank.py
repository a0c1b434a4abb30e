"""The bank is right and fixed: golds pass, the helper carries the pass rate, splits are apart."""

from __future__ import annotations

import ast
import copy
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestry import Problem, compare, read_problems
from orchestry.core.errors import ConfigError
from orchestry.core.types import SPLITS
from orchestry.task.registry import load_task

TASKS = Path(__file__).parents[2] / "tasks"
BY_SPLIT = {s: read_problems(TASKS / "code_collaboration" / "problems.jsonl", s) for s in SPLITS}
BANK = [problem for split in SPLITS for problem in BY_SPLIT[split]]
NAMED_BANK = TASKS / "code_collaboration" / "named.jsonl"
NAMED = {s: read_problems(NAMED_BANK, s) for s in SPLITS}
ALL = [*BANK, *(problem for split in SPLITS for problem in NAMED[split])]
SIZES = {"train": 30, "dev": 18, "test": 18}
COOPERATION = {"train": 7, "dev": 4, "test": 4}
PINNED = {
    "train": "3c1aeffe58327501",
    "dev": "0d507fc1a0117bfc",
    "test": "0de9c85e93aa0a88",
}
KINDS = {
    "entry_point": str,
    "signature": str,
    "aux_signature": str,
    "aux_goal": str,
    "main_goal": str,
    "grade": int,
    "cooperation": bool,
    "example": list,
    "tests": list,
    "gold_aux": str,
    "gold_main": str,
}
STUBS: dict[str, Callable[..., Any]] = {
    "none": lambda *args, **kwargs: None,
    "echo": lambda *args, **kwargs: args[0],
    "zero": lambda *args, **kwargs: 0,
    "false": lambda *args, **kwargs: False,
    "true": lambda *args, **kwargs: True,
}
each = pytest.mark.parametrize("problem", ALL, ids=lambda problem: problem.id)


def defined(code: str, name: str, **given: object) -> Callable[..., Any]:
    """The function `name` of the code, run with the given names in reach."""
    names: dict[str, Any] = dict(given)
    exec(compile(code, name, "exec"), names)
    found: Callable[..., Any] = names[name]
    return found


def passed(problem: Problem, aux: Callable[..., Any], tests: list[Any]) -> int:
    """How many of the tests gold's main passes with this aux; a test that raises is failed."""
    main = defined(problem.data["gold_main"], problem.data["entry_point"], aux=aux)
    count = 0
    for args, expected in tests:
        try:
            count += compare(expected, main(*copy.deepcopy(args)))
        except Exception:  # a stub may break main in any way
            continue
    return count


def shape(code: str) -> str:
    """The code without names and constants: equal for two functions of one form."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in ("aux", "range", "len", "sum"):
            node.id = "name"
        elif isinstance(node, ast.Constant):
            node.value = 0
        elif isinstance(node, ast.FunctionDef | ast.arg):
            setattr(node, "name" if isinstance(node, ast.FunctionDef) else "arg", "name")
    return ast.dump(tree)


def test_the_splits_are_fixed() -> None:
    for split, problems in BY_SPLIT.items():
        ids = "\n".join(problem.id for problem in problems)
        assert hashlib.sha256(ids.encode()).hexdigest()[:16] == PINNED[split], split


def test_the_bank_is_large_and_graded() -> None:
    assert {split: len(problems) for split, problems in BY_SPLIT.items()} == SIZES
    for split, problems in BY_SPLIT.items():
        assert sum(problem.data["cooperation"] for problem in problems) == COOPERATION[split]
        assert {problem.data["grade"] for problem in problems} == {1, 2, 3, 4}
    assert sum(problem.data["grade"] == 1 for problem in BANK) >= 20


def test_the_named_bank_has_the_fifteen_and_its_splits_are_fixed() -> None:
    """Five names were published. The other ten are of HumanEval, as four of these five are."""
    ids = {split: [problem.id for problem in found] for split, found in NAMED.items()}
    assert ids == {
        "train": [
            *("prime_fib", "sort_by_digit_sum", "compare_one", "is_multiply_prime", "count_nums"),
            *("words_in_sentence", "make_palindrome", "total_match", "by_length"),
        ],
        "dev": ["x_or_y", "unique_digits", "simplify"],
        "test": ["encode_shift", "intersection", "get_odd_collatz"],
    }
    task = load_task("code_collaboration", options={"bank": "named"})
    assert {split: task.problems(split) for split in SPLITS} == NAMED
    assert load_task("code_collaboration").problems("train") == BY_SPLIT["train"]
    with pytest.raises(ConfigError, match=r"not read with options\.bank=named"):
        load_task("code_collaboration", options={"bank": "named", "path": str(NAMED_BANK)})
    with pytest.raises(ConfigError, match="name own, generated, humaneval, leetcode"):
        load_task("code_review", options={"bank": "named"})


def test_ids_are_unique_and_new() -> None:
    ids = [problem.id for problem in ALL]
    lines = (TASKS / "code_review" / "problems.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(set(ids)) == len(ids)
    assert not set(ids) & {json.loads(line)["id"] for line in lines}


def test_no_problem_is_a_near_copy_of_another() -> None:
    """No two have helpers and mains of one form, so neither do two of different splits."""
    forms = Counter((shape(p.data["gold_aux"]), shape(p.data["gold_main"])) for p in ALL)
    assert max(forms.values()) == 1
    assert len({p.prompt for p in ALL}) == len(ALL)


@each
def test_the_fields_are_whole(problem: Problem) -> None:
    data = problem.data
    kinds = {name: type(value) for name, value in data.items() if name != "other_mains"}
    assert kinds == KINDS
    assert problem.id == data["entry_point"]
    assert 1 <= data["grade"] <= 4
    assert data["gold_main"].startswith(data["signature"] + "\n")
    assert data["gold_aux"].startswith(data["aux_signature"] + "\n")
    assert data["signature"].startswith(f"def {problem.id}(")
    assert data["aux_signature"].startswith("def aux(")
    assert "aux" not in problem.prompt
    assert "aux(" in data["main_goal"]
    assert all(re.search(r"\.\"?$", data[name]) for name in ("aux_goal", "main_goal"))


@each
def test_the_tests_are_many_and_apart(problem: Problem) -> None:
    args = [json.dumps(args) for args, _ in problem.data["tests"]]
    assert 8 <= len(args) <= 14
    assert len({*args, json.dumps(problem.data["example"][0])}) == len(args) + 1
    commonest = Counter(json.dumps(want) for _, want in problem.data["tests"]).most_common(1)[0][1]
    assert commonest <= 0.6 * len(args)  # or a constant would do


@each
def test_gold_passes_and_stubs_cost_a_quarter(problem: Problem) -> None:
    tests = problem.data["tests"]
    gold = defined(problem.data["gold_aux"], "aux")
    assert passed(problem, gold, [*tests, problem.data["example"]]) == len(tests) + 1
    for name, stub in STUBS.items():
        assert passed(problem, stub, tests) <= 0.75 * len(tests), name


def test_other_mains_are_right_too() -> None:
    for problem in BANK:
        for main in problem.data.get("other_mains", ()):
            other = problem.model_copy(update={"data": {**problem.data, "gold_main": main}})
            test_gold_passes_and_stubs_cost_a_quarter(other)


@each
def test_main_uses_what_aux_returns(problem: Problem) -> None:
    (main,) = ast.parse(problem.data["gold_main"]).body
    nodes = list(ast.walk(main))
    calls = [n for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func) == "aux"]
    bare = [n.value for n in nodes if isinstance(n, ast.Expr)]
    thin = [n.value for n in nodes if isinstance(n, ast.Return)]
    assert calls
    assert not any(call in bare or call in thin for call in calls)
