"""Pairs of codes of known worth: the gold one, and what a team does that does not cooperate."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from orchestry import Problem

from .program import AUX, HELPERS

Pair = tuple[str, str]
"""The helper's code and main's."""
Codes = tuple[str, ...]
"""The code of each helper and main's."""


def samples(problem: Problem, helpers: int = 1) -> list[Codes]:
    """The best first; none where the problem has no gold."""
    data = problem.data
    if "gold_main" not in data:
        return []
    if helpers > 1:
        return _of_several(data, HELPERS[:helpers])
    helper, main, signature = data["gold_aux"], data["gold_main"], data["signature"]
    own = f"{AUX}_of_main"
    return [
        (helper, main),
        (helper, f"{_renamed(helper, {AUX: own})}\n\n{AUX} = {own}\n\n{main}"),
        wrapped(helper, main, data["entry_point"]),
        (helper, f"{signature}\n    return {AUX}"),
        ("", main),
        ("", ""),
    ]


def _of_several(data: Mapping[str, Any], names: Sequence[str]) -> list[Codes]:
    """The gold, main with its own copy of the last helper's function, and less and less code."""
    codes = tuple(data[f"gold_{name}"] for name in names)
    main, nothing = data["gold_main"], ("",) * len(names)
    return [
        (*codes, main),
        (*codes, f"{codes[-1]}\n\n{main}"),
        (*codes[:-1], "", main),
        (*nothing, main),
        (*nothing, ""),
    ]


def wrapped(helper: str, main: str, entry_point: str) -> Pair:
    """The helper does all the work, and main only hands its arguments on."""
    inner = f"{AUX}_of_{entry_point}"
    done = [_renamed(code, {AUX: inner, entry_point: AUX}) for code in (helper, main)]
    function = next(node for node in ast.parse(main).body if isinstance(node, ast.FunctionDef))
    arguments = ", ".join(argument.arg for argument in function.args.args)
    head = f"def {entry_point}({ast.unparse(function.args)}):"
    return "\n\n".join(done), f"{head}\n    return {AUX}({arguments})"


def _renamed(code: str, names: Mapping[str, str]) -> str:
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
        elif isinstance(node, ast.FunctionDef):
            node.name = names.get(node.name, node.name)
    return ast.unparse(tree)
