"""The posts of trl-lib/tldr.

It is the TL;DR set of Stiennon et al. 2020 (arXiv:2009.01325), made from Reddit posts by Völske et
al. 2017. A row's `prompt` is `SUBREDDIT: ... TITLE: ... POST: ... TL;DR:`.
"""

from __future__ import annotations

import re

from orchestry import datasets

_POST = re.compile(
    r"\A\s*(?:SUBREDDIT:[^\n]*\s+)?(?:TITLE:(?P<title>[^\n]*)\s+)?(?:POST:)?(?P<post>.*?)"
    r"(?:TL;DR:)?\s*\Z",
    re.DOTALL,
)


def post(text: str) -> str:
    """Title and post, without the labels around them and the TL;DR that asks for the answer."""
    found = _POST.match(text.replace("\r\n", "\n"))
    parts = (found["title"], found["post"]) if found else (text,)
    return "\n".join(part.strip() for part in parts if part and part.strip())


POSTS = datasets.Texts(hub="trl-lib/tldr", field="prompt", prefix="tldr", cleaned=post)
