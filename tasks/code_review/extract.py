"""Finds the code in a model's answer: fenced, fenced but cut off, or bare between prose."""

from __future__ import annotations

import re
import textwrap

_FENCE = re.compile(r"\s*(```+|~~~+)")
_OPENING = re.compile(r"(?:def|class|import|from|async def)\s|@\w")
_CODE = re.compile(
    r"(?:def|class|import|from|async def|if|for|while|try|with|return)\b.*|@\w.*|#.*"
)
_SETTING = re.compile(r"[A-Za-z_]\w*(?:\[.*\])?\s*=[^=]")


def extract_code(text: str, entry_point: str) -> str:
    """The code of an answer, or '' where there is none.

    Of several fenced blocks the last one that defines `entry_point` counts, else the last one. A
    fence that the token limit cut off ends with the text.
    """
    blocks = fenced_blocks(text) or [bare_code(text)]
    defines = re.compile(rf"^\s*(?:async\s+)?def\s+{re.escape(entry_point)}\b", re.MULTILINE)
    chosen = [block for block in blocks if defines.search(block)] or blocks
    return chosen[-1].strip("\n")


def fenced_blocks(text: str) -> list[str]:
    """What stands between Markdown fences, without its common indent; blank blocks left out."""
    blocks = (textwrap.dedent("\n".join(lines)) for fenced, lines in _stretches(text) if fenced)
    return [block for block in blocks if block.strip()]


def prose(text: str) -> str:
    """An answer without its fenced blocks."""
    return "\n".join(line for fenced, lines in _stretches(text) if not fenced for line in lines)


def bare_code(text: str) -> str:
    """The lines from the first definition or import up to the next line of prose."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if _OPENING.match(line)), len(lines))
    code = []
    for line in lines[start:]:
        inside = not line.strip() or line[0] in " \t)]}"
        if not inside and not _CODE.match(line) and not _SETTING.match(line):
            break
        code.append(line)
    return "\n".join(code).rstrip()


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
