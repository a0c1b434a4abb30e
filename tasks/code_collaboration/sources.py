"""HumanEval and CoopHumanEval as problems of this task, from their hub or from a local copy.

HumanEval: Chen et al. 2021, arXiv:2107.03374, 164 datasets. CoopHumanEval: Liu et al. 2025,
arXiv:2508.04652, 82 datasets. Loading parses code and never runs it.
"""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from orchestry import Problem, Split, datasets, errors

HUB = {"humaneval": "openai/openai_humaneval", "coophumaneval": "OpenMLRL/CoopHumanEval"}
GRADE = 3  # the middle of 1 to 5: neither data set says how hard a problem is
AUX_GOAL = (
    "Write aux, which takes the same arguments as {name} and returns data that helps to compute "
    "its result: an intermediate value, a lookup table, a checked or sorted input."
)
MAIN_GOAL = "Write {name}, which solves the problem; call aux and build on what it returns."

_NEEDED = ("prompt", "test", "entry_point")
_UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
_NAMED = """\
_check = check


def check(candidate):
    global {name}
    {name} = candidate
    _check(candidate)"""


def problems(bank: str, path: Path | None, split: Split) -> Sequence[Problem]:
    """The problems of one split of `bank`, in the data set's order.

    `path` is a local .jsonl, .json (both also .gz) or .parquet file, or a folder written by
    `datasets.save_to_disk`; without it the hub is asked, or the cache that `datasets` keeps.
    Parquet, folders and the hub need the extra `datasets`. Raises ConfigError if the data set
    can't be reached, TaskError naming file and row where its content is not of the right shape.
    """
    whole = _all(bank, path.expanduser().absolute() if path else None)
    return tuple(problem for problem in whole if problem.split == split)


@lru_cache(maxsize=4)  # a run asks for its splits over and over
def _all(bank: str, path: Path | None) -> tuple[Problem, ...]:
    found: dict[str, Problem] = {}
    for where, row in datasets.rows(HUB[bank], path):
        problem = _problem(bank, where, row)
        if problem.id in found:
            raise errors.TaskError(f"{where}: a second row of the id '{problem.id}': drop one")
        found[problem.id] = problem
    if not found:
        raise errors.TaskError(f"{path or HUB[bank]} has no rows: give a whole copy of {HUB[bank]}")
    return tuple(found.values())


# --- one row to one problem ---------------------------------------------------------------------


def _problem(bank: str, where: str, row: Any) -> Problem:
    fields = _fields(where, row)
    name, prompt = fields["entry_point"], fields["prompt"]
    module = _parse(f"{where}, prompt", prompt)
    function = _function(where, module, name)
    description = _description(function)
    if not description:
        raise errors.TaskError(f"{where}: {name} has no docstring, so nothing says what to write")
    signature = _signature(name, function)
    preamble = _preamble(prompt, module, function)
    reference = _reference(where, signature, fields.get("canonical_solution"))
    problem_id = fields.get("task_id") or f"{bank}_{name}_{_digest(prompt)}"
    data = {
        "entry_point": name,
        "signature": signature,
        "preamble": preamble,
        "aux_signature": f"def aux({ast.unparse(function.args)}):",
        "aux_goal": AUX_GOAL.format(name=name),
        "main_goal": MAIN_GOAL.format(name=name),
        "check": _check(where, name, fields["test"], preamble, reference),
        "grade": GRADE,
    }
    clean = re.sub(r"[^\w.-]+", "_", problem_id, flags=re.ASCII)
    return Problem(
        id=clean,
        prompt=description,
        data={**data, "reference": reference} if reference else data,
        split=datasets.split_of(clean),
    )


def _fields(where: str, row: Any) -> dict[str, str]:
    """The row's texts; others, and empty ones, are left out."""
    if not isinstance(row, Mapping):
        raise errors.TaskError(f"{where} is no object: give one with {', '.join(_NEEDED)}")
    texts = {
        key: text.replace("\r\n", "\n")
        for key, text in row.items()
        if isinstance(text, str) and text.strip()
    }
    for key in _NEEDED:
        if key not in texts:
            raise errors.TaskError(
                f"{where} has no text in '{key}', only in {[*texts]}: is it a row of the data set "
                "that options.bank names?"
            )
    if not texts["entry_point"].isidentifier():
        raise errors.TaskError(f"{where}: entry_point {texts['entry_point']!r} names no function")
    return texts


def _parse(where: str, source: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings, the data set's own affair
            return ast.parse(source)
    except _UNPARSABLE as error:
        raise errors.TaskError(
            f"{where} is no Python ({errors.reason(error)}): mend the row, or leave it out"
        ) from None


def _function(where: str, module: ast.Module, name: str) -> ast.FunctionDef:
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    raise errors.TaskError(f"{where} defines no function {name}: mend the row, or leave it out")


def _description(function: ast.FunctionDef) -> str:
    """The docstring, which in HumanEval/115 stands behind an import."""
    spoken = [node for node in function.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    bare = ast.FunctionDef(
        name=function.name, args=function.args, body=spoken or [ast.Pass()], decorator_list=[]
    )
    return (ast.get_docstring(bare) or "").strip()


def _signature(name: str, function: ast.FunctionDef) -> str:
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return f"def {name}({ast.unparse(function.args)}){returns}:"


def _preamble(prompt: str, module: ast.Module, function: ast.FunctionDef) -> str:
    """What the prompt defines for the function: imports, constants, helpers as they are written."""
    before = module.body[: module.body.index(function)]
    pieces = [_source(prompt, node) for node in before if not isinstance(node, ast.Expr)]
    inner = [node for node in function.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return "\n".join([*pieces, *map(ast.unparse, inner)])


def _source(text: str, node: ast.stmt) -> str:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    segment = ast.get_source_segment(text, node) or ""
    return "\n".join([*(f"@{ast.unparse(decorator)}" for decorator in decorators), segment])


def _reference(where: str, signature: str, solution: str | None) -> str:
    """The whole function; the data set gives only its body."""
    if solution is None:
        return ""
    lines = solution.strip("\n").rstrip()
    reference = f"{signature}\n{lines}\n"
    _parse(f"{where}, canonical_solution", reference)
    return reference


def _check(where: str, name: str, test: str, preamble: str, reference: str) -> str:
    """The test with all that its names stand for, without METADATA and asserts of nothing.

    HumanEval/32, 38 and 50 call the prompt's helpers. HumanEval/33 compares with the function that
    is asked for, by name: that is the reference, or without one the candidate.
    """
    module = _parse(f"{where}, test", test)
    if len(_function(f"{where}, test", module, "check").args.args) != 1:
        raise errors.TaskError(f"{where}, test: check must take one argument, the candidate")
    kept = [_Telling().visit(node) for node in module.body if not _is_metadata(node)]
    pieces = [preamble, *map(ast.unparse, kept)]
    if any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(module)):
        pieces += [reference or _NAMED.format(name=name)]
    return "\n\n".join(filter(None, pieces)) + "\n"


class _Telling(ast.NodeTransformer):
    """Drops `assert True, "..."`, of which HumanEval has many, as every candidate passes it."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        vacuous = isinstance(node.test, ast.Constant) and node.test.value
        return ast.copy_location(ast.Pass(), node) if vacuous else node


def _is_metadata(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "METADATA" for target in node.targets
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
