"""A code reward in the published manner, to see what the tricks of `hacks` would earn.

Written from a description of such rewards, in our own words; nobody's code. Both functions must be
named, the text must parse, the tests run in the process of the reward, and whoever writes `aux(`
works together. benchmarks.quality.hacks runs this file in a process of its own, unconfined.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any


def published(
    helper: str, main: str, entry_point: str, tests: Sequence[tuple[Sequence[Any], Any]]
) -> list[float]:
    """Structure, syntax, tests and cooperation, each in [0, 1]; a test is (arguments, result)."""
    program = f"{helper}\n\n{main}"
    structure = 0.5 * ("def aux(" in helper) + 0.5 * (f"def {entry_point}(" in main)
    cooperation = float("aux(" in main)
    return [structure, parses(program), pass_rate(program, entry_point, tests), cooperation]


def parses(program: str) -> float:
    """1 for valid Python."""
    try:
        ast.parse(program)
    except SyntaxError:
        return 0.0
    return 1.0


def pass_rate(program: str, entry_point: str, tests: Sequence[tuple[Sequence[Any], Any]]) -> float:
    """The share of tests whose result equals the expected one."""
    names: dict[str, Any] = {}
    passed = 0
    try:
        exec(program, names)
    except Exception:
        return 0.0
    for args, expected in tests:
        try:
            passed += bool(equal(names[entry_point](*args), expected))
        except Exception:
            continue
    return passed / len(tests)


def equal(value: Any, expected: Any) -> bool:
    """As an assert would have it."""
    return bool(value == expected)
