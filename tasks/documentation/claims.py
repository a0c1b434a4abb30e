"""What a section says that the module's syntax tree can confirm or deny. Pure.

Owed: every exception that a function raises by name, and that a value comes back where one does.
Denied: an exception that it neither raises nor is shown to raise, a value where none comes back, a
parameter that it does not have, and kinds of values that its annotations contradict.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .module import KINDS, Name
from .section import Section

_EXCEPTION = re.compile(r"\b[A-Z]\w*(?:Error|Exception|Warning|Exit|Iteration|Interrupt)\b")
_RETURNS = re.compile(r"\b(?:returns?|returned|returning|yields?|gives?|whether|results?)\b", re.I)
_CLAIMS = re.compile(r"\b(?:returns?|yields?)\b(?!\s+(?:none|nothing|to\b|early))", re.I)
_KIND = re.compile(r"\b(?:returns?|yields?)\s+(?:an?|the)?\s*`?(\w+)\b", re.I)


@dataclass(frozen=True, slots=True)
class Claims:
    """How many claims hold, and what is wrong or lacking, in words."""

    true: int
    lacking: tuple[str, ...]
    false: tuple[str, ...]

    @property
    def share(self) -> float:
        """The share of what was owed or said that holds; 1 if nothing was."""
        total = self.true + len(self.lacking) + len(self.false)
        return self.true / total if total else 1.0


def check(section: Section, name: Name, shown: frozenset[str]) -> Claims:
    """The claims of a section; `shown` are exceptions that its examples were seen to raise."""
    named = frozenset(_EXCEPTION.findall(section.text))
    said = bool(_RETURNS.search(section.text))
    owes = name.returns and name.kind in ("function", "method")
    lacking = [f"does not name {error}" for error in sorted(name.raises - named)]
    lacking += ["does not say what it returns"] if owes and not said else []
    false = [f"is said to raise {error}" for error in sorted(named - name.raises - shown)]
    false += _denied(section, name)
    true = len(name.raises & named) + (owes and said)
    return Claims(true, tuple(lacking), tuple(false))


def _denied(section: Section, name: Name) -> Iterator[str]:
    silent = name.kind in ("function", "method") and not name.returns
    if silent and _CLAIMS.search(section.description):
        yield "is said to return a value, and returns none"
    yield from (f"has no parameter {param}" for param in section.unknown)
    annotated = dict(name.param_kinds)
    for param, kind in section.kinds.items():
        if annotated.get(param, kind) != kind:
            yield f"takes {param} as {annotated[param]}, not {kind}"
    for word in _KIND.findall(section.description):
        kind = KINDS.get(word.lower(), name.result)
        if name.result and kind != name.result:
            yield f"returns {name.result}, not {kind}"
