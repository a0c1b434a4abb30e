"""Random instances of a JSON schema: what a server that enforces it could answer.

For the subset that structured requests use: objects whose every property is there, arrays,
strings, integers, numbers, booleans, null, enum, const, anyOf, and references to `$defs`. Left
out: patterns, formats, multiples, exclusive bounds and optional properties.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from orchestry.core.errors import ProviderError

_TEXT = "the answer does what was asked and says why it works so one case is still missing"
_WORDS = _TEXT.split()
_MOST_ITEMS = 4
_MOST_WORDS = 12
_SPREAD = 100
_KNOWN = {
    *("type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
    *("minLength", "maxLength", "minimum", "maximum", "enum", "const", "anyOf", "$ref", "$defs"),
    *("title", "description", "default", "examples", "$schema"),
}


def instance(schema: Mapping[str, Any], rng: random.Random) -> Any:
    """A JSON value that the schema allows, drawn from `rng`.

    Raises ProviderError, permanent, where the schema uses what the module leaves out.
    """
    return _draw(schema, schema, rng)


def _draw(schema: Mapping[str, Any], root: Mapping[str, Any], rng: random.Random) -> Any:
    if strange := sorted(set(schema) - _KNOWN):
        raise _unknown(f"keyword '{strange[0]}'")
    if "$ref" in schema:
        return _draw(_find(str(schema["$ref"]), root), root, rng)
    if "const" in schema:
        return schema["const"]
    for choices in ("enum", "anyOf"):
        if choices in schema:
            chosen = rng.choice(list(schema[choices]))
            return chosen if choices == "enum" else _draw(chosen, root, rng)
    kind = schema.get("type")
    if kind == "object":
        return {name: _draw(part, root, rng) for name, part in schema["properties"].items()}
    if kind == "array":
        least, most = _span(schema, "Items", _MOST_ITEMS)
        return [_draw(schema["items"], root, rng) for _ in range(rng.randint(least, most))]
    return _plain(kind, schema, rng)


def _plain(kind: object, schema: Mapping[str, Any], rng: random.Random) -> Any:
    if kind == "string":
        return _text(schema, rng)
    if kind == "integer":
        return rng.randint(*_range(schema))
    if kind == "number":
        return rng.uniform(*_range(schema))
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    raise _unknown(f"type {kind!r}")


def _text(schema: Mapping[str, Any], rng: random.Random) -> str:
    least, most = _span(schema, "Length", 1 << 20)
    words = rng.choices(_WORDS, k=rng.randint(1, _MOST_WORDS))
    text = " ".join(words)[:most]
    return text.ljust(least, ".")


def _span(schema: Mapping[str, Any], what: str, most: int) -> tuple[int, int]:
    """The least and the most of `minItems`, `maxItems` or the lengths; `most` where unbounded."""
    least = int(schema.get(f"min{what}", 0))
    return least, max(least, int(schema.get(f"max{what}", most)))


def _range(schema: Mapping[str, Any]) -> tuple[Any, Any]:
    """`minimum` and `maximum`; where one is missing, _SPREAD from the other, from 0 on."""
    low = schema.get("minimum", min(0, schema.get("maximum", 0) - _SPREAD))
    return low, schema.get("maximum", max(0, low) + _SPREAD)


def _find(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    name = reference.removeprefix("#/$defs/")
    found = root.get("$defs", {}).get(name)
    if not isinstance(found, Mapping):
        raise _unknown(f"reference '{reference}'")
    return found


def _unknown(what: str) -> ProviderError:
    return ProviderError(
        f"the fake provider can't make an answer of a JSON schema with {what}: it knows "
        f"{', '.join(sorted(_KNOWN))}; give the answer in a script (provider.fake.script)",
        transient=False,
        billed=False,
    )
