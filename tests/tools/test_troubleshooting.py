"""The guide to what goes wrong quotes messages that the code really has."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
QUOTED = [
    line
    for block in re.findall(r"^```text\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
ASKED = (
    "GPU is not found",
    "Memory runs out",
    "Rate limits",
    "budget is spent",
    "don't cooperate",
    "Training is slow",
    "machine is gone",
    "Installation fails",
    "key is refused",
    "sandbox can't confine",
    "server is away",
    "no usable form",
)


@functools.cache
def _texts() -> str:
    """All texts in the code, one per line; a blank line's worth for each value put into one."""
    found = list[str]()
    for path in sorted((ROOT / "orchestry").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else "\0" for p in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(text.replace("\n", " ") for text in found)


def _is_said(line: str) -> bool:
    """Whether one text of the code has the line, or each of its longer parts is in some text:
    a message may be put together from several."""
    parts = [part.strip(" ()$:'`") for part in line.split("...")]
    return all(part in _texts() for part in parts if len(part) > 3) and any(
        len(part) > 13 for part in parts
    )


@pytest.mark.parametrize("line", QUOTED)
def test_a_quoted_message_is_in_the_code(line: str) -> None:
    assert _is_said(line)


def test_a_message_that_nobody_says_is_found() -> None:
    assert not _is_said("device '...' is not there: choose auto or cpu")
    assert not _is_said("... ...")


def test_every_problem_says_what_you_see_why_and_what_to_do() -> None:
    parts = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:-1]  # the last: where to report
    for part in parts:
        head = part.partition("\n")[0]
        assert "```text\n" in part, head
        assert "\nWhy: " in part or "These are no errors" in part, head
        assert "```bash\n" in part, head
    heads = [part.partition("\n")[0] for part in parts]
    assert all(any(asked in head for head in heads) for asked in ASKED)
