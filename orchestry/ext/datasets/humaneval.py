"""HumanEval and CoopHumanEval: a row of a data set as a function to write, with its tests.

HumanEval: Chen et al. 2021, arXiv:2107.03374, 164 functions. CoopHumanEval: Liu et al. 2025,
arXiv:2508.04652, 82 functions. Loading parses code and never runs it.
"""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

from orchestry.core import errors
from orchestry.task.functions import Function, FunctionSet

_NEEDED = ("prompt", "test", "entry_point")
_UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


def function(bank: str, where: str, row: Any) -> Function:
    """One row as a function; `where` is its place, for messages.

    Raises TaskError if the row has another form.
    """
    fields = _fields(where, row)
    name, prompt = fields["entry_point"], fields["prompt"]
    module = _parse(f"{where}, prompt", prompt)
    node = _function(where, module, name)
    description = _description(node)
    if not description:
        raise errors.TaskError(f"{where}: {name} has no docstring, so nothing says what to write")
    signature = _signature(name, node)
    given = fields.get("task_id") or f"{bank}_{name}_{_digest(prompt)}"
    return Function(
        id=re.sub(r"[^\w.-]+", "_", given, flags=re.ASCII),
        name=name,
        description=description,
        parameters=ast.unparse(node.args),
        signature=signature,
        preamble=_preamble(prompt, module, node),
        reference=_reference(where, signature, fields.get("canonical_solution")),
        tests=_tests(where, fields["test"]),
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


def _tests(where: str, test: str) -> tuple[ast.stmt, ...]:
    module = _parse(f"{where}, test", test)
    if len(_function(f"{where}, test", module, "check").args.args) != 1:
        raise errors.TaskError(f"{where}, test: check must take one argument, the candidate")
    return tuple(node for node in module.body if not _is_metadata(node))


def _is_metadata(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "METADATA" for target in node.targets
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


HUMANEVAL = FunctionSet("openai/openai_humaneval", partial(function, "humaneval"))
COOPHUMANEVAL = FunctionSet("OpenMLRL/CoopHumanEval", partial(function, "coophumaneval"))
