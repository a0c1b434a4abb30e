"""Whether a candidate's answer is the expected one. Runs on the host, never in the child."""

from __future__ import annotations

import math
from typing import Any

_SIZED = frozenset((list, tuple, dict, set, frozenset))


def compare(expected: Any, value: Any, tolerance: float = 1e-9) -> bool:
    """Equality of plain values with exact built-in types, recursively.

    Floats agree within `tolerance`, relative or absolute, and NaN equals NaN. An int counts where
    a float is expected, if the numbers agree; a float never counts where an int is expected, a
    bool never as a number, a tuple never as a list. Inside sets and keys floats must be exact.
    """
    kind = type(expected)
    if kind is float:
        return type(value) in (float, int) and _close(expected, value, tolerance)
    if type(value) is not kind:
        return False
    if kind in _SIZED and len(expected) != len(value):  # before all of a stranger's are looked at
        return False
    if kind in (list, tuple):
        pairs = zip(expected, value, strict=False)
        return all(compare(a, b, tolerance) for a, b in pairs)
    if kind is dict:
        wanted = {_typed(key): item for key, item in expected.items()}
        found = {_typed(key): item for key, item in value.items()}
        same_keys = wanted.keys() == found.keys()
        return same_keys and all(compare(wanted[k], found[k], tolerance) for k in wanted)
    if kind in (set, frozenset):
        return {_typed(item) for item in expected} == {_typed(item) for item in value}
    return bool(expected == value)


def _close(expected: float, value: float, tolerance: float) -> bool:
    if math.isnan(expected):
        return math.isnan(value)
    try:
        return math.isclose(expected, value, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:  # an int beyond every float
        return False


def _typed(item: Any) -> Any:
    """A hashable value with its types, so that 1, 1.0 and True stay apart."""
    if type(item) is tuple:
        return (tuple, tuple(_typed(inner) for inner in item))
    if type(item) is frozenset:
        return (frozenset, frozenset(_typed(inner) for inner in item))
    return (type(item), "nan" if item != item else item)
