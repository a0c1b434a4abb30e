"""What the three programs earn: a short last answer, in the post's own words."""

from __future__ import annotations

import re
from typing import Any

SHORT, LONG = 20, 60
"""Words: all of the reward for brevity up to the first, none from the second on."""


def reward(problem: dict[str, Any], text: str) -> dict[str, Any]:
    """The last line that each program prints."""
    words, post = (re.findall(r"\w+", one.lower()) for one in (text, problem["prompt"]))
    known = sum(word in post for word in words) / max(1, len(words))
    brief = max(0.0, min(1.0, (LONG - len(words)) / (LONG - SHORT)))
    return {"reward": brief * known, "feedback": f"{len(words)} words, {known:.0%} of the post's."}
