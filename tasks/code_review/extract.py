"""Finds the code in a model's answer: fenced, fenced but cut off, or bare between prose."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Sequence

_FENCE = re.compile(r"\s*(```+|~~~+)")
_OPENING = re.compile(r"(?:def|class|import|from|async def)\s|@\w")
_CODE = re.compile(
    r"(?:def|class|import|from|async def|if|for|while|try|with|return)\b.*|@\w.*|#.*"
)
_SETTING = re.compile(r"[A-Za-z_]\w*(?:\[.*\])?\s*=[^=]")


def extract_code(text: str, entry_point: str) -> str:
    """The code of an answer, or '' where there is none.

    Of several pieces those that define `entry_point` go first, then those that parse, then the
    last. A fence that the token limit cut off ends with the text; code before a stray closing
    fence counts as bare.
    """
    pieces = [
        textwrap.dedent("\n".join(lines)) if fenced else bare_code(lines)
        for fenced, lines in _stretches(text)
    ]
    defines = re.compile(rf"^\s*(?:async\s+)?def\s+{re.escape(entry_point)}\b", re.MULTILINE)
    ranked = [(bool(defines.search(p)), parse(p) is not None, i) for i, p in enumerate(pieces)]
    best = max((rank for rank in ranked if pieces[rank[2]].strip()), default=None)
    return pieces[best[2]].strip("\n") if best else ""


def parse(code: str) -> ast.Module | None:
    """The syntax tree, or None for what is no Python, however odd."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def bare_code(lines: Sequence[str]) -> str:
    """The lines from the first definition or import up to the next line of prose."""
    start = next((i for i, line in enumerate(lines) if _OPENING.match(line)), len(lines))
    code = []
    for line in lines[start:]:
        inside = not line.strip() or line[0] in " \t)]}"
        if not inside and not _CODE.match(line) and not _SETTING.match(line):
            break
        code.append(line)
    return "\n".join(code).rstrip()


def prose(text: str) -> str:
    """An answer without its fenced blocks."""
    return "\n".join(line for fenced, lines in _stretches(text) if not fenced for line in lines)


def _stretches(text: str) -> list[tuple[bool, list[str]]]:
    """The lines of a text in order, as stretches inside and outside of fences."""
    stretches: list[tuple[bool, list[str]]] = [(False, [])]
    fence = ""
    for line in text.splitlines():
        mark = _FENCE.match(line)
        if not fence and mark:
            fence = mark[1]
            stretches.append((True, []))
        elif fence and line.strip() == fence:
            fence = ""
            stretches.append((False, []))
        else:
            stretches[-1][1].append(line)
    return stretches
