"""Two of the reward's three parts, each a number in [0, 1]. Pure; the tests have already been run.

The third, quality, is the share of tests passed beyond chance (`beyond_chance`): what the
best constant answer would pass counts for nothing, so `return True` is worth 0 and not a half.
"""

from __future__ import annotations

import ast
import keyword
import re

from orchestry import dump_code, parse_code

FREE_SIZE, WORTHLESS_SIZE = 1.5, 5.0
"""Size relative to the reference up to which code is brief, and from which brevity is 0."""
MENDED = 0.5
"""What a mended draft may earn: the least that one that was right and stayed right does."""
MIN_REVIEW_WORDS = 5
_APPROVAL = re.compile(r"\W*(?:lgtm|looks good to me)\b", re.IGNORECASE)
_CHARS_A_NODE = 8
_ENGLISH = frozenset({"a", "i", *keyword.kwlist})
"""Words of code that are words of English too: to use them is not to name anything."""
_FENCED = re.compile(r"^[ \t]*(```+|~~~+).*?(?:^[ \t]*\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
"""A fenced block; the token limit may have cut off its end."""


def collaboration(before: float, after: float, review: str, old: str, new: str) -> float:
    """Whether the refactorer acted on the review, and to what effect.

    `before` and `after` are the quality of the writer's code `old` and of the final code `new`.
    Half is the effect alone; a quarter each scales it by a review that is right, and by a
    refactorer that does as the review says. No effect is worth nothing. Whatever the review, a
    draft that solves the problem and is kept solved earns no less than one that had to be mended,
    so that to fail on purpose never pays where the writer can solve the problem.
    """
    right = is_approval(review) if before == 1.0 else is_concrete(review, old)
    followed = is_approval(review) != _differ(old, new)
    return effect(before, after) * (0.5 + 0.25 * right + 0.25 * followed)


def effect(before: float, after: float) -> float:
    """For perfect code, whether it stayed so; else half the share of what was missing, gained."""
    if before == 1.0:
        return float(after == 1.0)
    return MENDED * max(0.0, (after - before) / (1.0 - before))


def efficiency(quality: float, code: str, reference: str) -> float:
    """Quality times brevity: 1 up to 1.5 times the size of the reference, 0 from 5 times on.
    Without a reference, quality."""
    if not reference:
        return quality
    ratio = size(code) / size(reference)
    brevity = (WORTHLESS_SIZE - ratio) / (WORTHLESS_SIZE - FREE_SIZE)
    return quality * min(1.0, max(0.0, brevity))


def size(code: str) -> float:
    """Nodes of the syntax tree without docstrings, long strings by length; inf for no code."""
    tree = parse_code(code)
    if tree is None or not tree.body:
        return float("inf")
    return sum(_weight(node) for node in ast.walk(tree))


def is_approval(review: str) -> bool:
    """Whether the review opens with LGTM."""
    return _APPROVAL.match(review) is not None


def is_concrete(review: str, code: str) -> bool:
    """Whether the review objects, in words of its own, to something that the code names."""
    said, named = _words(_FENCED.sub("", review)), _words(code)
    points = said & (named - _ENGLISH)
    return not is_approval(review) and len(said - named) >= MIN_REVIEW_WORDS and bool(points)


def _words(text: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Za-z_]\w*", text)}


def _weight(node: ast.AST) -> int:
    """A node's size; the docstring of a function is free."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
        return 1 - sum(_weight(inner) for inner in ast.walk(node.body[0]))
    if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
        return 1 + len(node.value) // _CHARS_A_NODE
    return 1


def _differ(old: str, new: str) -> bool:
    """Whether two codes differ in more than layout and comments."""
    before, after = (tree and dump_code(tree) for tree in map(parse_code, (old, new)))
    if before is None or after is None:
        return old.strip() != new.strip()
    return before != after
