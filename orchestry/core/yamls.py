"""YAML as plain data: whatever a file holds, what is wrong with it is one ValueError."""

from __future__ import annotations

from typing import Any

import yaml

MOST = 1_000_000
"""Values that a document may come to, each alias counted where it stands."""


def load(text: str) -> Any:
    """The data of a document; raises ValueError, in one line, for one that is no YAML or that its
    aliases make endless."""
    try:
        data = yaml.safe_load(text)
        _count(data, 0)
    except RecursionError:
        raise ValueError("it is nested too deeply, or an alias lies in its own anchor") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ValueError(" ".join(str(error).split())[:300]) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError):
        # PyYAML's own, of a tag that does not fit its value, such as `!!bool maybe`
        raise ValueError("a tag such as !!bool does not fit its value") from None
    return data


def _count(value: Any, seen: int) -> int:
    """Values seen after this one, and those in it."""
    seen += 1
    if seen > MOST:
        raise ValueError(f"it comes to more than {MOST:,} values")
    inner = value.items() if isinstance(value, dict) else ()
    for each in [x for pair in inner for x in pair] or (value if isinstance(value, list) else ()):
        seen = _count(each, seen)
    return seen
