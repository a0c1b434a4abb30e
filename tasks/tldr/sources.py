"""The posts: this task's own, or those of trl-lib/tldr.

trl-lib/tldr is the TL;DR set of Stiennon et al. 2020 (arXiv:2009.01325), made from Reddit posts by
Völske et al. 2017. A row's `prompt` is `SUBREDDIT: ... TITLE: ... POST: ... TL;DR:`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from orchestry import Problem, Split, errors, rows

HUB = "trl-lib/tldr"
FIELD = "prompt"
_POST = re.compile(
    r"\A\s*(?:SUBREDDIT:[^\n]*\s+)?(?:TITLE:(?P<title>[^\n]*)\s+)?(?:POST:)?(?P<post>.*?)"
    r"(?:TL;DR:)?\s*\Z",
    re.DOTALL,
)


def problems(path: Path | None, most: int, split: Split) -> Sequence[Problem]:
    """The problems of one split among the first `most` rows, in the data set's order.

    A post that comes twice is one problem. The splits are ours, by a hash of the post. Raises
    ConfigError where the data set can't be reached, TaskError naming file and row where its
    content is not of the right shape.
    """
    whole = _all(path.expanduser().absolute() if path else None, most)
    return tuple(problem for problem in whole if problem.split == split)


@lru_cache(maxsize=4)  # a run asks for its splits over and over
def _all(path: Path | None, most: int) -> tuple[Problem, ...]:
    found: dict[str, Problem] = {}
    for where, row in islice(rows.rows(HUB, path), most):
        problem = _problem(where, row)
        found.setdefault(problem.id, problem)
    if not found:
        raise errors.TaskError(f"{path or HUB} has no rows: give a whole copy of {HUB}")
    return tuple(found.values())


def _problem(where: str, row: Any) -> Problem:
    text = row.get(FIELD) if isinstance(row, Mapping) else None
    if not isinstance(text, str):
        raise errors.TaskError(
            f"{where} has no text in '{FIELD}': is it a row of {HUB}, which options.bank names?"
        )
    post = _post(text)
    if not post:
        raise errors.TaskError(f"{where} has an empty post in '{FIELD}': leave the row out")
    problem_id = f"tldr_{hashlib.sha256(post.encode()).hexdigest()[:12]}"
    return Problem(id=problem_id, prompt=post, split=rows.split_of(problem_id))


def _post(text: str) -> str:
    """Title and post, without the labels around them and the TL;DR that asks for the answer."""
    found = _POST.match(text.replace("\r\n", "\n"))
    parts = (found["title"], found["post"]) if found else (text,)
    return "\n".join(part.strip() for part in parts if part and part.strip())
