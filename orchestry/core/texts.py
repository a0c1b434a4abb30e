"""What is asked and answered, in the form that all files and keys take."""

from __future__ import annotations

from orchestry.core.seeds import derive
from orchestry.core.types import Completion, Request

MAX_CHARS = 200_000
"""A longer answer is cut: no max_tokens that a run can ask for makes one."""


def sample_of(request: Request, number: int) -> Request:
    """The number-th sample from the request's own on."""
    index = request.sample_index + number
    return request.model_copy(update={"sample_index": index, "seed": derive(request.seed, index)})


def clean(completion: Completion, max_chars: int = MAX_CHARS) -> Completion:
    """The answer as text that every file takes: valid Unicode, and of bounded length."""
    read = {name: getattr(completion, name) for name in ("text", "model", "stop")}
    fixed = {name: good for name, raw in read.items() if (good := utf8(raw)) != raw}
    text = fixed.get("text", completion.text)
    if len(text) > max_chars:
        fixed |= {"text": text[:max_chars], "stop": "cut"}
    return completion.model_copy(update=fixed) if fixed else completion


def utf8(text: str) -> str:
    """Surrogates that stand alone, which JSON can carry and UTF-8 can't, become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
