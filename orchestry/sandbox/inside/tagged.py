"""Tagged JSON: plain Python values over a pipe, with their exact built-in types.

JSON scalars stay unchanged; everything else is a list of a tag and its content, so that list,
tuple, set, frozenset, dict with any keys, bytes and huge integers stay different.
"""

from __future__ import annotations

import enum
import json
import marshal
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Any

MAX_DEPTH = 100
MAX_ALIKE = 16
"""Maximum items with equal hash in a set or dict. Each is compared with all others, so a hostile
set with many would take hours to build."""
BIG = 1 << 53
_NO_REFERENCES = 2  # marshal's version that every Python reads, and that keeps no object twice
PLAIN = b'{"index":%d,"verdict":"value","value":%b}'
"""The most frequent record: a call's number, and its value."""
_NAMES = {"index", "verdict", "value"}
_SCALARS = frozenset((int, float, str, bool, type(None)))
_KIN: dict[type, type] = {Counter: dict, OrderedDict: dict, defaultdict: dict}
"""Standard-library types that equal a plain dict."""
_PLAIN: tuple[tuple[Any, Any], ...] = (
    (int, int.__index__),
    (str, str.__str__),
    (float, float.__float__),
    (tuple, tuple),
)
"""Types that an enumeration's member or a named tuple may equal, and how to get that value."""
_SEQUENCES: dict[type, str] = {list: "l", tuple: "t", set: "s", frozenset: "z"}
_MAKERS: dict[str, Any] = {tag: kind for kind, tag in _SEQUENCES.items()}


class Untaggable(ValueError):
    """A value that is not plain data, or text that is not tagged JSON."""


encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().decode


def dumps(value: Any, *, kin: bool = False) -> bytes:
    """One value as ASCII JSON. Raises Untaggable for other types, subclasses and deep nesting.

    With `kin`, the standard library's dict types count as dicts, named tuples as tuples, and
    members of IntEnum, StrEnum and their kind as their values, except where the class has its own
    `__eq__`.
    """
    if type(value) is int and -BIG < value < BIG:  # the most frequent value of all
        return b"%d" % value
    return encode(_tag(value, MAX_DEPTH, _KIN if kin else {})).encode("ascii")


def pack(value: Any) -> bytes:
    """Data for `marshal.loads` in a process that trusts the writer; faster than `loads`.

    Raises Untaggable if `dumps` does.
    """
    if type(value) is not tuple or not _SCALARS.issuperset(map(type, value)):
        _tag(value, MAX_DEPTH, {})
    return marshal.dumps(value, _NO_REFERENCES)


def loads(data: bytes) -> Any:
    """Reads a value of `dumps`. Raises Untaggable for anything else, also hostile input."""
    return untag(parsed(data))


def dumps_record(record: dict[str, Any]) -> bytes:
    """A call's record as ASCII JSON: plain texts and numbers; `value` is already tagged."""
    value: bytes | None = record.get("value")
    if record.keys() == _NAMES and record["verdict"] == "value":
        return PLAIN % (record["index"], value)
    if value is None:
        return encode(record).encode("ascii")
    rest = {name: item for name, item in record.items() if name != "value"}
    return encode(rest).encode("ascii")[:-1] + b',"value":' + value + b"}"


def loads_record(data: bytes) -> dict[str, Any]:
    """An unchecked record; `untag` reads its `value`.

    Raises Untaggable for anything except a JSON object.
    """
    record = parsed(data)
    if type(record) is not dict:
        raise Untaggable("no JSON object")
    return record


def untag(raw: Any) -> Any:
    """The value of parsed tagged JSON. Raises Untaggable for anything else, also hostile input."""
    try:
        return _untag(raw, MAX_DEPTH)
    except Untaggable:
        raise
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Untaggable(f"no tagged JSON: {type(error).__name__}") from None


def parsed(data: bytes) -> Any:
    """Unchecked JSON. Raises Untaggable."""
    try:
        return _decode(str(data, "ascii"))
    except (ValueError, RecursionError) as error:
        raise Untaggable(f"no JSON: {type(error).__name__}") from None


def _tag(value: Any, depth: int, kin: dict[type, type]) -> Any:
    kind = kin.get(type(value), type(value))
    if value is None or kind is bool or kind is float or kind is str:
        return value
    if kind is int:  # hex: long decimals are refused by the interpreter
        return value if -BIG < value < BIG else ["i", hex(value)]
    if kind is bytes:
        return ["b", value.hex()]
    if depth == 0:
        raise Untaggable(f"nested deeper than {MAX_DEPTH} levels")
    if kind in _SEQUENCES:
        return [_SEQUENCES[kind], [_tag(item, depth - 1, kin) for item in value]]
    if kind is dict:
        pairs = dict.items(value)
        return ["d", [[_tag(k, depth - 1, kin), _tag(v, depth - 1, kin)] for k, v in pairs]]
    member = kin and (isinstance(kind, enum.EnumType) or hasattr(kind, "_fields"))
    if member and (plain := as_plain(value)) is not value:
        return _tag(plain, depth, kin)
    raise Untaggable(f"a {kind.__name__} is no plain data")


def as_plain(value: Any) -> Any:
    """The plain value that a member or a named tuple equals, if it equals one; else itself."""
    for plain, valued in _PLAIN:
        if isinstance(value, plain) and type(value).__eq__ is plain.__eq__:
            return valued(value)
    return value


def _untag(raw: Any, depth: int) -> Any:
    if not isinstance(raw, list):
        if isinstance(raw, dict):
            raise Untaggable("a bare object")
        return raw
    tag, content = raw
    if tag == "i":
        return int(content, 16)
    if tag == "b":
        return bytes.fromhex(content)
    if depth == 0:
        raise Untaggable(f"nested deeper than {MAX_DEPTH} levels")
    if tag == "d":
        pairs = [(_untag(k, depth - 1), _untag(v, depth - 1)) for k, v in content]
        check_hashes([key for key, _ in pairs])
        return dict(pairs)
    items = [item if type(item) in _SCALARS else _untag(item, depth - 1) for item in content]
    if tag in ("s", "z"):
        check_hashes(items)
    return _MAKERS[tag](items)


def check_hashes(items: Sequence[Any]) -> None:
    """Raises Untaggable for too many items of one hash."""
    alike: dict[int, int] = {}
    for item in items:
        found = alike[hash(item)] = alike.get(hash(item), 0) + 1
        if found > MAX_ALIKE:
            raise Untaggable("too many items of one hash")
